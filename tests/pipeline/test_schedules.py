"""The ready-made schedules are what their engines expect, and run the one command. (Prefect's runs in tests/integration.)"""

import subprocess
from pathlib import Path

import pytest
import yaml
from mlflow.cli import server as mlflow_server

PIPELINE = Path(__file__).parents[2] / "pipeline"
SCHEDULES = PIPELINE / "schedules"


def test_the_github_workflow_runs_the_command_alone_and_comments_once():
    workflow = yaml.safe_load((SCHEDULES / "github-actions.yml").read_text())
    assert workflow[True]["schedule"] == [{"cron": "0 3 * * *"}]  # YAML 1.1 reads the key `on` as true
    assert workflow["concurrency"]["cancel-in-progress"] is False
    steps = workflow["jobs"]["retrain"]["steps"]
    assert any("windtunnel retrain --summary" in step.get("run", "") for step in steps)
    assert any("--edit-last" in step.get("run", "") for step in steps)


def test_the_cron_job_of_kubernetes_forbids_overlap_and_takes_ten_for_an_answer():
    job = yaml.safe_load((SCHEDULES / "kubernetes.yaml").read_text())
    assert (job["kind"], job["spec"]["concurrencyPolicy"]) == ("CronJob", "Forbid")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["/bin/sh", "-c"]
    assert ends(container["args"][0], 10) == 0
    assert ends(container["args"][0], 20) == 20


def test_the_line_of_cron_speaks_only_where_something_is_wrong(tmp_path):
    line = (SCHEDULES / "crontab").read_text().strip().splitlines()[-1].split(maxsplit=5)[5]
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text("")
    for code, loud in ((0, False), (10, False), (20, True), (30, True)):
        done = subprocess.run(
            ["sh", "-c", f"windtunnel() {{ echo said; return {code}; }}; PROJECT={tmp_path}; {line}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert bool(done.stdout) is loud, done


def ends(script: str, code: int) -> int:
    """The exit code of a shell line whose `windtunnel` ends with `code`."""
    return subprocess.run(["sh", "-c", f"windtunnel() {{ return {code}; }}; {script}"], check=False).returncode


def test_the_airflow_dag_has_one_task_that_skips_on_ten():
    pytest.importorskip("airflow", reason="Airflow is not installed")
    space: dict = {}
    exec(compile((SCHEDULES / "airflow_dag.py").read_text(), "airflow_dag.py", "exec"), space)
    dag = space["dag"]
    (task,) = dag.tasks
    assert dag.max_active_runs == 1
    assert "windtunnel retrain" in task.bash_command
    assert task.skip_on_exit_code == [10]


def test_compose_names_images_without_hosts_and_waits_for_what_it_needs():
    compose = yaml.safe_load((PIPELINE / "deploy" / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"postgres", "store", "bucket", "mlflow"}
    # A registry's host is a first part with a dot or a colon.
    assert not [s for s in services.values() if "/" in s["image"] and set(".:") & set(s["image"].split("/")[0])]
    server = services["mlflow"]
    assert set(server["depends_on"]) == {"postgres", "bucket"}
    options = [part.split("=")[0] for part in server["command"] if part.startswith("--")]
    known = {name for parameter in mlflow_server.params for name in parameter.opts}
    assert not set(options) - known
    example = (PIPELINE / "deploy" / "env.example").read_text()
    text = (PIPELINE / "deploy" / "compose.yaml").read_text()
    for name in ("POSTGRES_PASSWORD", "STORE_PASSWORD", "ALLOWED_HOSTS"):
        assert f"${{{name}" in text
        assert f"\n{name}=" in example
