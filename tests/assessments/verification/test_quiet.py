"""What a library says while it is imported is not the user's business."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_auto_lirpa_is_imported_without_a_word():
    command = "from windtunnel.assessments.verification.bound_propagation.lirpa import load_lirpa; load_lirpa()"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
