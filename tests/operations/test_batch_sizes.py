"""`windtunnel batches`: the largest power of two that fits and is faster, measured once and written into params.yaml."""

import copy
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from windtunnel.cli import batches as command
from windtunnel.cli.main import cli
from windtunnel.core.contracts import Caveat
from windtunnel.core.errors import UserError
from windtunnel.evaluation.validate import validate
from windtunnel.operations import batch_sizes, trial
from windtunnel.operations.batch_sizes import Choice, Limits, choices, write_sizes
from windtunnel.params.load import load_params, read_params

MIB = 2**20
ROOM = Limits(2**40, 1e6)
PARAMS = {
    "data": {"source": "digits"},
    "model": {"source": "train"},
    "budget": {"norm": "Linf", "epsilon": 0.1},
    "attacks": {"fgsm": {"library": "torchattacks", "algorithm": "FGSM"}},
}


def _params(**changes):
    return validate({**copy.deepcopy(PARAMS), **changes}, "test")


def _attack(**keys):
    return _params(attacks={"fgsm": {**PARAMS["attacks"]["fgsm"], **keys}})


@pytest.fixture
def machine(monkeypatch):
    """A machine of the test's own: seconds of a batch, bytes of one; what was asked is kept as (samples, batch size)."""
    asked = []

    def of(batch_seconds, taken=lambda size: 1, fits=lambda size: True):
        def tried(params, family, name, entry, classifier, samples):
            n, size = len(samples), entry.batch_size
            asked.append((n, size))
            parts = torch.arange(n).split(size)
            # As torch: one batch that the memory does not hold is worked on in halves, which take little.
            halved = () if fits(size) else (Caveat("batch_halved", ""),)
            result = SimpleNamespace(caveats=halved, data={"perturbed_inputs": torch.zeros(n, 2)})
            return trial.Trial(sum(batch_seconds(len(part)) for part in parts), taken(size), 0, result)

        monkeypatch.setattr(batch_sizes, "tried", tried)
        return asked

    return of


def chosen(subject, params, limits=ROOM, **how):
    (found,) = choices(params, subject.classifier, subject.dataset, limits, **how)
    return found


def test_it_grows_as_long_as_it_gets_faster(linear_subject, machine):
    asked = machine(lambda n: 100.0 + max(n, 32))  # 32 samples are computed in the time of one
    found = chosen(linear_subject, _attack(samples={"n": 200}))
    assert (found.after, found.why) == (256, "all 200 samples fit in one batch")
    asked.clear()
    machine(lambda n: 1.0 if n <= 32 else n / 32)  # and beyond that nothing is saved
    found = chosen(linear_subject, _params())
    assert (found.before, found.after, found.tried, found.why) == (128, 128, 128, "larger ones are no faster")
    assert max(asked) == (128, 128)


def test_a_size_at_which_a_sample_takes_longer_is_not_taken(linear_subject, machine):
    machine(lambda n: 1.0 if n <= 8 else n / 8 if n <= 32 else n / 2)  # beyond 32 the caches are too small
    assert chosen(linear_subject, _params()).after == 32


def test_where_nothing_is_saved_the_size_that_it_has_stays(linear_subject, machine):
    asked = machine(lambda n: float(n))
    assert chosen(linear_subject, _params()).after == 128
    assert asked[-2:] == [(128, 4), (128, 128)]


@pytest.mark.parametrize(("room", "size"), [(20, 16), (16, 16), (15.9, 8), (1, 1), (1.9, 1), (2, 2)])
def test_a_batch_never_takes_more_than_its_share(linear_subject, machine, room, size):
    asked = machine(lambda n: 1.0, lambda size: size * MIB)
    found = chosen(linear_subject, _params(), Limits(int(room * MIB), 1e6))
    assert (found.after, found.memory) == (size, size * MIB)
    assert "would take more than" in found.why
    # What would not fit is not tried where two sizes have told what a sample takes: the system would end the process.
    assert max(tried for _, tried in asked) <= max(2, size)


def test_a_flat_one_stays_within_its_share_too(linear_subject, machine):
    asked = machine(lambda n: float(n), lambda size: size * MIB)
    assert chosen(linear_subject, _params(), Limits(40 * MIB, 1e6)).after == 32
    assert max(tried for _, tried in asked) == 32


def test_one_that_does_not_fit_even_alone_stays_and_says_so(linear_subject, machine):
    machine(lambda n: 1.0, lambda size: size * MIB)
    found = chosen(linear_subject, _params(), Limits(MIB - 1, 1e6))
    assert found.after is None
    assert "one sample takes 1 MB, more than 1 MB" in found.why


def test_a_batch_that_was_worked_on_in_halves_did_not_fit(linear_subject, machine):
    machine(lambda n: 1.0, fits=lambda size: size <= 4)
    assert chosen(linear_subject, _params()).after == 4


def test_time_is_limited_and_an_answer_that_was_not_reached_is_none(linear_subject, machine):
    machine(lambda n: 5.0)
    found = chosen(linear_subject, _params(), Limits(2**40, 8.0))
    assert (found.after, found.why) == (None, "2 samples together would take more than 8 s; --seconds gives more")


def test_results_that_depend_on_the_batch_are_told(digits_subject):
    few = digits_subject.subset(torch.arange(8))
    pgd = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 2}}
    both = _params(attacks={**PARAMS["attacks"], "pgd": pgd})
    fgsm, drawn = choices(both, few.classifier, few.dataset, ROOM)
    assert (fgsm.random, drawn.random) == (False, True)
    assert fgsm.different == 0 < drawn.different <= drawn.compared == 8


@pytest.mark.slow
def test_real_entries_of_every_family_on_a_real_model(digits_subject):
    """Nothing is stubbed but how many samples there are; which size is faster is the machine's business."""
    few = digits_subject.subset(torch.arange(6))
    own = {"samples": {"n": 6}}
    params = _params(
        attacks={**PARAMS["attacks"], "mine": {**PARAMS["attacks"]["fgsm"], "batch_size": 5}},
        queries={"evoba": {"algorithm": "EvoBA", "params": {"generation_size": 4, "generations": 3}},
                 "square": {"library": "torchattacks", "algorithm": "Square", "budget": {"steps": 3}}},
        sweeps={"sweep": {"epsilons": [0, 0.1]}},
        verification={"ibp": {"library": "auto-LiRPA", "algorithm": "ibp"},
                      "cascade": {"library": "windtunnel", "algorithm": "cascade"}},
        corruptions={"fog": {"algorithm": "fog", "severities": [1], "upsample": 32}},
        latent={"manifold": {**own, "generated": 6}},
    )  # fmt: skip
    found = {one.name: one for one in choices(params, few.classifier, few.dataset, ROOM)}
    for name in ("attacks.fgsm", "queries.evoba", "sweeps.sweep", "verification.ibp", "corruptions.fog"):
        one = found.pop(name)
        assert one.after in {1, 2, 4, 8}, one
        assert one.seconds > 0
        assert one.memory > 50 * MIB
        assert not one.written
    assert {name: one.why for name, one in found.items()} == {
        "attacks.mine": "it is in params.yaml; --force measures it too",
        "queries.square": "each image is a call of its own",
        "verification.cascade": "samples are decided one at a time",
        "latent.manifold": "its generative models are made by the run",
    }
    assert all(one.after is None for one in found.values())


def test_a_size_of_the_users_is_measured_where_it_is_asked_for(linear_subject, machine):
    asked = machine(lambda n: 1.0)
    assert chosen(linear_subject, _attack(batch_size=7)).after is None
    assert not asked
    assert chosen(linear_subject, _attack(batch_size=7), force=True).after == 256


TEXT = """\
# mine
data: {source: digits}
model: {source: train}   # no quotes
budget: {norm: Linf, epsilon: 0.1}
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM}  # plain
  pgd:
    library: "torchattacks"
    # why PGD
    algorithm: PGD
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(TEXT)
    return tmp_path / "params.yaml"


def _found(**sizes):
    return [Choice(f"attacks.{name}", 128, written=False, why="", after=size) for name, size in sizes.items()]


def test_sizes_are_written_beside_the_comments(project):
    assert write_sizes(project, _found(fgsm=64, pgd=32)) == 2
    lines = project.read_text().splitlines()
    assert "  fgsm: {library: torchattacks, algorithm: FGSM, batch_size: 64} # plain" in lines
    assert [line for line in lines if "batch_size" not in line] == [
        line for line in TEXT.splitlines() if "fgsm" not in line
    ]
    assert load_params().attacks["pgd"].batch_size == 32


def test_an_entry_that_stays_is_not_touched(project):
    assert write_sizes(project, _found(fgsm=None)) == 0
    assert project.read_text() == TEXT


def test_an_alias_is_not_changed_along(project):
    shared = TEXT.replace("fgsm: {", "fgsm: &one {") + "  again: *one\n"
    project.write_text(shared)
    with pytest.raises(UserError, match=r"alias \(\*\) of another cannot be changed alone"):
        write_sizes(project, _found(fgsm=64, again=32))
    assert project.read_text() == shared
    assert write_sizes(project, _found(fgsm=64, again=64)) == 2
    assert {entry.batch_size for name, entry in load_params().attacks.items() if name != "pgd"} == {64}


def test_what_is_taken_over_by_a_merge_gets_a_size_of_its_own(project):
    project.write_text(TEXT.replace("fgsm: {", "fgsm: &one {") + "  again: {<<: *one, restarts: 2}\n")
    assert write_sizes(project, _found(again=32)) == 1
    attacks = load_params().attacks
    assert (attacks["again"].batch_size, attacks["fgsm"].batch_size) == (32, 128)


def _called(*words):
    return CliRunner().invoke(cli, ["batches", *words], env={"COLUMNS": "200"}, catch_exceptions=False)


def test_the_help_has_an_example():
    said = _called("--help").output
    assert "windtunnel batches pgd crown --force --share 0.8" in said
    assert "--dry-run" in said


@pytest.mark.slow
def test_the_command_measures_once_and_then_nothing(project):
    project.write_text(TEXT.replace("source: digits", "source: digits, samples: {n: 4}"))
    before = project.read_text()
    assert _called("--dry-run", "fgsm").exit_code == 0
    assert project.read_text() == before
    said = _called().output
    for column in ("entry", "before", "after", "s/sample", "memory"):
        assert column in said
    sizes = {name: entry["batch_size"] for name, entry in read_params(project)["attacks"].items()}
    assert set(sizes) == {"fgsm", "pgd"}
    written = project.read_text()
    assert "it is in params.yaml; --force measures it too" in _called().output
    assert project.read_text() == written


@pytest.mark.slow
def test_the_share_is_of_what_the_container_may_take(project, monkeypatch):
    limit = project.parent / "memory.max"
    limit.write_text(str(10 * MIB))
    monkeypatch.setattr(trial, "_LIMIT_OF_CONTAINER", limit)
    assert "more than 5 MB" in _called("fgsm").output
    assert project.read_text() == TEXT


def test_an_unknown_entry_is_refused_before_anything_is_loaded(project):
    with pytest.raises(UserError, match=r"batches: 'pdg' is not an entry of params.yaml. Did you mean 'pgd'\?"):
        command._measured(project, ("pdg",), force=False, share=0.5, seconds=60)


def test_each_worker_has_its_part_of_the_memory(monkeypatch):
    whole = trial.memory_of_a_worker(torch.device("cpu"), 1)
    assert trial.memory_of_a_worker(torch.device("cpu"), 4) == whole // 4
