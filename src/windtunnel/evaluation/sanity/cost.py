"""Cost of the checks, for `windtunnel check --estimate` and for the log of the stage before they run."""

import time
from dataclasses import dataclass

from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.evaluation.sanity.agreement import AT_RANDOM, POINTS
from windtunnel.evaluation.witness.search import witness_passes
from windtunnel.params.results import Sanity

_PASSES_A_SAMPLE = 50  # of the default profile, without the witness and the random points of E5
_TIMED = 32  # samples whose forward pass is timed


@dataclass(frozen=True, slots=True)
class Cost:
    """Most passes of the model that the witness makes, about how many the other checks make, and seconds of one."""

    witness: int
    others: int
    each: float

    def __str__(self) -> str:
        duration = "less than a second" if self.seconds < 1 else f"about {self.seconds:.0f} s"
        others = f"about {self.others:,} for the other checks"
        return f"at most {self.witness:,} passes of the model for the witness (D15) and {others}, {duration}"

    @property
    def seconds(self) -> float:
        """Seconds of all passes, one after the other."""
        return self.each * (self.witness + self.others)


def cost_of_checks(
    settings: Sanity,
    classifier: Classifier,
    data: Dataset,
    certified: int,
    *,
    attack_passes: float = 0.0,
    attack_seconds: float = 0.0,
) -> Cost | None:
    """Return what the checks of a profile cost; None where they make no passes, and for a function, which is not asked here.

    Those of the profile `full` run attacks as well, which are not counted.

    Args:
        settings: the block `sanity` of params.yaml.
        classifier: the model; a pass of up to 32 samples of `data` is timed.
        data: the assessed samples.
        certified: number of samples, summed over the verifications.
        attack_passes: passes of all attacks of the run, where they are known.
        attack_seconds: seconds of all attacks, where only these are known.
    """
    if settings.profile == "stored" or isinstance(classifier.module, PredictFunction):
        return None
    timed = data.inputs[:_TIMED]
    classifier.logits(timed)  # the first pass of a process takes longer
    started = time.perf_counter()
    classifier.logits(timed)
    each = (time.perf_counter() - started) / max(1, len(timed))
    others = _PASSES_A_SAMPLE * len(data) + POINTS * min(AT_RANDOM, certified)
    passes = attack_passes + attack_seconds / each
    return Cost(witness_passes(passes), others, each)
