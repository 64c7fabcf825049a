"""A file from a stranger runs nothing: every loader is given one whose code would write a canary."""

import json
import pickle
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.hostile.harness import BASE, params, stage, windtunnel, write_params
from windtunnel.boundary.models import loaders
from windtunnel.boundary.models.load import named_classifier
from windtunnel.boundary.models.programs import Refused, read_program
from windtunnel.core.errors import UserError
from windtunnel.records.artifacts import load_tensors
from windtunnel.records.files import write_json

CANARY = "canary"


class Bomb:
    """What a stranger pickles: loading it writes the canary."""

    def __init__(self, canary: Path) -> None:
        self.code = f"open({str(canary)!r}, 'w').close()"

    def __reduce__(self):
        return exec, (self.code,)


@pytest.fixture
def canary(project) -> Path:
    return project / CANARY


@pytest.fixture
def bomb(canary) -> Bomb:
    return Bomb(canary)


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """A sound .pt2 of a linear model of digits with a dynamic batch."""
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    shapes = ({0: torch.export.Dim("n")},)
    torch.export.save(torch.export.export(module, (torch.zeros(2, 1, 8, 8),), dynamic_shapes=shapes), path)
    return path


def test_the_canary_is_written_where_a_pickle_is_loaded(canary, bomb):
    pickle.loads(pickle.dumps(bomb))
    assert canary.exists()


# --- torch.export programs ---


def pickled(thing: object, folder: Path) -> bytes:
    path = folder / "thing.pt"
    torch.save(thing, path)
    return path.read_bytes()


def edited(program: Path, target: Path, edit) -> Path:
    """The program with its files, {name below the top: bytes}, changed by `edit`."""
    with zipfile.ZipFile(program) as archive:
        files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    edit(files)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"model/{name}", content)
    return target


def change_json(files: dict[str, bytes], name: str, change) -> None:
    content = json.loads(files[name])
    change(content)
    files[name] = json.dumps(content).encode()


def sample_inputs(files, bomb, folder):
    files["data/sample_inputs/model.pt"] = pickled(((bomb,), {}), folder)


def weight(files, bomb, folder):
    files["data/weights/weight_0"] = pickled(bomb, folder)

    def change(content):
        content["config"]["1.weight"] |= {"use_pickle": True}

    change_json(files, "data/weights/model_weights_config.json", change)


def constant(prefix):
    def edit(files, bomb, folder):
        files[f"data/constants/{prefix}_0"] = pickle.dumps(bomb) if prefix != "tensor" else pickled(bomb, folder)
        row = {"path_name": f"{prefix}_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
        change_json(
            files, "data/constants/model_constants_config.json", lambda content: content["config"].update(c=row)
        )

    return edit


def legacy_weights(files, bomb, folder):
    files["data/weights/model.pt"] = pickled(bomb, folder)


def graph(change):
    return lambda files, bomb, folder: change_json(files, "models/model.json", lambda content: change(content, bomb))


def size(content, bomb):
    values = content["graph_module"]["graph"]["tensor_values"]
    values["input"]["sizes"][0] = {"as_expr": {"expr_str": f"exec({bomb.code!r})", "hint": {"as_int": 2}}}


def hidden_size(content, bomb):
    text = "Symbol('s1').__class__.__init__.__globals__"
    content["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][0] = {
        "as_expr": {"expr_str": text, "hint": None}
    }


def shell(content, bomb):
    node = content["graph_module"]["graph"]["nodes"][0]
    text = f"touch {bomb.code.split(chr(39))[1]}"
    node |= {"target": "torch.os.system", "inputs": [{"name": "", "arg": {"as_string": text}, "kind": 1}]}


def torch_load(content, bomb):
    content["graph_module"]["graph"]["nodes"][0]["target"] = "torch.hub.load"


def file_writer(content, bomb):
    content["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.from_file.default"


def python_name(content, bomb):
    content["graph_module"]["graph"]["inputs"][2]["as_tensor"]["name"] = f"x): {bomb.code}\n#"


def tree(content, bomb):
    block = {"__enum__": True, "fqn": "mine:Bomb", "name": "x"}
    spec = [1, {"type": "builtins.dict", "context": json.dumps([block]), "children_spec": []}]
    content["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps(spec)


def library(files, bomb, folder):
    files["data/aotinductor/model/model.so"] = b"\x7fELF"


EDITS = {
    "sample inputs": sample_inputs, "a weight": weight, "a constant": constant("tensor"), "an object": constant("custom_obj"),
    "an opaque object": constant("opaque_obj"), "old weights": legacy_weights, "a size": graph(size),
    "a size's attributes": graph(hidden_size), "a shell": graph(shell), "another loader": graph(torch_load),
    "a file": graph(file_writer), "a name": graph(python_name), "a tree": graph(tree), "a compiled library": library,
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_program_that_could_run_code_is_refused(program, project, canary, bomb, edit):
    (project / "mine.py").write_text(bomb.code)
    path = edited(program, project / "bad.pt2", lambda files: edit(files, bomb, project))
    with pytest.raises(Refused):
        read_program(path)
    assert not canary.exists()


def test_guards_are_not_executed(program, project, canary, bomb):
    def guards(content, bomb):
        content["guards_code"] = [f"[{bomb.code}, True][1]"]

    path = edited(program, project / "bad.pt2", lambda files: graph(guards)(files, bomb, project))
    assert read_program(path)(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert not canary.exists()


def test_two_files_of_one_name_are_refused(program, project):
    path = edited(program, project / "bad.pt2", lambda files: None)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("model/models/model.json", "{}")
    with pytest.raises(Refused, match="two files of one name"):
        read_program(path)


def test_a_sound_program_gives_what_torch_gives(program):
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(read_program(program)(x), torch.export.load(program).module()(x))


def test_check_refuses_a_pickle_in_a_program_and_says_what_would_allow_it(program, project, canary, bomb):
    edited(program, project / "bad.pt2", lambda files: sample_inputs(files, bomb, project))
    write_params(project, params(model={"source": "export", "path": "bad.pt2"}))
    ended = windtunnel("check", cwd=project)
    assert ended.code == 2
    assert "model.allow_pickle: true loads it" in ended.line
    assert not canary.exists()


# --- models beside which a file says what should run ---


def kept_model(folder: Path, facts: dict[str, object], weights: Path | None = None, name: str = "weights.pt") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if weights:
        shutil.copyfile(weights, folder / name)
    write_json({"original": name, "sha256": "0", "file": name, **facts}, folder / "model.json")


def strangers(project: Path, bomb: Bomb, program: Path) -> dict[str, dict[str, object]]:
    torch.save(bomb, project / "bomb.pt")
    edited(program, project / "bad.pt2", lambda files: sample_inputs(files, bomb, project))
    command = {"factory": "subprocess:getoutput", "kwargs": {"cmd": f"touch {project / CANARY}"}}
    kinds = {
        "pickle": ({"source": "mlflow", "form": "pickle", "uri": "models:/x/1"}, "bomb.pt"),
        "factory": ({"source": "state_dict", **command}, "bomb.pt"),
        "function": ({"source": "function", "function": "subprocess:getoutput", "kwargs": command["kwargs"]}, None),
        "state dict": ({"source": "state_dict", "factory": "torch.nn:Identity", "kwargs": {}}, "bomb.pt"),
        "program": ({"source": "export"}, "bad.pt2"),
        "program of MLflow": ({"source": "mlflow", "form": "export", "uri": "models:/x/1"}, "bad.pt2"),
        "trained": ({"source": "train", "architecture": "mlp", "input_shape": [1, 8, 8], "num_classes": 10,
                     "recipe": {"recipe": "standard"}}, "bomb.pt"),
        "nothing": ({"source": "state_dict"}, None),
    }  # fmt: skip
    for name, (facts, weights) in kinds.items():
        kept_model(project / name, facts, project / weights if weights else None)
    return {name: facts for name, (facts, _) in kinds.items()}


KINDS = ["pickle", "factory", "function", "state dict", "program", "program of MLflow", "trained", "nothing"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["transfer_to", "transfer_to, written out", "latent.models"])
def test_a_model_of_a_stranger_runs_nothing(project, canary, bomb, program, kind, where):
    strangers(project, bomb, program)
    changes = {
        "transfer_to": {"attacks": {"fgsm": {**BASE["attacks"]["fgsm"], "transfer_to": {"other": kind}}}},
        "latent.models": {"generators": {"source": "train"}, "latent": {"l": {"models": [kind]}}},
        "transfer_to, written out": {
            "attacks": {"fgsm": {**BASE["attacks"]["fgsm"], "transfer_to": {"o": {"model": kind}}}}
        },
    }
    write_params(project, params(**changes[where]))
    ended = windtunnel("check", cwd=project)
    assert ended.code == 2
    assert "attacks.fgsm.transfer_to" in ended.line or "latent.l.models[0]" in ended.line
    assert not canary.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_surrogate_of_a_stranger_runs_nothing(project, canary, bomb, program, mlp_subject, kind, monkeypatch):
    """`sanity.surrogate`, by the call that the sanity checks make."""
    monkeypatch.chdir(project)
    strangers(project, bomb, program)
    with pytest.raises(UserError, match=r"^sanity\.surrogate"):
        named_classifier("sanity.surrogate", kind, mlp_subject.dataset, "cpu", None)
    assert not canary.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_reports_model_of_a_stranger_runs_nothing_in_a_stage(project, canary, bomb, program, kind):
    """As `dvc pull` from a remote of somebody else's would bring it."""
    strangers(project, bomb, program)
    write_params(project, params())
    assert stage("prepare", cwd=project).code == 0
    (project / kind).rename(project / "reports" / "model")
    ended = stage("clean", cwd=project)
    assert ended.code == 2
    assert ended.line
    assert not canary.exists()


def test_what_params_say_may_run_does(project, canary, bomb):
    """`allow_pickle: true` at the very entry, and a factory that stands there."""
    (project / "mine.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    weights = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).state_dict()
    torch.save(weights, project / "w.pt")
    kept_model(project / "earlier", {"source": "state_dict", "factory": "subprocess:getoutput"}, project / "w.pt")
    other = {"model": "earlier", "factory": "mine:make"}
    write_params(project, params(attacks={"fgsm": {**BASE["attacks"]["fgsm"], "transfer_to": {"o": other}}}))
    ended = windtunnel("check", cwd=project)
    assert (ended.code, ended.err) == (0, ""), ended.err


# --- plug-ins ---


def unpickled(facts, directory, trust):
    """What the author of the plug-in thought right."""
    return pickle.loads((directory / str(facts["file"])).read_bytes())


class Reader:
    """An installed plug-in of the group `windtunnel.models`: it unpickles what it is given."""

    name, value = "reader", f"{__name__}:unpickled"

    def load(self):
        return unpickled


@pytest.fixture
def reader(monkeypatch):
    from windtunnel.registry import plugins

    whole = plugins.plugins

    def with_it(group, ours=()):
        return {**whole(group, ours), **({"reader": Reader()} if group == "windtunnel.models" else {})}

    for module, name in ((plugins, "plugins"), (loaders, "plugins")):
        monkeypatch.setattr(module, name, with_it)
    plugins.model_source.cache_clear()
    yield
    plugins.model_source.cache_clear()


@pytest.mark.parametrize("where", ["transfer_to", "latent.models"])
def test_a_plugin_that_only_a_file_names_is_not_called(project, canary, bomb, reader, where):
    """What is beside that file may be anything."""
    (project / "bomb.pkl").write_bytes(pickle.dumps(bomb))
    kept_model(project / "other", {"source": "reader", "factory": "subprocess:getoutput"}, project / "bomb.pkl")
    changes = {
        "transfer_to": {"attacks": {"fgsm": {**BASE["attacks"]["fgsm"], "transfer_to": {"other": "other"}}}},
        "latent.models": {"generators": {"source": "train"}, "latent": {"l": {"models": ["other"]}}},
    }
    write_params(project, params(**changes[where]))
    ended = windtunnel("check", cwd=project)
    assert ended.code == 2
    assert "model.json names the plug-in 'reader'" in ended.line
    assert not canary.exists()


def test_a_plugin_is_not_called_for_a_model_of_a_stranger_in_reports(project, canary, bomb, reader):
    """As `dvc pull` would bring it, where params.yaml says another source."""
    (project / "bomb.pkl").write_bytes(pickle.dumps(bomb))
    write_params(project, params())
    assert stage("prepare", cwd=project).code == 0
    kept_model(project / "reports" / "model", {"source": "reader"}, project / "bomb.pkl")
    ended = stage("clean", cwd=project)
    assert ended.code == 2
    assert "names the plug-in 'reader'" in ended.line
    assert not canary.exists()


def test_a_plugin_that_params_name_is_called(project, canary, bomb, reader):
    """The canary is written: the user chose it."""
    (project / "bomb.pkl").write_bytes(pickle.dumps(bomb))
    write_params(project, params(model={"source": "reader", "path": "bomb.pkl"}))
    windtunnel("check", cwd=project)
    assert canary.exists()


# --- the champion ---


class Trap(torch.nn.Module):
    """A model of MLflow's whose unpickling writes the canary."""

    def __init__(self, bomb: Bomb) -> None:
        super().__init__()
        self.bomb = bomb


@pytest.fixture
def champion(project, bomb):
    """A registry where somebody else's version is the champion, its model a pickle, and its record one too."""
    import mlflow

    from windtunnel.boundary.mlflow_server import connect, tracking_uri

    connect(tracking_uri(None))
    mlflow.create_experiment("windtunnel", artifact_location=(project.parent / "artifacts").as_uri())
    mlflow.set_experiment("windtunnel")
    (project.parent / "summary").mkdir()
    (project.parent / "summary" / "outcomes.json").write_bytes(pickle.dumps(bomb))
    with mlflow.start_run():
        mlflow.log_artifacts(str(project.parent / "summary"), "summary")
        mlflow.pytorch.log_model(
            Trap(bomb), name="model", serialization_format="pickle", pip_requirements=["torch"],
            registered_model_name="windtunnel",
        )  # fmt: skip
    mlflow.MlflowClient().set_registered_model_alias("windtunnel", "champion", "1")


@pytest.mark.slow
def test_a_champion_of_a_stranger_runs_nothing(project, canary, champion):
    """Neither its record, which the gate reads, nor its weights, which a reassessment takes (`models:/` in a params.yaml)."""
    write_params(project, params())
    ended = windtunnel("champion", "--fetch", cwd=project, seconds=60)
    assert ended.code == 2
    assert "outcomes.json" in ended.line
    write_params(project, params(model={"source": "mlflow", "uri": "models:/windtunnel/1"}))
    assert stage("prepare", cwd=project).code == 0
    for ended in (stage("train", cwd=project, seconds=60), windtunnel("check", cwd=project, seconds=60)):
        assert ended.code == 2
        assert "holds a pickle" in ended.line
    assert not canary.exists()


# --- everything else that is read ---


def readers(project: Path, bomb: Bomb) -> dict[str, dict[str, object]]:
    """Params whose files hold the bomb, by what reads them."""
    np.savez(project / "x.npz", x=np.array([bomb], dtype=object))
    torch.save(bomb, project / "bomb.pt")
    (project / "idx").write_bytes(pickle.dumps(bomb))
    (project / "mine.py").write_text("from tests.boundary.generators.own import Own\n")
    (project / "suite").mkdir()
    shutil.copyfile(project / "bomb.pt", project / "suite" / "robustness_data.pt")
    write_json({"name": "suite", "metrics": {}}, project / "suite" / "metadata.json")
    own = {"source": "function", "function": "mine:Own", "path": "bomb.pt"}
    return {
        "npz": {"data": {"source": "npz", "path": "x.npz"}},
        "npz that is a torch file": {"data": {"source": "npz", "path": "bomb.pt"}},
        "idx": {"data": {"source": "idx", "path": "idx"}},
        "onnx": {"model": {"source": "onnx", "path": "bomb.pt"}},
        "export": {"model": {"source": "export", "path": "bomb.pt"}},
        "generators": {"generators": own, "latent": {"l": {}}},
        "reference": {"corruptions": {"c": {"algorithm": "fog", "upsample": 32, "reference": "suite"}}},
    }


@pytest.mark.parametrize(
    "kind", ["npz", "npz that is a torch file", "idx", "onnx", "export", "generators", "reference"]
)
def test_a_file_that_params_name_runs_nothing(project, canary, bomb, kind):
    write_params(project, params(**readers(project, bomb)[kind]))
    ended = windtunnel("check", cwd=project)
    assert ended.code == 2
    assert ended.line
    assert not canary.exists()


def test_params_that_name_python_objects_run_nothing(project, canary):
    write_params(project, f'seed: !!python/object/apply:os.system ["touch {canary}"]\n')
    ended = windtunnel("check", cwd=project)
    assert ended.code == 2
    assert "not YAML" in ended.line
    assert not canary.exists()


def test_a_picture_that_is_a_program_for_ghostscript_is_no_picture(project, canary):
    (project / "images" / "a").mkdir(parents=True)
    text = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n({canary}) (w) file closefile\nshowpage\n%%EOF\n"
    (project / "images" / "a" / "0.png").write_text(text)
    write_params(project, params(data={"source": "folder", "path": "images"}))
    ended = windtunnel("check", cwd=project)
    assert ended.code == 2
    assert "0.png: not an image" in ended.line
    assert not canary.exists()


def test_tensors_of_results_and_checkpoints_run_nothing(project, canary, bomb):
    """The one reader of robustness_data.pt, of checkpoints, of caches, of the champion's and a reference's tensors."""
    torch.save({"clean_inputs": bomb}, project / "data.pt")
    with pytest.raises(UserError, match="cannot be read"):
        load_tensors(project / "data.pt")
    assert not canary.exists()


def test_nothing_else_in_the_code_loads_what_can_run():
    """The doors are few and known: a new one is to be looked at, and to be given a canary."""
    doors = {
        "records/artifacts.py": "weights_only=True",
        "boundary/generators/load.py": "weights_only=True",
        "boundary/models/loaders.py": "weights_only",
        "boundary/models/programs.py": "weights_only=True",
        # What a worker of ours sent, over a pipe or a cluster that this process opened: never a file, never a stranger's.
        "runtime/executors/payload.py": "a message of a worker or a driver of ours",
    }
    root = Path(__file__).parents[2] / "src" / "windtunnel"
    loads = re.compile(
        r"torch\.load\(|torch\.jit\.load|torch\.export\.load|pickle\.load|joblib|dill|np\.load\(|(?<![.\w])(eval|exec)\([^)]"
    )
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    found = {name for name, text in texts.items() if loads.search(text)}
    assert found == {*doors, "boundary/data/sources.py"}
    for name, word in doors.items():
        assert word in texts[name]
    assert "allow_pickle=False" in texts["boundary/data/sources.py"]
    executors = {"payload.py", "processes.py", "ray_cluster.py", "slurm_jobs.py"}
    assert {name for name, text in texts.items() if "unpickled(" in text} == {
        f"runtime/executors/{name}" for name in executors
    }
