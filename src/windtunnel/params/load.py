"""Validate the content of a params.yaml: every mistake becomes one clear line."""

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from windtunnel.core.contracts import Norm
from windtunnel.core.errors import UserError, shown, unfit, unknown_word
from windtunnel.core.transformations import ZEROS, transformation_of
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import CORRUPTED_BY, Entry, Ranges, types_in
from windtunnel.params.schema import Params, params_model
from windtunnel.registry.plugins import families, family_of

_REFERENCE = re.compile(r"\$\{budgets\.([^}]+)\}")


def check_whole(path: Path, raw: Mapping[str, object]) -> None:
    """Raise UserError where a key is left out: for us each has a default, but DVC runs no stage without it."""
    if absent := absent_keys(raw):
        raise UserError(
            f"{path}: DVC needs every key, also those without an entry. Add the lines: {' | '.join(absent.values())}; "
            f"`windtunnel upgrade` does"
        )


def absent_keys(raw: Mapping[str, object]) -> dict[str, str]:
    """Return the line to add for each top-level key of ours that DVC needs and `raw` does not have; a plug-in's key may be absent."""
    unasked = {"storage", "tracking"}  # no stage has them among its `params:`
    absent = {key: field for key, field in Params.model_fields.items() if key not in raw and key not in unasked}
    defaults = {key: field.default for key, field in absent.items() if not field.is_required()}
    return {key: f"{key}: {value if isinstance(value, int | str) else '{}'}" for key, value in defaults.items()}


def validate_schema(raw: Mapping[str, object], where: str = "params") -> Params:
    """Validate the content of a params.yaml (see `boundary.params.load_params`)."""
    try:
        params = params_model().model_validate(_resolve_label(_resolve_budget(raw, where), where))
    except ValidationError as error:
        raise UserError(mistakes_of(error, where)) from error
    if mistakes := [*_repeated_names(params), *_unknown_names(params), *_samples_uploaded(params)]:
        raise UserError("\n".join(f"{where}: {line}" for line in mistakes))
    return params


def mistakes_of(error: ValidationError, where: str) -> str:
    """Return a line for each mistake of the user's, in the words of this project."""
    return "\n".join(dict.fromkeys(" ".join(_line(e, where).split()) for e in _mistakes(error.errors())))


def entries(params: Params) -> Iterator[tuple[str, str, Entry]]:
    """(family, name, entry) of every assessment, in the order of the file."""
    for family in families():
        of_family: dict[str, Entry] = getattr(params, family)
        yield from ((family, name, entry) for name, entry in of_family.items())


def budget_names(params: Params) -> Mapping[tuple[Norm, float], str]:
    """Return the name of each budget that has one, by (norm, epsilon): `worst_case/<name>/accuracy` of the metrics.

    `budgets` gives the names; a transformation that only an entry states is called by its kinds and ranges, as `rotation-10`.
    """
    names = {(budget.norm, budget.epsilon): name for name, budget in reversed(params.budgets.items())}
    for _, _, entry in entries(params):
        budget = entry.budget.over(params.budget)
        assert budget.epsilon is not None
        if (transformation := transformation_of(budget.norm)) and (budget.norm, budget.epsilon) not in names:
            parts = [f"{kind}-{size:g}" for kind, size in transformation.ranges]
            parts += [] if transformation.border == ZEROS else [transformation.border]
            names[budget.norm, budget.epsilon] = "-".join(parts)
    return names


def _resolve_budget(raw: Mapping[str, object], where: str) -> dict[str, object]:
    """Replace `budget: ${budgets.tight}` (or `budget: tight`), the global one and those of entries, by the named budget."""
    budgets = named if isinstance(named := raw.get("budgets"), dict) else {}

    def with_budget(block: object, key: str) -> object:
        if not isinstance(block, Mapping) or not isinstance(budget := block.get("budget"), str):
            return block
        match = _REFERENCE.fullmatch(budget.strip())
        name = match.group(1) if match else budget.strip()
        if name not in budgets:
            norm, _, epsilon = name.partition(" ")
            block = f"{{norm: {norm}, epsilon: {epsilon}}}" if epsilon else "{norm: Linf, epsilon: 8/255}"
            line = unknown_word(f"{where}: {key}", name, map(str, budgets), what="the name of one of `budgets`")
            raise UserError(f"{line}; a budget itself is written {block}")
        return {**block, "budget": budgets[name]}

    blocks = {family: block for family in families() if isinstance(block := raw.get(family), Mapping)}
    changed = with_budget(raw, "budget")
    assert isinstance(changed, Mapping)
    return {
        **changed,
        **{
            family: {name: with_budget(entry, f"{family}.{name}.budget") for name, entry in block.items()}
            for family, block in blocks.items()
        },
    }


def _resolve_label(content: dict[str, object], where: str) -> dict[str, object]:
    """Set `data.label_column` to the place of `model.head.label` among its labels, so that samples and model agree."""
    model, data = content.get("model"), content.get("data")
    head = model.get("head") if isinstance(model, Mapping) else None
    labels, label = (head.get("labels"), head.get("label")) if isinstance(head, Mapping) else (None, None)
    if not isinstance(labels, list) or label not in labels or not isinstance(data, Mapping):
        return content  # the schema says what is missing
    column = labels.index(label)
    if data.get("label_column", column) != column:
        raise UserError(
            f"{where}: data.label_column: {data['label_column']}, but model.head.label: {label} is column {column}; remove it"
        )
    return {**content, "data": {"class_names": [f"not {label}", label], **data, "label_column": column}}


def _repeated_names(params: Params) -> Iterator[str]:
    families_by_name: dict[str, str] = {}
    for family, name, _ in entries(params):
        if name in families_by_name:
            yield f"{family}.{name}: the name is taken by {families_by_name[name]}.{name}; a name is one directory of reports/robustness"
        families_by_name[name] = family


def _samples_uploaded(params: Params) -> Iterator[str]:
    if params.tracking.log_tensors and params.report.pictures != "shown":
        yield (
            f"tracking.log_tensors: uploads the samples, which report.pictures: {params.report.pictures} keeps back; "
            f"remove one of the two"
        )


def _unknown_names(params: Params) -> Iterator[str]:
    """Yield a line for each reference to no other entry, and one for a circle of references."""
    references = {name: (family, [*entry.references()]) for family, name, entry in entries(params)}
    for name, (family, of_entry) in references.items():
        entry: Entry = getattr(params, family)[name]
        for key, other_family, other, part in of_entry:
            where, of_family = f"{family}.{name}.{key}", getattr(params, other_family)
            choices = [choice for choice in of_family if choice != name]
            if other not in choices:
                what = f"{'another' if other_family == family else 'an'} entry of {other_family}"
                yield unknown_word(where, other, choices, what=what)
            elif key == "on.uncertified_by" and of_family[other].algorithm == "smoothing":
                yield f"{where}: {other} certifies a smoothed model, not this one; name another verification"
            elif key == CORRUPTED_BY:
                yield from _unfit_images(
                    where, f"{other_family}.{other}", entry, params, params.corruptions[other], part
                )
            elif {r[1:] for r in entry.corrupted_by} != {r[1:] for r in of_family[other].corrupted_by}:
                yield f"{where}: {other} is run on other images; give both entries the same {CORRUPTED_BY}, or neither"
    try:
        TopologicalSorter({n: {r.name for r in of} - {n} for n, (_, of) in references.items()}).prepare()
    except CycleError as error:
        first, *_ = circle = error.args[1]
        family, of_entry = references[first]
        key = next(reference.key for reference in of_entry if reference.name in circle)
        yield f"{family}.{first}.{key}: a circle, {' -> '.join(circle)}; one of them must be run on all samples"


def _unfit_images(
    where: str, suite_name: str, entry: Entry, params: Params, suite: CorruptionEntry, part: str
) -> Iterator[str]:
    """Yield a line for each reason why an entry cannot be run on the images of a suite of corruptions."""
    if part and part not in (choices := family_of("corruptions").parts(suite, suite_name)):
        yield unknown_word(where, part, choices, what=f"a corruption and severity of {suite_name}")
    if suite.samples.n is not None and suite.samples != entry.samples:
        yield f"{where}: {suite_name} has {suite.samples.n} samples; take its samples away, or give this entry the same"
    if (stored := (suite.storage or params.storage).inputs) != "all":
        yield f"{where}: {suite_name} keeps the images of {stored} samples; add storage: {{inputs: all}} to it"


def _mistakes(errors: list[ErrorDetails], start: int = 0) -> Iterator[ErrorDetails]:
    """Yield the errors without those of union branches that the user did not mean: one line per mistake.

    start: unions at places before it in the location are decided.
    """
    by_place: dict[tuple[int | str, ...], dict[int | str, list[ErrorDetails]]] = {}
    of_named_budgets = {(e["loc"][2:], e["msg"]) for e in errors if e["loc"][:1] == ("budgets",)}
    for details in errors:
        location = details["loc"]
        if "budget" in location and (location[location.index("budget") + 1 :], details["msg"]) in of_named_budgets:
            continue  # an entry that uses the named budget repeats its mistake
        below = [e for e in errors if len(e["loc"]) > len(location) and e["loc"][: len(location)] == location]
        if details["type"] == "too_short" and below:
            continue  # pydantic counts what is left once the wrong items are gone
        at = next((i for i, part in enumerate(location) if i >= start and _is_union_tag(part)), len(location))
        branches = by_place.setdefault(location[:at], {})
        branches.setdefault(location[at] if at < len(location) else "", []).append(details)
    for union, branches in by_place.items():
        # What is of another type than a branch wants was not meant for it.
        meant = {
            tag: inside
            for tag, inside in branches.items()
            if not tag or inside[0]["loc"][-1] != tag or not inside[0]["type"].endswith("_type")
        } or branches
        tag, inside = next(iter(meant.items()))
        yield from _mistakes(inside, len(union) + 1) if tag else inside


def _line(details: ErrorDetails, where: str) -> str:
    """Return the line for one of pydantic's errors, in the words of this project."""
    # An unknown key is the user's own word, with any signs.
    last = len(details["loc"]) - 1 if details["type"] == "extra_forbidden" else None
    location = [part for at, part in enumerate(details["loc"]) if at == last or not _is_union_tag(part)]
    key = ".".join(map(str, location))
    value = details["input"]
    match details["type"]:
        case "extra_forbidden":
            return f"{where}: " + unknown_word(key, str(location[-1]), _keys_at(location[:-1]), what="a key here")
        case "missing":
            return f"{where}: {key}: is required"
        case "model_type":
            return f"{where}: {key}: {shown(value)} is no map of keys; allowed keys: {', '.join(_keys_at(location))}"
        case "literal_error" | "enum":
            expected = str(details.get("ctx", {}).get("expected", ""))
            listed = re.findall(r"'[^']*'|[\w.+-]+", expected)
            # No budget may have the norm of latent searches.
            allowed = [word.strip("'") for word in listed if word.strip("'") not in {"or", Norm.LATENT_L2}]
            return f"{where}: " + unknown_word(key, str(value), allowed, what="allowed")
    return f"{where}: {key}: {unfit(details)}"


def _is_union_tag(part: int | str) -> bool:
    # pydantic names the branch of a union it tried, such as `function-before[parse_number(), float]` or `list[...]`.
    return isinstance(part, str) and (
        "[" in part or part in {"str", "int", "float", "bool", "constrained-int", "EpsilonRange", "OtherModel"}
    )


def _keys_at(location: list[int | str]) -> list[str]:
    """Return the keys allowed at a place of params.yaml, for the nearest match; those of transformations last."""
    model: type[BaseModel] = params_model()
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None:  # the user's own name in a map of entries
            continue
        models = [t for t in types_in(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel)]
        if models:
            model = models[0]
    return sorted(model.model_fields, key=lambda name: name in Ranges.model_fields)
