"""The champion's evidence as a file: fetched from the registry, or recomputed under the protocol of today."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from windtunnel.boundary.params_file import params_text
from windtunnel.boundary.text import edit_yaml, yaml_text
from windtunnel.core.errors import UserError
from windtunnel.operations.resolve.build import resolve_all
from windtunnel.operations.tracking.registry import CHAMPION, Registry, Version
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.gate import OUTCOMES_FILE, Origin, OutcomeRecord, read_record, write_record
from windtunnel.records.layout import CHAMPION as CHAMPION_FILE
from windtunnel.records.layout import DATA, PARAMS_FILE, REPORTS, RESOLVED, SUMMARY
from windtunnel.registry.plugins import families

# (folder, stage, name of the entry or None) -> runs the stage there.
RunStage = Callable[[Path, Sequence[str]], None]


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


def reassess(champion: Version, params: Params, run_stage: RunStage) -> OutcomeRecord:
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
    return record
