"""Who may act on the run of another DAG than headrace's; a real Airflow is asked for the rest."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel
from fastapi import HTTPException

from support.ledger_rows import run_row

ADA = SimpleAuthManagerUser(username="ada", role="USER")


class OneDag:
    """An auth manager by which runs of one DAG may be triggered."""

    def __init__(self, dag_id: str) -> None:
        self._dag_id = dag_id

    def is_authorized_connection(self, **asked: Any) -> bool:
        return False

    def is_authorized_dag(self, **asked: Any) -> bool:
        return asked["method"] == "POST" and asked["details"].id == self._dag_id


@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
@pytest.mark.parametrize(
    ("owner", "is_refused"),
    [
        ("cli:host:1:2.0", False),
        ("airflow:headrace_train:manual__1", False),
        ("airflow:secret:manual__1", True),
    ],
)
def test_a_run_of_another_dag_needs_the_permission_for_that_one(
    monkeypatch: pytest.MonkeyPatch, owner: str, is_refused: bool
):
    from headrace_pages import access  # Airflow's own imports warn

    monkeypatch.setattr(access, "get_auth_manager", lambda: OneDag("headrace_train"))
    monkeypatch.setattr(DagModel, "get_team_name", lambda _dag_id: None)
    assert access.may_act(ADA)
    record = run_row(owner=owner)
    if not is_refused:
        access.check_acts_on(ADA, record)
        return
    with pytest.raises(HTTPException, match="You may not act on runs of DAG secret"):
        access.check_acts_on(ADA, record)
