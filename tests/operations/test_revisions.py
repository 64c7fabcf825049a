"""Names that `windtunnel compare` takes: what git knows of them."""

import subprocess

import pytest

from windtunnel.core.errors import UserError
from windtunnel.operations.revisions import run_at, run_of_lock


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone of a repository without results, which has the branch main only on its remote."""

    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, *arguments], check=True, cwd=tmp_path, capture_output=True)

    git("init", "-b", "main", "origin")
    git("-C", "origin", "commit", "--allow-empty", "-m", "first")
    git("clone", "origin", "clone")
    git("-C", "clone", "checkout", "--detach")
    git("-C", "clone", "branch", "-D", "main")
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path


@pytest.mark.parametrize("name", ["main", "origin/main", "HEAD"])
def test_a_branch_of_the_remote_alone_is_a_revision(clone, name):
    with pytest.raises(UserError, match=f"{name}: there is no params.yaml at commit"):
        run_at(name, clone / "scratch")


def test_an_unknown_name_is_no_revision(clone):
    assert run_at("nowhere", clone / "scratch") is None


def test_results_outside_a_dvc_repository_are_one_line(clone):
    scratch = clone / "scratch"
    scratch.mkdir()
    (scratch / "params.yaml").write_text("seed: 0\n")
    md5 = "d41d8cd98f00b204e9800998ecf8427e"
    outs = "".join(
        f"    - path: {path}\n      md5: {md5}\n" for path in ("reports/robustness/clean", "reports/summary")
    )
    (scratch / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n  clean:\n    cmd: x\n    outs:\n{outs}")
    with pytest.raises(UserError, match="here is no DVC repository"):
        run_of_lock(scratch, "main", "git revision 0")
