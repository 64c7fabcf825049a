"""The retraining as an Airflow DAG: copy this file into the `dags` folder, and set WINDTUNNEL_PROJECT for the workers.

Not promoted (exit code 10) is a skipped task, not a failed one; an evaluation that is not sound (20) and a failure of the
infrastructure (30) fail it. `max_active_runs=1` keeps two runs apart across workers, where the command's lock cannot.
"""

import os
from datetime import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    dag_id="windtunnel_retrain",
    schedule="0 3 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["windtunnel"],
) as dag:
    BashOperator(
        task_id="retrain",
        bash_command=". .venv/bin/activate && windtunnel retrain --summary reports/retrain.md",
        cwd=os.environ.get("WINDTUNNEL_PROJECT", "/srv/windtunnel"),
        skip_on_exit_code=10,
        append_env=True,
    )
