"""The criterion against plain loops, and the rule that nothing else compares logits with labels."""

import ast
from pathlib import Path

import pytest
import torch
from sklearn.metrics import top_k_accuracy_score
from torch import nn

import windtunnel
from windtunnel.core.criterion import SOFTMAX, Criterion, OneLabel
from windtunnel.core.errors import IncompatibleError

SOURCES = sorted(Path(windtunnel.__file__).parent.rglob("*.py"))
# A student of the model learns from its answers; a guess about swapped classes permutes them. Neither is judged here.
ARGMAX_WITHOUT_LABELS = {"criterion.py", "standins.py", "corrections.py"}


def logits_and_labels(n=200, k=7):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, k, generator=generator), torch.randint(0, k, (n,), generator=generator)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_correctness_is_that_of_scikit_learn(k):
    logits, labels = logits_and_labels()
    criterion = Criterion("top_k", k)
    share = float(criterion.is_correct(logits, labels).double().mean())
    assert share == pytest.approx(top_k_accuracy_score(labels, logits, k=k, labels=range(7)))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_margin_and_argmax_of_one_label_agree_with_a_plain_loop(k):
    logits, labels = logits_and_labels()
    criterion = Criterion("top_k", k)
    for row, label, margin in zip(
        logits.tolist(), labels.tolist(), criterion.margin(logits, labels).tolist(), strict=True
    ):
        others = sorted((value for i, value in enumerate(row) if i != label), reverse=True)
        assert margin == pytest.approx(row[label] - others[k - 1])
    correct = criterion.is_correct(logits, labels)
    assert torch.equal(criterion.margin(logits, labels) > 0, correct)
    assert torch.equal(criterion.margin_loss(logits, labels) < 0, correct)
    assert torch.equal(criterion.predict(logits, labels) == labels, correct)
    for label in range(7):
        members = labels == label
        seen = OneLabel(nn.Identity(), criterion, label)(logits[members])
        assert torch.equal(seen.argmax(1) == label, correct[members])


def test_among_equal_logits_the_first_classes_come_first():
    logits = torch.zeros(3, 3)
    assert Criterion("top_k", 2).is_correct(logits, torch.arange(3)).tolist() == [True, True, False]
    assert SOFTMAX.is_correct(logits, torch.arange(3)).tolist() == [True, False, False]


@pytest.mark.parametrize("k", [1, 2])
def test_a_logit_that_is_nan_predicts_nothing(k):
    logits = torch.tensor([[0.0, torch.nan, 1.0]])
    assert Criterion("top_k", k).predict(logits, torch.tensor([2])).tolist() == [-1]


def test_the_loss_of_a_top_k_head_pushes_the_label_below_the_k_th_other():
    logits, labels = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).requires_grad_(), torch.tensor([2])
    (gradient,) = torch.autograd.grad(Criterion("top_k", 3).loss(logits, labels).sum(), logits)
    assert gradient[0, 2] < 0 < gradient[0, 3]
    assert gradient[0, :2].tolist() == [0, 0]


def test_the_threshold_of_a_binary_head_does_not_move_its_probability():
    criterion = Criterion("binary", threshold=0.2)
    z = torch.tensor([-2.0, 0.0, 3.0])
    logits = torch.stack([torch.zeros(3), z - criterion.shift], 1)
    torch.testing.assert_close(criterion.probabilities(logits)[:, 1], torch.sigmoid(z.double()))
    assert criterion.predict(logits, None).tolist() == (torch.sigmoid(z) > 0.2).long().tolist()


def test_what_a_top_k_head_does_not_define_is_refused_in_one_line():
    with pytest.raises(
        IncompatibleError, match=r"^latent\.a: x is not defined under model\.head: \{top_k: 5\}"
    ) as error:
        Criterion("top_k", 5).require_top_1("latent.a", "x is not defined")
    assert "\n" not in str(error.value)
    SOFTMAX.require_top_1("latent.a", "x is not defined")


def _is_argmax_over_classes(node):
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[-1] if node.args else None
    return name == "argmax_or_invalid" or (
        name == "argmax"
        and any(isinstance(leaf, ast.Constant) and leaf.value in (1, -1) for leaf in ast.walk(first or node))
    )


def violations(source, name="a.py"):
    """Lines of `source` that compare an argmax over classes with anything, or ask for a prediction without the labels."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(map(_is_argmax_over_classes, ast.walk(node))):
            found.append(node.lineno)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "predict":
            owner = ast.unparse(node.func.value)
            is_classifier = owner.endswith(("classifier", "criterion", "other"))
            if is_classifier and len(node.args) + len(node.keywords) < 2:
                found.append(node.lineno)
        imported = isinstance(node, ast.ImportFrom) and any(part.name == "argmax_or_invalid" for part in node.names)
        if imported and name not in ARGMAX_WITHOUT_LABELS:
            found.append(node.lineno)
    return found


# Code that sees the logits of an attack's own view of the model, whose argmax is what the criterion says (`OneLabel`), or that asks
# whether two outputs of one model order the classes alike.
ATTACKS_VIEW = {"nearest_fab.py", "operations.py", "surrogates.py"}


def test_nothing_but_the_criterion_compares_an_argmax_with_labels():
    judged = [path for path in SOURCES if path.name not in {"criterion.py", *ATTACKS_VIEW}]
    assert {str(path): lines for path in judged if (lines := violations(path.read_text(), path.name))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "wrong = logits.argmax(1) != labels",
        "wrong = model(x).argmax(dim=-1).cpu() == y",
        "right = argmax_or_invalid(z) == y",
        "wrong = subject.classifier.predict(x) != y",
        "from windtunnel.core.criterion import argmax_or_invalid",
    ],
)
def test_the_rule_finds_a_comparison(line):
    assert violations(line) == [1]
