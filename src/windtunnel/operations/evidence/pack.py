"""The evidence of a run in one file, for whoever was not there: report, metadata, digests, environment, and what they bear on."""

import base64
import importlib.metadata
import json
import os
import platform
import re
import tempfile
import textwrap
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from windtunnel.boundary.files import open_file
from windtunnel.boundary.models.record import MODEL_JSON
from windtunnel.boundary.params import load_params
from windtunnel.boundary.params_file import read_params
from windtunnel.boundary.text import yaml_text
from windtunnel.boundary.writing import check_output
from windtunnel.core.errors import UserError
from windtunnel.core.transformations import epsilon_text
from windtunnel.operations.dvc_files import differing_results, read_lock
from windtunnel.operations.evidence import verify
from windtunnel.operations.evidence.clauses import CLAUSES, Run
from windtunnel.operations.evidence.verify import MOST, NAMESPACE, signed_bytes
from windtunnel.operations.redaction import TEXT_SUFFIXES, redacted_file, secrets_of
from windtunnel.operations.revisions import other_params
from windtunnel.operations.tracking.describe import not_valid
from windtunnel.params.load import entries
from windtunnel.params.results import Report
from windtunnel.records.basis import FIRST_SAMPLES, Basis
from windtunnel.records.files import (
    DATA_FILE,
    METADATA_FILE,
    file_digest,
    hidden_from_dvc,
    plain_json,
    read_own,
    replacing,
)
from windtunnel.records.gate import OUTCOMES_FILE, read_gate
from windtunnel.records.layout import GATE, LOCK, METRICS, MODEL, PARAMS_FILE, REPORTS, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.records.metadata import Rate, Record, rate, read_metadata
from windtunnel.records.run_times import commit
from windtunnel.records.sandwich import layers_in
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.pdf import render_pdf

_OLDEST = (1980, 1, 1, 0, 0, 0)  # of every file in the zip: the time of packing is in pack.json alone


class Environment(Record):
    """environment.json: Python and every distribution that is installed, with its version."""

    python: str
    packages: dict[str, str]


class TensorsRecord(Record):
    """tensors.json: digests of the files that are too large for the pack, and how to get them."""

    not_packed: str
    sha256: dict[str, str]


class PackManifest(Record):
    """digests.json: the digest of every other file of the pack. verify.py reads it too, without windtunnel."""

    algorithm: str = "sha256"
    files: dict[str, str]


class PackRecord(Record):
    """pack.json: when the pack was made (UTC), from which git commit, by which version of which tool.

    redacted: files from which credentials were removed, so that they differ from those of the run.
    """

    date: str
    commit: str
    tool: str
    version: str
    redacted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack that was written: how many files it holds, and the sha256 of its manifest, which decides all of them."""

    n_files: int
    root: str


def write_evidence(path: Path, key: Path | None = None, benchmark: str | None = None) -> Pack:
    """Write the pack of the last run as a zip.

    Args:
        path: the zip.
        key: file of an OpenSSH key that signs it; None for no signature.
        benchmark: id of a dataset on Hugging Face's hub whose leaderboard the numbers are for; None for none.

    Raises:
        UserError: A part of the run is missing, differs from what dvc.lock records, or was computed with other params than
            params.yaml has now.
    """
    if path.suffix != ".zip":
        raise UserError(f"--output: {path}: a pack is a .zip, for example {path.with_suffix('.zip')}")
    if benchmark is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", benchmark, re.ASCII):
        raise UserError(f"--benchmark: {benchmark!r} is no dataset on Hugging Face's hub; write owner/name")
    check_output(
        path, where="evidence: --output", suffixes=(".zip",), inputs=[PARAMS_FILE, LOCK, *([key] if key else [])]
    )
    params, raw = load_params(), read_params(PARAMS_FILE)
    names = ["clean", *(name for _, name, _ in entries(params))]
    folders = {name: ROBUSTNESS / name for name in names} | {"summary": SUMMARY, "sanity": SANITY}
    reports = [REPORTS / "report.pdf", REPORTS / "report.html"]
    records = [folder / METADATA_FILE for folder in folders.values()]
    results = [METRICS, GATE, MODEL / MODEL_JSON, *records, SUMMARY / OUTCOMES_FILE, *reports]
    if missing := [str(file) for file in (PARAMS_FILE, LOCK, *results) if not file.is_file()]:
        raise UserError(f"evidence: {', '.join(missing)}: no such file. Run dvc repro first")
    data = [folder / DATA_FILE for folder in folders.values() if (folder / DATA_FILE).is_file()]
    if other := sorted(set(other_params(LOCK, raw))):
        raise UserError(
            f"evidence: {PARAMS_FILE}: the results were computed with another {', '.join(other)}. Run dvc repro first"
        )
    if names_failed := hidden_from_dvc(ROBUSTNESS):
        raise UserError(f"evidence: {', '.join(names_failed)}: failed for a reason that may pass. Run dvc repro first")
    if differing := [*differing_results(read_lock(LOCK, exact=True), [*results, *data])]:
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise UserError(
            f"evidence: {LOCK} records other results: {'; '.join(differing[:5])}{more}. `dvc checkout --force` brings back what it "
            f"records, `dvc repro` computes what is missing"
        )
    failures, record = read_gate(GATE).hard_failures, _origin()
    secrets = secrets_of(raw)
    files, redacted = {}, []
    for file in (PARAMS_FILE, LOCK, *results):
        content = read_own(file)
        if file.suffix in TEXT_SUFFIXES:
            clean = redacted_file(content.decode(), file.suffix, secrets).encode()
            redacted += [file.as_posix()] if clean != content else []
            content = clean
        files[file.as_posix()] = content
    assessed = {name: read_metadata(folder) for name, folder in folders.items() if name != "sanity"}
    digests = {name: sha256(content).hexdigest() for name, content in files.items()}
    tensors = {file.as_posix(): file_digest(file) for file in data}
    files["pack.json"] = _json(record.model_copy(update={"redacted": tuple(redacted)}))
    files["environment.json"] = _json(_environment())
    files["tensors.json"] = _json(TensorsRecord(not_packed="dvc pull fetches these files, by dvc.lock", sha256=tensors))
    files["clauses.md"] = clauses_text(assessed, digests, failures).encode()
    files["model_card.md"] = model_card(assessed, digests, failures).encode()
    if benchmark is not None and not failures:
        files["eval_results.yaml"] = eval_results(assessed, benchmark).encode()
    files["report_dated.pdf"] = _dated_report(params.report, names, record)
    files["verify.py"] = read_own(Path(verify.__file__))
    manifest = _json(PackManifest(files={name: sha256(content).hexdigest() for name, content in sorted(files.items())}))
    files[verify.MANIFEST] = manifest
    if key is not None:
        files[verify.SIGNATURE] = sign(manifest, key)
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _OLDEST), content, zipfile.ZIP_DEFLATED)
    return Pack(len(files), sha256(manifest).hexdigest())


def _origin() -> PackRecord:
    """Return when, from which commit and by which version the pack is made; SOURCE_DATE_EPOCH fixes the time."""
    text = os.environ.get("SOURCE_DATE_EPOCH") or str(int(time.time()))
    try:
        date = datetime.fromtimestamp(int(text), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UserError(f"SOURCE_DATE_EPOCH: {text[:40]!r} is no number of seconds since 1970") from error
    version = importlib.metadata.version("windtunnel")
    return PackRecord(date=f"{date:%Y-%m-%dT%H:%M:%SZ}", commit=commit(), tool="windtunnel", version=version)


def _dated_report(options: Report, names: Sequence[str], record: PackRecord) -> bytes:
    """Return the report as PDF with the date, commit and version of the pack; the stage's report.pdf has none."""
    report = build_report(REPORTS, options, names, dated=True)
    facts = (("packed", record.date), ("from commit", record.commit or "none"), (record.tool, record.version))
    front = replace(report.front, facts=(*report.front.facts, *facts))
    with tempfile.TemporaryDirectory() as folder:
        render_pdf(replace(report, front=front), Path(folder) / "report.pdf")
        return read_own(Path(folder) / "report.pdf")


def clauses_text(run: Run, digests: Mapping[str, str], failures: Sequence[str] = ()) -> str:
    """Return the measurements under each clause, each sentence with its file and digest; clauses without one are listed.

    `failures`: the hard failures of the sanity checks, which stand first.
    """
    purpose = "Measurements and where they are kept. Whether they suffice for a clause is for its readers to decide."
    lines = ["# What was measured, clause by clause", "", purpose, "", *_first(failures)]
    for clause in CLAUSES:
        lines += [f"## {clause.document}: {clause.number}", "", f"{clause.words[0].upper()}{clause.words[1:]}.", ""]
        statements = [f"- {text} `{file}`, sha256 `{digests[file]}`" for text, file in clause.measured(run)]
        lines += statements or ["- **Not covered by this run.**"]
        lines += ["", f"Not measured here: {clause.beyond}.", ""]
    return "\n".join(lines)


def model_card(run: Run, digests: Mapping[str, str], failures: Sequence[str] = ()) -> str:
    """Return a section for a model card of Hugging Face's format: `model-index` in the front matter, and a table.

    A run with hard failures of the sanity checks gives no numbers to publish, but the failures.
    """
    if failures:
        return "\n".join(["## Robustness", "", *_first(failures)])
    origin, numbers = run["summary"].provenance, [*_published(run)]
    digest = origin.dataset_digest[:12]
    result = {
        "task": {"type": "image-classification"},
        "dataset": {"type": digest, "name": f"assessed samples {digest}"},
        "metrics": [number.as_metric() for number in numbers],
    }
    front = yaml_text({"model-index": [{"name": f"model {origin.model_digest[:12]}", "results": [result]}]}, plain=True)
    file, rows = f"{SUMMARY}/{METADATA_FILE}", [number.as_row() for number in numbers]
    head = ["| metric | norm | epsilon | samples | value | 95 % interval |", "| --- | --- | --- | ---: | ---: | --- |"]
    source = f"Assessed by windtunnel; the numbers are in `{file}` (sha256 `{digests[file]}`)."
    return "\n".join(["---", front.rstrip(), "---", "", "## Robustness", "", *head, *rows, "", source, ""])


def eval_results(run: Run, benchmark: str) -> str:
    """Return the text of a file in `.eval_results/` of a model's repository on Hugging Face's hub.

    One score for each task: clean accuracy and the ends of the sandwich at the run's own budget.

    Args:
        run: metadata of its assessments.
        benchmark: dataset id, owner/name; its eval.yaml names the tasks.

    Source: https://huggingface.co/docs/hub/eval-results.
    """
    rows: dict[str, dict[str, object]] = {}
    for number in _published(run):
        notes = ", ".join(f"{key} {value}" for key, value in number.args().items())
        row = {"dataset": {"id": benchmark, "task_id": number.key}, "value": number.score, "notes": notes}
        rows.setdefault(number.key, row)  # the run's own budget comes first
    return yaml_text([*rows.values()], plain=True)


@dataclass(frozen=True, slots=True)
class _Number:
    """A number of the model card: its metric, value with interval, and what it is of."""

    key: str
    rate: Rate
    basis: Basis

    @property
    def score(self) -> float:
        """The value as it is published."""
        return round(self.rate.value, 6)

    def as_metric(self) -> dict[str, object]:
        """Return the metric as Hugging Face's model-index has it; `args` says what the value is of."""
        return {"type": self.key, "value": self.score, "name": self.key.replace("_", " "), "args": self.args()}

    def args(self) -> dict[str, object]:
        """Return the budget, the number of samples and the interval of the value."""
        limits, basis = self.rate.limits, self.basis
        fields: dict[str, object] = {"norm": str(basis.norm or "none"), "epsilon": basis.epsilon, "n": basis.n}
        fields["interval_95"] = [round(end, 6) for end in limits] if limits else None
        fields["samples"] = FIRST_SAMPLES if basis.only_first else None
        return {key: value for key, value in fields.items() if value is not None}

    def as_row(self) -> str:
        """Return a row of the table."""
        limits, basis = self.rate.limits, self.basis
        interval = f"{limits[0]:.1%} to {limits[1]:.1%}" if limits else "not known"
        epsilon = "none" if basis.epsilon is None else epsilon_text(basis.epsilon)
        samples = basis.samples.removeprefix("n ") or "not known"
        name = self.key.replace("_", " ")
        return f"| {name} | {basis.norm or 'none'} | {epsilon} | {samples} | {self.rate.value:.1%} | {interval} |"


def _published(run: Run) -> Iterator[_Number]:
    """Yield clean accuracy and both ends of the sandwich at every budget, the run's own budget first."""
    clean, summary = run["clean"].metrics, run["summary"]
    if (accuracy := rate(clean, "clean_accuracy")) is not None:
        yield _Number("accuracy", accuracy, Basis(n=Basis.of(run["clean"]).n or Basis.of(summary).n))
    layers = layers_in(summary.metrics)
    if not layers:  # of an older version
        for key in ("certified_accuracy", "worst_case_accuracy"):
            if (value := rate(summary.metrics, key)) is not None:
                yield _Number(key, value, Basis.of(summary))
    for layer in layers:
        basis = Basis.of_layer(layer)
        for key, value in (("certified_accuracy", layer.certified), ("worst_case_accuracy", layer.worst_case)):
            if value is not None:
                yield _Number(key, value, basis)
        if layer.certified_all is not None and basis.n != layer.n:
            all_samples = Basis(layer.norm, layer.epsilon, layer.n)
            yield _Number("certified_accuracy_of_all_samples", layer.certified_all, all_samples)


def _first(failures: Sequence[str]) -> list[str]:
    return [*not_valid(failures), ""] if failures else []


def _environment() -> Environment:
    packages = {str(d.metadata["Name"]): d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    in_order = {name: packages[name] for name in sorted(packages, key=str.lower)}
    return Environment(python=platform.python_version(), packages=in_order)


def _json(content: Record) -> bytes:
    return (json.dumps(plain_json(content.model_dump(mode="json")), indent=2) + "\n").encode()


def sign(content: bytes, key: Path) -> bytes:
    """Return the SSH signature of `content` by the private Ed25519 key in the file `key`, as `ssh-keygen -Y sign` makes it.

    Keys of OpenSSH need no service and no account, people and CI have them, and `ssh-keygen -Y verify` checks the signature without
    Python. `model-signing` brings sigstore and an identity provider, and signs models, not packs of files.

    Raises:
        UserError: `key` is missing, has a passphrase, or is no Ed25519 key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        with open_file(key, where="--sign") as file:
            private = serialization.load_ssh_private_key(file.read(MOST), None)
    except TypeError as error:  # of an encrypted key; ssh-keygen takes the passphrase from a terminal or an agent
        command = f"ssh-keygen -Y sign -n {NAMESPACE.decode()} -f {key} digests.json"
        raise UserError(f"--sign: {key}: has a passphrase; unpack the pack and sign by: {command}") from error
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(f"--sign: {key}: {reason}; ssh-keygen -t ed25519 -f FILE makes a key") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise UserError(f"--sign: {key}: no Ed25519 key; ssh-keygen -t ed25519 -f FILE makes one")
    public = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )  # `ssh-ed25519 BASE64`
    signature = _string(b"ssh-ed25519") + _string(private.sign(signed_bytes(content)))
    parts = (base64.b64decode(public.split()[1]), NAMESPACE, b"", b"sha512", signature)
    blob = b"SSHSIG" + (1).to_bytes(4, "big") + b"".join(map(_string, parts))
    lines = "\n".join(textwrap.wrap(base64.b64encode(blob).decode(), 70))
    return f"-----BEGIN SSH SIGNATURE-----\n{lines}\n-----END SSH SIGNATURE-----\n".encode()


def _string(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content
