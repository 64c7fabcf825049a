"""A retraining in Markdown: for a terminal, a mail, or a comment on a pull request."""

from __future__ import annotations

from windtunnel.evaluation.gate.table import markdown
from windtunnel.operations.retrain.flow import Retrained, Status
from windtunnel.operations.tracking.registry import Version

_WORDS = {
    Status.PROMOTED: "{version} is the champion now",
    Status.KEPT: "{champion} stays: {version} did not pass the gate",
    Status.NOT_SOUND: "{champion} stays: the evaluation of {version} is not sound",
    Status.SAME_MODEL: "{champion} stays: the retraining gave the same weights",
    Status.NOTHING_NEW: "{champion} stays: nothing changed since {version} was made",
}


def headline(result: Retrained) -> str:
    """The end in one sentence."""
    champion = result.champion or "no champion"
    return _WORDS[result.status].format(version=result.version, champion=champion)


def summary_markdown(result: Retrained) -> str:
    """Headline, the gate's table, and where to look further."""
    lines = [f"## Retraining: {headline(result)}", ""]
    lines += [result.note, ""] if result.note else []
    lines += [markdown(result.verdict)] if result.verdict else []
    lines += [f"Assessment of {result.version}: {_where(result.version)}"]
    return "\n".join(lines) + "\n"


def _where(version: Version) -> str:
    link = version.tags.get("assessment.link")
    return f"[MLflow run {version.run_id}]({link})" if link else f"MLflow run {version.run_id}"
