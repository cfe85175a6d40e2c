"""No process of `headrace up` takes a module from the folder in which it was called."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timezone

import pytest

from headrace.status.dataset import find_dataset
from headrace_airflow.housekeeping import clean_command
from support.airflow_service import AirflowService

pytestmark = [pytest.mark.airflow, pytest.mark.slow]


def test_components_tasks_leases_and_pages_import_nothing_of_the_working_folder(
    airflow_service: AirflowService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is started in a folder with a module of each name, as are all that it starts."""
    service = airflow_service
    dag_run = service.trigger()
    run_id = service.wait_for_run(dag_run)
    assert service.wait_end(dag_run) == "success", service.why(dag_run, run_id)
    with service.settings():
        fingerprint = find_dataset("digits").fingerprint
        monkeypatch.chdir(service.here.folder)
        environment = {**os.environ, **service.server.environment}
        command = clean_command(datetime.fromtimestamp(0, timezone.utc))
        subprocess.run(command, env=environment, check=True, capture_output=True)
    sample = service.api.page("sample", id=fingerprint, split="train", index="0")
    assert sample["index"] == 0
    assert service.here.imported == set()
