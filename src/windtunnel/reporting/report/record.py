"""The report as data: the table of all samples under all assessments, the headline, the caveats, and digests of its files.

The same two files as every assessment leaves, so that whoever reads one of those reads the report too.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from windtunnel.core.contracts import Json
from windtunnel.evaluation.sanity.findings import with_caveats
from windtunnel.evaluation.summary.evidence import indices_of
from windtunnel.records.artifacts import Artifacts, read_artifacts, save_tensors
from windtunnel.records.files import DATA_FILE, METADATA_FILE, file_digest, read_json, write_json
from windtunnel.records.findings import read_findings
from windtunnel.records.metadata import read_metadata
from windtunnel.records.result import Tensors
from windtunnel.records.run_times import Runtime, peak_memory
from windtunnel.records.storage import DISTANCES, KEPT

NOT_ASSESSED = 0  # no verdict has this code
_OF_SUMMARY = tuple(
    """
    clean_inputs targets clean_predictions verdicts perturbed_inputs perturbed_predictions perturbation_distance
    worst_by certified_verdicts certified_by sample_states drawn
    """.split()
)
_KEPT = ("sample_names", "show_sample_names", "class_names", "hard_failures", "reproducibility", "state_codes")
_HEADLINE = ("clean_accuracy", "worst_case_accuracy", "certified_accuracy", "robust_accuracy")


def write_record(
    reports: Path, names: Sequence[str], files: Sequence[Path], directory: Path, *, started: float
) -> None:
    """Write robustness_data.pt, metadata.json and runtime.json of the report on the assessments `names` into `directory`.

    Beside the summary's keys (`verdicts` is the worst case, `certified_verdicts` what is verified), for A assessments in
    the order of kwargs.assessments: `assessment_verdicts` int64 (A, N), 0 where it did not assess the sample;
    `assessment_predictions` int64 (A, N), of the perturbed input, -1 for none; `assessment_distances` float32 (A, N), NaN
    for none. `files` are what the report consists of: kwargs.files has the size and sha256 of each.
    """
    summary = read_artifacts(reports / "summary")
    checks = read_findings(reports / "sanity")
    rows = [_row(read_artifacts(reports / "robustness" / name), summary) for name in names]
    data: Tensors = {key: summary.data[key] for key in (*_OF_SUMMARY, KEPT, DISTANCES) if key in summary.data}
    for key, column in zip(("verdicts", "predictions", "distances"), zip(*rows, strict=True), strict=False):
        data[f"assessment_{key}"] = torch.stack(column)
    save_tensors(data, directory / DATA_FILE)
    of_summary = [row.model_dump(mode="json") for row in summary.metadata.caveats]
    caveats: list[Json] = [{**row, "assessment": "summary"} for row in of_summary]
    for name in names:
        metadata = with_caveats(read_metadata(reports / "robustness" / name), checks)
        caveats += [{**row.model_dump(mode="json"), "assessment": name} for row in metadata.caveats]
    options = summary.metadata.kwargs.model_dump(mode="json")
    write_json(
        {
            **summary.metadata.model_dump(mode="json"),
            "name": "report",
            "algorithm": "report",
            "metrics": {
                **{key: value for key, value in summary.metrics.items() if key.startswith(_HEADLINE)},
                **{key: summary.metrics[key] for key in ("n_samples", "hard_failures")},
                "headline": read_json(reports / "metrics.json"),
            },
            "kwargs": {
                **{key: value for key, value in options.items() if key in _KEPT},
                "assessments": list(names),
                "files": {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in files},
            },
            "visualisers": [],
            "caveats": caveats,
        },
        directory / METADATA_FILE,
    )
    seconds, digest = round(time.time() - started, 3), file_digest(directory / DATA_FILE)
    Runtime(started=started, seconds=seconds, peak_memory=peak_memory(), data_digest=digest).write(directory)


def _row(artifacts: Artifacts, summary: Artifacts) -> tuple[Tensor, Tensor, Tensor]:
    """(verdicts, predictions, distances) of one assessment at the summary's samples, each (N,)."""
    places, n = indices_of(artifacts, summary.sample_names), len(summary.sample_names)
    verdicts, predictions = torch.full((n,), NOT_ASSESSED), torch.full((n,), -1)
    distances = torch.full((n,), torch.nan)
    verdicts[places] = artifacts.tensor("verdicts")
    if "perturbed_predictions" in artifacts.data:
        predictions[places] = artifacts.tensor("perturbed_predictions")
    if "perturbation_distance" in artifacts.data:
        distances[places] = artifacts.tensor("perturbation_distance")
    return verdicts, predictions, distances
