"""What is refused before anything is computed: one clear line each, naming the key."""

import re
from dataclasses import replace

import pytest
import torch

from windtunnel.assessments.attacks.preflight import preflight
from windtunnel.core.contracts import Capability, Norm
from windtunnel.core.errors import UserError
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget

LINF = Budget(norm=Norm.LINF, epsilon=0.06)

REFUSED = [
    ({"algorithm": "PDG"}, r"attacks\.it\.algorithm: 'PDG' is not .* Did you mean 'PGD'\?"),
    ({"library": "torchatacks"}, r"attacks\.it\.library: .* Did you mean 'torchattacks'\?"),
    ({"params": {"step": 3}}, r"attacks\.it\.params: 'step' is not a parameter of PGD\. Did you mean 'steps'\?"),
    ({"params": {"eps": 0.1}}, r"attacks\.it\.params\.eps: .* set attacks\.it\.budget\.epsilon"),
    ({"algorithm": "PIFGSM", "params": {"max_epsilon": 0.1}}, r"set attacks\.it\.budget\.epsilon"),
    ({"library": "foolbox", "algorithm": "LinfPGD", "params": {"epsilons": 0.1}}, r"set attacks\.it\.budget\.epsilon"),
    ({"params": {"steps": "many"}}, r"attacks\.it\.params\.steps: 'many' is not a number"),
    ({"params": {"steps": 2.5}}, r"attacks\.it\.params\.steps: 2\.5 is not a whole number"),
    ({"params": {"random_start": 1}}, r"attacks\.it\.params\.random_start: 1 is neither true nor false"),
    ({"budget": {"epsilon": 8}}, r"attacks\.it\.budget\.epsilon: 8 is larger .* did you mean 8/255\?"),
    ({"budget": {"norm": "L2", "epsilon": 1}}, r"attacks\.it\.budget\.norm: torchattacks PGD works under Linf"),
    ({"algorithm": "CW"}, r"attacks\.it\.budget\.norm: torchattacks CW works under L2.*set attacks\.it\.budget"),
    ({"algorithm": "CW", "budget": {"norm": "L2"}}, r"attacks\.it\.budget\.epsilon: is needed beside norm: L2"),
    ({"algorithm": "JSMA", "budget": {"norm": "L0", "epsilon": 0.1}}, r"number of changed values, at least 1"),
    ({"algorithm": "APGD", "params": {"norm": "L2"}}, r"attacks\.it\.params\.norm: .* set attacks\.it\.budget\.norm"),
    ({"algorithm": "FAB", "params": {"n_classes": 10}}, r"the model says how many classes"),
    ({"algorithm": "FGSM", "budget": {"steps": 3}}, r"attacks\.it\.budget\.steps: FGSM has no steps"),
    ({"params": {"steps": 3}, "budget": {"steps": 4}}, r"budget\.steps \(4\) and params\.steps \(3\) contradict"),
    ({"target_classes": "leastlikely"}, r"target_classes: .* Did you mean 'least_likely'\?"),
    ({"target_classes": 10}, r"target_classes: 10 is no class; classes are 0 to 9"),
    ({"target_classes": [1, 2]}, r"target_classes: 2 targets for 200 samples"),
    ({"target_classes": "LABELS"}, r"the target of sample .* equals its label"),
    ({"algorithm": "APGD", "target_classes": "next"}, r"torchattacks APGD cannot aim at a class; .* can"),
    ({"library": "foolbox", "algorithm": "GenAttack"}, r"target_classes: GenAttack can only aim"),
    ({"algorithm": "MultiAttack", "params": {"attacks": ["PGD", "CW"]}}, r"params\.attacks: 'CW' is not an attack it"),
    ({"algorithm": "MultiAttack", "params": {"attacks": ["PGD"]}}, r"name at least two attacks"),
    (
        {"algorithm": "MultiAttack", "params": {"attacks": ["FGSM", {"PGD": {"step": 3}}]}},
        r"attacks\.it\.params\.attacks\.PGD: 'step' is not a parameter of PGD\. Did you mean 'steps'\?",
    ),
    ({"algorithm": "MultiAttack", "params": {"attacks": ["FGSM", {"PGD": {"eps": 0.1}}]}}, r"budget\.epsilon"),
    ({"library": "windtunnel", "algorithm": "quick", "params": {"steps": 3}}, r"has no parameters"),
    (
        {"library": "windtunnel", "algorithm": "standard", "params": {"steps": 3}},
        r"'steps' is not a parameter of standard",
    ),
    ({"library": "windtunnel", "algorithm": "standard", "params": {"literal": 1}}, r"1 is neither true nor false"),
    ({"library": "windtunnel", "algorithm": "standard", "budget": {"norm": "L1", "epsilon": 1}}, r"under Linf or L2"),
    ({"target_classes": "next", "on": {"survivors_of": ["a"]}}, r"attacks\.it\.on: survivors"),
]


@pytest.mark.parametrize(
    ("algorithm", "n", "said"),
    [
        ("torchattacks JSMA", None, [r"attacks\.it: JSMA is slow: roughly \d+ minutes .* for 200 samples of 3x16x16"]),
        ("foolbox LinfinityBrendelBethgeAttack", None, ["is slow: roughly 46 minutes on one processor"]),
        ("windtunnel exhaustive", None, ["exhaustive is slow: roughly 100 minutes"]),
        ("torchattacks JSMA", 2, []),
        ("torchattacks PGD", None, []),
    ],
)
def test_an_attack_that_takes_long_is_announced_with_its_estimate(algorithm, n, said, digits_subject):
    library, name = algorithm.split()
    data = digits_subject.dataset
    large = replace(data, inputs=torch.zeros(200, 3, 16, 16))
    entry = AttackEntry(library=library, algorithm=name, samples={"n": n})
    budget = Budget(norm="L0", epsilon=20) if name == "JSMA" else LINF
    lines = preflight("attacks.it", entry, budget, digits_subject.classifier, large)
    assert len(lines) == len(said)
    assert all(re.search(pattern, line) for pattern, line in zip(said, lines, strict=True))


@pytest.mark.parametrize(("keys", "line"), REFUSED, ids=lambda v: str(v)[:60])
def test_refused_in_one_line(keys: dict[str, object], line: str, digits_subject: Subject) -> None:
    if keys.get("target_classes") == "LABELS":
        keys = {"target_classes": digits_subject.dataset.targets.tolist()}
    entry = AttackEntry(**{"library": "torchattacks", "algorithm": "PGD", **keys})
    with pytest.raises(UserError, match=line) as caught:
        preflight("attacks.it", entry, LINF, digits_subject.classifier, digits_subject.dataset)
    assert "\n" not in str(caught.value)


def test_white_box_attack_on_a_model_without_gradients_is_refused(digits_subject: Subject) -> None:
    forward_only = replace(digits_subject.classifier, capabilities=frozenset({Capability.FORWARD}))
    with pytest.raises(UserError, match="needs autograd"):
        preflight(
            "attacks.it",
            AttackEntry(library="torchattacks", algorithm="PGD"),
            LINF,
            forward_only,
            digits_subject.dataset,
        )
    square = AttackEntry(library="torchattacks", algorithm="Square")
    preflight("attacks.it", square, LINF, forward_only, digits_subject.dataset)


def test_what_the_input_cannot_carry_is_refused(digits_subject: Subject) -> None:
    data = digits_subject.dataset
    for changed, algorithm, line in (
        (replace(data, inputs=data.inputs.repeat(1, 2, 1, 1)), "TIFGSM", "built for 3 channels"),
        (replace(data, class_names=("a", "b", "c")), "APGDT", "needs 4 classes, the data has 3"),
        (replace(data, inputs=torch.zeros(200, 2)), "PGD", "the data is tabular"),
    ):
        entry = AttackEntry(library="torchattacks", algorithm=algorithm)
        with pytest.raises(UserError, match=line):
            preflight("attacks.it", entry, LINF, digits_subject.classifier, changed)


def test_one_class_that_is_some_samples_label_is_allowed(digits_subject: Subject) -> None:
    entry = AttackEntry(library="torchattacks", algorithm="PGD", target_classes=3)
    preflight("attacks.it", entry, LINF, digits_subject.classifier, digits_subject.dataset)
