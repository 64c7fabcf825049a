"""The handbook builds without a broken link, and its code runs as it stands."""

import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from dvc.cli.parser import get_main_parser as dvc_parser
from PIL import Image
from rich.console import Console
from ruamel.yaml import YAML

from tools.handbook import on_startup
from windtunnel.cli.compatibility import check_compatibility
from windtunnel.cli.main import cli
from windtunnel.evaluation.validate import validate
from windtunnel.params.load import validate_schema
from windtunnel.plugins import ModelSource

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
REST = {"data": {"source": "digits"}, "model": {"source": "train"}, "budget": {"norm": "Linf", "epsilon": 0.1}}


def blocks(pages: str, language: str) -> list[str]:
    """Return the code blocks of a language in the pages that a pattern names, in the order of their paths."""
    texts = [page.read_text() for page in sorted(DOCS.glob(pages))]
    return [code for text in texts for kind, code in FENCE.findall(text) if kind == language]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_every_page_begins_with_what_its_reader_can_do_after_it(page):
    title, purpose, _ = page.read_text().split("\n\n", 2)
    assert title.startswith("# ")
    assert purpose.startswith("After this page you ")
    assert len(purpose.split()) <= 25


def test_a_link_to_a_file_that_is_left_out_fails_the_strict_build(caplog):
    on_startup()
    pages = logging.getLogger("mkdocs.structure.pages")
    pages.setLevel(logging.INFO)
    pages.info("Doc file 'a.md' contains a link to '.b.md' which is excluded from the built site.")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.integration
def test_it_builds_without_a_broken_link(tmp_path):
    """Strict: a link or an anchor that leads nowhere, and a page that no menu shows, are errors. --quiet would hide them."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    params = (tmp_path / "site" / "reference" / "params.html").read_text()
    assert "survivors_of" in params
    commands = (tmp_path / "site" / "reference" / "cli.html").read_text()
    assert "retrain" in commands
    assert "without a pipeline" in (tmp_path / "site" / "library.html").read_text()
    assert (tmp_path / "site" / "search" / "search_index.js").is_file()  # a script is loaded from file:// too
    loads = re.compile(r"""<(?:script|link|img)[^>]*(?:src|href)=["']?https?://""")
    assert not [page.name for page in tmp_path.rglob("*.html") if loads.search(page.read_text())]


@pytest.mark.integration
def test_the_tutorial_is_a_program_that_ends_in_a_finding(tmp_path):
    program = "\n".join(blocks("tutorial.md", "python"))
    (tmp_path / "tutorial.py").write_text(program)
    found = subprocess.run(
        [sys.executable, "tutorial.py"], cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]
    (gain,) = re.findall(r"rose by (-?\d+)%", found.stdout)
    assert int(gain) >= 20


THEIRS = """
from torch import nn

def resnet18():
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 5))
"""
API = """
import numpy as np

def predict(batch):
    scores = batch.reshape(len(batch), -1)[:, :5] + 0.1
    return scores / scores.sum(1, keepdims=True)
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """What the how-tos name: a model in four forms, one of them behind a function, and images as files and as an array."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("my_models.py").write_text(THEIRS)
    Path("my_api.py").write_text(API)
    Path("my_attacks.py").write_text("\n\n".join(blocks("how-to/own-attack.md", "python")))
    torch.manual_seed(0)
    namespace: dict = {}
    exec(THEIRS, namespace)
    model, x = namespace["resnet18"]().eval(), torch.rand(24, 3, 32, 32)
    with torch.no_grad():
        model[2].bias -= model(x).mean(0)  # so that no class is always the answer
    torch.save(model.state_dict(), "weights.pt")
    (command,) = re.findall(
        r"`(torch\.export\.save\(.*?\))`", (DOCS / "how-to" / "torch-model.md").read_text(), re.DOTALL
    )
    exec(command, {"torch": torch, "model": model, "x": x})
    torch.onnx.export(model, (x[:1],), "model.onnx", dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    labels = model(x).argmax(1)
    np.savez("test.npz", x=x.numpy(), y=labels.numpy())
    Path("images").mkdir()
    for number, image in enumerate(x):
        pixels = image.permute(1, 2, 0).mul(255).byte().numpy()
        Image.fromarray(pixels).resize((40, 40)).save(f"images/{number}.png")
    rows = [f"{number}.png,{'abcde'[int(label)]}" for number, label in enumerate(labels)]
    Path("labels.csv").write_text("\n".join(["file,label", *rows, ""]))
    cameras = [f"{number}.png,camera,{'AB'[number % 2]}" for number in range(len(x))]
    nights = [f"{number}.png,lighting,night" for number in range(8)]
    Path("slices.csv").write_text("\n".join(["sample,column,value", *cameras, *nights, ""]))


IMAGES = {"source": "folder", "path": "images", "labels": "labels.csv", "class_names": [*"abcde"], "resize": 32}


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for text in blocks("how-to/*.md", "yaml") if "jobs:" not in text])
def test_every_params_of_the_how_tos_runs_on_what_it_names(theirs, text):
    given = YAML(typ="safe", pure=True).load(text)
    if given.get("device") == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    if "without_rounding" in text:
        given["attacks"]["bpda"].pop("adapt")  # it is of a model with a `network` behind its rounding
    if (source := given.get("model", {}).get("source")) in {"tflite", "mlflow", "torchvision", "timm"}:
        pytest.skip(f"tests/boundary/models runs {source}")
    if "data" in given and "model" not in given:  # the block is about the data
        given["model"] = {"source": "state_dict", "path": "weights.pt", "factory": "my_models:resnet18"}
    if "model" in given and "labels" not in given.get("data", {}):
        given["data"] = {**given.get("data", {}), **IMAGES}
    mistakes = check_compatibility(validate({**REST, **given}), Console(quiet=True), 200)[0]
    assert mistakes == []


def command_lines() -> list[str]:
    """Every command of windtunnel and DVC in the handbook and the README, without its comment."""
    found = []
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text()
        fenced = "\n".join(code for kind, code in FENCE.findall(text) if kind in {"bash", "sh"})
        indented = re.findall(r"^    (.+)$", FENCE.sub("", text), re.MULTILINE)
        for line in [*fenced.splitlines(), *indented]:
            for part in re.split(r"&&|; | \| ", line.partition("  #")[0]):
                if re.match(r"(python -m )?windtunnel [a-z]+|dvc [a-z]+ ?", part.strip()):
                    found.append(part.strip().removeprefix("python -m "))
    return sorted(set(found))


@pytest.mark.parametrize("line", command_lines())
def test_every_command_of_the_handbook_exists_with_its_options(line):
    program, *words = shlex.split(line)
    if program == "dvc":
        dvc_parser().parse_args(words)  # exits where it does not know one
        return
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"windtunnel has no command {name}"
        command = found
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known


def test_the_commands_of_the_handbook_are_found():
    lines = command_lines()
    assert {"windtunnel rollback", "dvc repro robustness/dvc.yaml", "windtunnel evidence --output pack.zip"} <= {*lines}
    assert len(lines) > 40


@pytest.mark.parametrize("text", blocks("**/*.md", "yaml"))
def test_every_yaml_of_the_handbook_is_valid(text, tmp_path):
    given = YAML(typ="safe", pure=True).load(text)
    if "stages" in given or "executor" in given:  # a dvc.yaml, a file of this machine
        return
    if "jobs" not in given:
        validate_schema({**REST, **given}, "the handbook")
        return
    pytest.importorskip("check_jsonschema")
    (tmp_path / "workflow.yml").write_text(text)
    schema = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    subprocess.run([*schema, str(tmp_path / "workflow.yml")], check=True)


def test_the_source_of_ones_own_in_models_is_a_record():
    (block,) = (code for code in blocks("models.md", "python") if "SOURCE =" in code)
    namespace: dict[str, object] = {}
    exec(block, namespace)
    assert isinstance(namespace["SOURCE"], ModelSource)
