"""Run a suite: many trials of one recipe, packed once, on one lease.

**Parameters:** a *recipe* with its `suite`, a *site*; optionally *main keys* of the recipe in
their own fields, *overrides* (`key=value`, one per line; several values, as in
`model.learning_rate=0.001,0.01` or `seed=range(0,5)`, make trials), and *trials*: the number of
points that a sampler proposes, if intervals are given or the recipe has a `suite.search`;
*sites*: several that share the trials, with a *policy*, a *deadline* and a *budget*.

1. `prepare` makes the run, refuses a suite with a mistake in its keys or values, and shows the
   resolved recipe and the plan in its log and on its tab Rendered Templates.
2. `pack` turns raw samples into HDF5 shards, once for all trials; it is skipped if the recipe has
   no `dataset`.
3. `suite` runs all trials on one lease, or on one of each of several sites. It is one task, however
   many trials and sites there are; its log shows how many have ended, and the best.
4. `finish` records how the run ended.

`headrace status RUN --watch` shows the trials while they run, `headrace suite
pause|add|cancel|retry|site` changes them, `headrace results RUN` shows their results. Marking the
task failed ends the running trials; clearing it continues: ended trials are not run again.
"""

from airflow.sdk import DAG, TriggerRule

from headrace_airflow.dag_parts import TAGS, suite_params, task_defaults
from headrace_airflow.operators import PackOperator, StepOperator
from headrace_airflow.run_operators import FinishRunOperator, PrepareRunOperator

with DAG(
    dag_id="headrace_suite",
    description="Run many trials of a recipe on one lease",
    doc_md=__doc__,
    tags=TAGS,
    params=suite_params(),
    default_args=task_defaults(),
    schedule=None,
    catchup=False,
):
    prepare = PrepareRunOperator(task_id="prepare", kind="suite").as_setup()
    pack = PackOperator(task_id="pack")
    suite = StepOperator(task_id="suite", step="suite", trigger_rule=TriggerRule.NONE_FAILED)
    finish = FinishRunOperator(task_id="finish")
    finish.as_teardown(setups=prepare, on_failure_fail_dagrun=True)

    prepare >> pack >> suite >> finish
