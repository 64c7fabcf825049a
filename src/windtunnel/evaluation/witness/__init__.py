"""The witness: a short attack of our own on what a run left unbroken, independent of the attacks of the run."""
