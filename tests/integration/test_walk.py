"""The walk of docs/how-to/champion.md, line by line, with real stages: first champion, better, worse, unsound, rollback, overruled.

WINDTUNNEL_WALK=whole takes the default project as it is; else it has fewer entries, of which each costs seconds.
"""

import os
import re
import time

import pytest

from tests.integration.clone import ROOT, Clone

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

# The default project with fewer entries: stages cost what their imports cost.
KEPT = {"attacks": ("pgd",), "verification": ("crown",)}
SMALLER = {"generators:\n  source: train": "generators:\n  source: none"}
EMPTIED = ("queries", "sweeps", "corruptions", "latent")


def reduced(text: str) -> str:
    """The default params.yaml with only KEPT of its assessments; as text, so that the walk's lines still fit."""
    blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    kept = []
    for block in blocks:
        family = block.partition(":")[0]
        if family in EMPTIED:
            block = f"{family}: {{}}\n"
        elif family in KEPT:
            head, *entries = re.split(r"^(?=  \w)", block, flags=re.MULTILINE)
            block = head + "".join(e for e in entries if e.strip().partition(":")[0] in KEPT[family])
        kept.append(block)
    found = "".join(kept)
    for whole, part in SMALLER.items():
        assert whole in found
        found = found.replace(whole, part)
    return found


def lines_of_the_walk() -> list[tuple[str, int]]:
    """(command, exit code) of each line of the walk."""
    (block,) = re.findall(
        r"^```sh walk\n(.*?)^```", (ROOT / "docs" / "how-to" / "champion.md").read_text(), re.DOTALL | re.MULTILINE
    )
    found = []
    for line in block.splitlines():
        command, _, comment = line.partition("  #")
        code = re.match(r" exits (\d+)", comment)
        found.append((command.strip(), int(code[1]) if code else 0))
    return found


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = Clone(tmp_path_factory.mktemp("walk"))
    path = made.folder / "params.yaml"
    if os.environ.get("WINDTUNNEL_WALK") != "whole":
        path.write_text(reduced(path.read_text()))
        made.commit("fewer assessments")
    return made


def test_the_walk_of_the_handbook_goes_as_it_says(clone):
    clone.run("git", "config", "user.name", "t")
    clone.run("git", "config", "user.email", "t@t")
    retrained, others = [], {}
    for command, code in lines_of_the_walk():
        started = time.monotonic()
        said = clone.run("bash", "-c", command, code=code)
        print(f"$ {command}  # {time.monotonic() - started:.0f} s\n{said}")
        if command.startswith("windtunnel retrain"):
            retrained.append(said)
        else:
            others[command] = said
    first, again, better, worse, worse_again, unsound, unsound_again, rolled_back, overruled = retrained
    assert "windtunnel version 1 is the champion now: the first one\n" in first
    assert "nothing changed since windtunnel version 1 was assessed" in again
    assert "Running stage 'train'" not in again
    assert "windtunnel version 1 was reassessed" not in better
    assert "windtunnel version 2 is the champion now, in place of version 1\n" in better
    assert "Champion when the gate ran: windtunnel version 1\n" in better
    for text in (worse, worse_again):
        assert "windtunnel version 2 stays the champion: windtunnel version 3 was not promoted" in text
        assert "vs champion" in text
    for text in (unsound, unsound_again):
        assert "windtunnel version 2 stays the champion: the evaluation of windtunnel version 2 is unsound" in text
        assert "B1" in text
    assert "unsound" in others["windtunnel champion"]
    assert "windtunnel version 1 is the champion again" in others["windtunnel rollback"]
    assert "windtunnel version 2 was not promoted" in rolled_back
    assert "it was rolled back" in rolled_back
    assert (
        "nothing changed since windtunnel version 2 was assessed; it was promoted, and still is the champion"
        in overruled
    )
    assert "it was rolled back" not in overruled


def test_after_the_walk_every_run_is_in_mlflow_once(clone):
    _, parents, children = clone.parents("windtunnel")
    states = [run.data.tags["windtunnel.state"] for run in parents]
    assert len(set(states)) == len(states)
    assert all(run.data.tags["windtunnel.complete"] == "true" for run in [*parents, *children])
    assert {run.data.tags["windtunnel.decision"] for run in parents} >= {"passed", "failed", "unsound"}
