"""Fifty browsers on headrace's pages: what Airflow's API server makes of it.

`pytest tests/benchmarks/browsers_under_airflow.py -s` prints how long Airflow's own answers take,
to the check of its health and to a list of DAG runs, without browsers and with them. `make test`
leaves it out, as it takes minutes. `HEADRACE_BROWSERS` gives another number of browsers.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.execution.reap import end_run
from headrace.ledger.ledger import open_ledger
from headrace.states import StepState
from support.airflow_service import AirflowService
from support.runs import attempt_row_of, lease_on_disk
from support.suite_journal import added, ended, journal, make_suite, started

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]

_RUNS, _TRIALS = 200, 2_000
_EVERY_S = 5.0
"""As often a page asks."""
_FOR_S = 60.0


def test_airflow_answers_as_quickly_with_fifty_browsers(airflow_service: AirflowService):
    num_browsers = int(os.environ.get("HEADRACE_BROWSERS", "50"))
    with airflow_service.settings():
        suite = make_suite(overrides=("trainer.monitor=val_loss",))
        journal(suite.folder, *(added(n, model__lr=n / 1000) for n in range(1, _TRIALS + 1)))
        for number in range(1, _TRIALS + 1):
            journal(suite.folder, started(number), ended(number, 1 / number))
        attempt_row_of(suite, "pack", lease_on_disk(suite))
        for _ in range(_RUNS):
            end_run(make_suite(), StepState.CANCELLED, "a benchmark")
    pages = ("runs?limit=200", f"suite?id={suite.run_id}", "leases", f"run?id={suite.run_id}",
             f"trials?id={suite.run_id}", "runs?limit=200&where=seed!%3D1")  # fmt: skip
    browsers = [
        _Browser(airflow_service, pages[index % len(pages)], index / num_browsers)
        for index in range(num_browsers)
    ]
    figures = {"runs": _RUNS, "trials": _TRIALS, "browsers": num_browsers}
    figures |= {"without": _answer_times(airflow_service)}
    with _open(browsers):
        figures |= {"with": _answer_times(airflow_service)}
    took = sorted(each for browser in browsers for each in browser.took)
    figures |= {"asked": len(took), "unchanged": sum(each.unchanged for each in browsers)}
    figures |= {"page": _summary(took), "load": os.getloadavg()}
    print(json.dumps(figures, indent=1))
    assert sum(each.failed for each in browsers) == 0
    with airflow_service.settings():
        end_run(suite, StepState.CANCELLED, "a benchmark")
        assert open_ledger().run(suite.run_id).state is StepState.CANCELLED


class _Browser(threading.Thread):
    """Asks for one page again and again, as its script does while it is seen."""

    def __init__(self, service: AirflowService, page: str, phase: float) -> None:
        super().__init__(daemon=True)
        service.api.health()
        self._url = f"{service.url}/headrace/data/{page}"
        self._token, self._phase = service.api.token, phase
        self.closed = threading.Event()
        self.took: list[float] = []
        self.unchanged = self.failed = 0

    def run(self) -> None:
        etag = ""
        self.closed.wait(self._phase * _EVERY_S)
        while not self.closed.wait(_EVERY_S):
            headers = {"Authorization": f"Bearer {self._token}", "If-None-Match": etag}
            request = urllib.request.Request(self._url, headers=headers)
            began = time.monotonic()
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
                    etag = answer.headers["ETag"]
            except urllib.error.HTTPError as error:
                self.unchanged += error.code == 304
                self.failed += error.code != 304
            self.took.append(time.monotonic() - began)


@contextmanager
def _open(browsers: list[_Browser]) -> Iterator[None]:
    for browser in browsers:
        browser.start()
    time.sleep(2 * _EVERY_S)
    yield
    for browser in browsers:
        browser.closed.set()
    for browser in browsers:
        browser.join(120)


def _answer_times(service: AirflowService) -> dict[str, dict[str, float]]:
    """How long Airflow takes to answer, by what is asked."""
    asked = {
        "health": service.api.health,
        "runs": lambda: service.api.runs("headrace_train"),
    }
    took: dict[str, list[float]] = {name: [] for name in asked}
    deadline = time.monotonic() + _FOR_S
    while time.monotonic() < deadline:
        for name, ask in asked.items():
            began = time.monotonic()
            ask()
            took[name].append(time.monotonic() - began)
            time.sleep(0.1)
    return {name: _summary(each) for name, each in took.items()}


def _summary(took: list[float]) -> dict[str, float]:
    parts = statistics.quantiles(took, n=100)
    return {"p50_ms": 1e3 * parts[49], "p99_ms": 1e3 * parts[98], "most_ms": 1e3 * max(took)}
