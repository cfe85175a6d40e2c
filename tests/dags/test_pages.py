"""The pages' endpoints: absurd requests, answers made once for all, and who may act."""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel
from fastapi import HTTPException
from sqlalchemy import event
from starlette.requests import Request

from headrace.errors import UnknownNameError
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.record import Figures, Record
from headrace.runs.prediction import Frontier, FrontierPoint, Interval
from headrace.status.run_page import run_page
from headrace.suites.records import Control
from headrace_pages.answers import Answers
from headrace_pages.frontier import suite_with_picture
from support.ledger_rows import run_row
from support.runs import make_run
from support.suite_journal import make_suite, over_sites

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
        ("suite", b'{"id": "a", "what": "limit-site", "site": "b", "limit": %d}' % HUGE),
        ("suite", b'{"id": "a", "what": "limit-site", "site": "b", "limit": 0}'),
        ("suite", b'{"id": "a", "what": "leave-site", "site": ["b"]}'),
        ("suite", b'{"id": "a", "what": "assign", "site": "b"}'),
        ("suite/add", b'{"id": "a", "words": "model.x=\\ud800"}'),
        ("suite/add", b'{"id": "a", "words": "seed=1", "priority": %d}' % HUGE),
    ],
)
def test_the_body_of_an_act(client, path, body):
    answer = client.post(f"/act/{path}", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["detail"]


@pytest.mark.usefixtures("headrace_home")
def test_the_picture_of_forecasts_is_left_out_where_there_are_none():
    suite = over_sites(make_suite())

    def picture():
        return suite_with_picture(suite.run_id, can_act=True).picture

    assert "hours to the end" in picture()
    free = Interval(low=0, mean=0, high=0)
    points = (FrontierPoint(policy="<b>", makespan_s=free, usd=free),)
    write_record(suite.folder.frontier, Frontier(points=points))
    assert "&lt;b&gt;" in picture()
    for content in ('{"points": []}', "{"):
        suite.folder.frontier.write_text(content)
        assert picture() == ""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"what": "pause-site", "site": "lab"}, "pause-site lab"),
        ({"what": "limit-site", "site": "aws", "limit": 3}, "limit-site aws"),
        ({"what": "leave-site", "site": "awz"}, "Did you mean 'aws'?"),
        ({"what": "resume-site"}, "Valid: aws, box, lab."),
        ({"what": "pause", "site": "lab"}, "Requested: pause"),
    ],
)
def test_a_site_of_a_suite(client, monkeypatch, body, told):
    monkeypatch.setattr("headrace_pages.access.visible_sites", lambda _user: None)
    suite = over_sites(make_suite())
    assert len(client.get(f"/data/suite?id={suite.run_id}").json()["sites"]) == 3
    answer = client.post("/act/suite", json={"id": suite.run_id, **body})
    assert told in answer.text
    file = suite.folder.controls
    controls = [Control.model_validate_json(file.read_text())] if answer.status_code == 200 else []
    assert file.exists() == bool(controls)
    for control in controls:
        assert (control.what, control.limit) == (body["what"], body.get("limit"))
        assert control.site == (body["site"] if "-site" in body["what"] else "")
        act, *_ = open_ledger().acts(run_id=suite.run_id)
        assert (act.user, act.through, act.what) == ("ada", "Airflow", body["what"])


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


class Page(Record):
    """What is asked for."""

    now: float
    value: int


class Source:
    """Makes pages, each with the next time; waits for `go`."""

    def __init__(self) -> None:
        self.value = 1
        self.count = 0
        self.go = threading.Event()

    def page(self) -> Page:
        self.go.wait(60)
        self.count += 1
        return Page(now=float(self.count), value=self.value)


def request(etag: str = "") -> Request:
    headers = [(b"if-none-match", etag.encode())] if etag else []
    return Request({"type": "http", "headers": headers})


def test_fifty_who_ask_at_once_get_one_answer_also_when_the_first_goes_away():
    async def ask() -> list[bytes]:
        source = Source()
        answers, question = Answers(), partial(source.page)
        asking = [asyncio.create_task(answers.of(question)) for _ in range(50)]
        await asyncio.sleep(0)  # all have asked
        asking[0].cancel()
        source.go.set()
        told = [(await each).body for each in asking[1:]]
        assert asking[0].cancelled()
        assert source.count == 1
        return told

    assert set(asyncio.run(ask())) == {b'{"now":1.0,"value":1}'}


class Seen(Figures):
    """Figures as steps tell them."""

    loss: float


class PageOfFigures(Record):
    """A page with a record that may hold what is no number."""

    seen: Seen


def test_what_is_no_number_is_null_for_a_browser():
    page = PageOfFigures(seen=Seen(loss=float("nan")))
    told = asyncio.run(Answers().of(partial(page.model_copy)))
    assert json.loads(told.body, parse_constant=pytest.fail) == {"seen": {"loss": None}}


def test_an_answer_that_is_too_old_is_made_again_and_sent_when_it_has_changed():
    async def ask() -> list[int]:
        source = Source()
        source.go.set()
        answers, question = Answers(kept_s=0.0), partial(source.page)
        first = await answers.send(request(), question)
        same = await answers.send(request(first.headers["etag"]), question)
        source.value = 2
        other = await answers.send(request(first.headers["etag"]), question)
        listed = f'"abc", {other.headers["etag"]}'
        again = await answers.send(request(listed), question)
        assert source.count == 4
        assert same.body == b""
        return [each.status_code for each in (first, same, other, again)]

    assert asyncio.run(ask()) == [200, 304, 200, 304]


def test_an_error_is_told_to_who_asks_and_not_kept():
    async def ask() -> None:
        answers, calls = Answers(), []

        def fail() -> Page:
            calls.append(1)
            raise UnknownNameError("There is none")

        for _ in range(2):
            with pytest.raises(UnknownNameError):
                await answers.of(partial(fail))
        assert len(calls) == 2

    asyncio.run(ask())


@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
@pytest.mark.usefixtures("headrace_home")
def test_an_answer_opens_the_ledger_once():
    from headrace_pages.app import answers  # Airflow's own imports warn

    run_id, opened = make_run().run_id, []
    event.listen(open_ledger()._database._readers, "connect", lambda *_: opened.append(1))
    told = asyncio.run(answers.of(partial(run_page, run_id, can_act=True)))
    assert json.loads(told.body)["run_id"] == run_id
    assert len(opened) == 1


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
