"""Measure the machines of a site: arithmetic, memory, network, storage, training.

**Parameters:** a *site* and one of its *roles*; optionally the number of *nodes*, the *parts*, and
*quick*: small sizes, which only test that all works.

1. `prepare` makes the run and refuses a role or a number of nodes that the site does not have.
2. `probe` measures on a lease of the role, each figure several times.
3. `finish` records how the run ended and writes its report, which the page of the run shows.

`headrace probe RUN --compare OTHER_RUN` shows two probes side by side. If a probe is slower than
the earlier ones, a node may be faulty.
"""

from airflow.sdk import DAG

from headrace_airflow.dag_parts import TAGS, task_defaults
from headrace_airflow.operators import StepOperator
from headrace_airflow.run_operators import FinishRunOperator
from headrace_probes.operator import PrepareProbeOperator, probe_params

with DAG(
    dag_id="headrace_probe",
    description="Measure the machines of a site",
    doc_md=__doc__,
    tags=TAGS,
    params=probe_params(),
    default_args=task_defaults(),
    schedule=None,
    catchup=False,
):
    prepare = PrepareProbeOperator(task_id="prepare").as_setup()
    probe = StepOperator(task_id="probe", step="probe")
    finish = FinishRunOperator(task_id="finish")
    finish.as_teardown(setups=prepare, on_failure_fail_dagrun=True)

    prepare >> probe >> finish
