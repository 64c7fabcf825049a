"""The one way a stage is run: `python -m windtunnel stage attack pgd`, by DVC, by a file in `stages/`, or by hand."""

import sys
import time
from importlib import import_module

from windtunnel.core.errors import UserError, shown, unknown_word
from windtunnel.core.threads import compute_with_one_thread
from windtunnel.runtime.shutdown import handle_signals, user_errors
from windtunnel.runtime.supervised import fork_worker

# Those that are no family's, in the order of the pipeline: each is a module beside this one. `entry` runs all others.
STAGES = ("resolve", "prepare", "train", "clean", "generators", "sanity", "summary", "gate", "report", "track")
ENTRY = "entry"
# Whose time nothing else notes, and that are worth knowing before they run.
_LEAVES_NO_ASSESSMENT = frozenset({"prepare", "train", "generators", "gate"})


def main(*words: str) -> None:
    """Run one stage in this process, and log it. `main("attack")` in a file of `stages/` takes the name from the command."""
    # Before anything else is imported.
    ended_by = ""
    if {*(*words, *sys.argv[1:])[:1]} <= {*STAGES}:
        handle_signals()
    else:
        ended_by = fork_worker()
    compute_with_one_thread()
    with user_errors():
        from windtunnel.runtime.own_source import require_own_source
        from windtunnel.runtime.placement import require_placement
        from windtunnel.runtime.stage_log import log_stage

        # No stage may record numbers that other code made than the one that was resolved.
        require_own_source()
        require_placement()
        stage, name = stage_of(*words, *sys.argv[1:])
        with log_stage(stage, name):
            run_stage(stage, name, ended_by)


def run_stage(stage: str, name: str = "", ended_by: str = "") -> None:
    """Run a stage in the current directory; of a family, the entry `name`.

    ended_by: why the process of the entry ended too early; then its failure is recorded, and nothing is computed.

    Only the module of this stage is imported: what others execute decides nothing here. Raises UserError for what the
    stage refuses.
    """
    if stage in STAGES:
        from windtunnel.records.run_times import write_stage_runtime

        started = time.time()
        import_module(f"windtunnel.operations.stages.{stage}").main()
        if stage in _LEAVES_NO_ASSESSMENT:
            write_stage_runtime(stage, started)
    else:
        import_module(f"windtunnel.operations.stages.{ENTRY}").main(stage, name, ended_by)


def stage_of(stage: str = "", name: str = "", *more: str) -> tuple[str, str]:
    """(stage, name of an entry or nothing) from the words of a command. Raises UserError for what cannot be run."""
    from windtunnel.params.resolved import resolved_file

    if not more and (not name if stage in STAGES else resolved_file(stage, name).is_file()):
        return stage, name
    from windtunnel.registry.plugins import families

    of_families = {family.stage: family.name for family in families().values()}
    if stage in STAGES:
        raise UserError(f"stage {stage}: takes no name of an entry, not {shown(' '.join((name, *more)))}")
    if stage not in of_families:
        raise UserError(unknown_word("stage", stage, [*STAGES, *of_families], what="a stage"))
    if more or not name:
        raise UserError(f"stage {stage}: takes the name of one entry of `{of_families[stage]}` in params.yaml")
    return stage, name  # of what was not resolved, reading it says how it is
