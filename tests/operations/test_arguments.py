"""Refusals and advice of the Python API name its arguments, never keys of params.yaml."""

import ast
import functools
import inspect
import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel
from torch import nn

import windtunnel as wt
from tests.hostile.api_table import MODEL, PGD, X, Y
from windtunnel.boundary.door import arguments_of, in_arguments
from windtunnel.core.errors import UserError
from windtunnel.params.schema import Params
from windtunnel.registry.plugins import families

BUDGET = "Linf 0.1"
EVERY = {"model": MODEL, "x": X, "y": Y, "budget": BUDGET}
BLOCKS = {key: field.annotation for key, field in Params.model_fields.items()}
KEYS = [
    rf"(?<![\w.'\[]){block}\.({'|'.join(kind.model_fields)})\b"
    for block, kind in BLOCKS.items()
    if isinstance(kind, type) and issubclass(kind, BaseModel)
]
KEY = re.compile("|".join([*KEYS, rf"(?<![\w.'\[])({'|'.join(families())})\.\w"]))


class TwoOutputs(nn.Module):
    def forward(self, x):
        return {"a": x.flatten(1)[:, :3], "b": x.flatten(1)[:, :3]}


def predict(batch):
    return np.full((len(batch), 3), 1 / 3)


CALLS = {
    "attack": [
        ({"budget": "Linf"}, "budget: 'Linf' is not"),
        ({"budget": "Linf -1"}, r"budget\['epsilon'\]: input should be greater than 0, got -1.0$"),
        ({"budget": "L3 1"}, r"budget\['norm'\]: 'L3'"),
        ({"budget": {"norm": "Linf", "epsilon": 0.1, "stepz": 3}}, r"budget\['stepz'\]"),
        ({"budget": {"norm": "Linf", "epsilon": 0.1, "steps": 3}}, r"^budget\['steps'\]: 'steps' is not a key"),
        ({"model": TwoOutputs()}, "logits of shape .* are needed; return one of a, b"),
        ({"budget": "L0 3", "algorithm": "fab"}, r"budget\['norm'\]: .* set budget=\"Linf \.\.\.\""),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(16, 1))}, "y: labels span 0 to 2"),
        ({"x": X * 255}, r"x: values span .* scale them to \[0, 1\]"),
        ({"x": X[:, :, :3]}, "model: .* give x in another shape"),
        ({"x": X * float("nan")}, "x: sample 00000 holds NaN"),
        ({"algorithm": "pdg"}, "algorithm: 'pdg'"),
        ({"params": {"stepz": 3}}, "params: 'stepz' is not a parameter of PGD"),
        ({"params": {"steps": -3}}, r"params\['steps'\]: -3 is negative"),
        ({"foo": 3}, "foo: 'foo' is not a key here"),
        ({"restarts": 0}, "restarts: input"),
        ({"restarts": 1.5}, "restarts: 1.5 is not a whole number$"),
        ({"params": 3}, "params: 3 is not a map of keys$"),
        ({"visualisers": 3}, r"visualisers: 3 is not a list; write \[3\]$"),
        ({"batch_size": "many"}, "batch_size: 'many' is not a whole number$"),
        ({"on": {"survivors_of": "q"}}, r"on\['survivors_of'\]: 'q' is not a list; write \['q'\]$"),
        ({"budget": "L7 0.1"}, "Did you mean .*Allowed: Linf, L2, L1, L0$"),
        ({"samples": {"n": -1}}, r"samples\['n'\]: input"),
        ({"on": {"survivors_of": ["q"]}}, r"on\['survivors_of'\]: 'q'"),
        ({"model": predict}, "algorithm: torchattacks PGD .* needs autograd"),
    ],
    "autoattack": [
        ({"eps": -1}, "eps: input should be greater than 0"),
        ({"eps": "a"}, "eps: 'a' is not a number"),
        ({"eps": 0.1, "norm": "L7"}, "norm: 'L7' is not Linf or L2, under which the ensemble runs$"),
        ({"eps": 0.1, "norm": "l1"}, "norm: 'l1' is not Linf or L2, under which the ensemble runs$"),
        ({"eps": 0.1, "model": predict}, r"^windtunnel standard \(white_box\) needs autograd"),
        ({"eps": 0.1, "y": Y + 5}, "y: labels span 5 to 7"),
        ({"eps": 0.1, "x": X[:0], "y": Y[:0]}, "x: holds no samples"),
    ],
    "verify": [
        ({"algorithm": "cascad"}, "algorithm: 'cascad' .* Did you mean 'cascade'"),
        ({"model": predict}, "algorithm: windtunnel cascade"),
        ({"timeout": -1}, "timeout: input"),
        ({"tiemout": 1}, "tiemout: 'tiemout'"),
        ({"budget": "L0 3"}, "algorithm: cascade works under Linf"),
        ({"steps": ["foo"]}, "steps: 'foo' is not a step"),
    ],
    "corrupt": [
        ({"algorithm": "fogg"}, "algorithm: 'fogg'"),
        ({"severities": [9]}, r"severities\[0\]: input"),
        ({"severities": 3}, r"severities: 3 is not a list; write \[3\]$"),
        ({"algorithm": "fog"}, "algorithm: images are 4x4.* Set upsample=32"),
    ],
    "assess": [
        ({"attacks": {"a": {"algorithm": "PGD"}}}, r"attacks\['a'\]\['library'\]: is required"),
        ({"attacks": {"a": {**PGD, "budget": "L2 0.5"}}}, "there is none; a budget .* {norm: L2, epsilon: 0.5}$"),
        ({"attacks": {"a": {**PGD, "budget": {"step_size": 0}}}}, r"attacks\['a'\]\['budget'\]\['step_size'\]"),
        ({"verify": "cascad"}, "verify: 'cascad'"),
        ({"verify": {"v": {"library": "windtunnel", "algorithm": "cascade", "timeout": -1}}}, r"verify\['v'\]\['time"),
        ({"corrupt": {"v": {"algorithm": "fog", "severities": [0]}}}, r"corrupt\['v'\]\['severities'\]\[0\]"),
        ({"sanity": "ful"}, "sanity: 'ful' is not allowed"),
        ({"sanity": {"profil": "full"}}, "sanity={'profil': ...}: 'profil' is not a key"),
        ({"class_names": ["a", "a", "b"]}, "class_names: 'a' stands there twice"),
        ({"class_names": ["a", "b", "c", "d"]}, "class_names says how many"),
        ({"model": predict, "y": None}, "class_names: is required"),
        ({"y": Y + 0.5}, "y: labels of type float32"),
        ({"train": (X, Y + 9)}, "train: y: labels span 9 to 11"),
        ({"train": (X * 99, Y)}, "train: x: values span"),
        ({"x": X * 99, "train": (X, Y)}, "^x: values span"),
        ({"seed": -1}, "seed: input"),
        ({"device": "tpu"}, "device: 'tpu'"),
    ],
}


@pytest.mark.parametrize(
    ("function", "change", "says"), [(name, *pair) for name, pairs in CALLS.items() for pair in pairs]
)
def test_a_refusal_names_arguments(function, change, says):
    usual = {"attack": {"algorithm": "pgd"}}.get(function, {})
    unused = {"autoattack": ["budget"], "corrupt": ["budget"]}.get(function, [])
    arguments = {key: value for key, value in {**EVERY, **usual, **change}.items() if key not in unused}
    with pytest.raises(UserError, match=says) as refused:
        getattr(wt, function)(**arguments)
    assert not KEY.search(str(refused.value))


def test_the_remedy_of_every_check_names_arguments():
    checks = json.loads((files("windtunnel.evaluation.sanity") / "checks.json").read_text())
    remedies = [check["remedy"] for check in checks["checks"].values()]
    assert any(KEY.search(remedy) for remedy in remedies)
    assert not [line for remedy in remedies if KEY.search(line := in_arguments(remedy, wt.assess))]


MENTION = re.compile(
    r"""(?<![\w.'"])(\w+)(?:=(?:\{[^}]*\}|"[^"]*"|\w+)|(?:\['?\w+'?\])+|(?<=_names))( of windtunnel\.(\w+))?"""
)
FUNCTIONS = [name for name in wt.__all__ if inspect.isfunction(getattr(wt, name))]


@functools.cache
def messages():
    """Every text of ours that names a key of params.yaml or an argument; those about an entry are about one of each family."""
    checks = json.loads((files("windtunnel.evaluation.sanity") / "checks.json").read_text())["checks"].values()
    texts, parts = {check["remedy"] for check in checks}, set()
    for path in Path(wt.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts |= {id(part) for part in node.values}
                pieces = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
                texts.add("".join(pieces).replace("norm: {}", "norm: L2"))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                texts.add(node.value)
    some = ("attacks", "verification", "corruptions")
    filled = {re.sub(r"\{\}(?=[.:])", f"{family}.mine", text, count=1) for text in texts for family in some}
    filled = {text.replace("{}", "7") for text in filled if "\n" not in text and "\\" not in text}
    return sorted(text for text in filled if KEY.search(text) or MENTION.search(text))


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if "x" in inspect.signature(getattr(wt, n)).parameters])
def test_advice_names_only_arguments_that_a_function_takes(name):
    """Whatever message of ours a caller reads, it names arguments of the function called, or says where others belong."""
    ours = {argument for function in FUNCTIONS for argument in arguments_of(getattr(wt, function))}
    assert len(messages()) > 300
    for line in messages():
        shown = in_arguments(line, getattr(wt, name))
        first = (
            re.match(r"(\w+)(?=: )()()", shown)
            if line.startswith(("attacks.", "verif", "corr", "data", "budget"))
            else None
        )
        for argument, _, taker in [*MENTION.findall(shown), *([first.groups()] if first else [])]:
            assert argument not in ours or argument in arguments_of(getattr(wt, taker or name)), (line, shown)
        assert not [key for key in KEY.finditer(shown) if not shown[key.end() :].startswith((" of params.yaml", "."))]


def test_what_is_written_in_params_yaml_keeps_its_keys(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("budget: {norm: Linf, epsilon: -1}\n")
    with pytest.raises(UserError, match=r"budget\.epsilon: input"):
        wt.load_params(path)
