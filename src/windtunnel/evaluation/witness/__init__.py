"""The witness: a short attack of our own on a run's survivors, independent of the run's attacks."""
