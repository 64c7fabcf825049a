"""Results of a git revision, a DVC experiment, an MLflow run, or any dvc.lock: from DVC's cache, or from its remote.

Nothing is checked out: what a comparison reads is linked into a scratch folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from windtunnel.boundary.mlflow_server import connect
from windtunnel.boundary.params_file import entry_names, read_params
from windtunnel.core.errors import UserError, shown
from windtunnel.operations.dvc_files import git_output, read_lock
from windtunnel.records.files import DATA_FILE, METADATA_FILE, read_json
from windtunnel.records.layout import LOCK
from windtunnel.registry.plugins import families
from windtunnel.reporting.compare.runs import Run, run_in
from windtunnel.runtime.credentials import without_credentials

if TYPE_CHECKING:
    from dvc.repo import Repo

_READ = (DATA_FILE, METADATA_FILE)


def run_at(name: str, scratch: Path) -> Run | None:
    """Return the run whose dvc.lock is committed at a git revision or kept by a DVC experiment; None for an unknown name.

    Raises UserError where that commit has no dvc.lock, or where its results are unavailable.
    """
    revision = (git_output("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") or "").strip()
    # In a clone of a pull request main is a branch of the remote alone.
    remote = set((git_output("for-each-ref", "--format=%(objectname)", f"refs/remotes/*/{name}") or "").split())
    experiment = experiments().get(name)
    commit = revision or experiment or (remote.pop() if len(remote) == 1 else "")
    if not commit:
        return None
    scratch.mkdir(parents=True, exist_ok=True)
    for file in ("params.yaml", str(LOCK)):
        content = git_output("show", f"{commit}:./{file}")
        if content is None:
            raise UserError(f"{name}: there is no {file} at commit {commit[:8]}, so it has no results")
        (scratch / file).write_text(content, encoding="utf-8", errors="surrogateescape")
    return run_of_lock(scratch, name, f"{'DVC experiment' if commit == experiment else 'git revision'} {commit[:8]}")


def experiments() -> dict[str, str]:
    """Return the commit of each DVC experiment by its name; of several of one name that of HEAD, else the newest.

    DVC keeps them in git, at refs/exps/<commit that it began at>/<name>, its queue and its stash beside them.
    """
    refs = git_output("for-each-ref", "--sort=committerdate", "--format=%(objectname) %(refname)", "refs/exps") or ""
    rows = re.findall(r"^(\w+) refs/exps/(\w\w)/(\w{38})/(\S+)$", refs, re.MULTILINE)
    head = (git_output("rev-parse", "HEAD") or "").strip()
    rows.sort(key=lambda row: row[1] + row[2] == head)  # the last one counts
    return {name: commit for commit, _, _, name in rows}


def run_of_lock(folder: Path, label: str, origin: str) -> Run:
    """Return the run that the params.yaml and dvc.lock in `folder` tell of; its artifacts are linked into folder/reports.

    Raises UserError where they are neither in DVC's cache nor on its remote.
    """
    from dvc.exceptions import NotDvcRepoError
    from dvc.repo import Repo

    raw = read_params(folder / "params.yaml")
    outs = {path: md5 for stage in read_lock(folder / LOCK).values() for path, md5 in stage.md5_of_outs.items()}
    names = ["clean", *(name for family in families() for name in entry_names(raw, family))]
    outputs = [
        "reports/metrics.json",
        "reports/gate.json",
        "reports/summary",
        *(f"reports/robustness/{name}" for name in names),
    ]
    missing = [path for path in outputs if path not in outs]
    if "reports/robustness/clean" in missing:
        raise UserError(f"{label}: its dvc.lock tells of no results; run dvc repro and commit dvc.lock")
    try:
        with Repo() as repo:
            for path in outputs:
                if path in outs and not (folder / path).exists():
                    _link(repo, outs[path], folder / path, label)
    except NotDvcRepoError as error:
        raise UserError(f"{label}: its results are in DVC's cache, and here is no DVC repository") from error
    notes = [f"no results of {', '.join(missing)}"] if missing else []
    if stale := sorted(set(other_params(folder / LOCK, raw))):
        notes.append(f"computed with other params than its params.yaml says: {', '.join(stale)}")
    return run_in(folder, label, origin, tuple(notes))


def known_names() -> list[str]:
    """Branches, tags and DVC experiments, for the nearest match."""
    references = git_output("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags") or ""
    return [*experiments(), *references.split()]


def _link(repo: Repo, md5: str, target: Path, label: str) -> None:
    """Link one output, of a directory only what a comparison reads."""
    blob = _cached(repo, md5, label)
    if not md5.endswith(".dir"):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(blob)
        return
    target.mkdir(parents=True, exist_ok=True)
    for row in cast(Sequence[Any], read_json(blob)):
        if row["relpath"] in _READ:
            (target / row["relpath"]).symlink_to(_cached(repo, row["md5"], label))


def _cached(repo: Repo, md5: str, label: str) -> Path:
    """Return the file of DVC's cache, fetched from the remote where it is not there."""
    from dvc.exceptions import DvcException
    from dvc_data.hashfile.hash_info import HashInfo

    if not re.fullmatch(r"[0-9a-f]{32}(\.dir)?", md5):  # it comes from a file, and becomes the name of one
        raise UserError(f"{label}: its dvc.lock holds {shown(md5)}, which is no md5")
    path = Path(repo.cache.local.oid_to_path(md5))
    if not path.is_file():
        try:
            repo.cloud.pull([HashInfo("md5", md5)])
        except DvcException as error:
            raise UserError(f"{label}: its results are not in DVC's cache ({error}); dvc repro there") from error
    if not path.is_file():
        raise UserError(f"{label}: its results are neither in DVC's cache nor on the remote; dvc repro there")
    return path.resolve()


def other_params(lock: Path, raw: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys that a stage was run with at other values than params.yaml has now."""
    for stage in read_lock(lock, exact=True).values():
        for key, value in stage.own_params.items():
            current: object = raw
            for part in key.split("."):
                current = current.get(part) if isinstance(current, Mapping) else None
            if current is not None and current != value:
                yield key


def fetch_run(name: str, folder: Path, uri: str, experiment: str) -> str | None:
    """Bring a parent run's params.yaml, metrics.json and dvc.lock into `folder`; its name, or None for no such run.

    `name` is a run's id, `runs:/<id>` or a run's name. Tensors come along where they were uploaded
    (`tracking.log_tensors`), into folder/reports. Raises UserError where the store cannot be reached.
    """
    local = uri.removeprefix("sqlite:///")
    if local != uri and not Path(local).is_file():
        return None  # nothing was ever tracked; looking would make an empty store
    try:
        return _fetch(name.removeprefix("runs:/"), folder, uri, experiment)
    except Exception as error:  # MLflow, its stores and its HTTP client raise many kinds
        raise UserError(f"{name}: {without_credentials(uri)} cannot be asked ({type(error).__name__})") from error


def _fetch(name: str, folder: Path, uri: str, experiment: str) -> str | None:
    client = connect(uri)
    experiment_record = client.get_experiment_by_name(experiment)
    if experiment_record is None:
        return None
    key = "run_id" if re.fullmatch("[0-9a-f]{32}", name) else "run_name"
    where = f"attributes.{key} = '{name.replace(chr(39), '')}' and tags.`windtunnel.role` = 'parent'"
    runs = client.search_runs([experiment_record.experiment_id], filter_string=where, max_results=1)
    if not runs:
        return None
    run = runs[0].info
    folder.mkdir(parents=True, exist_ok=True)
    uploaded = {file.path for file in client.list_artifacts(run.run_id)}
    for file in uploaded & {"params.yaml", "metrics.json", "dvc.lock"}:
        target = folder / "reports" if file == "metrics.json" else folder
        target.mkdir(parents=True, exist_ok=True)
        client.download_artifacts(run.run_id, file, str(target))
    children = client.search_runs(
        [experiment_record.experiment_id], filter_string=f"tags.`mlflow.parentRunId` = '{run.run_id}'"
    )
    for child in children:
        if {DATA_FILE, METADATA_FILE} <= {file.path for file in client.list_artifacts(child.info.run_id)}:
            target = folder / "reports" / "robustness" / str(child.info.run_name)
            target.mkdir(parents=True, exist_ok=True)
            for file in (DATA_FILE, METADATA_FILE):
                client.download_artifacts(child.info.run_id, file, str(target))
    return str(run.run_name)
