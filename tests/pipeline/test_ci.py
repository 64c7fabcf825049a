"""The Action, the GitLab template and the containers: valid by their official schemas, and their shell parts do what they say."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner

from windtunnel.cli.main import cli
from windtunnel.core.errors import UserError
from windtunnel.evaluation.gate.table import sentence
from windtunnel.operations.project.write import apply, plan, removal, remove
from windtunnel.records.files import write_json
from windtunnel.records.findings import FindingRecord, Severity, Status
from windtunnel.records.gate import Condition, Decision, GateResult, gate_json

ROOT = Path(__file__).parents[2]
CI = ROOT / "pipeline" / "ci"
SCRIPTS = ROOT / "src" / "windtunnel" / "operations" / "project" / "templates" / "ci"
DEPLOY = ROOT / "pipeline" / "deploy"


@pytest.mark.parametrize(("schema", "file"), [
    ("vendor.github-actions", "action.yml"),
    ("vendor.github-workflows", "pipeline/schedules/github-actions.yml"),
    ("vendor.gitlab-ci", "pipeline/ci/gitlab.yml"),
    ("vendor.compose-spec", "pipeline/deploy/compose.yaml"),
])  # fmt: skip
def test_it_is_valid_by_the_schema_that_its_engine_publishes(schema, file):
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(ROOT / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_cron_job_is_valid_non_root_and_limited():
    validate = pytest.importorskip("kubernetes_validate").validate
    job = yaml.safe_load((ROOT / "pipeline" / "schedules" / "kubernetes.yaml").read_text())
    validate(job, "1.30", strict=True)
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert set(container["resources"]["limits"]) == {"cpu", "memory"}


def test_the_dockerfile_has_no_finding_and_ends_as_no_root():
    hadolint = shutil.which("hadolint") or pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    text = (DEPLOY / "Dockerfile").read_text()
    for stage in text.split("\nFROM ")[1:]:
        assert [line for line in stage.splitlines() if line.startswith("USER")] == ["USER 1000"]
    # The mounted project's own source comes before the copy that is installed in the image.
    assert "ENV PYTHONPATH=/project/src:/project" in text


def test_every_image_and_every_action_is_pinned():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    gitlab = yaml.safe_load((CI / "gitlab.yml").read_text())
    job = yaml.safe_load((ROOT / "pipeline" / "schedules" / "kubernetes.yaml").read_text())
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    images = [service["image"] for service in compose["services"].values()]
    for image in (*images, gitlab["windtunnel"]["image"], container["image"]):
        assert re.search(r":\D*\d+[.-]\d+", image), image  # `latest`, `17` and no tag at all are no version
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("FROM"):
            assert line.split()[1].count(".") >= 2, line
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    workflow = yaml.safe_load((ROOT / "pipeline" / "schedules" / "github-actions.yml").read_text())
    rented = yaml.safe_load((ROOT / "pipeline" / "clusters" / "cml.yml").read_text())
    for file in (workflow, rented):
        steps += [step for job in file["jobs"].values() for step in job["steps"]]
    assert "@dvcorg/cml@0." in (ROOT / "pipeline" / "clusters" / "cml.yml").read_text()
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"[0-9a-f]{40}", step["uses"].split("@")[1]), step["uses"]


def test_no_password_is_on_a_command_line():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        for key in ("command", "entrypoint"):
            assert "PASSWORD" not in str(service.get(key)), name
        assert "PASSWORD" not in str(service.get("healthcheck")), name
    assert "POSTGRES_PASSWORD" in compose["services"]["mlflow"]["environment"]["MLFLOW_BACKEND_STORE_URI"]


def test_compose_is_accepted_by_docker_where_there_is_one():
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker compose is not installed")
    environment = {**os.environ, "POSTGRES_PASSWORD": "x", "STORE_PASSWORD": "x"}
    command = [docker, "compose", "--file", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    assert subprocess.run(command, env=environment, check=False).returncode == 0


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder of commands that log how they were called; `say` writes one with a body of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def say(name: str, body: str = "") -> None:
        (folder / name).write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> {tmp_path}/calls\n{body}\n')
        (folder / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return say


def calls() -> list[str]:
    return Path("calls").read_text().splitlines()


@pytest.mark.parametrize("code", [0, 10, 20])
def test_the_assessment_of_a_pull_request_ends_with_the_gates_code_and_writes_the_comment(tools, code, monkeypatch):
    tools("dvc", '[ "$1" = pull ] && exit 1; exit 0')
    tools(
        "windtunnel", f'case $1 in gate) echo "**the gate**"; exit {code};; compare) echo "| metric | a | b |";; esac'
    )
    monkeypatch.setenv("WINDTUNNEL_ARTIFACTS", "https://ci/artifacts")
    done = subprocess.run(
        ["bash", SCRIPTS / "assess.sh", "origin/main", "out"], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert "nothing pulled" in done.stderr
    assert [call for call in calls() if call.startswith("dvc")] == ["dvc pull --run-cache --allow-missing", "dvc repro"]
    assert f"windtunnel compare --markdown --html {Path.cwd()}/out/comparison.html -- origin/main" in calls()
    comment = Path("out/comment.md").read_text()
    assert comment.startswith("<!-- windtunnel -->\n")
    for words in ("**the gate**", "| metric | a | b |", "(https://ci/artifacts)"):
        assert words in comment


GITHUB = {"GITHUB_REF": "refs/heads/main", "WINDTUNNEL_DEFAULT_BRANCH": "main"}


@pytest.mark.parametrize(("environment", "pushes"), [
    ({"GITHUB_EVENT_NAME": "push", **GITHUB}, True),
    ({"GITHUB_EVENT_NAME": "schedule", **GITHUB}, True),
    ({"GITHUB_EVENT_NAME": "pull_request", **GITHUB, "GITHUB_REF": "refs/pull/7/merge"}, False),
    ({"GITHUB_EVENT_NAME": "pull_request_target", **GITHUB}, False),  # its ref is the base branch
    ({"GITHUB_EVENT_NAME": "push", **GITHUB, "GITHUB_REF": "refs/heads/other"}, False),
    ({"GITHUB_EVENT_NAME": "push", "GITHUB_REF": "refs/heads/main"}, False),
    ({"CI_COMMIT_BRANCH": "main", "CI_DEFAULT_BRANCH": "main"}, True),
    ({"CI_COMMIT_BRANCH": "other", "CI_DEFAULT_BRANCH": "main"}, False),
    ({"CI_DEFAULT_BRANCH": "main"}, False),  # of a merge request
    ({}, False),
])  # fmt: skip
def test_only_the_default_branch_pushes_to_the_shared_remote(tools, monkeypatch, environment, pushes):
    tools("dvc")
    tools("windtunnel")
    names = ("GITHUB_EVENT_NAME", "GITHUB_REF", "WINDTUNNEL_DEFAULT_BRANCH", "CI_COMMIT_BRANCH", "CI_DEFAULT_BRANCH")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    subprocess.run(["bash", SCRIPTS / "assess.sh", "origin/main", "out"], capture_output=True, check=True)
    assert ("dvc push --run-cache" in calls()) == pushes


@pytest.mark.parametrize(("dvc", "windtunnel", "says"), [
    ('[ "$1" = repro ] && exit 255; exit 0', "", "`dvc repro` ended with 255"),
    ("", '[ "$1" = sanity ] && exit 2; exit 0', "`windtunnel sanity` ended with 2"),
    ("", '[ "$1" = gate ] && exit 30; exit 0', "`windtunnel gate` ended with 30"),
])  # fmt: skip
def test_no_decision_replaces_the_comment_of_an_earlier_commit(tools, monkeypatch, dvc, windtunnel, says):
    tools("dvc", dvc)
    tools("windtunnel", windtunnel)
    Path("out").mkdir()
    Path("out/comment.md").write_text("<!-- windtunnel -->\n**passed**")
    monkeypatch.setenv("WINDTUNNEL_COMMIT", "abc123")
    done = subprocess.run(
        ["bash", SCRIPTS / "assess.sh", "origin/main", "out"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 30, done.stderr
    comment = Path("out/comment.md").read_text()
    assert comment.startswith("<!-- windtunnel -->\n")
    assert f"**no decision**: {says}" in comment
    assert "Of commit abc123." in comment
    assert "passed" not in comment


def test_a_comment_is_no_longer_than_github_takes(tools):
    tools("dvc")
    tools(
        "windtunnel",
        'case $1 in gate) echo "**the gate**";; compare) for i in $(seq 9999); do echo "| ä$i | 1 |"; done;; esac',
    )
    assert subprocess.run(["bash", SCRIPTS / "assess.sh", "v1", "out"], check=False).returncode == 0
    comment = Path("out/comment.md").read_text()
    assert 50_000 < len(comment) < 65_536
    assert "**the gate**" in comment
    assert "(cut here: the rest is in the artifacts)" in comment
    assert comment.splitlines()[-3].endswith("| 1 |")  # no row is cut in its middle


def test_a_base_without_results_is_said_in_the_comment(tools):
    tools("dvc")
    tools("windtunnel", '[ "$1" = compare ] && exit 2; exit 0')
    assert subprocess.run(["bash", SCRIPTS / "assess.sh", "v1", "out"], check=False).returncode == 0
    assert "nothing to compare with at `v1`" in Path("out/comment.md").read_text()


@pytest.mark.parametrize(
    "base", ["</summary><img src=x>", "`$(touch canary)`", "@everyone", "--html=x", "a;touch canary", "[a](b)", "a\nb"]
)
@pytest.mark.parametrize("code", [0, 2])
def test_the_name_of_a_base_is_no_option_no_command_and_no_markup(tools, base, code):
    tools("dvc")
    tools("windtunnel", f'[ "$1" = compare ] && exit {code}; exit 0')
    assert subprocess.run(["bash", SCRIPTS / "assess.sh", base, "out"], check=False).returncode == 0
    shown = re.sub(r"[^A-Za-z0-9_./-]", "_", base)
    comment = Path("out/comment.md").read_text()
    assert f"<summary>Against {shown}</summary>" in comment
    assert (f"nothing to compare with at `{shown}`" in comment) == bool(code)
    assert f"comparison.html -- {base}" in Path("calls").read_text()
    assert not Path("canary").exists()


@pytest.mark.parametrize("service", ["github", "gitlab"])
@pytest.mark.parametrize(
    "name", ["a;touch b", "$(touch b)", "a b", "a #b", "-a", "a'b", "{a}", "a:b", "${{ a }}", "&a", "a,b"]
)
def test_no_path_that_a_shell_reads_stands_in_a_workflow(tmp_path, name, service):
    (tmp_path / ".git").mkdir()
    with pytest.raises(UserError, match=f"init: --ci {service}: .* would stand in shell commands"):
        plan(tmp_path / name / "robustness", "seed: 0", "stages: {}", service)


@pytest.mark.parametrize(("known", "method"), [("", "POST"), ("77", "PATCH")])
def test_one_comment_on_github_is_made_and_then_updated(tools, known, method):
    Path("comment.md").write_text("<!-- windtunnel -->\nhello")
    tools("gh", f'[ "$2" = --paginate ] && echo "{known}"; exit 0')
    subprocess.run(["bash", SCRIPTS / "comment_github.sh", "o/r", "5", "comment.md"], check=True)
    target = "repos/o/r/issues/comments/77" if known else "repos/o/r/issues/5/comments"
    assert calls()[-1] == f"gh api --method {method} {target} --field body=@comment.md --silent"


@pytest.mark.parametrize(
    ("answer", "login"), [("robot", "robot"), ("", "github-actions[bot]"), ('x" or true', "github-actions[bot]")]
)
def test_a_comment_of_a_stranger_with_the_marker_is_not_taken_for_the_bots(tools, answer, login):
    """`gh` evaluates the expression; jq itself does here."""
    jq = shutil.which("jq") or pytest.skip("jq is not installed")
    Path("comment.md").write_text("<!-- windtunnel -->\nhello")
    comments = [{"id": 1, "body": "<!-- windtunnel -->\nmine!", "user": {"login": "stranger"}},
                {"id": 2, "body": "<!-- windtunnel -->\nold", "user": {"login": login}}]  # fmt: skip
    Path("comments.json").write_text(json.dumps(comments))
    Path("user").write_text(answer)
    tools("gh", f'case "$2" in user) cat user;; --paginate) {jq} -r "${{@: -1}}" comments.json;; esac')
    subprocess.run(["bash", SCRIPTS / "comment_github.sh", "o/r", "5", "comment.md"], check=True)
    assert "--method PATCH repos/o/r/issues/comments/2 " in calls()[-1]


AUTHOR = {"author": {"id": 5}}
OTHERS = [{"id": 3, "body": "another", **AUTHOR}, {"id": 4, "body": "<!-- windtunnel -->\nmine!", "author": {"id": 6}}]
MINE = {"id": 9, "body": "<!-- windtunnel -->\nold", **AUTHOR}


@pytest.mark.parametrize(("pages", "method"), [
    ([OTHERS], "POST"), ([[*OTHERS, MINE]], "PUT"), ([50 * OTHERS, [MINE]], "PUT"), ([50 * OTHERS, []], "POST"),
])  # fmt: skip
def test_one_note_on_gitlab_is_made_and_then_updated(tools, pages, method, monkeypatch):
    for number, notes in enumerate(pages, start=1):
        Path(f"page-{number}.json").write_text(json.dumps(notes))
    tools(
        "curl", 'case "$*" in *per_page*) all="$*"; cat "page-${all##*&page=}.json";; */user) echo \'{"id": 5}\';; esac'
    )
    for name, value in (("CI_API_V4_URL", "https://git/api/v4"), ("CI_PROJECT_ID", "1"), ("CI_MERGE_REQUEST_IID", "2"),
                        ("GITLAB_TOKEN", "t")):  # fmt: skip
        monkeypatch.setenv(name, value)
    subprocess.run(["bash", SCRIPTS / "comment_gitlab.sh", "comment.md"], check=True)
    address = "https://git/api/v4/projects/1/merge_requests/2/notes" + ("/9" if method == "PUT" else "")
    assert calls()[-1].endswith(address)
    assert f"--request {method}" in calls()[-1]
    assert "PRIVATE-TOKEN" not in Path("calls").read_text()  # it is on no command line


def gate_of(decision: Decision, *conditions: Condition, hard: tuple[str, ...] = ()) -> GateResult:
    return GateResult(decision, conditions, hard)


HOLDS = Condition("worst_case/accuracy", 0.5, 0.3, (0.4, 0.6), True)
FAILS = Condition("worst_case/accuracy", 0.1, 0.3, (0.0, 0.2), False, reason="the interval is below")
FLAGGED = FindingRecord(
    id="C3", title="More steps", severity=Severity.WARN, status=Status.WARN, assessments=("pgd",), reason="12 more",
)  # fmt: skip
GATES = {
    "passed": (gate_of(Decision.PASSED, HOLDS), 0, {"failures": "0", "skipped": "0"}),
    "failed": (gate_of(Decision.FAILED, FAILS), 10, {"failures": "1", "skipped": "0"}),
    "unsound": (gate_of(Decision.UNSOUND, HOLDS, hard=("A1: logits",)), 20, {"failures": "1", "skipped": "0"}),
    "no condition": (gate_of(Decision.PASSED), 0, {"failures": "0", "skipped": "1"}),
}


@pytest.fixture(scope="module", params=["github", "gitlab"])
def project(request, tmp_path_factory):
    """A git repository in which `init --ci` has been run; its name begins with that of the service."""
    root = tmp_path_factory.mktemp(request.param)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    before = Path.cwd()
    os.chdir(root)
    try:
        done = CliRunner().invoke(cli, ["init", "--yes", "--ci", request.param, "--model", "torchvision:resnet18"])
    finally:
        os.chdir(before)
    assert done.exit_code == 0, done.output
    return root


def step(root: Path, name: str) -> str:
    workflow = yaml.safe_load((root / ".github" / "workflows" / "windtunnel.yml").read_text())
    return next(step["run"] for step in workflow["jobs"]["assess"]["steps"] if step.get("name") == name)


@pytest.mark.slow
@pytest.mark.parametrize("case", GATES)
def test_the_steps_of_a_made_project_comment_report_and_decide(project, tools, monkeypatch, case):
    """The shell lines as the workflow has them, in the root of the repository; but for the gate the commands do nothing."""
    gate, code, counts = GATES[case]
    folder = project / "robustness"
    write_json(gate_json(gate), folder / "reports" / "gate.json")
    metadata = {"kwargs": {"profile": "standard", "checks": [FLAGGED.model_dump(mode="json")]}}
    (folder / "reports" / "sanity").mkdir(exist_ok=True)
    write_json(metadata, folder / "reports" / "sanity" / "metadata.json")
    params = folder / "params.yaml"
    params.write_text(
        re.sub(
            r"(?ms)^attacks:.*?(?=^\w)",
            "attacks:\n  pgd: {library: torchattacks, algorithm: PGD}\n",
            params.read_text(),
        )
    )
    for name in ("dvc", "gh", "pip"):
        tools(name)
    tools("curl", 'case "$*" in *per_page*) echo "[]";; */user) echo \'{"id": 5}\';; esac')
    tools("windtunnel", f'case $1 in gate) exec {sys.executable} -m windtunnel "$@";; esac')
    (run_on_github if project.name.startswith("github") else run_on_gitlab)(project, monkeypatch, code)
    comment = (project / "windtunnel-ci/comment.md").read_text()
    assert comment.startswith("<!-- windtunnel -->")
    assert sentence(gate) in comment
    suite = ElementTree.parse(project / "windtunnel-ci/gate.xml").getroot()
    assert {key: suite.get(key) for key in counts} == counts
    log = json.loads((project / "windtunnel-ci/windtunnel.sarif").read_text())
    results = {row["ruleId"]: row for row in log["runs"][0]["results"]}
    assert set(results) == {"C3", *(["gate/worst_case/accuracy"] if case == "failed" else [])}
    place = results["C3"]["locations"][0]["physicalLocation"]
    line = params.read_text().splitlines()[place["region"]["startLine"] - 1]
    assert (place["artifactLocation"]["uri"], line.split()[0]) == ("robustness/params.yaml", "pgd:")


def run_on_github(project, monkeypatch, code):
    """Run three steps: the assessment leaves the exit code to the last one."""
    monkeypatch.chdir(project)
    for name, value in (("GITHUB_OUTPUT", "output"), ("GITHUB_STEP_SUMMARY", "step"), ("GITHUB_REPOSITORY", "o/r")):
        monkeypatch.setenv(name, value if "/" in value else str(project / value))
    for name, value in (("GITHUB_BASE_REF", "main"), ("NUMBER", "5"), ("GITHUB_EVENT_NAME", "pull_request")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CODE", str(code))
    Path("output").unlink(missing_ok=True)
    for name, ends in (("Assess", 0), ("Comment", 0), ("Decide", code)):
        assert subprocess.run(["bash", "-ec", step(project, name)], check=False).returncode == ends
    assert Path("output").read_text() == f"exit-code={code}\n"


def run_on_gitlab(project, monkeypatch, code):
    """Run the lines of the job in one shell, as a runner does."""
    before = Path.cwd()
    monkeypatch.chdir(project)
    for name, value in (("CI_API_V4_URL", "https://git/api/v4"), ("CI_PROJECT_ID", "1"), ("CI_MERGE_REQUEST_IID", "2"),
                        ("CI_DEFAULT_BRANCH", "main"), ("GITLAB_TOKEN", "t")):  # fmt: skip
        monkeypatch.setenv(name, value)
    (job,) = (yaml.safe_load(path.read_text())["windtunnel"] for path in Path().glob("robustness/ci/*.yml"))
    lines = "\n".join(job["script"])
    assert subprocess.run(["bash", "-eo", "pipefail", "-c", lines], check=False).returncode == code
    made = (before / "calls").read_text().splitlines()
    assert "pip install windtunnel[pipeline]" in made
    assert "windtunnel doctor --install --yes" in made
    assert "--request POST" in made[-1]
    assert made[-1].endswith("https://git/api/v4/projects/1/merge_requests/2/notes")


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_init_writes_a_valid_workflow_and_takes_it_back(tmp_path, monkeypatch, service):
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    folder, read_by = (
        tmp_path / "robustness",
        {"github": ".github/workflows/windtunnel.yml", "gitlab": ".gitlab-ci.yml"}[service],
    )
    apply(plan(folder, "seed: 0\n", "stages: {}\n", service), tmp_path)
    assert "__FOLDER__" not in Path(read_by).read_text()
    file = read_by if service == "github" else "robustness/ci/gitlab.yml"
    schema = "vendor.github-workflows" if service == "github" else "vendor.gitlab-ci"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert plan(folder, "seed: 0\n", "stages: {}\n").changes() == []
    remove(removal(folder))
    assert not Path(read_by).exists()
    assert not folder.exists()
    Path(read_by).parent.mkdir(exist_ok=True, parents=True)
    Path(read_by).write_text("jobs: {}\n")
    if service == "github":
        with pytest.raises(UserError, match="is there already"):
            plan(folder, "", "", service)
