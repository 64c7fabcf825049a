"""What every visualiser promises: a kind, a refusal of other kinds when params are read, and flags the report relies on."""

import re

import matplotlib.style
import numpy as np
import pytest
from PIL import Image

import windtunnel.assessments.clean.figures  # the clean stage and the summary name their own
import windtunnel.evaluation.summary.sandwich_figure
import windtunnel.evaluation.summary.security_figure  # noqa: F401
from windtunnel.assessments.figures.base import VISUALISERS, Visualiser, make_visualiser, recorded
from windtunnel.assessments.figures.paint import paint
from windtunnel.assessments.figures.plots import Bar, bars
from windtunnel.assessments.figures.registry import register_figures
from windtunnel.assessments.figures.scene import PALETTE
from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.errors import UserError
from windtunnel.evaluation.validate import validate

register_figures()
NAMED = {
    "ImagePairVisualiser": AssessmentKind.EMPIRICAL_ATTACK,
    "PerturbationHeatmapVisualiser": AssessmentKind.EMPIRICAL_ATTACK,
    "SquarePlacesVisualiser": AssessmentKind.EMPIRICAL_ATTACK,
    "CorruptionAccuracyVisualiser": AssessmentKind.STATISTICAL_SAMPLING,
    "VerdictSummaryVisualiser": AssessmentKind.FORMAL_VERIFICATION,
    "OutputBoundsCohortVisualiser": AssessmentKind.FORMAL_VERIFICATION,
    "OutputBoundsMarginHeatmapVisualiser": AssessmentKind.FORMAL_VERIFICATION,
    "OutputBoundsPinnedVisualiser": AssessmentKind.FORMAL_VERIFICATION,
    "OutputBoundsWidthHeatmapVisualiser": AssessmentKind.FORMAL_VERIFICATION,
}
ENTRIES = [
    (AssessmentKind.EMPIRICAL_ATTACK, "attacks", {"library": "torchattacks", "algorithm": "PGD"}),
    (AssessmentKind.EMPIRICAL_ATTACK, "queries", {"algorithm": "EvoBA"}),
    (AssessmentKind.EMPIRICAL_ATTACK, "sweeps", {"epsilons": [0, 0.1]}),
    (AssessmentKind.EMPIRICAL_ATTACK, "latent", {}),
    (AssessmentKind.FORMAL_VERIFICATION, "verification", {"library": "auto-LiRPA", "algorithm": "crown"}),
    (AssessmentKind.STATISTICAL_SAMPLING, "corruptions", {"algorithm": "fog"}),
]


@pytest.mark.parametrize(("name", "kind"), NAMED.items())
def test_the_named_visualisers_exist_for_their_kind(name, kind):
    assert VISUALISERS[name].kinds == {kind}


@pytest.mark.parametrize("name", sorted(VISUALISERS))
def test_a_kind_or_family_it_does_not_draw_is_refused_when_params_are_read(name):
    drawn = VISUALISERS[name]
    for kind, family, entry in ENTRIES:
        raw = {"data": {}, "model": {}, "budget": {"epsilon": 0.1}, family: {"it": {**entry, "visualisers": [name]}}}
        if kind in drawn.kinds and family in (drawn.families or {family}):
            validate(raw)
            continue
        what = f"{kind.value} results" if kind not in drawn.kinds else f"results of {family}, but of "
        with pytest.raises(UserError, match=f"{family}.it.visualisers: {name} does not draw {what}"):
            validate(raw)


def test_what_draws_a_family_is_named_where_another_familys_figure_is_refused():
    raw = {"data": {}, "model": {}, "budget": {"epsilon": 0.1}}
    pgd = {"library": "torchattacks", "algorithm": "PGD", "visualisers": ["GeneratorSheetVisualiser"]}
    with pytest.raises(
        UserError,
        match=r"results of attacks, but of latent\. Those that do: ImagePair.*, Perturbation.*, SquarePlaces\w+$",
    ):
        validate({**raw, "attacks": {"pgd": pgd}})


def test_the_visualisers_that_show_images_say_that_they_repeat_a_facet_of_a_sample():
    assert {n for n, v in VISUALISERS.items() if v.embeds_clean_input} >= {"ImagePairVisualiser"}
    embeds_map = {"ImagePairVisualiser", "PerturbationHeatmapVisualiser"}
    assert {n for n, v in VISUALISERS.items() if v.embeds_perturbation_map} >= embeds_map


def test_a_picture_is_in_the_palette_of_the_report_and_leaves_no_trace(tmp_path):
    """Every pixel of the one bar is the role's own colour: nothing of matplotlib's style, or of a user's, is in it."""
    before = dict(matplotlib.rcParams)
    path = tmp_path / "it.png"
    for style_sheet in ("default", "dark_background"):
        with matplotlib.style.context(style_sheet):
            paint("it: bars", [bars([Bar("one", 0.5, "broken")], "share", "one bar")], path)
        pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
        colours = {f"#{r:02x}{g:02x}{b:02x}" for r, g, b in np.unique(pixels, axis=0).tolist()}
        assert {PALETTE["broken"][0].lower(), PALETTE["paper"][0]} <= colours
        assert "#1f77b4" not in colours
    assert dict(matplotlib.rcParams) == before


def test_what_there_is_not_to_draw_is_said_in_the_picture(tmp_path):
    for words in ("No sweep.", "No sweep: " + "this assessment has no epsilons on disk. " * 4):
        paint("it: curve", [], tmp_path / f"{len(words)}.png", words)
    heights = [Image.open(path).size[1] for path in sorted(tmp_path.glob("*.png"), key=lambda p: int(p.stem))]
    assert heights[0] < heights[1]


def test_a_colour_map_that_does_not_exist_is_refused_when_params_are_read():
    with pytest.raises(UserError, match="cmap: 'cividsi' is no colour map"):
        make_visualiser({"CorruptionHeatmapVisualiser": {"cmap": "cividsi"}}, AssessmentKind.STATISTICAL_SAMPLING,
                        "corruptions", "corruptions.it.visualisers")  # fmt: skip


def test_the_colours_of_the_sandwich_differ_in_grey():
    """Rec. 601 luma of what stands beside each other; the unknown band is hatched as well."""

    def luma(role):
        red, green, blue = (int(PALETTE[role][0][i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    assert abs(luma("broken") - luma("wrong")) > 40
    assert abs(luma("certified") - luma("unknown")) > 20


def test_options_that_are_not_the_defaults_are_recorded_beside_the_picture(digits_subject, tmp_path):
    import torch

    from windtunnel.assessments.clean.assess import assess_clean
    from windtunnel.assessments.clean.figures import ConfusionMatrixVisualiser
    from windtunnel.assessments.figures.base import draw_figures
    from windtunnel.assessments.sweeps.figures import DegradationCurveVisualiser
    from windtunnel.params.results import Clean
    from windtunnel.records.artifacts import read_artifacts, write_artifacts

    subject = digits_subject.subset(torch.arange(20))
    clean = write_artifacts(assess_clean(Clean(), subject), tmp_path, subject, started=0)
    draw_figures(
        clean, [ConfusionMatrixVisualiser(max_labelled=3), ConfusionMatrixVisualiser(), DegradationCurveVisualiser()]
    )
    first, second, third = read_artifacts(tmp_path).metadata.model_dump(mode="json")["visualisers"]
    assert first["options"] == {"max_labelled": 3}
    assert "options" not in second
    assert "not a sweep" in third["empty"]


@pytest.mark.parametrize("indices", [[2, 0], (2, 0)])
def test_an_option_that_is_a_list_is_recorded_too(indices, tmp_path):
    """YAML gives lists: the samples a user chose for the output bounds were missing from metadata.json."""
    spec = {"OutputBoundsPinnedVisualiser": {"sample_indices": indices}}
    visualiser = make_visualiser(
        spec, AssessmentKind.FORMAL_VERIFICATION, "verification", "verification.crown.visualisers"
    )
    assert recorded(visualiser, tmp_path / "it.png", "").options == {"sample_indices": [2, 0]}


def test_an_argument_of_the_class_that_is_no_class_variable_is_refused():
    with pytest.raises(TypeError, match="Misspelt: 'titel' is no class variable of a visualiser"):

        class Misspelt(Visualiser, titel="Curve"):
            pass


def test_no_figure_calls_the_label_a_target():
    """A target is the class that a targeted attack aims at."""
    texts = {name: f"{kind.title} {kind.__doc__}" for name, kind in VISUALISERS.items()}
    assert not [name for name, text in texts.items() if re.search(r"\btarget(?!_color|ed| class)\b", text)]
