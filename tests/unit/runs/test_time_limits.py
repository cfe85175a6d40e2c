"""A time limit is a decision: without a forecast it is the longest that the role may have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.clusters.lease_records import Walltime
from headrace.informing import failures_of
from headrace.runs import planning
from headrace.runs.planning import Planner, walltime_of
from support.runs import make_run

pytestmark = pytest.mark.usefixtures("headrace_home", "_queue")


@pytest.fixture
def _queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch system without a limit of its own."""
    system = SimpleNamespace(name="Slurm", longest_job_s=lambda _: None)
    monkeypatch.setattr(planning, "system_of", lambda _: system)


def _raises(*_: object) -> None:
    raise KeyError("model.dropout")


def _hangs(*_: object) -> None:
    threading.Event().wait()


def _gives(seconds: Any) -> Callable[..., Walltime]:
    return lambda *_: Walltime.model_construct(seconds=seconds, most_s=7200.0, why="a guess")


FAULTS = {
    "raises": (_raises, 1),
    "hangs": (_hangs, 1),
    "no time": (lambda *_: "soon", 1),
    "NaN": (_gives(float("nan")), 1),
    "negative": (_gives(-60.0), 1),
    "infinite": (_gives(float("inf")), 1),
    "a text": (_gives("soon"), 1),
    "nothing at all": (_gives(0.0), 0),
    "more than the most": (_gives(7201.0), 0),
    "no forecast": (lambda *_: None, 0),
}


@pytest.mark.parametrize(("walltime", "count"), FAULTS.values(), ids=FAULTS)
def test_a_failed_forecast_gives_the_longest_time_and_says_so(
    walltime: Callable[..., Any], count: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(planning, "DECISION_S", 0.2 if walltime is _hangs else 60.0)
    chosen = type("Broken", (Planner,), {"walltime": walltime})
    monkeypatch.setattr(planning, "planner", chosen)
    run = make_run()
    role = run.site.roles["gpu"].model_copy(update={"lifetime": "auto", "lifetime_max": 7200.0})
    site = run.site.model_copy(update={"roles": {**run.site.roles, "gpu": role}})
    found = walltime_of(run.recipe, site, "gpu", "train", run)
    assert found is not None
    assert (found.seconds, found.most_s) == (7200.0, 7200.0)
    assert found.why == "the longest, without a forecast: `lifetime_max`, 2:00:00"
    assert failures_of(run.folder).count == count


def test_a_forecast_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planning, "planner", type("Good", (Planner,), {"walltime": _gives(60.0)}))
    run = make_run()
    role = run.site.roles["gpu"].model_copy(update={"lifetime": "auto", "lifetime_max": 7200.0})
    site = run.site.model_copy(update={"roles": {**run.site.roles, "gpu": role}})
    found = walltime_of(run.recipe, site, "gpu", "train", run)
    assert found is not None
    assert (found.seconds, found.why) == (60.0, "a guess")
