"""From raw samples to an evaluated model: pack if needed, stage, train, evaluate.

**Parameters:** a *recipe* (samples and model) and a *site* (machines); optionally *main keys* of
the recipe in their own fields, and *overrides* of others (`key=value`, one per line, such as
`trainer.precision=bf16-mixed`).

1. `prepare` makes the run and checks everything possible before it requests a machine. Its log
   and its tab Rendered Templates show the resolved recipe and the plan: machines, time, cost.
2. `pack` turns raw samples into HDF5 shards on a pool of workers, which it then returns; it takes
   seconds if the dataset is packed already.
3. `stage`, `train` and `evaluate` share one gang of nodes, since staged shards are lost with it:
   the first requests it, the last returns it.
4. `finish` records how the run ended, and fails if the run has failed; it always runs. It publishes
   the model as the asset `headrace://model/<recipe>`, with its metrics.

Steps that a recipe does not need are skipped, with the reason in the log: `evaluate`, or without a
`dataset` the packing and `stage`.

The link of a task, on its tab Details, leads to the Dask dashboard; its log shows what it waits
for, progress, and the paths of the run's folder and its report.
A task that fails is retried and continues from the last checkpoint; a mistake in the recipe, the
data or the model fails at once and says what to do. Marking a task or the run failed stops the
work; clearing it starts it again from the last checkpoint. To train anew, trigger a new run.

Set the environment variable `HEADRACE_TRAIN_SCHEDULE` to the name of a dataset, and each newly
packed version of it starts this DAG.
"""

from airflow.sdk import DAG, TriggerRule

from headrace_airflow.assets import MODELS, train_schedule
from headrace_airflow.dag_parts import TAGS, task_defaults, train_params
from headrace_airflow.operators import PackOperator, StepOperator
from headrace_airflow.run_operators import FinishRunOperator, PrepareRunOperator

with DAG(
    dag_id="headrace_train",
    description="Pack if needed, stage, train, evaluate",
    doc_md=__doc__,
    tags=TAGS,
    params=train_params(),
    default_args=task_defaults(),
    schedule=train_schedule(),
    catchup=False,
):
    prepare = PrepareRunOperator(task_id="prepare", kind="train").as_setup()
    pack = PackOperator(task_id="pack")
    stage = StepOperator(task_id="stage", step="stage")
    train = StepOperator(task_id="train", step="train", trigger_rule=TriggerRule.NONE_FAILED)
    evaluate = StepOperator(task_id="evaluate", step="evaluate")
    finish = FinishRunOperator(task_id="finish", outlets=[MODELS])
    finish.as_teardown(setups=prepare, on_failure_fail_dagrun=True)

    prepare >> pack >> stage >> train >> evaluate >> finish
