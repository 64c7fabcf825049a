"""The files of a project: the graph of every project is one, params.yaml is valid as it is written, and all can be taken back."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from ruamel.yaml import YAML

from windtunnel.boundary.discovery.samples import SampleFiles
from windtunnel.boundary.discovery.weights import Weights
from windtunnel.boundary.text import parse_map
from windtunnel.cli.project import init
from windtunnel.cli.report import evidence, report
from windtunnel.core.errors import UserError
from windtunnel.evaluation.validate import validate
from windtunnel.operations.dvc_files import missing_references
from windtunnel.operations.project.choose import Choice, notes, params_text
from windtunnel.operations.project.graph import graph_text
from windtunnel.operations.project.write import RECORD, apply, plan, removal, remove
from windtunnel.params.load import check_whole
from windtunnel.registry import plugins
from windtunnel.registry.plugins import families
from windtunnel.runtime.placement import LOCAL_FILE

ROOT = Path(__file__).parents[3]
STATE = Weights(Path("net.pt"), "state_dict", size=1000, channels=1, classes=10)
GRAPH = Weights(Path("net.onnx"), "onnx", size=10**8, channels=3, side=(224, 224))
DIGITS = SampleFiles(Path("data/test"), "folder", "", Path("data/train"), None, 10, (28, 28), 1)
PHOTOS = SampleFiles(Path("/photos"), "folder", classes=1000, channels=3)
IDX = SampleFiles(Path("t10k"), "idx", "", Path("train"), (Path("labels"), Path("train-labels")), channels=1)

# The files that `windtunnel report` and `windtunnel evidence` write.
BY_DEFAULT = [
    f"{next(o.default for o in report.params if o.name == 'output')}/report.html",
    str(next(o.default for o in evidence.params if o.name == "output")),
]


def plain(value):
    return YAML(typ="safe", pure=True).load(value)


def test_the_graph_of_this_repository_is_the_one_that_is_written_for_any_other():
    written = plain(graph_text(plain(ROOT.joinpath("params.yaml").read_text())))
    ours = (ROOT / "dvc.yaml").read_text().replace("python -m stages.", "python -m windtunnel stage ")
    assert written == plain(ours)


def test_every_family_that_is_installed_has_its_stage():
    stages = plain(graph_text({}))["stages"]
    assert [stages[family.stage]["foreach"] for family in families().values()] == [
        f"${{{name}}}" for name in families()
    ]


def test_files_that_params_name_are_dependencies_of_what_reads_them_and_of_resolve():
    params = {
        "data": {"path": "a", "labels": "none", "train_path": "b"},
        "model": {"path": "c"},
        "generators": {"path": None},
    }
    stages = plain(graph_text(params))["stages"]
    assert stages["resolve"]["deps"] == ["${data.path}", "${data.train_path}", "${model.path}"]
    assert stages["prepare"]["deps"] == ["reports/resolved/prepare.json", "${data.path}", "${data.train_path}"]
    assert stages["train"]["deps"] == ["reports/resolved/train.json", "reports/data", "${model.path}"]


@pytest.mark.parametrize("with_companions", [True, False])
@pytest.mark.parametrize(
    "choice",
    [
        Choice(STATE, DIGITS, "nets:Net", "mine"),
        Choice(GRAPH, PHOTOS, "", "it's: odd", "sqlite:///../mlflow.db", (224, 224)),
        Choice(STATE, IDX, "nets:Net", "idx"),
        Choice(None, None, "", "nothing"),
        Choice(Weights(Path("resnet50"), "torchvision"), PHOTOS, "", "library"),
        Choice(Weights(Path("google/vit"), "huggingface"), PHOTOS, "", "hub"),
        Choice(Weights(Path("api:predict"), "function"), PHOTOS, "", "service"),
        Choice(Weights(Path("/w.pt"), "timm", name="resnet18", kwargs={"num_classes": 7}), PHOTOS, "", "tuned"),
        Choice(Weights(Path("models/vit"), "huggingface", is_folder=True), PHOTOS, "", "folder"),
    ],
    ids=["digits", "photos", "idx", "nothing", "library", "hub", "service", "tuned", "folder"],
)
def test_the_first_params_are_valid_whatever_is_installed(choice, with_companions, monkeypatch):
    monkeypatch.setattr(plugins, "is_installed", lambda *modules: with_companions)
    text = params_text(choice, Path(".."))
    raw = parse_map(text, "params.yaml")
    params = validate(raw, "params.yaml")
    check_whole(Path("params.yaml"), raw)
    assert params.tracking.experiment == choice.experiment
    assert ("torchattacks" in text) == (with_companions)
    assert ("PGD" in text) == (params.model.source != "function")
    if choice.data:
        assert params.data.path == (choice.data.path.as_posix() if choice.data is PHOTOS else f"../{choice.data.path}")


def test_what_is_not_known_is_said(tmp_path):
    said = "\n".join(notes(Choice(STATE, PHOTOS, "", "mine")))
    assert "model.factory: no class or function without arguments builds what net.pt fits" in said
    assert "not tried" not in said
    assert "data.resize" in said
    assert "the model has 10 outputs, /photos 1000 classes" in said
    (line,) = notes(
        Choice(replace(STATE, untried=("torchvision (not installed)", "timm (not installed)")), DIGITS, "", "mine")
    )
    assert line.endswith("name one, module:function; not tried: torchvision (not installed), timm (not installed)")
    assert len(notes(Choice(None, None, "", "mine"))) == 2
    assert notes(Choice(STATE, DIGITS, "nets:Net", "mine")) == []


def test_an_onnx_graph_gets_attacks_with_gradients():
    text = params_text(Choice(GRAPH, PHOTOS, "", "mine", resize=(224, 224)), Path(".."))
    assert "algorithm: PGD" in text
    assert "HopSkipJump" not in text


@pytest.mark.parametrize(
    ("classes", "activation", "head"),
    [
        (1, "Sigmoid", {"kind": "binary", "output": "probability"}),
        (1, "Gemm", {"kind": "binary"}),
        (10, "Softmax", {"output": "probability"}),
        (10, "Sigmoid", None),
        (10, "Gemm", None),
    ],
)
def test_an_onnx_graph_of_probabilities_or_one_output_gets_its_head(classes, activation, head):
    choice = Choice(
        replace(GRAPH, classes=classes, activation=activation), replace(PHOTOS, classes=max(classes, 2)), "", ""
    )
    assert plain(params_text(choice, Path("..")))["model"].get("head") == head
    assert not any("outputs" in line for line in notes(choice))


def test_a_file_without_gradients_gets_no_bounds():
    for source, verified in (("onnx", True), ("tflite", False), ("function", False)):
        weights = Weights(Path("net"), source, size=1000)
        assert bool(plain(params_text(Choice(weights, PHOTOS, "", ""), Path("..")))["verification"]) is verified


def test_every_entry_for_a_model_that_is_only_asked_has_a_limit_of_queries(monkeypatch):
    content = plain(params_text(Choice(Weights(Path("api:predict"), "function"), PHOTOS, "", ""), Path("..")))
    assert content["attacks"] == {}
    assert content["queries"]["square"]["max_queries"] == 200
    assert content["queries"]["evoba"]["params"] == {"generation_size": 20, "generations": 50}


def test_a_model_of_a_library_brings_its_transforms():
    choice = Choice(Weights(Path("models/vit"), "huggingface", is_folder=True), PHOTOS, "", "mine")
    text = params_text(choice, Path(".."))
    assert "path: ../models/vit" in text
    assert "resize" not in text
    assert "channels" not in text
    assert notes(choice) == []
    named = params_text(Choice(Weights(Path("resnet50"), "torchvision"), PHOTOS, "", "mine"), Path(".."))
    assert "name: resnet50\n  weights: pretrained\n" in named


@pytest.fixture
def repository(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".dvc").mkdir()
    return tmp_path


def planned(repository, params="a: 1\n", graph="stages: {}\n"):
    return plan(repository / "robustness", params, graph)


def test_the_second_time_nothing_is_to_do(repository):
    apply(planned(repository), repository)
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    again = planned(repository)
    assert again.changes() == []
    apply(again, repository)
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before


def test_params_are_the_users_and_a_changed_graph_stays(repository):
    apply(planned(repository), repository)
    folder = repository / "robustness"
    (folder / "params.yaml").write_text("mine: 1\n")
    assert planned(repository).changes() == []
    assert planned(repository, graph="stages: {new: 1}\n").changes() == ["dvc.yaml"]
    (folder / "dvc.yaml").write_text("stages: {mine: 1}\n")
    again = planned(repository, graph="stages: {new: 1}\n")
    assert again.changes() == []
    assert set(again.kept) == {"params.yaml", "dvc.yaml"}


def test_a_folder_with_params_gets_what_they_lack_and_keeps_what_is_there(repository, monkeypatch):
    monkeypatch.chdir(repository)
    folder = repository / "example"
    folder.mkdir()
    (folder / "params.yaml").write_text("data: {source: digits}\n")
    (folder / "prepare.py").write_text("")
    (folder / "dvc.yaml").write_text("")
    result = CliRunner().invoke(init, ["--yes", "--folder", "example"])
    assert "example/dvc.yaml is there already" in str(result.exception)
    (folder / "dvc.yaml").unlink()
    assert CliRunner().invoke(init, ["--yes", "--folder", "example"]).exit_code == 0
    assert (folder / "params.yaml").read_text() == "data: {source: digits}\n"
    assert (folder / "dvc.yaml").read_text() == graph_text({"data": {"source": "digits"}})
    assert CliRunner().invoke(init, ["--remove", "--yes", "--folder", "example"]).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["params.yaml", "prepare.py"]


def test_the_diff_shows_every_line_that_would_be_written(repository):
    lines = list(planned(repository).diff(Path("robustness")))
    assert "+a: 1" in lines
    assert "+++ robustness/dvc.yaml" in lines
    assert not (repository / "robustness").exists()


def test_a_folder_that_is_somebody_elses_is_refused(repository):
    (repository / "robustness").mkdir()
    (repository / "robustness" / "thesis.tex").touch()
    with pytest.raises(UserError, match="robustness is there already"):
        planned(repository)
    with pytest.raises(UserError, match="nothing to take back"):
        removal(repository / "robustness")


def test_taken_back_everything_is_as_before_but_for_the_users_own_files(repository):
    before = sorted(repository.rglob("*"))
    apply(planned(repository), repository)
    folder = repository / "robustness"
    for made in (
        "reports/robustness/pgd/metadata.json",
        ".cache/x",
        "mlflow.db",
        "mlflow.db.lock",
        "dvc.lock",
        *BY_DEFAULT,
    ):
        (folder / made).parent.mkdir(parents=True, exist_ok=True)
        (folder / made).touch()
    (folder / "notes.md").write_text("mine")
    (folder / "params.yaml").write_text("mine: 1\n")
    found = removal(folder)
    assert found.changed == ("params.yaml",)
    assert found.stays == (folder / "notes.md",)
    assert found.of_dvc == ()
    remove(found)
    kept = [folder, folder / "notes.md", folder / "params.yaml"]
    assert sorted(repository.rglob("*")) == sorted([*before, *kept])


@pytest.mark.parametrize("name", ["*", "thesis", "../outside.txt", "thesis/chapter.tex", "dvc.yaml", "reports"])
def test_a_record_of_a_stranger_removes_no_file_that_init_did_not_create(repository, name):
    folder = repository / "robustness"
    (folder / "thesis").mkdir(parents=True)
    (folder / "reports").mkdir()
    for file in ("thesis/chapter.tex", "reports/mine.txt", "dvc.yaml", "../outside.txt", "../.dvc/config"):
        (folder / file).write_text("mine")
    (folder / RECORD).write_text(json.dumps({"files": {name: "0" * 64}, "makes": ["dvc", "git"]}))
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file() and path.name != RECORD}
    remove(removal(folder))
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("linked", ["robustness", "robustness/reports", "robustness/champion"])
def test_nothing_is_written_through_a_link_to_outside(repository, tmp_path_factory, linked):
    outside = tmp_path_factory.mktemp("outside")
    if linked != "robustness":
        apply(planned(repository), repository)
        shutil.rmtree(repository / linked)
    (repository / linked).symlink_to(outside)
    with pytest.raises(UserError, match=r"is a link|leads out of"):
        apply(planned(repository), repository)
    assert not list(outside.iterdir())


def test_what_commands_write_where_nothing_is_said_is_nothing_for_git(repository):
    (repository / ".git").rmdir()
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    apply(planned(repository), repository)
    of_ours = [*BY_DEFAULT, str(LOCAL_FILE)]
    for name in of_ours:
        (repository / "robustness" / name).parent.mkdir(exist_ok=True)
        (repository / "robustness" / name).touch()
    ask = ["git", "ls-files", "--others", "--exclude-standard"]
    new = subprocess.run(ask, cwd=repository / "robustness", capture_output=True, text=True, check=True).stdout
    assert not set(new.split()) & set(of_ours)


def test_a_damaged_record_is_one_line(repository):
    apply(planned(repository), repository)
    (repository / "robustness" / RECORD).write_text("{")
    with pytest.raises(UserError, match="git checkout brings it back"):
        planned(repository)


def test_it_asks_which_and_writes_nothing_where_the_answer_is_no(repository, monkeypatch):
    for name in ("a", "b"):
        torch.save(torch.nn.Linear(2, 2).state_dict(), repository / f"{name}.pt")
    monkeypatch.chdir(repository)
    said = CliRunner().invoke(init, [], input="2\nn\n")
    assert said.exit_code == 0, said.output
    assert "1  a.pt (state_dict)" in said.output
    assert "+  path: ../b.pt" in said.output
    assert said.output.splitlines()[-1].startswith("to do, in robustness/params.yaml: data:")
    assert not (repository / "robustness").exists()


def test_a_predict_function_needs_no_edit(repository, monkeypatch):
    """The graph names no file of weights, and no entry needs gradients."""
    monkeypatch.chdir(repository)
    CliRunner().invoke(init, ["--yes", "--model", "function:api:predict", "--data", "x.npz"], catch_exceptions=False)
    made = repository / "robustness"
    assert "source: function\n  function: api:predict" in (made / "params.yaml").read_text()
    assert "${model." not in (made / "dvc.yaml").read_text()


def test_a_key_that_the_graph_names_and_params_lack_is_told_with_the_command(tmp_path):
    (tmp_path / "dvc.yaml").write_text("stages: {train: {cmd: x, deps: ['${model.path}', '${data.path}']}}")
    lines = missing_references(tmp_path / "dvc.yaml", {"model": {"source": "function"}, "data": {"path": "x"}})
    assert len(lines) == 1
    assert "model.path" in lines[0]
    assert "windtunnel init" in lines[0]


def test_what_is_named_is_taken_and_what_loads_no_weights_is_refused(repository, monkeypatch):
    monkeypatch.chdir(repository)
    (repository / "net.onnx").write_bytes(b"no graph")
    with pytest.raises(UserError, match=r"--model net\.onnx: is no state dict"):
        CliRunner().invoke(init, ["--yes", "--model", "net.onnx"], catch_exceptions=False)
    with pytest.raises(UserError, match="the name of one folder"):
        CliRunner().invoke(init, ["--yes", "--folder", "../elsewhere"], catch_exceptions=False)
    said = CliRunner().invoke(init, ["--yes", "--data", "pictures/test"], catch_exceptions=False)
    assert "path: ../pictures/test" in (repository / "robustness" / "params.yaml").read_text()
    assert "data.resize" in said.output
    with pytest.raises(UserError, match="name model and data in it"):
        CliRunner().invoke(init, ["--yes", "--data", "other"], catch_exceptions=False)
