"""`windtunnel status` says in words why a stage would run; a result of which only figures changed is kept."""

from dataclasses import replace
from types import SimpleNamespace

import onnx
import torch

from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.assessments.run import take_back
from windtunnel.boundary.models.load import export_onnx
from windtunnel.operations.resolve.build import resolve_all
from windtunnel.operations.resolve.status import explain
from windtunnel.params.resolved import Drawing, FigureSpec, Resolved, Work
from windtunnel.params.results import Clean
from windtunnel.records.artifacts import write_artifacts
from windtunnel.records.digests import set_aside
from windtunnel.records.files import write_json


def resolved(**changes) -> Resolved:
    work = {
        "entry": {"algorithm": "PGD", "budget": {"norm": "Linf", "epsilon": 0.06}},
        "seed": 0,
        "code": {"windtunnel.assessments.attacks.evaluate": "a"},
        "libraries": {"torchattacks": "3.5.1"},
    }
    return Resolved(stage="attack", name="pgd", work=Work(**{**work, **changes}))


def test_a_change_is_a_phrase():
    before = resolved()
    assert explain(before, before) == []
    cases = [
        ({"entry": {"algorithm": "PGD", "budget": {"norm": "Linf", "epsilon": 0.03}}}, "epsilon 0.06 -> 0.03"),
        ({"seed": 1}, "seed 0 -> 1"),
        ({"libraries": {"torchattacks": "3.6"}}, "torchattacks 3.5.1 -> 3.6"),
        ({"code": {"windtunnel.assessments.attacks.evaluate": "b"}}, "code of attacks.evaluate"),
        ({"builds_on": {"attack@fgsm": "x"}}, "attack@fgsm, which it builds on, changed"),
    ]
    for changes, words in cases:
        assert explain(before, resolved(**changes)) == [words]
    entry = {"algorithm": "PGD", "budget": {"norm": "Linf", "epsilon": 0.06}}
    assert explain(before, resolved(entry={**entry, "on": None})) == ["on absent -> none"]
    assert explain(before, resolved(entry={**entry, "restarts": 3})) == ["restarts none -> 3"]


def test_a_file_is_called_by_its_name():
    def train(digest: str) -> Resolved:
        work = Work(entry={"model": {"path": "runs/weights.pt"}}, files={"model.path": digest})
        return Resolved(stage="train", work=work)

    assert explain(train("a"), train("b")) == ["weights.pt changed"]


def test_a_figure_changes_how_a_result_looks_and_not_its_digest():
    before = resolved()
    drawn = Drawing(figures=(FigureSpec(module="m", name="ImagePairVisualiser"),), code={"windtunnel.x.figures": "b"})
    after = before.model_copy(update={"drawing": drawn})
    assert explain(before, after) == [
        "figures: ImagePairVisualiser",
        "figures: code of windtunnel.x.figures".replace("windtunnel.", ""),
    ]
    assert Resolved.model_validate(after.model_dump()).digest == before.digest


def test_pictures_kept_back_redraw_the_figures_alone():
    before = resolved()
    after = before.model_copy(update={"drawing": Drawing(pictures="none")})
    assert explain(before, after) == ["figures: report.pictures shown -> none"]
    assert (after.digest, "pictures" in before.model_dump()["drawing"]) == (before.digest, False)


def test_equal_entries_of_two_names_are_two_results():
    assert resolved().digest != resolved().model_copy(update={"name": "other"}).digest


def test_a_kept_result_comes_back_for_its_own_model_only(mlp_subject, linear_subject, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "reports" / "robustness" / "it"
    made = write_artifacts(assess_clean(Clean(), mlp_subject), folder, mlp_subject, started=0.0)
    (folder / "Some_0.png").touch()
    set_aside(folder, "digest")
    other = replace(mlp_subject, classifier=linear_subject.classifier)
    assert take_back("digest", tmp_path / "other", other) is None
    assert take_back("another digest", tmp_path / "other", mlp_subject) is None
    back = take_back("digest", tmp_path / "back", mlp_subject)
    assert back is not None
    assert torch.equal(back.tensor("verdicts"), made.tensor("verdicts"))
    assert not list((tmp_path / "back").glob("*.png"))
    assert take_back("digest", tmp_path / "again", mlp_subject) is None


def test_weights_beside_an_onnx_graph_are_files_of_train(mlp_subject, tmp_path, monkeypatch):
    """Another w.data under the same graph is another model."""
    monkeypatch.chdir(tmp_path)
    graph = onnx.load(export_onnx(mlp_subject.classifier, tmp_path / "whole.onnx"))
    onnx.save(graph, "w.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    (tmp_path / "params.yaml").write_text(
        "data: {source: digits}\nmodel: {source: onnx, path: w.onnx}\nbudget: {norm: Linf, epsilon: 0.1}\nclean: {}\n"
    )

    def train() -> Resolved:
        return next(one for one in resolve_all() if one.stage == "train")

    before = train()
    assert len(before.work.files) == 2
    content = bytearray((tmp_path / "w.data").read_bytes())
    content[3] ^= 1
    (tmp_path / "w.data").write_bytes(content)
    assert explain(before, train()) == ["model.path, w.data changed"]


def test_time_and_memory_of_a_stage_are_known_from_its_result_or_where_it_leaves_none_from_its_last_run(
    tmp_path, monkeypatch
):
    from windtunnel.operations.stages import run
    from windtunnel.runtime.stage_log import stage_runtime

    def seconds(stage, name):
        return getattr(stage_runtime(stage, name), "seconds", None)

    monkeypatch.chdir(tmp_path)
    stages = [("prepare", ""), ("gate", ""), ("summary", ""), ("clean", ""), ("attack", "pgd"), ("own", "")]
    assert [seconds(*stage) for stage in stages] == [None] * 6
    monkeypatch.setattr(run, "import_module", lambda name: SimpleNamespace(main=lambda: None))
    for name in ("prepare", "gate", "summary"):
        run.run_stage(name)
    write_json({"seconds": 4.5}, tmp_path / "reports/summary/runtime.json")
    write_json({"seconds": 2.5}, tmp_path / "reports/robustness/pgd/runtime.json")
    assert seconds("prepare", "") is not None
    assert seconds("gate", "") is not None
    assert stage_runtime("gate", "").peak_memory > 2**24  # of a process with torch in it
    assert not (tmp_path / "reports/runtime/summary").exists()
    assert [seconds(*stages[i]) for i in (2, 4, 3)] == [4.5, 2.5, None]
