"""`headrace demo`: what it leaves behind when it is left."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import create_autospec

import pytest

from headrace.cli import airflow
from headrace.cli.airflow_server import AirflowApi
from headrace.cli.console import open_console
from headrace.execution.reap import end_run
from headrace.ledger.ledger import open_ledger
from headrace.states import StepState
from support.runs import make_run

KEY = f"airflow:{airflow.DAG_ID}:manual"

pytestmark = pytest.mark.usefixtures("headrace_home")


def leave(stop_airflow: Callable[[AirflowApi], None]):
    """Press Ctrl-C while the DAG run `manual` is followed."""
    api = create_autospec(AirflowApi, instance=True)
    left = airflow._cancelled_when_left(api, "manual", lambda: stop_airflow(api), open_console())
    with pytest.raises(KeyboardInterrupt), left:
        raise KeyboardInterrupt


def test_a_run_left_by_ctrl_c_is_cancelled_though_its_dag_run_tells_it_as_failed():
    run = make_run(key=KEY)

    def stop(api: AirflowApi):  # by then Airflow may have carried out the last task
        api.fail_run.assert_called_once_with(airflow.DAG_ID, "manual")
        end_run(run, StepState.FAILED)

    leave(stop)
    assert open_ledger().run(run.run_id).state is StepState.CANCELLED


def test_a_run_is_ended_that_was_made_while_airflow_was_stopped():
    leave(lambda _: make_run(key=KEY) and None)
    record = open_ledger().run_by_key(KEY)
    assert record is not None
    assert record.state is StepState.CANCELLED
