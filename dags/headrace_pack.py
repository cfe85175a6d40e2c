"""Pack raw samples into a dataset of HDF5 shards.

**Parameters:** a *recipe* (samples, labels and splits), a *site* (machines) and optional
*overrides* (`key=value`, one per line, such as `dataset.split_seed=3`).

The packed dataset is published as an Airflow asset, `headrace://dataset/<name>`, with its
folder, fingerprint and counts. A dataset that is packed already takes seconds; it is published only
if the asset has no event of that version yet: it may have been packed from a terminal.

A task that fails is retried and continues where it stopped; a mistake in the recipe or in the
samples fails at once and says what to do. Marking a task failed stops its work; clearing it
starts it again.
"""

from airflow.sdk import DAG

from headrace_airflow.dag_parts import TAGS, params, task_defaults
from headrace_airflow.operators import PackOperator
from headrace_airflow.run_operators import FinishRunOperator, PrepareRunOperator

with DAG(
    dag_id="headrace_pack",
    description="Pack raw samples into a dataset",
    doc_md=__doc__,
    tags=TAGS,
    params=params(),
    default_args=task_defaults(),
    schedule=None,
    catchup=False,
):
    prepare = PrepareRunOperator(task_id="prepare", kind="pack").as_setup()
    pack = PackOperator(task_id="pack")
    finish = FinishRunOperator(task_id="finish")
    finish.as_teardown(setups=prepare, on_failure_fail_dagrun=True)

    prepare >> pack >> finish
