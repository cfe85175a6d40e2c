"""`headrace demo`: what it leaves behind when it is left."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from headrace.cli import airflow
from headrace.cli.airflow_server import AirflowApi
from headrace.cli.console import open_console
from headrace.execution.reap import end_run
from headrace.ledger.ledger import open_ledger
from headrace.states import StepState
from support.runs import make_run

pytestmark = pytest.mark.usefixtures("headrace_home")


def test_a_run_left_by_ctrl_c_is_cancelled_though_its_dag_run_tells_it_as_failed():
    run = make_run(key=f"airflow:{airflow.DAG_ID}:manual")
    api = create_autospec(AirflowApi, instance=True)

    def stop():  # by then Airflow may have carried out the last task of a DAG run that has failed
        api.fail_run.assert_called_once_with(airflow.DAG_ID, "manual")
        end_run(run, StepState.FAILED)

    left = airflow._cancelled_when_left(api, "manual", stop, open_console())
    with pytest.raises(KeyboardInterrupt), left:
        raise KeyboardInterrupt
    assert open_ledger().run(run.run_id).state is StepState.CANCELLED
