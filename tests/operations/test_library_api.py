"""The library in five lines: the same numbers as the pipeline, without DVC and MLflow."""

import copy
import inspect
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import windtunnel as wt
from windtunnel.boundary import door
from windtunnel.boundary.callables import CallersFunctions
from windtunnel.boundary.door import in_arguments
from windtunnel.core.errors import UserError
from windtunnel.core.sample_states import SampleState
from windtunnel.core.subject import Subject
from windtunnel.operations.api.shorthand import budget_block, entry_of
from windtunnel.operations.stages.run import run_stage

BUDGET = "Linf 0.06"
ENTRIES = {
    "attacks": {"pgd": {"library": "torchattacks", "algorithm": "PGD"}},
    "verify": {"crown": {"library": "auto-LiRPA", "algorithm": "crown"}},
    "corrupt": {"fog": {"library": "imagecorruptions", "algorithm": "fog", "upsample": 32}},
}


@pytest.fixture(scope="module")
def few(digits_subject: Subject) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """A trained network, 40 images and their labels."""
    data = digits_subject.dataset
    return digits_subject.classifier.module, data.inputs[:40], data.targets[:40]


@pytest.fixture(scope="module")
def result(few) -> wt.Result:
    model, x, y = few
    return wt.assess(model, x, y, budget=BUDGET, **ENTRIES)


@pytest.mark.parametrize(
    ("family", "word", "budget", "algorithm"),
    [
        ("attacks", "pgd", "Linf 0.06", ("torchattacks", "PGD")),
        ("attacks", "pgd", "L2 0.5", ("torchattacks", "PGDL2")),
        ("attacks", "pgd", "L1 2", ("foolbox", "L1PGD")),
        ("attacks", "fgsm", "L2 0.5", ("torchattacks", "FGSM")),
        ("attacks", "gradient", "rotation 10", ("transformations", "gradient")),
        ("verification", "crown", "L2 0.5", ("auto-LiRPA", "crown-l2")),
        ("verification", "crown_l2", "L2 0.5", ("auto-LiRPA", "crown-l2")),
        ("verification", "branch-and-bound", "rotation 10", ("transformations", "branch-and-bound")),
        ("verification", "branch and bound", "Linf 0.06", ("windtunnel", "branch-and-bound")),
        ("verification", "marabou", "Linf 0.06", ("Marabou", "linf-box")),
    ],
)
def test_a_word_names_the_algorithm_that_works_in_the_budget(family, word, budget, algorithm):
    """FGSM has no form under L2: it is kept, and refused with what it works under."""
    with CallersFunctions() as functions:
        entry = entry_of(family, word, budget_block(budget), functions)[1]
    assert (entry["library"], entry["algorithm"]) == algorithm


@pytest.mark.slow
def test_the_numbers_are_those_of_the_pipeline(few, result, tmp_path, monkeypatch):
    """Every metric and every tensor of every assessment, to the last bit."""
    model, x, y = few
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=x.numpy(), y=y.numpy())
    torch.export.save(torch.export.export(model, (x[:2],), dynamic_shapes=({0: torch.export.Dim("n")},)), "model.pt2")
    Path("params.yaml").write_text(
        """
data: {source: npz, path: data.npz}
model: {source: export, path: model.pt2}
budget: {norm: Linf, epsilon: 0.06}
attacks: {pgd: {library: torchattacks, algorithm: PGD}}
verification: {crown: {library: auto-LiRPA, algorithm: crown}}
corruptions: {fog: {library: imagecorruptions, algorithm: fog, upsample: 32}}
"""
    )
    for stage in ("resolve", "prepare", "train", "clean"):
        run_stage(stage)
    for stage, name in (("attack", "pgd"), ("verify", "crown"), ("corrupt", "fog")):
        run_stage(stage, name)
    for stage in ("sanity", "summary"):
        run_stage(stage)
    pipeline = wt.read(".")
    assert set(pipeline) == set(result)
    for name in result:
        mine, theirs = result[name], pipeline[name]
        assert mine.data.keys() == theirs.data.keys()
        for key, tensor in mine.data.items():
            if isinstance(tensor, torch.Tensor) and not key.startswith("runtime"):
                assert torch.equal(tensor.nan_to_num(), theirs.tensor(key).nan_to_num()), (name, key)
    times = ("runtime", "seconds")
    assert {k: v for k, v in result.metrics.items() if not any(t in k for t in times)} == {
        k: v for k, v in pipeline.metrics.items() if not any(t in k for t in times)
    }


def test_what_a_notebook_shows(result):
    """The sentence, the sandwich as a picture, a row per sample, and every name."""
    assert list(result) == ["clean", "pgd", "crown", "fog", "summary"]
    assert result.summary().startswith("Clean accuracy is")
    assert "data:image/png;base64," in result._repr_html_()
    frame = result.per_sample
    assert len(frame) == 40
    broken = frame["pgd"] == "attack_succeeded"
    assert 1 - float(result.metrics["worst_case/accuracy"]) == pytest.approx(
        float((broken | (frame["label"] != frame["prediction"])).mean())
    )
    assert (frame["status"] == "misclassified").equals(frame["label"] != frame["prediction"])
    assert {*frame["status"]} <= {*SampleState}
    wrong = frame["status"].isin(["misclassified", "broken"])
    assert 1 - float(result.metrics["worst_case/accuracy"]) == pytest.approx(float(wrong.mean()))
    assert frame["nearest_example"].notna().equals(frame["status"] == "broken")
    assert frame["nearest_example"][frame["status"] == "broken"].between(0, 0.0600001, inclusive="right").all()
    examples = result.broken("pgd")
    assert {*examples.index} == {*frame.index[broken & (frame["status"] != "misclassified")]}
    assert (examples["distance"] > 0).all()
    assert (examples["label"] != examples["adversarial_prediction"]).all()
    assert len(result.broken("crown")) == int(
        (result["crown"].tensor("verdicts") == 4).sum() - (frame["status"] == "misclassified").sum()
    )
    with pytest.raises(KeyError, match=r"'pgb'.*'pgd'"):
        result["pgb"]


@pytest.mark.slow
def test_it_can_be_kept_and_reported(result, tmp_path):
    """The same artifacts and figures as the pipeline's, and both reports."""
    saved = result.save(tmp_path / "kept")
    for name, figure in (("pgd", "ImagePairVisualiser_0.png"), ("clean", "ConfusionMatrixVisualiser_0.png")):
        assert (saved / "robustness" / name / figure).stat().st_size > 1000
    again = wt.read(tmp_path / "kept")
    assert again.metrics == result.metrics
    assert result.report(tmp_path / "r.html").read_text().count("</section>") > 3
    assert result.report(tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(UserError, match="is there already"):
        result.save(tmp_path / "kept")
    with pytest.raises(UserError, match=r"ends in neither \.pdf nor \.html"):
        result.report(tmp_path / "r.docx")


def test_one_thing_at_a_time(few):
    """`attack`, `verify` and `corrupt` give one assessment's artifacts; images may be uint8, labels names."""
    model, x, y = few
    found = wt.attack(model, x, y, "FGSM", budget="Linf 0.1")
    assert 0 < float(found.metrics["attack_success_rate"]) <= 1
    proved = wt.verify(model, x[:10], y[:10], "ibp", budget="Linf 1/255")
    assert float(proved.metrics["certified_accuracy"]) > 0.5
    fog = wt.corrupt(model, x[:10], y[:10], "fog", upsample=32, severities=[1])
    assert 0 <= float(fog.metrics["corrupted_accuracy"]) <= 1
    grey = (x * 255).round().to(torch.uint8).numpy()
    names = np.array([f"digit {int(label)}" for label in y])
    told = wt.attack(model, grey, names, "FGSM", budget="Linf 0.1")
    assert told.class_names[0] == "digit 0"


def test_the_callers_module_is_not_touched(few):
    """Its mode, its gradients, its weights."""
    model, x, y = few
    own = copy.deepcopy(model).train()
    for parameter in own.parameters():
        parameter.requires_grad_(True)
    before = {key: value.clone() for key, value in own.state_dict().items()}
    wt.attack(own, x[:5], y[:5], "FGSM", budget=BUDGET)
    assert own.training
    assert all(p.requires_grad and p.grad is None for p in own.parameters())
    assert all(torch.equal(before[key], value) for key, value in own.state_dict().items())


@pytest.mark.slow
def test_entries_build_on_one_another_as_in_the_pipeline(few, tmp_path, monkeypatch):
    """In a folder without params.yaml, where a notebook may run."""
    monkeypatch.chdir(tmp_path)
    model, x, y = few
    attack = {"library": "torchattacks", "algorithm": "FGSM"}
    left = {"library": "torchattacks", "algorithm": "PGD", "on": {"survivors_of": ["fgsm"]}}
    found = wt.assess(model, x, y, budget=BUDGET, attacks={"fgsm": attack, "left": left}, sanity=None)
    broken = found["fgsm"].tensor("verdicts") == 1
    assert broken.any()
    assert torch.equal(
        found["left"].tensor("perturbed_inputs")[broken], found["fgsm"].tensor("perturbed_inputs")[broken]
    )
    assert [*tmp_path.iterdir()] == []


def test_a_few_samples_need_not_be_of_every_class(few):
    """How many classes there are the model says; one sample is enough, with a label or without."""
    model, x, y = few
    found = wt.assess(model, x[:1], y[:1], budget=BUDGET, attacks="fgsm", sanity=None)
    assert len(found["clean"].class_names) == 10
    unlabelled = wt.assess(model, x[:3], budget=BUDGET, attacks="fgsm", sanity=None)
    assert "pseudo_labels" in {caveat.code for caveat in unlabelled["fgsm"].caveats}


def test_a_function_is_a_black_box(few):
    """Attacked with queries alone; a white-box attack on it is refused in one line."""
    model, x, y = few

    def predict(batch: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(torch.from_numpy(batch)).softmax(1).numpy()

    entry = {"evoba": {"library": "windtunnel", "algorithm": "EvoBA", "max_queries": 60}}
    found = wt.assess(predict, x[:4], y[:4], budget="L0 20", attacks=None, queries=entry, sanity=None)
    assert int(found["evoba"].tensor("queries").max()) <= 60
    with pytest.raises(UserError, match=r"attacks\['pgd'\]: torchattacks PGD .* needs autograd"):
        wt.assess(predict, x[:4], y[:4], budget=BUDGET, attacks="pgd")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attacks": "pdg"}, "'pdg' is not an algorithm of attacks.*'PGD'"),
        ({"budget": "Linf"}, "is not a norm and an epsilon"),
        ({"budget": "Lin 0.1"}, r"budget\['norm'\]"),
        ({"x": np.zeros((0, 1, 8, 8))}, "holds no samples"),
        ({"y": [1, 2]}, "40 samples in x, and labels of shape"),
        ({"x": np.full((40, 1, 8, 8), 3.0)}, "after conversion"),
        ({"model": 3}, "model: is a int"),
        ({"attacks": {"mine": 3}}, r"attacks\['mine'\]: 3 is not an algorithm"),
        ({"sanity": "strict"}, "sanity: 'strict'"),
        ({"x": np.zeros((40, 3, 8, 8))}, "does not take inputs of shape"),
        ({"attacks": {"pgd": {"library": "torchattacks", "algorithm": "PGD", "on": {"survivors_of": ["a"]}}}}, "survivors_of"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_one_line(few, change, says):
    model, x, y = few
    given = {"model": model, "x": x, "y": y, "budget": BUDGET, "attacks": "pgd", **change}
    with pytest.raises(UserError, match=says) as found:
        wt.assess(**given)
    assert "\n" not in str(found.value)


@pytest.mark.integration
def test_a_script_without_a_guard_uses_processes_all_the_same(tmp_path):
    """Its children must not run the script again."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import torch, windtunnel as wt
torch.manual_seed(0)
x, y = torch.rand(6, 1, 4, 4), torch.arange(6) % 3
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
print("once", flush=True)
print(wt.corrupt(model, x, y, "fog", upsample=32, severities=[1]).metrics["corrupted_accuracy"])
print(wt.verify(model, x, y, "marabou", budget="Linf 0.01").metrics["verified_rate"])
"""
    )
    found = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=600, cwd=tmp_path, check=True
    )
    assert found.stdout.count("once") == 1


def test_every_public_function_is_behind_the_door():
    """Also one that does not exist yet: `windtunnel.__getattr__` puts it there."""
    functions = [value for value in (getattr(wt, name) for name in wt.__all__) if inspect.isfunction(value)]
    assert {f.__name__ for f in functions} >= {"assess", "attack", "verify", "corrupt", "read", "load_params"}
    for function in functions:
        assert function.__code__.co_filename == door.__file__
        assert function.__wrapped__.__module__.startswith("windtunnel.")


def test_a_default_never_contradicts_what_is_written(few):
    """The steps and the step size that a name alone gets give way to those in params."""
    model, x, y = few
    entry = wt.attack(model, x[:4], y[:4], "pgd", budget="Linf 8/255", params={"steps": 5}).metadata.call_kwargs
    assert entry["steps"] == 5
    assert entry["alpha"] == pytest.approx(2.5 * 8 / 255 / 5)


def test_functions_by_name_are_attacks(few):
    """A lambda too; it is found no longer than the call lasts."""
    model, x, y = few
    attacks = {"mine": lambda m, x, y, budget, seed: (x + budget.epsilon).clamp(0, 1), "same": _stay}
    found = wt.assess(model, x[:4], y[:4], budget=BUDGET, attacks=attacks, sanity=None)
    assert (found["mine"].tensor("perturbed_inputs") >= x[:4]).all()
    assert torch.equal(found["same"].tensor("perturbed_inputs"), x[:4])
    assert not [name for name in vars(sys.modules["windtunnel_caller"]) if not name.startswith("__")]


def _stay(model, inputs, labels, budget, seed):
    return inputs


def test_an_assessment_prints_nothing_into_a_notebook(few, capsys):
    wt.assess(*few, budget=BUDGET, attacks="FGSM", sweeps={"curve": {}}, sanity=None)
    assert capsys.readouterr().out == ""


def test_what_is_printed_is_short(few, result):
    """Every result prints a few lines with its rates, and a table in a notebook; the summary names all caveats."""
    alone = wt.attack(*few, "FGSM", budget=BUDGET)
    for shown in (alone, *(result[name] for name in result)):
        assert len(repr(shown).splitlines()) < 20
        assert shown.headline in repr(shown)
        assert "clean accuracy: 9" in repr(shown)
        assert "<td>clean accuracy</td>" in shown._repr_html_()
    assert {*(c.text for c in result["summary"].caveats)} <= {*result.caveats}
    assert any(line.startswith("pgd: PGD is randomised") for line in result.caveats)
    advice = next(line for line in result.caveats if line.startswith("F2"))
    assert "a larger x" in advice
    assert not any("data.samples" in line or "dvc repro" in line for line in (*result.caveats, result.summary()))


def test_one_attack_takes_the_seed_that_its_caveat_names(few):
    """Another seed draws other starts, and the same one draws them again; norms are read in any case."""
    budget, params = "l2 0.5", {"steps": 1}
    first, again, other = (wt.attack(*few, "pgd", budget=budget, params=params, seed=seed) for seed in (1, 1, 2))
    assert first.metadata.algorithm == "PGDL2"
    assert any("`seed`" in caveat.text for caveat in first.caveats)
    assert torch.equal(first.tensor("perturbed_inputs"), again.tensor("perturbed_inputs"))
    assert not torch.equal(first.tensor("perturbed_inputs"), other.tensor("perturbed_inputs"))
    assert all("seed" in inspect.signature(f).parameters for f in (wt.assess, wt.autoattack, wt.verify, wt.corrupt))


def test_the_caveats_of_one_assessment_speak_of_arguments(few):
    result = wt.attack(*few, "FGSM", budget=BUDGET)
    advice = SimpleNamespace(code="fewer", text="Set sanity.adaptive: true or data.samples.n.", samples=())
    result = replace(result, metadata=result.metadata.model_copy(update={"caveats": (advice,)}))
    assert result.caveats[0].text == "Set sanity={'adaptive': ...} or a larger x."
    assert "or a larger x" in repr(result)
    assert "a larger x" in result._repr_html_()


def test_advice_speaks_of_arguments():
    said = in_arguments("Set sanity.adaptive: true, raise budget.steps, or run dvc repro.", wt.assess)
    assert (
        said
        == "Set sanity={'adaptive': ...}, raise the attack's budget={'steps': ...}, or call windtunnel.assess again."
    )


def test_a_result_is_plotted(result):
    """A matplotlib figure, which a notebook shows."""
    sandwich = result.plot()
    assert sandwich.axes[0].patches
    assert sandwich._repr_png_().startswith(b"\x89PNG")
    assert result.plot("pgd").axes[0].images
    with pytest.raises(UserError, match=r"'ImagePair' is not a visualiser of pgd.*'ImagePairVisualiser'"):
        result.plot("pgd", "ImagePair")


def test_an_unknown_tensor_names_the_known_ones(result):
    with pytest.raises(KeyError, match=r"'verdict' is not a tensor.*Did you mean 'verdicts'.*clean_inputs"):
        result["pgd"].tensor("verdict")


@pytest.mark.parametrize("algorithm", ["pgd", "LinfPGD"])
def test_an_attack_maximises_another_loss(few, algorithm):
    """By name or as a function; one that is constant moves no sample towards an error."""
    model, x, y = few

    def accuracy(**loss: object) -> float:
        return float(wt.attack(model, x, y, algorithm, budget="Linf 0.1", **loss).metrics["adversarial_accuracy"])

    assert accuracy(loss="margin") < 0.9
    assert accuracy(loss=lambda logits, labels: 0 * logits[:, 0]) > accuracy(loss="dlr")
    with pytest.raises(UserError, match=r"'mragin'.*'margin'"):
        accuracy(loss="mragin")
    with pytest.raises(UserError, match="CW has a loss of its own"):
        wt.attack(model, x, y, "CW", budget="L2 1", loss="dlr")


@pytest.mark.slow
def test_autoattack_changes_one_line_of_a_script(few):
    """The accuracy is that of the model on what it returns, which lies within epsilon."""
    model, x, y = few
    examples, accuracy = wt.autoattack(model, x, y, eps=0.06)
    assert accuracy == pytest.approx(float((model(examples).argmax(1) == y).float().mean()))
    assert accuracy < float((model(x).argmax(1) == y).float().mean())
    assert float((examples - x).abs().max()) <= 0.06 + 1e-6


@pytest.mark.slow
def test_the_readme_prints_what_its_code_gives(digits_subject, capsys):
    """The words are the same, and every number is, within five points: processors round in their own ways."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (code,), (output,) = (re.findall(rf"```{kind}\n(.*?)```", readme, re.DOTALL) for kind in ("python", "text"))
    data = digits_subject.dataset
    exec(code, {"model": digits_subject.classifier.module, "x": data.inputs[:100], "y": data.targets[:100]})
    printed = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")
    numbers = r"\d+(?:\.\d+)?"
    assert re.sub(numbers, "N", printed) == re.sub(numbers, "N", output)
    for now, then in zip(re.findall(numbers, printed), re.findall(numbers, output), strict=True):
        assert float(now) == pytest.approx(float(then), abs=5)


def test_the_readme_is_read_in_a_minute():
    assert len((Path(__file__).parents[2] / "README.md").read_text().splitlines()) <= 120
