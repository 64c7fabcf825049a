"""State in a sentence what chance has to do with one assessment."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.core.contracts import Algorithm, AssessmentKind, Caveat, Randomness

ONE_RANDOM_RUN, RANDOM_RUNS, OF_THE_RUN = "one_random_run", "random_runs", "reproducibility"
_CHANGES = {
    AssessmentKind.EMPIRICAL_ATTACK: "another seed may break other samples",
    AssessmentKind.FORMAL_VERIFICATION: "another seed may verify or break other samples",
    AssessmentKind.STATISTICAL_SAMPLING: "another seed draws other perturbations and changes the rates",
}


def random_runs(algorithm: Algorithm, draws: int = 1, caveats: Sequence[Caveat] = ()) -> tuple[Caveat, ...]:
    """Return the caveat of an assessment that draws at random in `draws` runs; none for a deterministic one.

    Args:
        algorithm: Its registry row, with the randomness of the parameters that it ran with.
        draws: How many runs its worst case is over.
        caveats: Existing caveats; none is added beside a caveat about the whole run.

    """
    if algorithm.randomness is Randomness.DETERMINISTIC or any(caveat.code == OF_THE_RUN for caveat in caveats):
        return ()
    text = f"{algorithm.name} is randomised; each batch is seeded from `seed`: {_CHANGES[algorithm.kind]}."
    if draws > 1:
        return (Caveat(RANDOM_RUNS, f"{text} The numbers are the worst case of {draws} runs."),)
    return (Caveat(ONE_RANDOM_RUN, text),)
