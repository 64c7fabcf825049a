"""What is slow to import is imported by the stages that need it, and by no other."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
SLOW = {
    "torch",
    "mlflow",
    "auto_LiRPA",
    "maraboupy",
    "reportlab",
    "matplotlib",
    "statsmodels",
    "pandas",
    "sklearn",
    "scipy",
    "scipy.stats",
}
ATTACK = "windtunnel.operations.stages.entry, windtunnel.assessments.attacks.assess, windtunnel.assessments.attacks.preflight"
STAGES = "windtunnel.operations.stages"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "needed"),
    [
        ("stages.attack", set()),
        ("windtunnel.operations.stages.track", set()),
        ("windtunnel.operations.tracking.track", {"scipy"}),  # of scipy functions of the normal distribution
        (ATTACK, {"torch", "scipy"}),
        (f"{STAGES}.prepare", {"torch"}),
        (f"{STAGES}.train", {"torch"}),
        (f"{STAGES}.generators", {"torch", "scipy"}),
        (f"{STAGES}.gate", {"scipy"}),
        (f"{STAGES}.clean", {"torch", "scipy"}),
    ],
)
def test_a_stage_imports_no_more_of_what_is_slow_than_it_needs(modules, needed):
    code = f"import sys, {modules}; print(*{SLOW!r} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= needed


@pytest.mark.slow
def test_resolving_and_seeing_that_all_is_logged_wait_for_nothing_slow(tmp_path):
    """The two stages that always run, on the default params."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    code = f"""
import sys
from windtunnel.operations.stages import resolve
from windtunnel.operations.stages.track import logged_before
resolve.main()
logged_before()
print(*{SLOW!r} & {{*sys.modules}}, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == []
    assert (tmp_path / "reports/resolved/attack/pgd.json").is_file()


def test_params_are_read_alike_by_dvc_and_by_us():
    """DVC takes a parser in C where it is installed, and reads params.yaml with it once a stage."""
    assert YAML(typ="safe").Parser.__name__ == "CParser"
    words = ["1e-3", "012", "yes", "on", "0o7", "1_000", "1:30", "8/255", ".5", "1.", "~", "2001-01-01", "1E5", "-.inf", "0x1F",
             "!!str 5", "+5", "{<<: {a: 1}, b: 2}", "[&x {a: 1}, *x]", "1e3", "", "caf\u00e9", "'1'", "|\n  text\n"]  # fmt: skip
    for word in words:
        text = f"key: {word}\n"
        assert repr(YAML(typ="safe").load(text)) == repr(YAML(typ="safe", pure=True).load(text)), word
