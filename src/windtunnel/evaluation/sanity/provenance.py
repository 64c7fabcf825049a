"""Group G, provenance: is the number reproducible, and of the stated model and data?"""

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from windtunnel.core.contracts import Randomness
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, NotRun, listing, our_check, total
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence
from windtunnel.evaluation.sanity.probes import rerun_attack
from windtunnel.records.artifacts import package_version
from windtunnel.records.files import DATA_FILE, file_digest
from windtunnel.records.result import tensor_in
from windtunnel.records.tables import table

FINGERPRINT = ("python", "packages", "seed", "device", "threads_deterministic", "dataset_digest", "model_digest")
AGAIN = 32
# (distribution, versions, what is wrong, whether windtunnel's shims fix it: see docs of the adapters)
KNOWN_BAD = (
    ("torchattacks", "<3.4", "APGD and Square ignore the seed", False),
    ("foolbox", "<3.3", "success is taken from an intermediate iterate", False),
    ("maraboupy", "<2.0", "disjunctions are unsound on some graphs", False),
    ("imagecorruptions", "<=1.1.2", "three corruptions crash on current scikit-image and numpy", True),
    ("auto-LiRPA", "<=0.3", "removed names of numpy and torch", True),
)


@our_check("G1")
def environment_recorded(evidence: Evidence, limit: float) -> CheckResult:
    """A number whose environment is unknown cannot be made again.

    Every assessment's provenance: python, package versions with the attack's own library, seed, device, determinism
    flag, digests of data and model; on an accelerator also its name and the CUDA, cuDNN and TF32 settings.
    """
    bad = []
    for assessment in evidence.assessments:
        recorded = assessment.metadata.provenance
        facts = recorded.model_dump(mode="json").keys()  # without what is empty
        required = {*FINGERPRINT, *(("accelerator",) if (recorded.device or "cpu") != "cpu" else ())}
        if required - facts or "torch" not in recorded.packages:
            bad.append(assessment.name)
    return listing(bad, "lacking in", value=len(bad), n=len(evidence.assessments))


@our_check("G2", "{named}", value=total)
def no_stale_cache(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """A cached result of other library versions is not what this environment would give.

    Nor is one that began with the examples of another assessment (`on`, `examples_from`) which have changed
    since.
    """
    for assessment in evidence.assessments:
        versions = assessment.metadata.provenance.packages.items()
        other = [name for name, version in versions if package_version(name) not in (None, version)]
        options, root = assessment.options, assessment.artifacts.directory.parent
        used = [
            (name, digest, root / name / DATA_FILE)
            for key in ("survivors_of", "uncertified_by", "examples_from")
            for name, digest in table(dict[str, str], options, key).items()
        ]
        other += [name for name, digest, file in used if file.is_file() and file_digest(file) != digest]
        reason = f"made with or from another {', '.join(other)}"
        yield CheckResult(bool(other), len(other[:1]), assessments=[assessment.name], reason=reason)


@our_check("G3")
def seeds_explicit(evidence: Evidence, limit: float) -> CheckResult:
    """A method that seeds itself from the clock differs from run to run, whatever the run's seed."""
    assessments = evidence.of("attacks")
    bad = [
        p.name
        for p in assessments
        if p.row is not None
        and p.row.seed is not None
        and p.row.algorithm.randomness is Randomness.SELF_SEEDED
        and any(call.get(p.row.seed) is None for call in p.calls)
    ]
    return listing(bad, "no seed in", value=len(bad), n=len(assessments))


@our_check("G4")
def verdicts_repeat(evidence: Evidence, limit: float) -> CheckResult:
    """A deterministic attack on the same samples must give the same verdicts.

    The cheapest deterministic attack of the rerun on its first 32 samples; any verdict that flips flags.
    """

    def is_steady(assessment: Assessment) -> bool:
        is_rerun = assessment.name in evidence.params.attacks and bool(assessment.tried.any())
        return is_rerun and not assessment.semantics.stochastic and "ensemble" not in assessment.categories

    def cost(assessment: Assessment) -> float:
        return float(assessment.tensor("forward_passes").mean()) if assessment.has("forward_passes") else 0.0

    assessment = min(evidence.attacks(is_steady, "deterministic attack"), key=cost)
    local = assessment.tried.nonzero().flatten()[:AGAIN]
    repeated = tensor_in(rerun_attack(evidence, assessment, assessment.indices[local]), "verdicts") == 1
    ids = assessment.named(local[repeated != assessment.succeeded[local]])
    reason = f"{len(ids)} verdicts of {assessment.name} flip"
    return CheckResult(bool(ids), len(ids), len(local), ids, [assessment.name], reason)


@our_check("G5")
def mlflow_equals_dvc(evidence: Evidence, limit: float) -> CheckResult:
    """The tracking UI must show the numbers of the files: checked by `windtunnel sanity`, once the run is tracked."""
    raise NotRun("the run is tracked after this stage; windtunnel sanity asks the tracking store")


@our_check("G6")
def code_committed(evidence: Evidence, limit: float) -> CheckResult:
    """A number from an uncommitted tree belongs to no revision: asked by `windtunnel sanity`, of git, when it is called."""
    raise NotRun("the state of git is no input of a cached stage; windtunnel sanity asks git")


@our_check("G7")
def weights_as_registered(evidence: Evidence, limit: float) -> CheckResult:
    """Every assessment must be of the model that is here now: its recorded digest against the model's own.

    `model.sha256` is checked when the model is imported, and refused there.
    """
    digest = evidence.classifier.digest
    bad = [p.name for p in evidence.assessments if p.metadata.provenance.model_digest != digest]
    return listing(bad, "of other weights:", value=len(bad), n=len(evidence.assessments))


@our_check("G8")
def no_bad_library(evidence: Evidence, limit: float) -> CheckResult:
    """Versions with faults that change results, among the packages that the assessments recorded.

    Faults that windtunnel's shims fix (three corruptions that crash, removed names) are named and do not flag.
    """
    used: dict[str, set[str]] = {}
    for assessment in evidence.assessments:
        for name, version in assessment.metadata.provenance.packages.items():
            used.setdefault(name.lower(), set()).add(version)
    bad: list[str] = []
    fixed: list[str] = []
    for name, versions, fault, shimmed in KNOWN_BAD:
        if any(Version(v) in SpecifierSet(versions, prereleases=True) for v in used.get(name.lower(), ())):
            (fixed if shimmed else bad).append(f"{name} {versions}: {fault}")
    if not used:
        raise NotApplicable("no assessment recorded its packages")
    note = "; ".join(f"fixed here: {m}" for m in fixed)
    return CheckResult(bool(bad), len(bad), len(used), reason="; ".join(bad), note=note)
