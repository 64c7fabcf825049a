"""How many stages of the default project old commits would run again with today's cache keys.

    python -m benchmarks.stages_rerun [--end 6ab45d1] [--commits 240]

Each of the commits before `--end` that touch `src` is mapped to the modules of today: its files are followed through all later
renames (a file that was deleted goes to the file of the deleting commit that shares most lines with it). A stage runs again
where one of these modules is among those that its file in `reports/resolved` lists as work. Changes of comments and docstrings
alone count nothing, as in the cache itself. Run `dvc repro resolve` first. Before the rooms were made the mean was 9.2.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from windtunnel.core.errors import UserError
from windtunnel.operations.resolve.closure import read_source

SOURCE = "src/windtunnel"


def git(*arguments: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


@cache
def digest(revision: str, path: str) -> str | None:
    """Return the digest of a file's code at a revision; None where there is no such file or it does not parse."""
    shown = subprocess.run(["git", "show", f"{revision}:{path}"], capture_output=True, text=True, check=False)
    if shown.returncode:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(shown.stdout)
        file.flush()
        try:
            return read_source(Path(file.name), "module")["digest"]
        except UserError:
            return None


def changed(commit: str) -> list[str]:
    """Return the files of the package whose code a commit changes or removes, by their names before it."""
    paths = [
        line.split("\t")[1]
        for line in git("diff", "--name-status", "--no-renames", f"{commit}^", commit, "--", SOURCE).splitlines()
    ]
    python = [path for path in paths if path.endswith(".py")]
    return [path for path in python if digest(f"{commit}^", path) != digest(commit, path)]


def moves(start: str) -> dict[str, dict[str, str]]:
    """Return, for each commit since `start` in order, where the files that it renames or deletes go."""
    steps: dict[str, dict[str, str]] = {}
    log = git("log", "--reverse", "--format=commit %H", "-M30%", "-l0", "--name-status", f"{start}..HEAD", "--", SOURCE)
    commit, deleted = "", []
    for line in [*log.splitlines(), "commit end"]:
        if line.startswith("commit "):
            for path in deleted:
                steps[commit][path] = heir(commit, path)
            commit, deleted = line.split()[1], []
            steps[commit] = {}
        elif line.startswith("R"):
            _, old, new = line.split("\t")
            steps[commit][old] = new
        elif line.startswith("D") and line.endswith(".py"):
            deleted.append(line.split("\t")[1])
    return steps


def heir(commit: str, path: str) -> str:
    """Return the file of a commit whose added lines share most with a file that it deletes; "" where none shares three."""
    lines = {line for line in git("show", f"{commit}^:{path}").splitlines() if len(line.strip()) > 20}
    shared: Counter[str] = Counter()
    current = ""
    for line in git("show", "--format=", "-U0", commit, "--", SOURCE).splitlines():
        if line.startswith("+++ "):
            current = line[6:]
        elif line.startswith("+") and line[1:] in lines:
            shared[current] += 1
    best = shared.most_common(1)
    return best[0][0] if best and best[0][1] >= 3 else ""


def module_of(path: str) -> str:
    """Return the dotted name of a file of the package."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def main() -> None:
    """Print the mean over the commits, and how many of them run most stages again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--end", default="6ab45d1")
    parser.add_argument("--commits", type=int, default=240)
    parser.add_argument("--resolved", type=Path, default=Path("reports/resolved"))
    arguments = parser.parse_args()
    stages = {
        str(file.relative_to(arguments.resolved)): {  # `module:method` is a part of a module
            name.partition(":")[0] for name in json.loads(file.read_text())["work"].get("code", {})
        }
        for file in sorted(arguments.resolved.rglob("*.json"))
    }
    commits = git("log", "--no-merges", "--format=%H", f"-{arguments.commits}", arguments.end, "--", "src").split()
    steps = moves(commits[-1])
    order = list(steps)
    position = {commit: number for number, commit in enumerate(order)}
    counts, gone = [], Counter[str]()
    for commit in commits:
        modules = set()
        for path in changed(commit):
            today = path
            for later in order[position.get(commit, -1) :]:
                today = steps[later].get(today, today)
            modules.add(module_of(today)) if today else gone.update([path])
        counts.append(sum(not code.isdisjoint(modules) for code in stages.values()))
    print(f"{len(commits)} commits, {len(stages)} stages, {sum(gone.values())} changed files without an heir")
    print(f"mean stages run again: {sum(counts) / len(counts):.1f}")
    for share in (0.5, 0.75, 0.9):
        print(f"commits that run at least {share:.0%} of the stages: {sum(c >= share * len(stages) for c in counts)}")


if __name__ == "__main__":
    main()
