"""The notebook of examples/: every cell runs, in order, and shows what the text above it says."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def shown_by(source, namespace):
    """Run a cell; the value of its last line, as a notebook shows it."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), namespace) if last else None


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs_and_shows_something_short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if "outputs" in cell)
    namespace = {}
    values = [shown_by("".join(cell["source"]), namespace) for cell in cells if cell["cell_type"] == "code"]
    result, pgd = namespace["result"], values[2]
    assert values[1] is result
    assert "data:image/png" in result._repr_html_()
    for value in (result, pgd):
        assert len(repr(value).splitlines()) < 30
        assert value._repr_html_().count("<") < 200
    assert list(values[3].columns) == ["label", "adversarial_prediction", "distance", "index"]
    assert values[4].sum() == 40
    with pytest.raises(KeyError, match="perturbed_inputs"):
        pgd.tensor("nosuch")
    assert not any("params.yaml" in line or "dvc repro" in line for line in result.caveats)
    by_name, by_function = values[9]
    assert by_name == by_function
    assert (tmp_path / "assessed" / "report.html").is_file()
    assert (tmp_path / "assessed" / "reports" / "summary" / "metadata.json").is_file()
