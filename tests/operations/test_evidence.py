"""The evidence pack: whole, verified by its own script, and never more than was measured."""

import hashlib
import json
import os
import random
import string
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from dvc_data.hashfile.hash import hash_file
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.tree import Tree
from dvc_objects.fs.local import LocalFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.made import content
from windtunnel.cli.report import evidence
from windtunnel.core.errors import UserError
from windtunnel.operations.evidence import verify
from windtunnel.operations.evidence.pack import clauses_text, write_evidence
from windtunnel.records.files import file_digest, write_json
from windtunnel.records.gate import Decision, GateResult, gate_json
from windtunnel.records.metadata import read_metadata

PARAMS = """
data: {}
model: {}
budget: {norm: Linf, epsilon: 0.1}
attacks:
  pgd: {library: torchattacks, algorithm: PGD}
verification:
  crown: {library: auto-LiRPA, algorithm: crown}
  smooth: {library: windtunnel, algorithm: smoothing}
"""
BALL = {"perturbation": {"norm": "Linf", "epsilon": 0.1}}
CLEAN = {"clean_accuracy": 0.9, "clean_accuracy_ci_low": 0.8, "clean_accuracy_ci_high": 0.95}

ATTACKED = {"worst_case_accuracy": 0.3, "worst_case_accuracy_ci_low": 0.2, "worst_case_accuracy_ci_high": 0.4}
SANDWICH = [
    {
        "norm": "Linf",
        "epsilon": 0.1,
        "n": 20,
        "n_attacked": 20,
        "n_examined": 20,
        **ATTACKED,
        "certified_accuracy": 0.2,
        "states": {"broken": 14, "survived": 6, "not_attacked": 0},
        "draws": [{"name": "pgd", "n": 20, "selection": "first"}],
    },
    {"norm": "Linf", "epsilon": 0.05, "n": 10, "n_attacked": 0, "n_examined": 10, "certified_accuracy": 0.5},
]


def write_gate(*failures: str) -> None:
    decision = Decision.UNSOUND if failures else Decision.PASSED
    write_json(gate_json(GateResult(decision, (), failures)), Path("reports/gate.json"))


def md5(path: Path) -> str:
    """As DVC itself computes it."""
    if path.is_file():
        return hash_file(str(path), LocalFileSystem(), "md5")[1].value
    tree = Tree()
    for file in path.rglob("*"):
        if file.is_file() and file.name != "runtime.json":
            tree.add(file.relative_to(path).parts, None, HashInfo("md5", md5(file)))
    tree.digest()
    return tree.hash_info.value


def write_lock(stages: dict[str, list[str]], deps: dict[str, list[str]] | None = None) -> None:
    def files(paths: list[str]) -> list[dict[str, str]]:
        return [{"path": f"reports/{path}", "hash": "md5", "md5": md5(Path("reports", path))} for path in paths]

    locked = {
        name: {"cmd": "c", "deps": files((deps or {}).get(name, [])), "outs": files(outs)}
        for name, outs in stages.items()
    }
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": locked}))


STAGES = {
    **{f"attack@{name}": [f"robustness/{name}"] for name in ("clean", "pgd", "crown", "smooth")},
    "train": ["model"], "sanity": ["sanity"], "summary": ["summary", "metrics.json"], "gate": ["gate.json"],
    "report": ["report.pdf", "report.html"],
}  # fmt: skip


@pytest.fixture
def pack(tmp_path, monkeypatch):
    """A small finished run, and its pack."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMS)
    digests = {"model_digest": "a" * 64, "dataset_digest": "b" * 64}
    rows: dict[str, tuple[str, str, str, dict[str, object]]] = {
        "robustness/clean": ("statistical_sampling", "windtunnel", "identity", CLEAN),
        "robustness/pgd": ("empirical_attack", "torchattacks", "PGD", {**CLEAN, "adversarial_accuracy": 0.3}),
        "robustness/crown": ("formal_verification", "auto-LiRPA", "crown",
                             {**CLEAN, "certified_accuracy": 0.2, "verified_rate": 0.2, "n_samples": 20}),
        "robustness/smooth": ("formal_verification", "windtunnel", "smoothing",
                              {**CLEAN, "certified_accuracy": 0.5, "verified_rate": 0.5, "n_samples": 20}),
        "summary": ("empirical_attack", "windtunnel", "worst case", {**CLEAN, "n_samples": 20, "sandwich": SANDWICH}),
        "sanity": ("statistical_sampling", "windtunnel", "sanity", CLEAN),
    }  # fmt: skip
    for folder, (kind, library, algorithm, metrics) in rows.items():
        semantics = {**BALL, "families": ["smoothed_model"] if algorithm == "smoothing" else []}
        facts = content(kind, name=folder, library=library, algorithm=algorithm, metrics=metrics, semantics=semantics,
                        provenance=digests)  # fmt: skip
        write_json(facts, Path("reports") / folder / "metadata.json")
        (Path("reports") / folder / "robustness_data.pt").write_bytes(folder.encode())
    write_gate()
    for name in ("metrics.json", "model/model.json", "summary/outcomes.json"):
        write_json({}, Path("reports") / name)
    for name in ("report.pdf", "report.html"):
        Path("reports", name).write_text("the report")
    write_lock(STAGES, {"report": ["metrics.json", "robustness"]})
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    write_evidence(Path("pack.zip"))
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile("pack.zip") as archive:
        archive.extractall(folder)
    return folder


def verified(folder: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, folder / "verify.py", *words], cwd=folder, capture_output=True, text=True, check=False
    )


def test_it_holds_the_run_and_its_own_script_verifies_every_file(pack):
    for name in (
        "reports/report.pdf",
        "params.yaml",
        "dvc.lock",
        "environment.json",
        "reports/robustness/pgd/metadata.json",
    ):
        assert (pack / name).is_file()
    assert verified(pack).returncode == 0
    (pack / "reports" / "report.html").write_text("another report")
    (pack / "reports" / "more.txt").write_text("")
    (pack / "dvc.lock").unlink()
    done = verified(pack)
    assert done.returncode == 1
    for line in ("changed: reports/report.html", "not of the pack: reports/more.txt", "missing: dvc.lock"):
        assert line in done.stdout
    tensors = json.loads((pack / "tensors.json").read_text())["sha256"]
    assert tensors["reports/robustness/pgd/robustness_data.pt"] == file_digest(
        Path("reports/robustness/pgd/robustness_data.pt")
    )


def test_every_sentence_has_its_file_and_digest_and_what_is_not_covered_is_said(pack):
    text = (pack / "clauses.md").read_text()
    sentences = [line for line in text.splitlines() if line.startswith("- ") and "Not covered" not in line]
    assert len(sentences) >= 5
    for line in sentences:
        _, file, _, digest, _ = line.split("`") if line.count("`") == 4 else line.rsplit("`", 4)
        assert file_digest(pack / file) == digest
    assert "Accuracy left by pgd, torchattacks PGD, is 30.0% (Linf 0.1" in text
    assert "Worst-case accuracy is 30.0% [20.0%, 40.0%] (Linf 0.1, n 20)." in text
    assert "broken 14, survived 6, not attacked 0" in text
    # A certificate of randomised smoothing is of another model, holds in probability, and bounds no logit of this one.
    in_the_ball = "unchanged in the whole ball for"
    assert f"The class of the smoothed model is certified, in probability, {in_the_ball} 50.0% (Linf 0.1" in text
    assert f"The class is verified {in_the_ball} 20.0% (Linf 0.1" in text
    assert "smooth" not in text.split("reachability")[1]
    for missing in ("15(4)", "relevance", "sensitivity"):
        assert "Not covered by this run" in text.split(missing)[1].split("\n## ")[0]
    assert "data poisoning" in text
    for path in pack.rglob("*"):
        if path.suffix in {".md", ".py"}:
            assert "complian" not in path.read_text().lower()


def test_a_summary_of_an_older_version_gives_no_counts_of_states(pack):
    older = [{key: value for key, value in SANDWICH[0].items() if key != "states"}]
    path = Path("reports/summary/metadata.json")
    write_json(content("empirical_attack", name="summary", metrics={**CLEAN, "sandwich": older}), path)
    run = {name: read_metadata(Path("reports") / name) for name in ("summary", "robustness/clean")}
    files = ("reports/summary", "reports/robustness/clean")
    text = clauses_text(
        {name.split("/")[-1]: row for name, row in run.items()}, {f"{f}/metadata.json": "0" for f in files}
    )
    assert "Worst-case accuracy is 30.0% [20.0%, 40.0%] (Linf 0.1, n 20). `reports" in text


def test_the_model_card_is_of_hugging_faces_format(pack):
    _, front, body = (pack / "model_card.md").read_text().split("---\n", 2)
    (model,) = YAML(typ="safe").load(front)["model-index"]
    (result,) = model["results"]
    assert result["task"]["type"] == "image-classification"
    assert [(m["type"], m["value"]) for m in result["metrics"]] == [
        ("accuracy", 0.9), ("certified_accuracy", 0.2), ("worst_case_accuracy", 0.3), ("certified_accuracy", 0.5),
    ]  # fmt: skip
    assert "| worst case accuracy | Linf | 0.1 | 20 | 30.0% | 20.0% to 40.0% |" in body
    assert (
        "| certified accuracy | Linf | 0.05 | 10 | 50.0% | not known |" in body
    )  # every budget, not only the run's own
    assert "| accuracy | none | none | 20 | 90.0% | 80.0% to 95.0% |" in body
    (worst,) = [m for m in result["metrics"] if m["type"] == "worst_case_accuracy"]
    assert worst["args"] == {"norm": "Linf", "epsilon": 0.1, "n": 20, "interval_95": [0.2, 0.4]}


def test_scores_for_a_leaderboard_are_read_by_hugging_faces_own_library(pack):
    hub = pytest.importorskip("huggingface_hub")
    write_evidence(Path("scored.zip"), benchmark="me/digits")
    with zipfile.ZipFile("scored.zip") as archive:
        scores = hub.parse_eval_result_entries(YAML(typ="safe").load(archive.read("eval_results.yaml")))
    assert [(score.dataset_id, score.task_id, score.value) for score in scores] == [
        ("me/digits", "accuracy", 0.9), ("me/digits", "certified_accuracy", 0.2), ("me/digits", "worst_case_accuracy", 0.3),
    ]  # fmt: skip
    assert scores[2].notes == "norm Linf, epsilon 0.1, n 20, interval_95 [0.2, 0.4]"
    with pytest.raises(UserError, match=r"--benchmark: 'digits' is no dataset"):
        write_evidence(Path("scored.zip"), benchmark="digits")


def test_equal_runs_packed_at_the_same_time_give_equal_bytes_and_a_missing_report_is_one_line(pack):
    first = file_digest(Path("pack.zip"))
    write_evidence(Path("pack.zip"))
    assert file_digest(Path("pack.zip")) == first
    Path("reports/report.pdf").unlink()
    with pytest.raises(UserError, match=r"reports/report\.pdf: no such file"):
        write_evidence(Path("again.zip"))
    assert not Path("again.zip").exists()


def test_a_run_that_must_not_be_believed_says_so_first_and_has_no_numbers_for_a_model_card(pack, tmp_path):
    write_gate("sanity check B1: inputs outside the box (pgd)")
    write_lock(STAGES)
    write_evidence(Path("unsound.zip"))
    with zipfile.ZipFile("unsound.zip") as archive:
        card, clauses = (archive.read(name).decode() for name in ("model_card.md", "clauses.md"))
    failure = "**NOT VALID**: sanity check B1: inputs outside the box (pgd)"
    assert clauses.index(failure) < clauses.index("## ")
    assert failure in card
    assert "%" not in card
    assert "model-index" not in card


def test_results_of_other_params_than_those_that_would_be_packed_are_refused(pack):
    lock = {
        "schema": "2.0",
        "stages": {"attack@pgd": {"cmd": "c", "params": {"params.yaml": {"attacks.pgd": {"algorithm": "FGSM"}}}}},
    }
    Path("dvc.lock").write_text(json.dumps(lock))
    with pytest.raises(UserError, match=r"params\.yaml: the results were computed with another attacks\.pgd"):
        write_evidence(Path("again.zip"))
    assert not Path("again.zip").exists()


def test_numbers_that_somebody_edited_are_refused(pack):
    path = Path("reports/robustness/pgd/metadata.json")
    before = path.read_text()
    path.write_text(before.replace("0.3", "0.999"))
    with pytest.raises(UserError, match=r"records other results: reports/robustness/pgd is not what attack@pgd left"):
        write_evidence(Path("again.zip"))
    path.write_text(before)
    Path("reports/robustness/pgd/robustness_data.pt").write_bytes(b"other tensors")
    with pytest.raises(UserError, match=r"reports/robustness/pgd is not what attack@pgd left"):
        write_evidence(Path("again.zip"))
    assert not Path("again.zip").exists()


def test_results_that_the_lock_does_not_know_and_a_report_of_other_results_are_refused(pack):
    write_lock({name: outs for name, outs in STAGES.items() if name != "gate"})
    with pytest.raises(UserError, match=r"reports/gate\.json is no output of a stage"):
        write_evidence(Path("again.zip"))
    write_lock(STAGES, {"report": ["metrics.json", "robustness"]})
    path = Path("reports/robustness/pgd/metadata.json")
    path.write_text(path.read_text().replace("0.3", "0.999"))
    lock = json.loads(Path("dvc.lock").read_text())
    lock["stages"]["attack@pgd"]["outs"][0]["md5"] = md5(path.parent)  # as `dvc commit attack@pgd` would have it
    Path("dvc.lock").write_text(json.dumps(lock))
    with pytest.raises(UserError, match=r"report\.pdf was made from another reports/robustness than there is now"):
        write_evidence(Path("again.zip"))


def test_date_commit_and_version_are_in_the_pack_and_its_report_and_not_in_the_stage_s(pack):
    made = json.loads((pack / "pack.json").read_text())
    assert made["date"] == "2023-11-14T22:13:20Z"
    assert made["tool"] == "windtunnel"
    assert made["version"]
    assert {"commit", "redacted"} <= made.keys()
    assert (pack / "report_dated.pdf").read_bytes().startswith(b"%PDF")
    assert (pack / "reports" / "report.pdf").read_text() == "the report"


def test_a_changed_manifest_is_found_by_the_root_digest_and_else_the_pack_is_not_anchored(pack):
    root = file_digest(pack / "digests.json")
    assert write_evidence(Path("pack.zip")).root == root
    assert "consistent, not anchored" in verified(pack).stdout
    anchored = verified(pack, "--expect", root)
    assert (anchored.returncode, "anchored by the expected root digest" in anchored.stdout) == (0, True)
    assert verified(Path.cwd() / "unpacked", str(Path.cwd() / "pack.zip"), "--expect", root).returncode == 0
    (pack / "clauses.md").write_text("99.9%")
    manifest = json.loads((pack / "digests.json").read_text())
    manifest["files"]["clauses.md"] = file_digest(pack / "clauses.md")
    (pack / "digests.json").write_text(json.dumps(manifest))
    assert verified(pack).returncode == 0
    done = verified(pack, "--expect", root)
    assert done.returncode == 1
    assert "changed: digests.json" in done.stdout


def test_a_signature_is_what_ssh_keygen_accepts_and_a_changed_manifest_breaks_it(pack, tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    write_evidence(Path("signed.zip"), key)
    folder = tmp_path / "signed"
    with zipfile.ZipFile("signed.zip") as archive:
        archive.extractall(folder)
    public = Path(f"{key}.pub")
    (tmp_path / "allowed").write_text(f"auditor {public.read_text()}")
    command = ["ssh-keygen", "-Y", "verify", "-f", tmp_path / "allowed", "-I", "auditor", "-n", "windtunnel-evidence"]
    command += ["-s", folder / "digests.json.sig"]
    manifest = (folder / "digests.json").read_bytes()
    assert subprocess.run(command, input=manifest, capture_output=True, check=False).returncode == 0
    done = verified(folder, "--key", str(public))
    assert (done.returncode, "anchored by the signature" in done.stdout) == (0, True), done
    assert "missing: digests.json.sig" in verified(pack, "--key", str(public)).stdout
    (folder / "digests.json").write_bytes(manifest.replace(b"sha256", b"sha257"))
    assert "is not a signature of digests.json" in verified(folder, "--key", str(public)).stdout
    (tmp_path / "no-key").write_text("no key")
    with pytest.raises(UserError, match=r"--sign: .*no-key"):
        write_evidence(Path("signed.zip"), tmp_path / "no-key")


def test_a_key_with_a_passphrase_is_refused_with_the_command_that_takes_it(pack, tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "hunter2", "-f", key], check=True)
    with pytest.raises(
        UserError, match=r"has a passphrase; unpack the pack and sign by: ssh-keygen -Y sign -n windtunnel-evidence"
    ):
        write_evidence(Path("signed.zip"), key)


def test_the_script_runs_no_module_of_the_folder_and_follows_no_link(pack):
    for name in ("hashlib", "json", "argparse", "zipfile", "__future__", "typing"):
        (pack / f"{name}.py").write_text("import os; os._exit(0)  # whatever was changed")
    (pack / "link").symlink_to("/etc/passwd")
    (pack / "folder").symlink_to("/etc")
    os.mkfifo(pack / "pipe")
    environment = {**os.environ, "PYTHONPATH": "."}
    command = [sys.executable, "verify.py"]
    done = subprocess.run(command, cwd=pack, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1, done
    for line in ("a link: link", "a link: folder", "no regular file: pipe", "not of the pack: json.py"):
        assert line in done.stdout


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"files": 3}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"files": {"a": []}}',
        b'{"files": {"../a": "b"}}',
        b"1" * 10_000,
    ],
)
def test_a_damaged_manifest_is_a_line_and_no_traceback(pack, content):
    (pack / "digests.json").write_bytes(content)
    done = verified(pack)
    assert (done.returncode, done.stderr) == (1, ""), done
    assert done.stdout.strip()


def test_any_damage_of_a_zip_and_any_key_is_a_line_and_no_traceback(tmp_path, capsys):
    """A manifest whose compressed bytes are damaged raises zlib.error, a key of an unknown kind an error of cryptography's."""
    draw, path, key = random.Random(0), tmp_path / "pack.zip", tmp_path / "signer.pub"
    files = {"a.txt": b"hello " * 50, "digests.json.sig": b"-----BEGIN SSH SIGNATURE-----"}
    digests = {"a.txt": hashlib.sha256(files["a.txt"]).hexdigest()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in {**files, "digests.json": json.dumps({"files": digests}).encode()}.items():
            packed.writestr(name, content)
    whole = path.read_bytes()
    for content in (b"x y z", b"", b"ssh-ed25519 !", b"-----BEGIN PUBLIC KEY-----"):
        key.write_bytes(content)
        assert verify.main([str(path), "--key", str(key)]) == 1
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        assert verify.main([str(path)]) in {0, 1}
    assert "changed" in capsys.readouterr().out


def test_a_damaged_zip_and_a_missing_pack_are_a_line_each(pack, tmp_path):
    whole = Path("pack.zip").read_bytes()
    for name, damaged in {
        "cut.zip": whole[:-100],
        "flipped.zip": whole[:5000] + b"#" * 50 + whole[5050:],
        "no.zip": b"",
    }.items():
        (tmp_path / name).write_bytes(damaged)
        done = verified(pack, str(tmp_path / name))
        assert (done.returncode, done.stderr) == (1, ""), (name, done)
    assert verified(pack, str(tmp_path / "missing.zip")).stdout.startswith("cannot be checked: FileNotFoundError")


PASSWORDS = st.text(string.printable, min_size=4, max_size=20).map(lambda text: f"Qz{text}zQ")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    PASSWORDS,
    st.sampled_from(
        ["postgresql://alice:{}@host/db", "mssql+pyodbc:///?odbc_connect=UID=a;PWD={}", "https://h/?token={}"]
    ),
)
def test_a_pack_never_holds_a_password(pack, monkeypatch, password, address):
    monkeypatch.setattr("windtunnel.operations.evidence.pack._dated_report", lambda *_: b"")  # it takes a second
    uri = address.format(password if "@" in address else quote(password, safe=""))
    YAML().dump({**YAML(typ="safe").load(PARAMS), "tracking": {"uri": uri}}, Path("params.yaml"))
    write_evidence(Path("secret.zip"))
    with zipfile.ZipFile("secret.zip") as archive:
        for name in archive.namelist():
            content = archive.read(name)
            assert not any(form.encode() in content for form in (password, quote(password, safe=""), "Qz", "zQ")), name
        assert YAML(typ="safe", pure=True).load(archive.read("params.yaml"))["attacks"]["pgd"]["algorithm"] == "PGD"
        assert json.loads(archive.read("pack.json"))["redacted"] == ["params.yaml"]


def test_an_output_that_is_no_zip_is_refused_before_it_overwrites_anything(pack):
    before = Path("params.yaml").read_bytes()
    done = CliRunner().invoke(evidence, ["--output", "params.yaml"])
    assert isinstance(done.exception, UserError)
    assert "is never overwritten" in str(done.exception)
    assert Path("params.yaml").read_bytes() == before
