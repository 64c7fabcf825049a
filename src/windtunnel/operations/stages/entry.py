"""Stage `<stage>@<name>` of every family: run one entry of params.yaml by its family."""

from windtunnel.assessments.run import run_entry
from windtunnel.params.resolved import read_resolved
from windtunnel.registry.plugins import family_of


def main(stage: str, name: str, ended_by: str = "") -> None:
    """Write reports/robustness/<name>: its result, or why its process ended too early."""
    resolved = read_resolved(stage, name)
    run_entry(family_of(resolved.family), resolved, ended_by)
