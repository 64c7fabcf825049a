"""The retraining flow: new data in, a model out, and the better of the two in service."""

import hashlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from filelock import FileLock, Timeout

from windtunnel.boundary.params import load_params
from windtunnel.boundary.params_file import params_text
from windtunnel.boundary.text import edit_yaml, yaml_text
from windtunnel.core.errors import InfrastructureError, UserError
from windtunnel.evaluation.gate.decide import regression_mismatch
from windtunnel.evaluation.gate.table import failing, markdown
from windtunnel.evaluation.sanity.promotion import failures_before_promotion
from windtunnel.operations.resolve.build import resolve_all
from windtunnel.operations.tracking.registry import CHAMPION, Registry, Version, was_rolled_back
from windtunnel.operations.tracking.state import MAX_TAG, read_state
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.files import file_digest, read_own, replacing
from windtunnel.records.gate import (
    EXIT_CODE,
    OUTCOMES_FILE,
    Decision,
    GateResult,
    Origin,
    read_gate,
    read_record,
    write_record,
)
from windtunnel.records.layout import CHAMPION as CHAMPION_FILE
from windtunnel.records.layout import DATA, GATE, MODEL, PARAMS_FILE, REPORTS, RESOLVED, SUMMARY
from windtunnel.registry.plugins import families

# Tags of the version that a retraining ended with: on what it ran, how it ended, and why not better.
INPUTS, STATUS, REASONS = "windtunnel.boundary", "windtunnel.outcome", "windtunnel.outcome_reasons"
# Committed, but without a say in any result. dvc.lock is what a run writes.
_NO_SAY = (":!dvc.lock", ":!docs", ":!tests", ":!benchmarks", ":!*.md")
_BUILT_IN = "digits"  # data that are part of the code; all else lies outside and may have changed
_ROLLED_BACK = "it was rolled back; windtunnel promote --version N --force promotes it all the same"
# (stages, force) -> brings the stages up to date with what they need; no stages for all.
RunPipeline = Callable[..., None]
# (folder, words: a stage and the name of its entry) -> runs the stage there.
RunStage = Callable[[Path, Sequence[str]], None]


class RetrainStatus(StrEnum):
    """Outcome of a retraining."""

    PROMOTED = "promoted"
    KEPT = "kept"
    UNSOUND = "unsound"
    SAME_MODEL = "same_model"


# The champion's own weights again: nothing to promote, yet today's evaluation of them may fail or be unsound.
_OF_SAME_MODEL = {
    Decision.PASSED: RetrainStatus.SAME_MODEL,
    Decision.FAILED: RetrainStatus.KEPT,
    Decision.UNSOUND: RetrainStatus.UNSOUND,
}
_EXIT = {RetrainStatus.KEPT: EXIT_CODE[Decision.FAILED], RetrainStatus.UNSOUND: EXIT_CODE[Decision.UNSOUND]}


@dataclass(frozen=True, slots=True)
class Retrained:
    """The end of a retraining. `champion`: who is in service now, None where nobody is; `gate`: gate.json.

    `reasons`: what stands against the model, a line each. `remembered`: nothing changed since it ended so, and nothing ran.
    """

    status: RetrainStatus
    version: Version
    champion: Version | None
    gate: GateResult | None = None
    note: str = ""
    reasons: tuple[str, ...] = ()
    remembered: bool = False

    @property
    def exit_code(self) -> int:
        """0 promoted or the champion's own weights again, 10 not promoted, 20 unsound; the same when remembered."""
        return _EXIT.get(self.status, 0)


def retrain(
    registry: Registry, pipeline: RunPipeline, run_stage: RunStage, *, allow_dirty: bool = False, force: bool = False
) -> Retrained:
    """Bring everything up to date and promote the model if it passes the gate; where nothing changed, the end of last time.

    `pipeline(stages, force)` runs the stages named (all for none); `run_stage` runs one stage in another folder, to
    reassess the champion. Idempotent: a retraining that was killed is finished by the next. Raises RegistryError
    where the registry fails, and UserError for a dirty work tree (unless `allow_dirty`) and whatever params refuse.
    """
    params = load_params()
    if not allow_dirty:
        require_committed("retrain")
    if params.model.source == "function":
        raise UserError("retrain: model.source: a function keeps no weights, so there is nothing to promote")
    registry.versions()  # before hours are spent
    if forced := stages_to_force(params):
        pipeline(["resolve"])  # which writes what they read, and has not run in a fresh clone
    for stage in forced:
        pipeline([stage], force=True)
    if "prepare" not in forced:
        pipeline(["prepare"])
    inputs = inputs_digest(params)
    versions = [
        version for version in registry.versions(INPUTS, inputs) if version.tags.get(STATUS) in {*RetrainStatus}
    ]
    champion = fetch_champion(registry)
    if versions and not force:
        return _as_remembered(versions[0], champion)
    pipeline(["summary"])
    note = _same_protocol(params, champion, run_stage)
    pipeline([])
    state, gate = read_state(), read_gate(GATE)
    if champion and champion.tags.get("windtunnel.model_digest") == state.model_digest:
        version, status, reasons = champion, _OF_SAME_MODEL[gate.decision], failing(gate)
    else:
        version = registry.register(state, MODEL, gate, failing(gate))
        status, reasons = _settle(registry, version, gate)
    registry.tag(version, STATUS, status.value)
    registry.tag(version, REASONS, "\n".join(reasons)[:MAX_TAG])
    # Last, so that a retraining killed before it is done again, from the cache.
    registry.tag(version, INPUTS, inputs)
    now = version if status is RetrainStatus.PROMOTED else champion
    return Retrained(status, version, now, gate, note, tuple(reasons))


def fetch_champion(registry: Registry) -> Version | None:
    """Put the champion's record where the gate reads it, or take away one that is no champion's any more.

    A record that was recomputed for this very version stays: it is under a newer protocol than the registry's. A damaged
    one is fetched again.
    """
    champion = registry.alias(CHAMPION)
    if champion is None:
        CHAMPION_FILE.unlink(missing_ok=True)
        return None
    fetched = None
    with suppress(UserError):  # not there, or damaged
        fetched = read_record(CHAMPION_FILE).origin
    if fetched is None or fetched.version != champion.number:
        write_record(registry.record(champion), CHAMPION_FILE)
    return champion


def reassess(champion: Version, params: Params, run_stage: RunStage) -> None:
    """Assess the champion's weights on the samples of reports/data under params, and put the record where the gate reads it.

    The run in reports/ is not touched: the stages run in a folder of their own. Raises UserError where one of them fails.
    """
    if not DATA.is_dir():
        raise UserError(f"{DATA}: no samples to assess the champion on; run dvc repro prepare first")
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        content = edit_yaml(params_text(PARAMS_FILE), str(PARAMS_FILE))
        content["model"] = {"source": "mlflow", "uri": champion.uri}
        (folder / PARAMS_FILE).write_text(yaml_text(content), encoding="utf-8")
        (folder / REPORTS).mkdir()
        for shared in (DATA, REPORTS / "generators"):
            if shared.is_dir():
                (folder / shared).symlink_to(shared.resolve(), target_is_directory=True)
        for stage in resolve_all(folder / PARAMS_FILE):  # the user's files are here, not there
            stage.write(folder / RESOLVED)
        run_stage(folder, ["train"])
        run_stage(folder, ["clean"])
        for family, name, _ in entries(params):
            run_stage(folder, [families()[family].stage, name])
        run_stage(folder, ["summary"])
        origin = Origin(model=champion.model, version=champion.number, run_id=champion.run_id, reassessed=True)
        record = replace(read_record(folder / SUMMARY / OUTCOMES_FILE), origin=origin)
    write_record(record, CHAMPION_FILE)


def promote_last_run(registry: Registry, *, force: bool = False, allow_dirty: bool = False) -> Version:
    """Register the model of the last run and make it the champion, if the gate says so or `force` does.

    Raises UserError where it did not pass the gate, where it was compared with another champion than the present
    one, where a sanity check that reruns attacks fails, and for a dirty work tree (unless `allow_dirty`).
    """
    if not allow_dirty:
        require_committed("promote")
    gate = read_gate(GATE)
    _require_promotable(gate.decision, "; ".join(failing(gate)), force=force)
    _require_compared(registry, gate)
    if failures := failures_before_promotion(load_params()):
        raise UserError("\n".join(f"promote: {failure}" for failure in failures))
    version = registry.register(read_state(), MODEL, gate, failing(gate))
    return _promote(registry, version, force=force)


def promote_version(registry: Registry, number: str, *, force: bool = False) -> Version:
    """Make a registered version the champion, if it passed the gate or `force` is given."""
    version = registry.version(number)
    _require_promotable(version.decision, version.tags.get("gate.reasons", ""), force=force)
    return _promote(registry, version, force=force)


def _same_protocol(params: Params, champion: Version | None, run_stage: RunStage) -> str:
    """Reassess the champion where its record is under another protocol; a note where that cannot be done."""
    if champion is None:
        return ""
    mine = read_record(SUMMARY / OUTCOMES_FILE)
    if not regression_mismatch(params.gate, mine, read_record(CHAMPION_FILE)):
        return ""
    try:
        reassess(champion, params, run_stage)
    except UserError as error:  # the gate then refuses the comparison, and says so
        return f"{champion} could not be assessed under the protocol of today: {error}"
    return f"{champion} was reassessed under the protocol of today."


def _as_remembered(version: Version, champion: Version | None) -> Retrained:
    """Return the end of the retraining on these very inputs. A rollback since then outweighs it; a promotion by hand rewrote it."""
    status, reasons = RetrainStatus(version.tags[STATUS]), tuple(version.tags.get(REASONS, "").splitlines())
    if was_rolled_back(version):
        status, reasons = RetrainStatus.KEPT, (_ROLLED_BACK,)
    return Retrained(status, version, champion, reasons=reasons, remembered=True)


def _settle(registry: Registry, version: Version, gate: GateResult) -> tuple[RetrainStatus, list[str]]:
    """Return the outcome and the reasons against the model. One whose evaluation is unsound is no challenger."""
    if gate.decision is Decision.UNSOUND:
        return RetrainStatus.UNSOUND, failing(gate)
    if gate.decision is Decision.FAILED or was_rolled_back(version):
        registry.challenge(version)
        return RetrainStatus.KEPT, failing(gate) or [_ROLLED_BACK]
    _require_compared(registry, gate)  # it may have changed while this ran
    if failures := failures_before_promotion(load_params()):
        registry.tag(version, "gate.decision", Decision.UNSOUND.value)
        registry.tag(version, "gate.reasons", "; ".join(failures)[:MAX_TAG])
        return RetrainStatus.UNSOUND, failures
    registry.challenge(version)  # in place of an older one, and until it is champion
    registry.promote(version)
    return RetrainStatus.PROMOTED, []


def _promote(registry: Registry, version: Version, *, force: bool) -> Version:
    if was_rolled_back(version) and not force:
        raise UserError(f"promote: {version} was rolled back; --force promotes it all the same")
    if force:
        registry.tag(version, "gate.overridden", "true")
    registry.promote(version)
    registry.tag(version, STATUS, RetrainStatus.PROMOTED.value)
    registry.tag(version, REASONS, "")  # what stood against it is overruled
    return version


def _require_compared(registry: Registry, gate: GateResult) -> None:
    """Raise InfrastructureError unless the gate compared with the champion of now, where it was asked to compare at all."""
    champion = registry.alias(CHAMPION)
    compared = gate.champion.version if gate.champion else None
    if champion and load_params().gate.maximum_regression and compared != champion.number:
        raise InfrastructureError(
            f"promote: the gate did not compare with {champion}, which is the champion now; run windtunnel champion "
            f"--fetch, then dvc repro"
        )


def _require_promotable(decision: str, reasons: str, *, force: bool) -> None:
    if decision == Decision.UNSOUND:
        raise UserError(f"promote: the evaluation is unsound, so nothing is known of this model ({reasons})")
    if decision != Decision.PASSED and not force:
        raise UserError(f"promote: it did not pass the gate ({reasons}); --force promotes it all the same")


def require_committed(what: str) -> None:
    """Raise UserError where the work tree is dirty, or outside git: nobody could make such a model again."""
    _git("rev-parse", "--is-inside-work-tree")  # outside git, `git diff` fails with its usage
    files = _git("diff", "--name-only", "HEAD", "--", ".", *_NO_SAY).splitlines()
    if files:
        named = ", ".join(files[:5]) + (", ..." if len(files) > 5 else "")
        raise UserError(
            f"{what}: the work tree has changes that are not committed ({named}); commit them, or give --allow-dirty"
        )


def stages_to_force(params: Params) -> list[str]:
    """Return the stages whose inputs lie outside the repository, where only running them again tells what is there now."""
    stages = ["prepare"] if params.data.source != _BUILT_IN else []
    return [*stages, "train"] if params.model.source != "train" else stages


def inputs_digest(params: Params) -> str:
    """sha256 over the committed code and params, uncommitted changes to them, the samples and an imported model."""
    digest = hashlib.sha256(_git("diff", "HEAD", "--", ".", *_NO_SAY).encode())
    # `mode blob stage path` of every committed file with a say.
    digest.update("\n".join(_git("ls-files", "--stage", "--", ".", *_NO_SAY).splitlines()).encode())
    folders = [DATA] if params.model.source == "train" else [DATA, MODEL]
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.as_posix()} {file_digest(path)}\n".encode())
    return digest.hexdigest()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["git failed"])[-1]
        raise UserError(f"git: {reason}; a model that is to be promoted needs a commit it can be made from again")
    return done.stdout


_WORDS = {
    RetrainStatus.KEPT: "{champion}: {version} was not promoted",
    RetrainStatus.UNSOUND: "{champion}: the evaluation of {version} is unsound",
    RetrainStatus.SAME_MODEL: "{champion}: the retraining gave the same weights",
}


def headline(result: Retrained) -> str:
    """Return the outcome in one sentence: the champion now, and the fate of the new model."""
    if result.status is RetrainStatus.PROMOTED:
        text = _promoted(result)
    else:
        champion = f"{result.champion} stays the champion" if result.champion else "there is still no champion"
        text = _WORDS[result.status].format(version=result.version, champion=champion)
    return f"nothing changed since {result.version} was assessed; {text}" if result.remembered else text


def _promoted(result: Retrained) -> str:
    if result.remembered:
        if result.champion and result.champion.number == result.version.number:
            return "it was promoted, and still is the champion"
        return f"it was promoted, and {result.champion or 'nobody'} is the champion now"
    before = result.gate.champion if result.gate else None
    replaced = f", in place of version {before.version}" if before else ": the first one"
    return f"{result.version} is the champion now{replaced}"


def summary_markdown(result: Retrained) -> str:
    """Headline, what stands against the model, the gate's table, and where to look further."""
    lines = [f"## Retraining: {headline(result)}", ""]
    lines += [*(f"- {reason}" for reason in result.reasons), ""] if result.reasons else []
    lines += [result.note, ""] if result.note else []
    lines += [markdown(result.gate)] if result.gate else []
    lines += [f"Assessment of {result.version}: {_where(result.version)}"]
    return "\n".join(lines) + "\n"


def _where(version: Version) -> str:
    link = version.tags.get("assessment.link")
    return f"[MLflow run {version.run_id}]({link})" if link else f"MLflow run {version.run_id}"


class BusyError(InfrastructureError):
    """Another retraining holds the lock."""


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Acquire the lock of `folder` or raise BusyError with its holder. A killed process frees it."""
    folder.mkdir(parents=True, exist_ok=True)
    holder = folder / "retrain.holder"
    lock = FileLock(str(folder / "retrain.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise BusyError(f"retrain: not started, since another retraining is running ({who_holds(holder)})") from error
    try:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        with replacing(holder) as temporary:
            temporary.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}\n", encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def who_holds(holder: Path, patience: float = 5.0) -> str:
    """Read the record of the process that holds the lock; it is waited for, since it writes just after it has locked.

    Args:
        holder: the file it writes.
        patience: seconds after which it is only "another process" (one that was killed between the two).
    """
    end = time.monotonic() + patience
    while True:
        try:
            return read_own(holder).decode().strip()
        except FileNotFoundError:
            if time.monotonic() > end:
                return "another process"
        time.sleep(0.02)
