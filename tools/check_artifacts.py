"""After a run: is everything there that the contract promises, does it hold together, and has every number its evidence?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from tools.recompute import Recomputed, differences, of_clean, of_corruption, of_entry, of_sanity, of_summary
from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.boundary.params import load_params
from windtunnel.core.contracts import VERDICT_CODES, AssessmentKind, Json
from windtunnel.core.errors import UserError
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import Artifacts, load_tensors, read_artifacts
from windtunnel.records.files import DATA_FILE, METADATA_FILE, file_digest, read_json
from windtunnel.records.layout import CLEAN, GATE, METRICS, REPORT, REPORTS, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.records.run_times import RUN_TIMES
from windtunnel.runtime.shutdown import user_errors

_METADATA = (
    "name", "assessment_kind", "case", "algorithm", "library", "library_version", "semantics", "verdict_codes", "metrics",
    "kwargs", "call_kwargs", "visualisers", "caveats", "provenance",
)  # fmt: skip
_SEMANTICS = (
    "threat_model", "objective", "perturbation", "families", "stochastic", "sample_selection", "input_metadata",
)  # fmt: skip
_PROVENANCE = ("packages", "seed", "device", "dataset_digest", "model_digest")
_OF_KIND = {
    AssessmentKind.EMPIRICAL_ATTACK: ("perturbed_inputs", "perturbed_predictions", "perturbation_distance"),
    AssessmentKind.FORMAL_VERIFICATION: ("output_bounds", RUN_TIMES),
    AssessmentKind.STATISTICAL_SAMPLING: (),
}


def main() -> None:
    """Check every directory that a run leaves. Raises UserError at the first that breaks the contract."""
    params, checked = load_params(), 0
    for directory, recomputed in _assessments(params):
        artifacts = read_artifacts(directory)
        _check_contract(artifacts)
        if wrong := list(differences(artifacts.metrics, recomputed)):
            raise UserError(f"{directory}: {len(wrong)} metrics have no evidence: " + "; ".join(wrong[:3]))
        checked += 1
    for file in (METRICS, GATE):
        read_json(file)
    _check_manifest(read_artifacts(REPORT))
    if failures := read_artifacts(SUMMARY).metrics["hard_failures"]:
        raise UserError(f"{SUMMARY}: {failures} hard failures in the default run")
    print(
        f"{checked} assessments hold the contract and give every metric; the report and the gate's decision are whole"
    )
    sys.stdout.flush()


def _assessments(params: Params) -> Iterator[tuple[Path, Recomputed]]:
    """Every directory of a run with what its tensors give, computed when it is asked for."""
    yield CLEAN, of_clean(params)
    for family, name, entry in entries(params):
        artifacts = read_artifacts(ROBUSTNESS / name)
        if artifacts.metadata.failure:
            continue  # it has no rates; the summary counts it as a hard failure
        algorithm = find_algorithm(entry.library, entry.algorithm, f"{family}.{name}", family)
        yield artifacts.directory, of_entry(family, entry, artifacts, algorithm, params)
        if isinstance(entry, CorruptionEntry):
            for metadata in sorted(artifacts.directory.glob(f"*/{METADATA_FILE}")):
                yield metadata.parent, of_corruption(entry, read_artifacts(metadata.parent))
    yield SANITY, of_sanity(read_artifacts(SANITY))
    for directory in (SUMMARY, REPORT):
        yield directory, of_summary(read_artifacts(directory))


def _check_contract(artifacts: Artifacts) -> None:
    """Raise UserError for what the contract of docs/architecture.md asks for and is not there."""
    metadata, where = artifacts.metadata.model_dump(mode="json"), artifacts.directory
    semantics, provenance = (_block(metadata, key) for key in ("semantics", "provenance"))
    missing = [key for key in _METADATA if key not in metadata]
    missing += [f"semantics.{key}" for key in _SEMANTICS if key not in semantics]
    missing += [f"provenance.{key}" for key in _PROVENANCE if key not in provenance]
    kind = AssessmentKind(str(metadata.get("assessment_kind")))
    sanity = artifacts.directory == SANITY  # looks at what others perturbed, and perturbs nothing
    missing += [key for key in _OF_KIND[kind] if key not in artifacts.data and not sanity]
    if "clean_accuracy" not in artifacts.metrics:
        missing.append("metrics.clean_accuracy")
    if not semantics.get("sample_selection"):
        missing.append("how the samples were selected")
    if missing:
        raise UserError(f"{where}: lacks {', '.join(missing)}")
    if _has_run_times(artifacts):
        raise UserError(f"{where}: {DATA_FILE} holds measured run times: no two runs would have equal bytes")
    if empty := [key for key, value in artifacts.metrics.items() if value is None]:
        raise UserError(f"{where}: metrics that are null, not omitted: {', '.join(empty)}")
    if metadata["verdict_codes"] != VERDICT_CODES:
        raise UserError(f"{where}: other verdict codes than the contract's")
    codes = set(artifacts.tensor("verdicts").unique().tolist())
    if strange := codes - set(VERDICT_CODES.values()):
        raise UserError(f"{where}: verdicts that are none: {sorted(strange)}")
    for key, value in artifacts.data.items():
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype.itemsize > 4:
            raise UserError(f"{where}: {key} is {value.dtype}, not float32")
    rows = metadata["visualisers"]
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and not (where / str(row["file"])).is_file():
            raise UserError(f"{where}: metadata.json lists {row['file']}, which is not there")


def _has_run_times(artifacts: Artifacts) -> bool:
    seconds = load_tensors(artifacts.directory / DATA_FILE).get(RUN_TIMES)
    return isinstance(seconds, Tensor) and bool(seconds.isfinite().any())


def _check_manifest(report: Artifacts) -> None:
    """Raise UserError where a file of the report is not the one whose digest is kept."""
    for name, facts in _block(_block(report.metadata.model_dump(mode="json"), "kwargs"), "files").items():
        assert isinstance(facts, Mapping)
        path = REPORTS / name
        if not path.is_file() or not path.stat().st_size or file_digest(path) != facts["sha256"]:
            raise UserError(f"{path}: is not the file that {report.directory / METADATA_FILE} lists")


def _block(row: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    value = row.get(key)
    return value if isinstance(value, Mapping) else {}


if __name__ == "__main__":
    with user_errors():
        main()
