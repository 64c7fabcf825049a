"""Exported samples, decided one by one, have the verdicts of the assessment; counter-examples are inside and wrong."""

import gzip
import math
import os
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import helper, numpy_helper

from windtunnel.assessments.verification import vnnlib as instance
from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.vnnlib import InstanceResult, decide_instance, export_instances
from windtunnel.boundary.models.backends import OnnxModule
from windtunnel.boundary.vnnlib_text import read_specifications
from windtunnel.cli.verify import verify
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry

ENTRY = VerificationEntry(library="windtunnel", algorithm="cascade", steps=("attack", "crown", "branch-and-bound"))
EPSILON = 0.06
WORD = {int(Verdict.VERIFIED): "unsat", int(Verdict.FALSIFIED): "sat", int(Verdict.UNKNOWN): "unknown"}


@pytest.mark.slow
def test_every_exported_sample_is_decided_as_the_assessment_decides_it(mlp_subject, tmp_path):
    subject = mlp_subject.subset(torch.arange(5))
    paths = export_instances("proof", subject, Norm.LINF, EPSILON, None, tmp_path / "out")
    expected = assess("proof", ENTRY, Budget(norm=Norm.LINF, epsilon=EPSILON), subject).data["verdicts"].tolist()
    lines = (tmp_path / "out" / "instances.csv").read_text().splitlines()
    assert lines == [f"model.onnx,vnnlib/{path.name},60" for path in paths]
    found = [decide_instance(tmp_path / "out" / "model.onnx", path, ENTRY) for path in paths]
    assert [decision.word for decision in found] == [WORD[code] for code in expected]
    assert {"sat", "unsat"} <= {decision.word for decision in found}
    graph = OnnxModule(tmp_path / "out" / "model.onnx")
    for decision, path in zip(found, paths, strict=True):
        if decision.inputs is not None:
            (asked,) = read_specifications(path)
            assert ((decision.inputs >= asked.low) & (decision.inputs <= asked.high)).all()
            assert asked.holds_at(graph(decision.inputs.float().view(1, *subject.classifier.input_shape))[0])


@pytest.fixture
def column(tmp_path):
    """A graph that takes 1x6x1, as those of the competition take 1x784x1, and gives the sums of both halves."""
    weight = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]], dtype=np.float32)
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("Gemm", ["flat", "w"], ["y"], transB=1)]
    given, made = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 6, 1]), ("y", [1, 2]))
    )
    graph = helper.make_graph(nodes, "column", [given], [made], [numpy_helper.from_array(weight, "w")])
    path = tmp_path / "column.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def specification(tmp_path, low, high):
    names = [*(f"X_{i}" for i in range(6)), "Y_0", "Y_1"]
    lines = [f"(declare-const {name} Real)" for name in names]
    for i in range(6):
        a, b = (low, high) if i < 3 else (-1.0, 0.5)
        lines += [f"(assert (>= X_{i} {a}))", f"(assert (<= X_{i} {b}))"]
    path = tmp_path / "spec.vnnlib"
    path.write_text("\n".join([*lines, "(assert (>= Y_1 Y_0))"]))
    return path


def test_the_command_understands_the_graphs_own_shape_and_boxes_beyond_images(column, tmp_path):
    """Of the sums 3 x at least and 1.5 at most: x = 0.6 holds, x = 0.4 does not."""
    answer = tmp_path / "answer.txt"
    for low, word in ((0.6, "unsat"), (0.4, "sat")):
        given = ["--vnnlib", str(specification(tmp_path, low, 2.0)), "--onnx", str(column), "--result", str(answer)]
        run = CliRunner().invoke(verify, given)
        assert run.exit_code == 0, run.output
        assert run.output.splitlines()[0] == answer.read_text().splitlines()[0] == word
    values = [float(line.strip("()").split()[1]) for line in answer.read_text().splitlines()[1:]]
    assert len(values) == 8
    assert sum(values[3:6]) >= sum(values[:3])


@pytest.mark.parametrize(("operator", "word"), [(">=", "sat"), (">", "unknown")])
def test_outputs_that_draw_level_are_a_counter_example_unless_more_is_asked_for(column, tmp_path, operator, word):
    """The sums are 1.5 each at one corner of the box alone."""
    path = specification(tmp_path, 0.5, 0.5)
    path.write_text(path.read_text().replace("(>= Y_1 Y_0)", f"({operator} Y_1 Y_0)"))
    assert decide_instance(column, path, ENTRY).word == word


@pytest.mark.parametrize(("limit", "word"), [(1.7999995, "unknown"), (1.7999, "unsat")])
def test_a_margin_within_the_rounding_of_the_outputs_is_not_certified(column, tmp_path, limit, word):
    """The sum is 1.8 at least, and its margin small beside the outputs: so is the scale that the margins have at the middle."""
    path = specification(tmp_path, 0.6, 0.600001)
    path.write_text(path.read_text().replace("(>= Y_1 Y_0)", f"(<= Y_0 {limit})"))
    assert decide_instance(column, path, ENTRY).word == word


def test_seconds_that_are_given_are_the_only_limit(column, tmp_path, monkeypatch):
    """By its default branch and bound would end after 20,000 subdomains: a quarter of a minute on two layers of 256."""
    asked = []
    monkeypatch.setattr(
        "windtunnel.assessments.verification.vnnlib.decide_instance",
        lambda *given, deadline: asked.append((given[2], deadline - time.monotonic())) or InstanceResult("unknown"),
    )
    monkeypatch.setattr("windtunnel.cli.verify.run_watched", lambda work, *args: work(*args))  # in this process
    monkeypatch.setattr("windtunnel.cli.verify._process_start", lambda: time.monotonic() - 10)
    given = ["--vnnlib", str(specification(tmp_path, 0.6, 2.0)), "--onnx", str(column)]
    for more in ([], ["--timeout", "300"]):
        assert CliRunner().invoke(verify, [*given, *more]).exit_code == 0
    (by_work, without), (by_time, left) = asked
    assert without == math.inf
    assert 200 < left <= 290  # the time since the process started is counted
    assert by_time.branch_and_bound.domains > 10**9
    assert by_work.branch_and_bound.domains == 20_000


@pytest.mark.parametrize(("limit", "word"), [("(>= Y_1 Y_0)", "sat"), ("(<= Y_1 -100.0)", "unsat")])
def test_a_box_of_one_point_is_decided_by_its_evaluation(column, tmp_path, limit, word):
    path = specification(tmp_path, 0.25, 0.25)
    text = path.read_text().replace("(assert (>= X_3 -1.0))", "(assert (>= X_3 0.5))")
    text = text.replace("(assert (>= X_4 -1.0))", "(assert (>= X_4 0.5))").replace("(>= X_5 -1.0)", "(>= X_5 0.5)")
    path.write_text(text.replace("(>= Y_1 Y_0)", limit))
    assert decide_instance(column, path, ENTRY).word == word


def test_a_graph_that_ends_its_process_is_one_line(column, tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.assessments.verification.vnnlib.decide_instance", lambda *_, **__: os._exit(7))
    given = ["--vnnlib", str(specification(tmp_path, 0.6, 2.0)), "--onnx", str(column)]
    with pytest.raises(UserError, match=r"column\.onnx: code of yours ended the process with exit code 7"):
        CliRunner().invoke(verify, given, standalone_mode=False, catch_exceptions=False)


def test_a_verifier_that_does_not_end_in_time_is_a_timeout(column, tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.assessments.verification.vnnlib.decide_instance", lambda *_, **__: time.sleep(60))
    monkeypatch.setattr("windtunnel.cli.verify._process_start", time.monotonic)
    given = ["--vnnlib", str(specification(tmp_path, 0.6, 2.0)), "--onnx", str(column), "--timeout", "0.5"]
    started = time.monotonic()
    assert CliRunner().invoke(verify, given).output.split() == ["timeout"]
    assert time.monotonic() - started < 30


def test_the_boxes_of_a_specification_share_the_seconds(column, tmp_path, monkeypatch):
    path, budgets = specification(tmp_path, 0.6, 2.0), []
    monkeypatch.setattr(instance, "read_specifications", lambda path: 3 * read_specifications(path))

    def decided(network, reference, asked, rounding, entry, seed):
        budgets.append(entry.time_budget)
        time.sleep(0.3)
        return InstanceResult("unsat")

    monkeypatch.setattr(instance, "_decide", decided)
    found = decide_instance(column, path, ENTRY, deadline=time.monotonic() + 30)
    assert found.word == "unsat"
    assert budgets == sorted(budgets, reverse=True)
    assert 0.6 <= budgets[0] - budgets[2] < budgets[0] < 30
    assert decide_instance(column, path, ENTRY, deadline=time.monotonic()).word == "timeout"


def test_a_graph_of_half_precision_is_refused_in_one_line(column, tmp_path):
    model = onnx.load(str(column))
    weight = numpy_helper.to_array(model.graph.initializer[0])
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight.astype(np.float16), "w"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(model, str(column))
    with pytest.raises(IncompatibleError, match=r"takes numbers of torch\.float16; export it in float32"):
        decide_instance(column, specification(tmp_path, 0.4, 2.0), ENTRY)


def test_a_specification_of_another_size_is_refused(column, tmp_path):
    path = specification(tmp_path, 0.4, 0.5)
    path.write_text(
        path.read_text().replace("(assert (>= Y_1 Y_0))", "(declare-const Y_2 Real)\n(assert (>= Y_1 Y_0))")
    )
    with pytest.raises(UserError, match="gives 2 outputs; the specification declares 3"):
        decide_instance(column, path, ENTRY)


def test_a_norm_that_is_no_box_cannot_be_exported(mlp_subject, tmp_path):
    with pytest.raises(IncompatibleError, match="VNN-LIB describes boxes"):
        export_instances("proof", mlp_subject, Norm.L2, 0.5, None, tmp_path / "out")


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_conjunction_is_decided_where_each_of_its_parts_can_hold(column, tmp_path, packed):
    """Y_0 = x0 + x1 + x2 is in [1.2, 6]: at least 5 and at most 3 hold for some x each, and never together."""
    path = specification(tmp_path, 0.4, 2.0)
    text, words = path.read_text(), []
    if packed:
        column.with_suffix(".onnx.gz").write_bytes(gzip.compress(column.read_bytes()))
        column = column.with_suffix(".onnx.gz")
    for low, high in ((5.0, 3.0), (3.0, 5.0)):
        path.write_text(
            text.replace("(>= Y_1 Y_0)", f"(and (>= Y_0 {low}) (or (and (<= Y_0 {high}) (<= Y_1 1.0)) (<= Y_1 -9.0)))")
        )
        given = path
        if packed:
            given = path.with_suffix(".vnnlib.gz")
            given.write_bytes(gzip.compress(b"\xef\xbb\xbf" + path.read_bytes()))
        words.append(decide_instance(column, given, ENTRY).word)
    assert words == ["unsat", "sat"]


FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
WEIGHTS = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]])
# Forms of one and the same network, which no classifier of an assessment has: the shape of its input, nodes, outputs.
FORMS = {
    "no batch": ([6], [("MatMul", ["x", "w"], "y")], ["y"]),
    "columns": ([6, 1], [("MatMul", ["v", "x"], "y")], ["y"]),
    "all flat": ([1, 3, 2], [("Transpose", ["x"], "a"), ("Flatten", ["a"], "b"), ("MatMul", ["b", "w"], "y")], ["y"]),
    "flat output": ([1, 6], [("MatMul", ["x", "w"], "a"), ("Reshape", ["a", "minus"], "y")], ["y"]),
    "two outputs": ([1, 6], [("MatMul", ["x", "w"], "a"), ("Relu", ["a"], "y"), ("Neg", ["a"], "b")], ["y", "b"]),
    "double": ([1, 6], [("Cast", ["x"], "a"), ("MatMul", ["a", "w64"], "b"), ("Cast", ["b"], "y")], ["y"]),
    "beside": (
        [1, 6],
        [("Mul", ["x", "two"], "a"), ("Concat", ["x", "a"], "b"), ("MatMul", ["b", "long"], "y")],
        ["y"],
    ),
}
ATTRIBUTES = {"Flatten": {"axis": 0}, "Transpose": {"perm": [0, 2, 1]}, "Concat": {"axis": 1}}
CONSTANTS = {
    "w": WEIGHTS.astype(np.float32), "v": WEIGHTS.T.astype(np.float32), "w64": WEIGHTS.astype(np.float64),
    "minus": np.array([-1]), "two": np.float32(2), "long": np.concatenate([WEIGHTS, 0 * WEIGHTS]).astype(np.float32),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_of_any_form_is_read_as_its_file_runs(tmp_path, form):
    """Y_0 is the sum of the first three inputs, Y_1 of the others, as in `column`."""
    shape, rows, outputs = FORMS[form]
    nodes = []
    for i, (operator, inputs, name) in enumerate(rows):
        attributes = {"to": DOUBLE if i == 0 else FLOAT} if operator == "Cast" else {}
        nodes.append(helper.make_node(operator, inputs, [name], **ATTRIBUTES.get(operator, attributes)))
    taken = helper.make_tensor_value_info("x", FLOAT, shape)
    given = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()]
    if form == "all flat":  # the graph takes the inputs in another order
        constants[0] = numpy_helper.from_array(CONSTANTS["w"].reshape(3, 2, 2).transpose(1, 0, 2).reshape(6, 2), "w")
    graph = helper.make_graph(nodes, form, [taken], given, constants)
    path = tmp_path / "form.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    words = [decide_instance(path, specification(tmp_path, low, 2.0), ENTRY).word for low in (0.6, 0.4)]
    assert words == ["unsat", "sat"]


@pytest.mark.parametrize(
    ("operators", "kind", "size"), [(["Relu"], DOUBLE, 3), (["Relu"], FLOAT, 1), (["Neg"], DOUBLE, 1)]
)
def test_graphs_of_double_precision_and_of_one_number_are_decided(tmp_path, operators, kind, size):
    nodes = [helper.make_node(operator, ["x"], ["y"]) for operator in operators]
    taken, given = (helper.make_tensor_value_info(name, kind, [size]) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "numbers", [taken], [given])
    path, asked = tmp_path / "numbers.onnx", tmp_path / "spec.vnnlib"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), str(path))
    words = []
    for limit in (1.5, 0.5):
        names = [f"(declare-const {letter}_{i} Real)" for letter in "XY" for i in range(size)]
        bounds = [f"(assert (<= X_{i} 1.0))\n(assert (>= X_{i} -1.0))" for i in range(size)]
        asked.write_text("\n".join([*names, *bounds, f"(assert (>= Y_0 {limit}))"]))
        words.append(decide_instance(path, asked, ENTRY).word)
    assert words == ["unsat", "sat"]


def test_a_graph_that_answers_in_integers_is_refused(column, tmp_path):
    model = onnx.load(column)
    model.graph.node[-1].output[0] = "sums"
    model.graph.node.append(helper.make_node("Cast", ["sums"], ["y"], to=onnx.TensorProto.INT64))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [1, 2]))
    onnx.save(model, column)
    with pytest.raises(IncompatibleError, match=r"its output holds torch\.int64; export the numbers"):
        decide_instance(column, specification(tmp_path, 0.6, 2.0), ENTRY)


def test_an_easy_instance_imports_no_other_verifier_and_no_exporter(column, tmp_path):
    code = (  # in this process, not in the one that the command starts, whose modules it does not see
        "import math, sys; from pathlib import Path\n"
        "from windtunnel.cli.verify import _decided\n"
        "print(_decided(*map(Path, sys.argv[1:]), None, math.inf))\n"
        "large = {'windtunnel.params.load', 'auto_LiRPA', 'torch._dynamo', 'sympy', 'statsmodels', 'scipy.optimize', 'pandas'}\n"
        "print(sorted(large & set(sys.modules)))"
    )
    files = [str(column), str(specification(tmp_path, 0.6, 2.0))]
    run = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["unsat", "[]"]
