"""From raw samples to an evaluated model: pack if needed, stage, train, evaluate.

**Parameters:** a *recipe* (which samples, which model), a *site* (which machines) and
*overrides* (`key=value`, one a line, such as `trainer.max_epochs=3`).

1. `prepare` makes the run: its folder and its row in the ledger.
2. `pack` turns raw samples into HDF5 shards on a pool of workers; it takes seconds when that is
   done.
3. `stage`, `train` and `evaluate` share one gang of nodes, as staged shards are gone with it.
4. `finish` records how the run ended, and fails when the run has; it runs whatever happened
   before.

The link of a task, on its tab Details, leads to the Dask dashboard; its log shows progress, and
where the run's folder and its report lie. A task that fails is tried again and goes on from the
last checkpoint; a mistake in the recipe, the data or the model fails at once and says what to do.
Marking a task or the run failed stops the work; clearing it starts it again from the last
checkpoint. To train anew, trigger a new run.

Set the environment variable `HEADRACE_TRAIN_SCHEDULE` to the name of a dataset, and each newly
packed version of it starts this DAG.
"""

from airflow.sdk import DAG

from headrace_airflow.dag_parts import TAGS, params, task_defaults, train_schedule
from headrace_airflow.operators import (
    AcquireLeaseOperator,
    PackOperator,
    ReleaseLeaseOperator,
    StepOperator,
)
from headrace_airflow.run_operators import FinishRunOperator, PrepareRunOperator

with DAG(
    dag_id="headrace_train",
    description="Pack if needed, stage, train, evaluate",
    doc_md=__doc__,
    tags=TAGS,
    params=params(),
    default_args=task_defaults(),
    schedule=train_schedule(),
    catchup=False,
):
    prepare = PrepareRunOperator(task_id="prepare", kind="train").as_setup()
    acquire_pool = AcquireLeaseOperator(task_id="acquire_pool", step="pack").as_setup()
    pack = PackOperator(task_id="pack")
    release_pool = ReleaseLeaseOperator(task_id="release_pool", step="pack")
    release_pool.as_teardown(setups=acquire_pool)
    acquire_gang = AcquireLeaseOperator(task_id="acquire_gang", step="train").as_setup()
    stage = StepOperator(task_id="stage", step="stage")
    train = StepOperator(task_id="train", step="train")
    evaluate = StepOperator(task_id="evaluate", step="evaluate")
    release_gang = ReleaseLeaseOperator(task_id="release_gang", step="train")
    release_gang.as_teardown(setups=acquire_gang)
    finish = FinishRunOperator(task_id="finish")
    finish.as_teardown(setups=prepare, on_failure_fail_dagrun=True)

    prepare >> acquire_pool >> pack >> release_pool
    [pack, release_pool] >> acquire_gang >> stage >> train >> evaluate >> release_gang >> finish
