"""Requests to the pages whose values are absurd are refused in words: 4xx, never 5xx."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
HUGE = 10**30


@pytest.fixture
def client(headrace_home, monkeypatch):
    from fastapi.testclient import TestClient

    from headrace_pages import access, app

    ada = SimpleAuthManagerUser(username="ada", role="ADMIN")
    answers: dict[Any, Any] = {
        access.reads.dependency: None, access.acts.dependency: None, access.get_user: ada,
        access.visible_sites: None, access.may_act: True,
    }  # fmt: skip
    for dependency, value in answers.items():
        monkeypatch.setitem(app.app.dependency_overrides, dependency, lambda value=value: value)
    return TestClient(app.app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("cancel", b'{"id": "\\ud800"}'),
        ("cancel", b'{"id": 5}'),
        ("cancel", b'{"id": "' + b"x" * 1000 + b'"}'),
        ("cancel", b'{"\\udc00": "a", "id": "b"}'),
        ("cancel", b"\xff"),
        ("cancel", b"[" * 100_000),
        ("lease", b'{"id": "\\udfff\\ud800"}'),
        ("suite", b'{"id": "a", "what": "\\ud800"}'),
        ("suite", b'{"id": "a", "what": "pause", "trials": [1e30]}'),
        ("suite", b'{"id": "a", "what": "pause", "trials": [%d]}' % HUGE),
        ("suite", b'{"id": "a", "what": "pause", "trials": [-1]}'),
        ("suite/add", b'{"id": "a", "words": "model.x=\\ud800"}'),
        ("suite/add", b'{"id": "a", "words": "seed=1", "priority": %d}' % HUGE),
    ],
)
def test_the_body_of_an_act(client, path, body):
    answer = client.post(f"/act/{path}", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    "path",
    [
        f"/data/trials?id=a&since={HUGE}", "/data/trials?id=a&since=-1", f"/data/runs?limit={HUGE}",
        f"/data/sample?id=a&split=train&index={HUGE}", "/data/sample?id=a&split=train&index=-1",
        f"/data/sample?id=a&split=train&label={HUGE}", f"/data/sample?id=a&split=t&frame={HUGE}",
        "/data/sample?id=nothing&split=%ff", "/data/run?id=%ff%00", "/data/suite?id=%ed%a0%80",
    ],
)  # fmt: skip
def test_a_question(client, path):
    answer = client.get(path)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["detail"]
