"""Answers of the pages' data endpoints: made once for all, sent only when they have changed."""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial

import pytest
from sqlalchemy import event
from starlette.requests import Request

from headrace.errors import UnknownNameError
from headrace.ledger.ledger import open_ledger
from headrace.record import Figures, Record
from headrace.status.run_page import run_page
from headrace_pages.answers import Answers
from support.runs import make_run


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
