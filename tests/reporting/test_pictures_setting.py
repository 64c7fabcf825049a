"""`report.pictures` for confidential data: blurred or none holds for everything that shows a sample."""

import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.reporting.report.conftest import original, write_run  # noqa: F401  a fixture
from windtunnel.assessments.attacks.figures import ImagePairVisualiser, PerturbationHeatmapVisualiser
from windtunnel.assessments.figures.base import drawn
from windtunnel.assessments.figures.pictures import NO_PICTURES, allowed, picture_mode, pictures_as, png_of
from windtunnel.core.errors import UserError
from windtunnel.evaluation.input_conventions import look
from windtunnel.evaluation.validate import validate
from windtunnel.params.results import Report as Options
from windtunnel.records.artifacts import read_artifacts
from windtunnel.reporting.compare.comparison import compare_runs
from windtunnel.reporting.compare.page import render_comparison as render_comparison
from windtunnel.reporting.compare.runs import run_in
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html
from windtunnel.reporting.view.site import site

SRC = Path(__file__).parents[2] / "src" / "windtunnel"
PARAMS = "report: {{pictures: {}}}\n"


@pytest.fixture(params=["blurred", "none"])
def mode(request, tmp_path, monkeypatch):
    """A project whose params.yaml says so."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMS.format(request.param))
    return request.param


def is_private(png, mode, tile=8):
    """True if each tile of a picture has at most 2x2 fields (of an 8x8 digit), or one colour where pictures are `none`."""
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    height, width = (size // tile * tile for size in pixels.shape[:2])
    tiles = pixels[:height, :width].reshape(height // tile, tile, width // tile, tile, 3).swapaxes(1, 2)
    fields = [len(np.unique(part.reshape(-1, 3), axis=0)) for part in tiles.reshape(-1, tile, tile, 3)]
    return max(fields) <= (4 if mode == "blurred" else 1)


def test_a_picture_of_a_sample_is_made_in_one_module_alone():
    """What turns numbers into pixels elsewhere takes them from there, or gives the model its inputs."""
    makes = re.compile(r"Image\.fromarray|colormaps\[|imshow|(?:png_bytes|sheet_png)\(|AxesImage\(")
    places = {str(p.relative_to(SRC)) for p in SRC.rglob("*.py") if makes.search(p.read_text())}
    inputs = {"boundary/models/of_libraries.py", "boundary/data/load.py", "assessments/corruptions/jobs.py"}
    legends_and_pages = {"assessments/figures/scene.py", "assessments/figures/paint.py"}
    guarded = {
        "reporting/report/pictures.py": "pixels_of(",
        "reporting/view/site.py": "allowed(",
        "evaluation/input_conventions/look.py": "pixels_of(",
    }
    assert places == {"assessments/figures/pictures.py", *inputs, *legends_and_pages, *guarded}
    assert all(call in (SRC / place).read_text() for place, call in guarded.items())


def test_every_figure_with_pictures_makes_them_by_the_functions_that_keep_the_setting():
    figures = [p for p in SRC.rglob("*.py") if re.search(r"\bPicture\(\s*\S", p.read_text())]
    assert len(figures) >= 4
    for path in figures:
        calls = re.findall(r"\bPicture\(\s*(\w+)", path.read_text())
        assert set(calls) <= {"map_png", "png_of"}, path


def test_a_large_picture_keeps_four_fields_a_side_and_a_small_one_a_quarter_of_its_pixels():
    with pictures_as(["blurred"]):
        assert [len(allowed(torch.rand(1, 3, size, size)).unique()) // 3 for size in (224, 28, 8)] == [16, 16, 4]
        assert allowed(torch.rand(1, 1, 3, 3)).unique().numel() == 1


def test_the_strictest_word_wins_and_an_unknown_one_hides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert picture_mode() == "shown"
    with pictures_as(["blurred", "shown"]):
        assert picture_mode() == "blurred"
        Path("params.yaml").write_text(PARAMS.format("none"))
        assert picture_mode() == "none"
    Path("params.yaml").write_text(PARAMS.format("blured"))
    assert picture_mode() == "none"


def test_figures_of_a_stage_show_no_sample(original, mode, tmp_path):  # noqa: F811
    artifacts = read_artifacts(original / "robustness" / "pair")
    for visualiser in (ImagePairVisualiser(), PerturbationHeatmapVisualiser()):
        drawings, empty = drawn(visualiser, artifacts)
        assert (mode == "none") == (empty == NO_PICTURES)
        cells = [cell for grid in drawings for _, row in grid.rows for cell in row if cell]
        assert bool(cells) == (mode == "blurred")
        assert all(is_private(cell.png, mode, tile=96) for cell in cells)
    assert is_private(png_of(artifacts.tensor("clean_inputs")[0], 96), mode, tile=96)


def test_a_report_shows_no_sample(original, mode, tmp_path):  # noqa: F811
    report = build_report(original, Options(pictures=mode))
    sprites = report.samples.sprites if report.samples else ()
    assert bool(sprites) == (mode == "blurred")
    assert all(is_private(sprite.png, mode) for sprite in sprites)
    render_html(report, tmp_path / "report.html")
    assert ("data:image/png" in (tmp_path / "report.html").read_text()) == (mode == "blurred")


def test_the_setting_of_a_run_holds_where_it_is_viewed_and_compared_from_elsewhere(original, tmp_path, monkeypatch):  # noqa: F811
    for word in ("shown", "blurred", "none"):
        shutil.copytree(original, tmp_path / word / "reports")
        (tmp_path / word / "params.yaml").write_text(PARAMS.format(word))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    runs = {word: run_in(tmp_path / word, word) for word in ("shown", "blurred", "none")}
    assert not [name for name in site([runs["shown"], runs["none"]]) if name.startswith("sheets/")]
    files = site([runs["shown"], runs["blurred"]])
    sheets = [name for name in files if name.startswith("sheets/")]
    assert len(sheets) > 2
    assert all(is_private(files[name](), "blurred") for name in sheets)
    assert not is_private(site([runs["shown"]])["sheets/clean-0.png"](), "blurred")
    render_comparison(compare_runs([runs["none"], runs["shown"]]), tmp_path / "comparison.html")
    assert "data:image/png" not in (tmp_path / "comparison.html").read_text()


def test_check_draws_no_sample(digits_subject, mode, tmp_path):
    data = digits_subject.dataset
    look.picture(data, look.rows(data, digits_subject.clean_logits), tmp_path / "seen.png")
    pixels = np.asarray(Image.open(tmp_path / "seen.png"))[12 : 12 + 224, 12 : 12 + 224]
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) == (4 if mode == "blurred" else 1)


def test_uploading_the_tensors_is_refused_where_pictures_are_kept_back():
    raw = {"data": {}, "model": {}, "budget": {"epsilon": 0.1}, "tracking": {"log_tensors": True}}
    validate(raw)
    with pytest.raises(UserError, match=r"tracking\.log_tensors: uploads the samples, which report\.pictures: none"):
        validate({**raw, "report": {"pictures": "none"}})
