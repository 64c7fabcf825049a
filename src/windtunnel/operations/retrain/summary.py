"""A retraining in Markdown: for a terminal, a mail, or a comment on a pull request."""

from __future__ import annotations

from windtunnel.evaluation.gate.table import markdown
from windtunnel.operations.retrain.flow import Retrained, Status
from windtunnel.operations.tracking.registry import Version

_WORDS = {
    Status.KEPT: "{champion}: {version} was not promoted",
    Status.UNSOUND: "{champion}: the evaluation of {version} is unsound",
    Status.SAME_MODEL: "{champion}: the retraining gave the same weights",
}


def headline(result: Retrained) -> str:
    """The end in one sentence: who is in service now, and what became of the model."""
    if result.status is Status.PROMOTED:
        text = _promoted(result)
    else:
        champion = f"{result.champion} stays the champion" if result.champion else "there is still no champion"
        text = _WORDS[result.status].format(version=result.version, champion=champion)
    return f"nothing changed since {result.version} was assessed; {text}" if result.remembered else text


def _promoted(result: Retrained) -> str:
    if result.remembered:
        if result.champion and result.champion.number == result.version.number:
            return "it was promoted, and still is the champion"
        return f"it was promoted, and {result.champion or 'nobody'} is the champion now"
    before = result.gate.champion if result.gate else None
    replaced = f", in place of version {before.version}" if before else ": the first one"
    return f"{result.version} is the champion now{replaced}"


def summary_markdown(result: Retrained) -> str:
    """Headline, what stands against the model, the gate's table, and where to look further."""
    lines = [f"## Retraining: {headline(result)}", ""]
    lines += [*(f"- {reason}" for reason in result.reasons), ""] if result.reasons else []
    lines += [result.note, ""] if result.note else []
    lines += [markdown(result.gate)] if result.gate else []
    lines += [f"Assessment of {result.version}: {_where(result.version)}"]
    return "\n".join(lines) + "\n"


def _where(version: Version) -> str:
    link = version.tags.get("assessment.link")
    return f"[MLflow run {version.run_id}]({link})" if link else f"MLflow run {version.run_id}"
