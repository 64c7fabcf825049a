"""Records: found by their folder or an entry point, and the only list of families there is."""

from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from windtunnel.assessments.catalogue import algorithms
from windtunnel.core.errors import UserError
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.schema import Params
from windtunnel.registry import plugins
from windtunnel.registry.family import Family
from windtunnel.registry.plugins import Lazy, Library, families, libraries, library_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def point(monkeypatch):
    """Register an entry point for one test."""
    caches = (plugins.plugins, plugins.families, plugins.libraries)

    def register(group, value):
        found = {group: {"mine": EntryPoint("mine", value, group)}}
        for cache in caches:
            cache.cache_clear()
        monkeypatch.setattr(plugins, "plugins", lambda asked, ours=(): found.get(asked, {}))

    yield register
    for cache in caches:
        cache.cache_clear()


def test_dvc_yaml_has_the_stage_of_every_family():
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
    for name, family in families().items():
        assert stages[family.stage]["foreach"] == f"${{{name}}}"
        assert f"stages.{family.stage} ${{key}}" in stages[family.stage]["do"]["cmd"]
        assert f'main("{family.stage}")' in (ROOT / "stages" / f"{family.stage}.py").read_text()
    of_families = {family.stage for family in families().values()}
    assert of_families == {name for name, stage in stages.items() if "foreach" in stage}


def test_what_every_family_and_library_names_can_be_loaded():
    for family in families().values():
        assert family.algorithms()
        assert family.report_section(family.algorithms()[0].kind).columns
        assert import_module(family.figures)
        for library in libraries(family.name).values():
            named = {getattr(row, "algorithm", row).library for row in library.rows()}
            assert named == {library.name} or (library.row_of is not None and not named)


def test_the_schema_of_params_has_every_family_of_ours():
    assert set(families()) <= set(Params.model_fields)


def test_a_library_knows_its_distribution():
    assert library_of("foolbox", "attacks").package == "foolbox"
    assert library_of("windtunnel", "attacks").package is None


def test_a_library_that_is_not_installed_is_said_with_the_remedy():
    absent = Library("nowhere", "attacks", "nowhere-attacks", Lazy("nowhere:ROWS"), module="nowhere")
    with pytest.raises(UserError, match=r"nowhere is not installed; `pip install nowhere-attacks`"):
        absent.algorithm("PGD")


def test_a_plug_in_that_does_not_import_is_named(point):
    point("windtunnel.families", "no_such_module:FAMILY")
    with pytest.raises(UserError, match=r"plug-in mine .no_such_module:FAMILY.: ModuleNotFoundError"):
        families()


def test_a_plug_in_that_is_no_record_is_named(point):
    point("windtunnel.families", "windtunnel.core.contracts:Verdict")
    with pytest.raises(UserError, match="is a EnumType, not a Family"):
        families()


class Smears(Family):
    name, stage, order, entry_type, figures = "smears", "smear", 70, AttackEntry, "x"

    def algorithms(self):
        return ()

    def run(self, task):
        raise NotImplementedError


def test_a_method_of_a_plug_in_that_raises_is_named(point, monkeypatch):
    mine = Smears()
    monkeypatch.setattr(mine, "algorithms", lambda: 1 / 0)
    monkeypatch.setattr(plugins, "_loaded", lambda _: mine)
    point("windtunnel.families", "mine:FAMILY")
    with pytest.raises(UserError, match=r"plug-in: family smears .*: ZeroDivisionError"):
        algorithms()


def test_a_family_of_a_plug_in_becomes_a_key_of_params(point, monkeypatch):
    from windtunnel.params import load, schema

    mine = Smears()
    monkeypatch.setattr(plugins, "_loaded", lambda _: mine)
    point("windtunnel.families", "mine:FAMILY")
    schema.params_model.cache_clear()
    try:
        raw = {"data": {}, "model": {}, "budget": {"epsilon": 0.1}}
        entry = {"library": "foolbox", "algorithm": "PGD"}
        params = load.validate_schema({**raw, "smears": {"one": entry}})
        assert [(family, name) for family, name, _ in load.entries(params)] == [("smears", "one")]
        with pytest.raises(UserError, match="Did you mean 'smears'"):
            load.validate_schema({**raw, "smear": {"one": entry}})
    finally:
        schema.params_model.cache_clear()


def test_a_step_of_a_plug_in_is_one_of_a_cascade_and_its_slips_are_answered_as_ours_are(point, monkeypatch):
    from windtunnel.evaluation.validate import validate

    rows = Lazy("windtunnel.assessments.verification.rows:MARABOU")
    mine = Library("mine", "verification", None, rows=rows, steps={"interval-guess": Lazy("mine:STEP")})
    monkeypatch.setattr(plugins, "_loaded", lambda _: mine)
    point("windtunnel.libraries", "mine:LIBRARY")

    def params(step):
        entry = {"library": "windtunnel", "algorithm": "cascade", "steps": ["crown", step]}
        return {"data": {}, "model": {}, "budget": {"epsilon": 0.1}, "verification": {"all": entry}}

    assert validate(params("interval-guess")).verification["all"].steps == ("crown", "interval-guess")
    with pytest.raises(UserError, match=r"verification\.all\.steps: 'interval-gues' .*Did you mean 'interval-guess'"):
        validate(params("interval-gues"))
