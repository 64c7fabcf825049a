"""The cost of the witness: a fifth of the passes of the run's attacks, or 20 samples x 200 passes where that is more."""

PASSES_AT_LEAST = 20 * 200
SHARE_OF_THE_RUN = 0.2  # of the passes of the run's attacks
