"""dvc.yaml, written from the records of the families: one graph for this repository, for any other, and for plug-ins."""

from collections.abc import Iterator, Mapping

from windtunnel.boundary.text import yaml_text
from windtunnel.registry.plugins import Family, families

Stage = dict[str, object]
_STAGE = "python -m windtunnel stage"
_RESULT = ("reports/data/assessed.pt", "reports/model", "reports/robustness/clean/robustness_data.pt")
_HEAD = """\
# The pipeline. `resolve` always runs: it validates params.yaml and writes, for every stage and entry, what decides its result
# (params with their defaults, the code it executes, versions of its libraries, digests of files). A stage depends on that file,
# on the data, the model and the clean results, and names its own params so that `dvc params diff` and dvc.lock speak of them.
# Everything a run makes is under reports/; runtime.json (time, host) is in .dvcignore and so in no output.
# `windtunnel init` writes this file from the families that are installed.
"""


def graph_text(params: Mapping[str, object]) -> str:
    """dvc.yaml for a params.yaml of this content."""
    text = yaml_text(graph(params), map_indent=2, sequence_indent=4, sequence_dash_offset=2, width=140)
    return _HEAD + text


def graph(params: Mapping[str, object]) -> dict[str, object]:
    """Return the content of dvc.yaml. Files that params.yaml names are dependencies, so that the stages that make them come first."""
    data = _files(params, "data", ("path", "labels", "train_path", "train_labels"))
    model, generators = _files(params, "model", ("path",)), _files(params, "generators", ("path",))
    files = [*data, *model, *generators]
    fit = "Train the embedded default, or import the user's model"
    inputs, outputs = _reports("data/assessed.pt model"), _reports("robustness/clean digests/clean.json plots/clean")
    return {
        "stages": {
            "resolve": {
                "desc": "What each stage will run, written where it changed",
                "cmd": f"{_STAGE} resolve",
                "always_changed": True,
                **({"deps": files} if files else {}),
                "params": ["seed", "device", "budget", "budgets"],
                "outs": [{"reports/resolved": {"persist": True}}],
            },
            "prepare": _stage(
                "prepare", "Load, convert, check and choose the samples", data, ["data"], _reports("data")
            ),
            "train": _stage("train", fit, [*_reports("data"), *model], ["model"], _reports("model")),
            "clean": _stage("clean", "The model without any perturbation", inputs, ["clean"], outputs),
            **dict(_assessments(generators)),
            **_ending(),
        },
        "params": ["reports/resolved/budget.yaml"],
        "plots": _PLOTS,
    }


def _reports(names: str) -> list[str]:
    """Return the paths in reports/ of `names`, which spaces divide."""
    return [f"reports/{name}" for name in names.split()]


def _assessments(own_generators: list[str]) -> Iterator[tuple[str, Stage]]:
    """Yield a stage per family, and the generative models before the family that uses them."""
    for family in families().values():
        if family.generators:
            title = "Train the generative models of `latent`, or import the user's"
            needs = [*_reports("data"), *own_generators]
            yield "generators", _stage("generators", title, needs, ["generators"], _reports("generators"))
        yield family.stage, {"foreach": f"${{{family.name}}}", "do": _entry(family)}


def _entry(family: Family) -> Stage:
    data, *results = _RESULT
    deps = [data, *(["reports/generators"] if family.generators else []), *results]
    title, keys = f"One entry of `{family.name}`", [f"{family.name}.${{key}}"]
    outputs = ["reports/robustness/${key}", "reports/digests/${key}.json"]
    stage = _stage(family.stage, title, deps, keys, outputs, key=True)
    if family.plot:
        stage["plots"] = [{f"reports/plots/{family.stage}/${{key}}.csv": {"template": "linear", **family.plot}}]
    return stage


def _stage(name: str, desc: str, deps: list[str], params: list[str], outs: list[str], *, key: bool = False) -> Stage:
    resolved, argument = (f"{name}/${{key}}", " ${key}") if key else (name, "")
    return {
        "desc": desc,
        "cmd": f"{_STAGE} {name}{argument}",
        "deps": [f"reports/resolved/{resolved}.json", *deps],
        **({"params": params} if params else {}),
        "outs": outs,
    }


def _ending() -> dict[str, Stage]:
    """Return the stages that are made of all results."""
    summary, sanity = (
        "The sandwich, the worst case per sample, the headline metrics",
        "Are the numbers of the assessments valid?",
    )
    report, gate = (
        "PDF, HTML and their content as data",
        "The decision on the conditions of `gate`; never breaks the graph",
    )
    of_summary, of_report = _reports("data/assessed.pt model digests sanity"), _reports("report.pdf report.html report")
    of_gate = ["champion", *_reports("metrics.json summary/metadata.json summary/outcomes.json")]
    return {
        "sanity": _stage("sanity", sanity, _reports("data model digests"), ["sanity"], _reports("sanity")),
        "summary": {
            **_stage("summary", summary, of_summary, [], _reports("summary plots/summary")),
            "metrics": _reports("metrics.json"),
        },
        "report": _stage(
            "report",
            report,
            _reports("data model robustness sanity summary metrics.json gate.json"),
            ["report"],
            of_report,
        ),
        "gate": _stage("gate", gate, of_gate, ["gate"], _reports("gate.json")),
        "track": {
            "desc": "Log to MLflow what is not logged yet; cheap, always runs",
            "cmd": f"{_STAGE} track",
            "always_changed": True,
            "deps": [*_reports("gate.json metrics.json"), *of_report],
        },
    }


def _files(params: Mapping[str, object], block: str, keys: tuple[str, ...], above: str = "") -> list[str]:
    """Return the files that a block of params.yaml names, as DVC refers to them: another path there needs no other dvc.yaml."""
    content = params.get(block)
    named = content if isinstance(content, Mapping) else {}
    files = [f"${{{above}{block}.{key}}}" for key in keys if named.get(key) and named[key] != "none"]
    return files if above else [*files, *_files(named, "twin", ("path",), f"{block}.")]


_PLOTS: list[object] = [
    {"Robustness sandwich": {
        "template": "bar_horizontal", "x": "accuracy", "y": {"reports/plots/summary/sandwich.csv": "bar"}}},
    {"Accuracy per assessment": {
        "template": "bar_horizontal", "x": "accuracy", "y": {"reports/plots/summary/assessments.csv": "assessment"}}},
    {"Confusion matrix": {
        "template": "confusion", "x": "actual", "y": {"reports/plots/clean/confusion.csv": "predicted"}}},
    {"Clean accuracy per class": {
        "template": "bar_horizontal", "x": "accuracy", "y": {"reports/plots/clean/per_class_accuracy.csv": "class"}}},
    {"Reliability": {
        "template": "linear", "x": "confidence", "y": {"reports/plots/clean/reliability.csv": "accuracy"}}},
]  # fmt: skip
