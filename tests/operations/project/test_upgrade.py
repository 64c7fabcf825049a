"""`windtunnel upgrade`: an older project reads as this version writes it, and says what has to be assessed again."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from windtunnel.cli.main import cli
from windtunnel.operations.project import upgrade
from windtunnel.operations.project.upgrade import upgraded_params
from windtunnel.operations.project.write import apply, plan
from windtunnel.params.load import validate_schema
from windtunnel.params.schema import Params

OLDER = """\
seed: 0   # of the run
device: cpu
data: {source: digits}
model: {source: train}
budget: {norm: Linf, epsilon: 0.1}
attacks:
  # the first one
  mine: {library: function, algorithm: "windtunnel.inputs.toy:attack"}
verification:
  marabou: {library: marabou, algorithm: marabou, rivals: one_by_one, workers: 2}
corruptions:
  fog: {algorithm: fog, workers: 3}
sanity: {}
gate: {}
"""


def test_older_keys_are_renamed_or_left_out_and_comments_stay():
    text, changes = upgraded_params(OLDER, "params.yaml")
    assert changes == [
        "windtunnel.inputs is windtunnel.boundary",
        f"corruptions.fog.workers: left out; {upgrade._WORKERS}",
        f"verification.marabou.workers: left out; {upgrade._WORKERS}",
        "verification.marabou.rivals: is other_classes now",
        *(
            f"{key}: added, since DVC needs every key"
            for key in ("budgets", "clean", "queries", "sweeps", "generators", "latent", "report")
        ),
    ]
    assert "# of the run" in text
    assert "  # the first one\n" in text
    assert '"windtunnel.boundary.toy:attack"' in text
    assert "marabou: {library: marabou, algorithm: marabou, other_classes: one_by_one}" in text
    assert upgraded_params(text, "params.yaml") == (text, [])


def test_what_it_renames_is_a_key_today_and_what_it_drops_is_none():
    for family, key, name, _ in upgrade._ENTRY_KEYS:
        entry = Params.model_fields[family].annotation.__args__[1]
        assert key not in entry.model_fields
        assert not name or name in entry.model_fields


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of `init` whose files an older version wrote."""
    for name in (".git", ".dvc"):
        (tmp_path / name).mkdir()
    folder = tmp_path / "robustness"
    apply(plan(folder, OLDER, "stages: {}\n"), tmp_path)
    monkeypatch.chdir(folder)
    return folder


def test_the_files_are_rewritten_after_the_diff_was_shown(project):
    refused = CliRunner().invoke(cli, ["upgrade"], input="n\n")
    assert (project / "params.yaml").read_text() == OLDER
    assert "-  fog: {algorithm: fog, workers: 3}" in refused.output
    assert "+  resolve:" in refused.output
    done = CliRunner().invoke(cli, ["upgrade", "--yes"])
    assert done.exit_code == 0, done.output
    assert "nothing has run here yet" in done.output
    assert "resolve:" in (project / "dvc.yaml").read_text()
    assert "the files are up to date" in CliRunner().invoke(cli, ["upgrade"]).output


def test_a_changed_graph_stays_and_what_no_rule_knows_is_left_to_the_user(project):
    Path("dvc.yaml").write_text("stages: {mine: {}}\n")
    Path("params.yaml").write_text(OLDER.replace("seed: 0", "sed: 0"))
    done = CliRunner().invoke(cli, ["upgrade", "--yes"])
    assert "to do: params.yaml: sed: 'sed' is not" in done.stderr
    assert "to do: dvc.yaml: was changed by you and stays" in done.stderr
    assert Path("dvc.yaml").read_text() == "stages: {mine: {}}\n"
    assert "up to date" not in CliRunner().invoke(cli, ["upgrade"]).output


def test_a_graph_that_stays_is_shown_beside_todays_and_results_are_listed(project):
    CliRunner().invoke(cli, ["upgrade", "--yes"])
    todays = Path("dvc.yaml").read_text()
    Path("dvc.yaml").write_text("stages: {mine: {}}\n")
    stays = CliRunner().invoke(cli, ["upgrade"])
    assert stays.stderr == "to do: dvc.yaml: was changed by you and stays\n"
    assert "what this version would write in its place:\n--- dvc.yaml" in stays.stdout
    assert "-stages: {mine: {}}" in stays.stdout
    assert "up to date" not in stays.stdout
    assert "nothing has run here yet" in stays.stdout
    Path("dvc.yaml").write_text(todays)  # as this version writes it, by the user's own hand
    assert "the files are up to date" in CliRunner().invoke(cli, ["upgrade"]).output


def test_a_graph_that_init_did_not_write_is_shown_beside_todays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(upgraded_params(OLDER, "params.yaml")[0])
    Path("dvc.yaml").write_text("stages: {mine: {}}\n")
    stays = CliRunner().invoke(cli, ["upgrade"])
    assert stays.stderr == "to do: dvc.yaml: was not written by windtunnel init and stays\n"
    assert "+  resolve:" in stays.stdout
    assert "upgrade: nothing to write" in stays.stdout


def test_the_params_of_this_repository_need_no_upgrade():
    text = (Path(__file__).parents[3] / "params.yaml").read_text()
    assert upgraded_params(text, "params.yaml") == (text, [])
    validate_schema(upgrade.parse_map(text, "params.yaml"))


def test_stages_that_run_again_and_the_champion_are_named(project, monkeypatch):
    from windtunnel.operations.resolve import status
    from windtunnel.records import layout

    CliRunner().invoke(cli, ["upgrade", "--yes"])
    Path("params.yaml").write_text(
        Path("params.yaml")
        .read_text()
        .replace("windtunnel.boundary.toy:attack", "FGSM")
        .replace("library: function", "library: torchattacks")
    )
    Path("dvc.lock").touch()
    layout.CHAMPION.parent.mkdir(exist_ok=True)
    layout.CHAMPION.write_text("{}")
    pending = [
        status.Pending("attack@mine", ("algorithm changed",)),
        status.Pending("corrupt@fog", ("figures: x",), redraws=True),
    ]
    monkeypatch.setattr("windtunnel.cli.project.pending_stages", lambda: pending)
    said = CliRunner().invoke(cli, ["upgrade", "--yes"]).output.splitlines()
    assert said[-3:] == [
        "attack@mine: computed again: algorithm changed",
        "corrupt@fog: drawn again: figures: x",
        "the champion was assessed under the former settings; after dvc repro: windtunnel champion --reassess",
    ]
