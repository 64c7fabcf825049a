"""What there is to track: a pipeline state, read from the artifacts on disk and from nowhere else."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ruamel.yaml import YAML

from windtunnel.core.contracts import Json
from windtunnel.core.files import DATA_FILE, METADATA_FILE, file_digest, read_json
from windtunnel.core.outcomes import OUTCOMES_FILE
from windtunnel.gate.decide import flatten
from windtunnel.params.load import PARAMS_FILE, entries, load_params
from windtunnel.workspace import CLEAN, DATA, GATE, METRICS, MODEL, REPORTS, ROBUSTNESS, SANITY, SUMMARY

# Short enough for every store; MLflow cuts or refuses longer ones.
MAX_TAG = 4500


@dataclass(frozen=True, slots=True)
class ChildState:
    """One assessment as a nested run: its digest decides whether it was logged before."""

    name: str
    directory: Path
    metadata: Mapping[str, Json]
    digest: str

    @property
    def metrics(self) -> dict[str, float]:
        """Every plain number of the assessment's metrics."""
        return flatten(cast(dict[str, Json], self.metadata["metrics"]))

    @property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Series as stepped metrics: accuracy by epsilon (step: epsilon x 1e6) and by severity, success by queries."""
        metrics = cast(dict[str, Json], self.metadata["metrics"])
        found: dict[str, list[tuple[int, float]]] = {}
        axes = [("accuracy_curve", "epsilons", 1e6), ("accuracy_by_severity", "severities", 1)]
        axes += [(f"success_rate_curve{end}", "query_budgets", 1) for end in ("", "_ci_low", "_ci_high")]
        for key, axis, scale in axes:
            values, steps = metrics.get(key), metrics.get(axis)
            if isinstance(values, list) and isinstance(steps, list):
                pairs = zip(steps, values, strict=True)
                found[key] = [(round(float(str(s)) * scale), float(str(v))) for s, v in pairs if v is not None]
        return found

    @property
    def files(self) -> list[Path]:
        """What is uploaded: metadata and figures; the tensors stay in DVC."""
        return [self.directory / METADATA_FILE, *sorted(self.directory.glob("*.png"))]


@dataclass(frozen=True, slots=True)
class State:
    """One pipeline state as a parent run. `digest` is over params and all artifacts that two equal runs share."""

    digest: str
    experiment: str
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    description: str
    children: list[ChildState]
    files: list[Path]
    dataset: Mapping[str, Json]
    model: Mapping[str, Json]
    model_digest: str
    log_tensors: bool = False


def read_state(*, tensors: bool = True) -> State:
    """The state of reports/, in the current directory; without `tensors` its digests are left to the caller.

    Raises UserError where a part of it is missing or damaged.
    """
    params = load_params()
    names = ["clean", *(name for _, name, _ in entries(params))]
    children = [_child(name, CLEAN if name == "clean" else ROBUSTNESS / name, tensors=tensors) for name in names]
    summary = cast(dict[str, Json], read_json(SUMMARY / METADATA_FILE))
    metrics = cast(dict[str, Json], read_json(METRICS))
    raw = YAML(typ="safe", pure=True).load(PARAMS_FILE.read_text(encoding="utf-8"))
    gate = cast(dict[str, Json], read_json(GATE))
    files = [PARAMS_FILE, METRICS, GATE, SUMMARY / METADATA_FILE, SUMMARY / OUTCOMES_FILE, SANITY / METADATA_FILE, Path("dvc.lock"),
             *(REPORTS / f"report.{e}" for e in ("pdf", "html")), *sorted(SUMMARY.glob("*.png"))]  # fmt: skip
    digest = hashlib.sha256()
    for part in (
        PARAMS_FILE.read_bytes(),
        METRICS.read_bytes(),
        GATE.read_bytes(),
        *(c.digest.encode() for c in children),
    ):
        digest.update(hashlib.sha256(part).digest())
    kwargs = cast(dict[str, Json], summary["kwargs"])
    failures = cast(list[Json], kwargs["hard_failures"])
    caveats = _caveats(children, summary)
    tags = {
        "windtunnel.state": digest.hexdigest(),
        "windtunnel.decision": str(gate["decision"]),
        "sanity.hard_fails": str(len(failures)),
        "sanity.status": "fail" if failures else "pass" if (SANITY / METADATA_FILE).is_file() else "not_run",
        "caveat_count": str(len(caveats)),
        **{k: str(v) for k, v in params.tracking.tags.items()},
    }
    flat = flatten(metrics)
    shown = {f"budget/{key}": value for key, value in {"epsilon": params.budget.epsilon}.items()}
    return State(
        digest=digest.hexdigest(),
        experiment=params.tracking.experiment,
        params=dict(_flat_params(raw)),
        metrics={**shown, **flat},
        tags={key: value[:MAX_TAG] for key, value in tags.items()},
        description=_description(flat, children, caveats, [str(f) for f in failures])[:MAX_TAG],
        children=children,
        files=[path for path in files if path.is_file()],
        dataset=cast(dict[str, Json], read_json(DATA / "dataset.json")),
        model=cast(dict[str, Json], read_json(MODEL / "model.json")),
        model_digest=str(cast(dict[str, Json], summary["provenance"])["model_digest"]),
        log_tensors=params.tracking.log_tensors,
    )


def volatile_tags() -> dict[str, str]:
    """Facts about where a state was logged from; no part of its digest."""
    found = {"git.commit": _git("rev-parse", "HEAD"), "git.dirty": str(bool(_git("status", "--porcelain")))}
    experiment = os.environ.get("DVC_EXP_NAME")
    if experiment:
        found["dvc.exp.name"] = experiment
    return {key: value for key, value in found.items() if value}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _child(name: str, directory: Path, *, tensors: bool) -> ChildState:
    metadata = cast(dict[str, Json], read_json(directory / METADATA_FILE))
    if not tensors:
        return ChildState(name, directory, metadata, "")
    # Not the digest in runtime.json: that file is no DVC output, so after a checkout it may speak of other tensors.
    data = file_digest(directory / DATA_FILE)
    return ChildState(
        name, directory, metadata, hashlib.sha256((data + file_digest(directory / METADATA_FILE)).encode()).hexdigest()
    )


def _flat_params(raw: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """`budget.epsilon` -> `8/255`, as written: what `dvc params diff` shows too."""
    if isinstance(raw, dict) and raw:
        for key, value in raw.items():
            yield from _flat_params(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, str(raw)


def _caveats(children: list[ChildState], summary: Mapping[str, Json]) -> list[tuple[str, str, str]]:
    rows = []
    for name, metadata in [("summary", summary), *((c.name, c.metadata) for c in children)]:
        for caveat in cast(list[dict[str, str]], metadata.get("caveats", [])):
            rows.append((name, caveat["code"], caveat["text"]))
    return rows


def _description(
    flat: Mapping[str, float], children: list[ChildState], caveats: list[tuple[str, str, str]], failures: list[str]
) -> str:
    """The run's page in Markdown: failures first, the sandwich, a row per assessment, the caveats."""
    lines = [f"**NOT VALID**: {failure}" for failure in failures]
    lines += ["| | accuracy |", "| --- | --- |"]
    lines += [f"| {group.replace('_', ' ')} | {flat[f'{group}/accuracy']:.1%} |" for group in ("certified", "worst_case", "clean")
              if f"{group}/accuracy" in flat]  # fmt: skip
    lines += ["", "| assessment | algorithm | headline |", "| --- | --- | --- |"]
    for child in children:
        mine = {k.split("/", 1)[1]: v for k, v in flat.items() if k.startswith(f"{child.name}/")}
        shown = ", ".join(f"{k} {v:.3g}" for k, v in list(mine.items())[:2])
        lines.append(f"| {child.name} | {child.metadata['library']} {child.metadata['algorithm']} | {shown} |")
    if caveats:
        lines += ["", "Caveats:"] + [f"- {name}: {text}" for name, _, text in caveats]
    return "\n".join(lines)
