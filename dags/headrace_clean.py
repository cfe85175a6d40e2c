"""Remove old files, daily: what the `retention` of each site lets go.

Without a site that has a `retention` it has no schedule. What a run needs, kept runs and other
users' files stay; see the page *Clean up disks*. Its log has a line for each thing that was
removed, or why it stays.
"""

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG

from headrace.recipe.load import written
from headrace_airflow.run_operators import CleanOperator

has_retention = any(site.get("retention") for site in written("sites").values())

with DAG(
    dag_id="headrace_clean",
    description="Remove what the retention of sites lets go",
    doc_md=__doc__,
    tags=["housekeeping"],
    start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
    schedule=timedelta(days=1) if has_retention else None,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
):
    CleanOperator(task_id="clean", owner="headrace", do_xcom_push=False)
