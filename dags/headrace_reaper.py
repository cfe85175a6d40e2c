"""End abandoned work: every 15 seconds, leases and steps whose DAG run or task has ended.

Its DAG runs take an hour each: the task looks, and is rescheduled, until the next one begins.

Tasks end their own work. This DAG is for cases in which they cannot: a task was marked failed
while no triggerer ran, a DAG run timed out or was deleted, a host process was killed, an instance
of EC2 outlived its lease. It also records such runs as lost. Do not trigger, pause or mark it. Its
tag is `housekeeping`: the filter `headrace` shows only the other DAGs. Its log has a line for each
thing that it has ended, and is empty otherwise.
"""

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG

from headrace_airflow.run_operators import ReapOperator

with DAG(
    dag_id="headrace_reaper",
    description="End what has no living owner",
    doc_md=__doc__,
    tags=["housekeeping"],
    start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
    schedule="@continuous",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
):
    ReapOperator(
        task_id="reap",
        owner="headrace",
        do_xcom_push=False,
        execution_timeout=timedelta(minutes=5),  # of one look
        retries=240,
        retry_delay=timedelta(seconds=15),
    )
