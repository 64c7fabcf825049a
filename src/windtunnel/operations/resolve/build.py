"""Resolve params.yaml into the inputs of each stage: the one place that knows what a stage depends on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from windtunnel.assessments.clean.table import VISUALISERS as CLEAN_VISUALISERS
from windtunnel.assessments.depends import code_of_others, module_of, other_models
from windtunnel.assessments.figures.base import VISUALISERS, Spec, parse_spec
from windtunnel.assessments.figures.registry import visualisers_of
from windtunnel.core.errors import UserError
from windtunnel.evaluation.sanity import CONTROL_LIBRARY
from windtunnel.evaluation.validate import validated_params
from windtunnel.operations.resolve import dependencies
from windtunnel.operations.resolve.closure import Closure, Code, Memory
from windtunnel.operations.stages.run import ENTRY
from windtunnel.params.entry import Block, Entry
from windtunnel.params.load import budget_names, entries
from windtunnel.params.resolved import Drawing, FigureSpec, Resolved, Work
from windtunnel.params.results import ReportEntry
from windtunnel.params.schema import Params
from windtunnel.records.layout import PARAMS_FILE, ROBUSTNESS
from windtunnel.registry.plugins import families, family_of


@dataclass
class Resolver:
    """Resolves the stages of one params.yaml. Findings about files are remembered in `memory`."""

    params: Params
    memory: Memory
    project: Path = Path()
    done: dict[str, Resolved] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.code = Code(self.project, self.memory, dependencies.lazy_imports(), dependencies.left_out())
        self.model_code = tuple(dependencies.model_code(self.params.model))
        self.asks = {"clean", *(family.stage for family in families().values()), "sanity", "summary"}
        self.model_options = dependencies.model_options(self.params.model)
        self.entries = {(families()[f].stage, name): (f, entry) for f, name, entry in entries(self.params)}

    def stages(self) -> Iterator[Resolved]:
        """Every stage, in the order of the pipeline."""
        p = self.params
        storage: dict[str, JsonValue] = {"storage": _plain(p.storage)}
        yield self._stage(
            "prepare",
            {"data": _plain(p.data, "slices")},
            dependencies.data_options(p.data) | ({"image files"} if dependencies.view_model(p.model) else set()),
            (*module_of(p.data.function if p.data.source == "function" else None), *dependencies.view_code(p.model)),
            dependencies.data_files(p.data) | dependencies.view_files(p.model),
        )
        yield self._stage("train", {"model": _plain(p.model)}, self.model_options, self.model_code, self._weights())
        yield self._stage(
            "clean",
            {"clean": _plain(p.clean), **storage},
            self.model_options,
            self.model_code,
            figures=[FigureSpec(module=_CLEAN_FIGURES, name=visualiser) for visualiser in CLEAN_VISUALISERS],
        )
        own_generators = {"generators.path": p.generators.path} if p.generators.path else {}
        yield self._stage(
            "generators",
            {"generators": _plain(p.generators, "time_limit")},
            frozenset(),
            dependencies.generator_code(p.generators),
            own_generators,
        )
        for stage, name in self.entries:
            yield self.entry(stage, name)
        all_params: dict[str, JsonValue] = {
            "budget": _plain(p.budget),
            **storage,
            **{f: {n: _plain(e, "visualisers") for g, n, e in entries(p) if g == f} for f in families()},
        }
        checks: dict[str, JsonValue] = {
            **all_params,
            "sanity": _plain(p.sanity),
            "data": _plain(p.data, "slices"),
            "gate": {"minimum": dict(p.gate.minimum)},
        }
        surrogates = [p.sanity.surrogate] if p.sanity.surrogate else []
        of_checks = [*self.model_code, *_TABLES, *code_of_others(surrogates)]
        # Checks that ask the model may run any entry again.
        again = [family_of(family).dependencies(entry, p.budget).options for family, _, entry in entries(p)]
        reached = self.model_options
        if p.sanity.profile != "stored":
            reached = reached.union({"any attack"}, *again) - {"any corruption suite"}
        if p.sanity.profile == "full":
            reached |= {CONTROL_LIBRARY, "any corruption suite"}
        yield self._stage(
            "sanity",
            checks,
            reached,
            of_checks,
            other_models(dict(zip(["sanity.surrogate"], surrogates, strict=False))),
        )
        slices = {"data.slices": p.data.slices} if p.data.slices else {}
        yield self._stage("summary", all_params, self.model_options, (*self.model_code, *_TABLES), slices, draws=True)
        shown = ReportEntry(report=p.report, assessments=tuple(name for _, name, _ in entries(p)))
        yield self._stage("report", _plain(shown), frozenset({"image files"}), _TABLES, computes=False, draws=True)
        yield self._stage("gate", entry_of_gate(p), frozenset(), computes=False)

    def entry(self, stage: str, name: str) -> Resolved:
        """One entry of an assessment family. Raises UserError for entries that build on one another in a circle."""
        label = f"{stage}@{name}"
        if label in self.done:
            if self.done[label] is _IN_WORK:
                raise UserError(f"{self.entries[stage, name][0]}.{name}: builds on itself, by way of other entries")
            return self.done[label]
        self.done[label] = _IN_WORK
        family, entry = self.entries[stage, name]
        record, where = family_of(family), f"{family}.{name}"
        needs = record.dependencies(entry, self.params.budget)
        built = [(families()[r.family].stage, r.name) for r in entry.references()]
        files = {f"{where}.{key}": path for key, path in needs.files.items()}
        for key, path in list(files.items()):
            # Results of an entry of this run may be older than what this run will make there.
            if Path(path).parent == ROBUSTNESS and (producers := [e for e in self.entries if e[1] == Path(path).name]):
                built += producers
                del files[key]
        effective = dependencies.as_it_runs(family, entry, self.params)
        reached = needs.options | self.model_options
        modules = [
            *self.model_code,
            *(dependencies.generator_code(self.params.generators) if record.generators else ()),
            type(record).__module__,
            *needs.code,
        ]
        options = _plain(effective, "visualisers")
        builds_on = {f"{s}@{n}" if n else s: self.entry(s, n).digest for s, n in built if (s, n) in self.entries}
        figures = _figures(family, name, entry)
        self.done[label] = self._stage(
            stage, options, reached, modules, files, family=family, name=name, builds_on=builds_on, figures=figures
        )
        return self.done[label]

    def _stage(
        self,
        stage: str,
        entry: Mapping[str, JsonValue],
        options: frozenset[str],
        modules: Iterable[str] = (),
        files: Mapping[str, str] | None = None,
        *,
        family: str = "",
        name: str = "",
        computes: bool = True,
        builds_on: Mapping[str, str] | None = None,
        draws: bool = False,
        figures: Sequence[FigureSpec] = (),
    ) -> Resolved:
        without_modules, without_libraries = dependencies.not_reached(options)
        label = f"{stage}@{name}" if name else stage
        reached = [*modules, *dependencies.reached_by(options, family)]
        own_modules = [module for module in reached if self.code.file(module) is not None]
        installed = {module.partition(".")[0] for module in reached if module not in own_modules}
        closure = self.code.closure([*self._entry_points(stage, family), *own_modules], without_modules, drawing=draws)
        inputs = {"model": _plain(self.params.model, *_NOT_CALLED)} if stage in self.asks else {}
        if stage == "prepare" and (view := dependencies.view_model(self.params.model)):
            inputs["model"] = _plain(view, *(key for key in _NOT_CALLED if key != "path"))
        if family and family_of(family).generators:
            inputs["generators"] = _plain(self.params.generators, "time_limit")
        work = Work(
            entry=dict(entry),
            inputs=inputs,
            seed=self.params.seed if computes else None,
            device=self.params.device if computes and stage != "prepare" else "",
            files={key: self._digest(key, path) for key, path in sorted((files or {}).items())},
            code=closure.code,
            libraries=dependencies.versions((closure.libraries - without_libraries) | installed, label),
            builds_on=dict(builds_on or {}),
        )
        return Resolved(stage=stage, family=family, name=name, work=work, drawing=self._drawing(figures, closure.code))

    def _entry_points(self, stage: str, family: str) -> list[str]:
        """Return the modules by which a stage begins; a file of it in the project's own `stages/` is one of them."""
        modules = [f"stages.{stage}"] if self.code.file(f"stages.{stage}") else []
        if not family:
            return [_RUN, f"{_STAGES}.{stage}", *modules]
        return [_RUN, f"{_STAGES}.{ENTRY}", *modules]

    def _drawing(self, figures: Sequence[FigureSpec], computing: Mapping[str, str]) -> Drawing:
        if not figures:
            return Drawing()
        closure: Closure = self.code.closure({f.module for f in figures} | {_DRAW}, drawing=True)
        code = {name: digest for name, digest in closure.code.items() if name not in computing}
        return Drawing(
            figures=tuple(figures),
            code=code,
            libraries=dependencies.versions(closure.libraries & {"matplotlib"}, "figures"),
            pictures=self.params.report.pictures,
        )

    def _weights(self) -> dict[str, str]:
        """Return the file of the model, and those in which an ONNX graph keeps its weights."""
        model = self.params.model
        if not model.path:
            return {}
        files, path = {"model.path": model.path}, self.project / model.path
        if model.twin:
            files["model.twin.path"] = model.twin.path
        if model.source == "onnx" and path.is_file():
            for name in self.memory.of("weights beside", path, _weights_beside):
                files[f"model.path, {name}"] = str(Path(model.path).parent / name)
        return files

    def _digest(self, key: str, place: str) -> str:
        path = self.project / place
        if not path.exists():
            raise UserError(f"{key}: {place}: no such file or folder")
        return self.memory.digest(path)


# Of `model`: what made the weights, which are an output of `train`, how long `windtunnel check` waits, and how a function is called.
_NOT_CALLED = ("train", "path", "uri", "sha256", "time_limit", "interface", "preprocess")
_IN_WORK = Resolved(stage="in work", work=Work(entry={}, seed=0))
_STAGES = "windtunnel.operations.stages"
_RUN = f"{_STAGES}.run"
_DRAW = "windtunnel.assessments.figures.base"
# Imported by name, when an algorithm is looked up.
_TABLES = tuple(f"{type(family).__module__}:algorithms" for family in families().values())
_CLEAN_FIGURES = "windtunnel.assessments.clean.figures"


def resolve_all(params: Path = PARAMS_FILE) -> list[Resolved]:
    """Resolve every stage of a params.yaml in the current directory.

    Raises UserError, with a line per mistake, for params that are not valid and for files that are not there.
    """
    memory = Memory()
    resolved_stages = list(Resolver(validated_params(params), memory).stages())
    memory.keep()
    return resolved_stages


def _weights_beside(path: Path) -> list[str]:
    # onnxruntime takes half a second to import.
    from windtunnel.boundary.models.backends import weights_beside

    return weights_beside(path)


def _figures(family: str, name: str, entry: Entry) -> list[FigureSpec]:
    """Return the figures of an entry; names and options are checked already, by `validated_params`."""
    drawn = visualisers_of(family, name, entry)
    specs: list[Spec] = list(entry.visualisers) if entry.visualisers is not None else [type(v).__name__ for v in drawn]
    return [
        FigureSpec.model_validate({"module": VISUALISERS[kind].__module__, "name": kind, "options": options})
        for kind, options in map(parse_spec, specs)
    ]


def _plain(block: Block, *without: str) -> dict[str, JsonValue]:
    return block.model_dump(mode="json", exclude=set(without))


def entry_of_gate(params: Params) -> dict[str, JsonValue]:
    """Return the block `gate`, and the norm and epsilon of each named budget that its conditions are of."""
    conditions = [*params.gate.minimum, *params.gate.maximum_regression]
    budgets: list[JsonValue] = [
        {"name": name, "norm": norm, "epsilon": epsilon}
        for (norm, epsilon), name in budget_names(params).items()
        if any(f"/{name}/" in metric for metric in conditions)
    ]
    return {"gate": _plain(params.gate), **({"budgets": budgets} if budgets else {})}
