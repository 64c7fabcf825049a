"""The evidence of a run in one file, for whoever was not there: report, metadata, digests, environment, and what they bear on."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import zipfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML

from windtunnel.boundary.models.record import MODEL_JSON
from windtunnel.core.errors import UserError
from windtunnel.core.files import DATA_FILE, METADATA_FILE, file_digest, plain_json
from windtunnel.core.gate import read_gate
from windtunnel.core.layout import GATE, METRICS, MODEL, PARAMS_FILE, REPORTS, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.core.metadata import Record, number, read_metadata
from windtunnel.core.outcomes import OUTCOMES_FILE
from windtunnel.operations.evidence import verify
from windtunnel.operations.evidence.clauses import CLAUSES, Run
from windtunnel.operations.revisions import other_params
from windtunnel.operations.tracking.describe import not_valid
from windtunnel.params.load import entries, load_params, read_params

LOCK = Path("dvc.lock")
_OLDEST = (1980, 1, 1, 0, 0, 0)  # no time of packing: equal runs give equal bytes


class Environment(Record):
    """environment.json: Python and every distribution that is installed, with its version."""

    python: str
    packages: dict[str, str]


class TensorsRecord(Record):
    """tensors.json: digests of the files that are too large for the pack, and how to get them."""

    not_packed: str
    sha256: dict[str, str]


class Manifest(Record):
    """digests.json: the digest of every other file of the pack. verify.py reads it too, without windtunnel."""

    algorithm: str = "sha256"
    files: dict[str, str]


def write_evidence(path: Path) -> int:
    """Write the pack of the last run as a zip; the number of files in it.

    Raises UserError where a part of the run is missing, or was computed with other params than params.yaml has now.
    """
    params = load_params()
    names = ["clean", *(name for _, name, _ in entries(params))]
    folders = {name: ROBUSTNESS / name for name in names} | {"summary": SUMMARY, "sanity": SANITY}
    required = [
        PARAMS_FILE,
        LOCK,
        METRICS,
        GATE,
        MODEL / MODEL_JSON,
        *(folder / METADATA_FILE for folder in folders.values()),
    ]
    wanted = [*required, SUMMARY / OUTCOMES_FILE, *(REPORTS / f"report.{e}" for e in ("pdf", "html"))]
    if missing := [str(file) for file in wanted if not file.is_file()]:
        raise UserError(f"evidence: {', '.join(missing)}: no such file. Run dvc repro first")
    if other := sorted(set(other_params(LOCK, read_params(PARAMS_FILE)))):
        raise UserError(
            f"evidence: {PARAMS_FILE}: the results were computed with another {', '.join(other)}. Run dvc repro first"
        )
    failures = read_gate(GATE).hard_failures
    files = {file.as_posix(): file.read_bytes() for file in wanted}
    assessed = {name: read_metadata(folder) for name, folder in folders.items() if name != "sanity"}
    digests = {name: sha256(content).hexdigest() for name, content in files.items()}
    tensors = {f"{folder}/{DATA_FILE}": file_digest(folder / DATA_FILE) for folder in folders.values()
               if (folder / DATA_FILE).is_file()}  # fmt: skip
    files["environment.json"] = _json(_environment())
    files["tensors.json"] = _json(TensorsRecord(not_packed="dvc pull fetches these files, by dvc.lock", sha256=tensors))
    files["clauses.md"] = clauses_text(assessed, digests, failures).encode()
    files["model_card.md"] = model_card(assessed, digests, failures).encode()
    files["verify.py"] = Path(verify.__file__).read_bytes()
    everything = {name: sha256(content).hexdigest() for name, content in files.items()}
    files["digests.json"] = _json(Manifest(files=everything))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _OLDEST), content)
    temporary.replace(path)
    return len(files)


def clauses_text(run: Run, digests: Mapping[str, str], failures: Sequence[str] = ()) -> str:
    """What was measured under each clause, each sentence with its file and digest; clauses without one are listed.

    `failures`: the hard failures of the sanity checks, which stand first.
    """
    lines = ["# What was measured, clause by clause", "",
             "Measurements and where they are kept. Whether they suffice for a clause is for its readers to decide.", "",
             *_first(failures)]  # fmt: skip
    for clause in CLAUSES:
        lines += [f"## {clause.document}: {clause.number}", "", f"{clause.words[0].upper()}{clause.words[1:]}.", ""]
        found = [*clause.measured(run)]
        lines += [f"- {s.text} `{s.file}`, sha256 `{digests[s.file]}`" for s in found] or [
            "- **Not covered by this run.**"
        ]
        lines += ["", f"Not measured here: {clause.beyond}.", ""]
    return "\n".join(lines)


def model_card(run: Run, digests: Mapping[str, str], failures: Sequence[str] = ()) -> str:
    """A section for a model card of Hugging Face's format: `model-index` in the front matter, and a table.

    A run with hard failures of the sanity checks gives no numbers to publish, but the failures.
    """
    if failures:
        return "\n".join(["## Robustness", "", *_first(failures)])
    summary, origin = run["summary"].metrics, run["summary"].provenance
    numbers = {"accuracy": number(run["clean"].metrics, "clean_accuracy")}
    numbers |= {key: number(summary, key) for key in ("certified_accuracy", "worst_case_accuracy") if key in summary}
    digest = origin.dataset_digest[:12]
    metrics = [{"type": key, "value": round(value, 6), "name": key.replace("_", " ")} for key, value in numbers.items()]
    result = {"task": {"type": "image-classification"}, "dataset": {"type": digest, "name": f"assessed samples {digest}"},
              "metrics": metrics}  # fmt: skip
    name = f"model {origin.model_digest[:12]}"
    front = StringIO()
    YAML(typ="safe", pure=True).dump({"model-index": [{"name": name, "results": [result]}]}, front)
    file = f"{SUMMARY}/{METADATA_FILE}"
    rows = [f"| {key.replace('_', ' ')} | {value:.1%} |" for key, value in numbers.items()]
    lines = [
        "---",
        front.getvalue().rstrip(),
        "---",
        "",
        "## Robustness",
        "",
        "| metric | value |",
        "| --- | ---: |",
        *rows,
        "",
    ]
    lines += [
        f"Assessed by windtunnel; all numbers with their intervals are in `{file}` (sha256 `{digests[file]}`).",
        "",
    ]
    return "\n".join(lines)


def _first(failures: Sequence[str]) -> list[str]:
    return [*not_valid(failures), ""] if failures else []


def _environment() -> Environment:
    packages = {str(d.metadata["Name"]): d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    return Environment(
        python=platform.python_version(),
        packages=dict(sorted(packages.items(), key=lambda found: found[0].lower())),
    )


def _json(content: Record) -> bytes:
    return (json.dumps(plain_json(content.model_dump(mode="json")), indent=2) + "\n").encode()
