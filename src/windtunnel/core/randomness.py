"""What chance has to do with one assessment, in a sentence for its reader."""

from __future__ import annotations

from windtunnel.core.contracts import Algorithm, AssessmentKind, Caveat, Randomness

ONE_RANDOM_RUN, RANDOM_RUNS = "one_random_run", "random_runs"
_SOURCE = {
    Randomness.GLOBAL_RNG: "a global stream, seeded from the run's seed for each unit of work",
    Randomness.SELF_SEEDED: "a stream of its own, seeded from the run's seed",
}
_CHANGES = {
    AssessmentKind.EMPIRICAL_ATTACK: "with another seed it may break other samples",
    AssessmentKind.FORMAL_VERIFICATION: "with another seed it may decide other samples, or show other counter-examples",
    AssessmentKind.STATISTICAL_SAMPLING: "with another seed the perturbations, and so the rates, are others",
}


def random_runs(algorithm: Algorithm, draws: int = 1) -> tuple[Caveat, ...]:
    """The caveat of every assessment that draws at random, in `draws` runs. None for a deterministic one.

    `algorithm` says where the draws come from under the parameters it was run with.
    """
    if algorithm.randomness is Randomness.DETERMINISTIC:
        return ()
    text = f"{algorithm.name} draws at random, from {_SOURCE[algorithm.randomness]}: {_CHANGES[algorithm.kind]}."
    if draws > 1:
        return (Caveat(RANDOM_RUNS, f"{text} The numbers are the worst case of {draws} runs."),)
    return (Caveat(ONE_RANDOM_RUN, text),)
