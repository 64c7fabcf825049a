"""Group G, provenance: is the number reproducible, and of the stated model and data?"""

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from windtunnel.core.contracts import Randomness
from windtunnel.evaluation.sanity.check import CheckResult, listing, our_check
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, NotApplicable, NotRun
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
        facts = recorded.model_dump(mode="json")  # without what is empty
        required = [*FINGERPRINT, *(("accelerator",) if (recorded.device or "cpu") != "cpu" else ())]
        if any(key not in facts for key in required) or "torch" not in recorded.packages:
            bad.append(assessment.name)
    return listing(bad, "lacking in", value=len(bad), n=len(evidence.assessments))


@our_check("G2")
def no_stale_cache(evidence: Evidence, limit: float) -> CheckResult:
    """A cached result of other library versions is not what this environment would give.

    Nor is one that began with the examples of another assessment (`survivors_of`, `examples_from`) which have changed
    since: DVC cannot know that one entry of params.yaml uses the result of another.
    """
    stale = {}
    for assessment in evidence.assessments:
        versions = assessment.metadata.provenance.packages.items()
        other = [name for name, version in versions if package_version(name) not in (None, version)]
        if other := other + _changed_since(assessment):
            stale[assessment.name] = other
    reason = "; ".join(f"{name}: {', '.join(packages)}" for name, packages in stale.items())
    return CheckResult(bool(stale), len(stale), n=len(evidence.assessments), assessments=list(stale), reason=reason)


def _changed_since(assessment: Assessment) -> list[str]:
    """Return the assessments whose examples this one used, and whose robustness_data.pt is another now."""
    options, root = assessment.options, assessment.artifacts.directory.parent
    used = {
        name: digest
        for key in ("survivors_of", "examples_from")
        for name, digest in table(dict[str, str], options, key).items()
    }
    files = {name: root / name / DATA_FILE for name in used}
    return [name for name, digest in used.items() if files[name].is_file() and file_digest(files[name]) != digest]


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
    steady = evidence.attacks(
        lambda p: (
            p.name in evidence.params.attacks
            and not p.stochastic
            and "ensemble" not in p.categories
            and bool(p.tried.any())
        ),
        "deterministic attack",
    )

    def cost(assessment: Assessment) -> float:
        return float(assessment.tensor("forward_passes").mean()) if assessment.has("forward_passes") else 0.0

    assessment = min(steady, key=cost)
    local = assessment.tried.nonzero().flatten()[:AGAIN]
    repeated = tensor_in(rerun_attack(evidence, assessment, assessment.indices[local]), "verdicts") == 1
    flips = repeated != assessment.succeeded[local]
    ids = [assessment.ids[i] for i in local[flips].tolist()]
    assessments = [assessment.name] if ids else ()
    reason = f"{len(ids)} verdicts of {assessment.name} flip"
    return CheckResult(bool(ids), len(ids), n=len(local), samples=ids, assessments=assessments, reason=reason)


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
    digest = evidence.subject.classifier.digest
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
    return CheckResult(
        bool(bad), len(bad), n=len(used), reason="; ".join(bad), note="; ".join(f"fixed here: {m}" for m in fixed)
    )
