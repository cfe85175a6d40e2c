"""Plans and previews: without forecasts, or with failing ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.clusters.lease_records import Walltime
from headrace.errors import RecipeError
from headrace.execution.execute import previews
from headrace.informing import failures_of
from headrace.packing.pack_step import pack
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.site import Site
from headrace.runs import planning, resolve
from headrace.runs.planning import Planner, note_prediction, walltime_of
from headrace.runs.prediction import Prediction
from headrace.states import StepState
from headrace.status.cost import cost_page
from headrace.status.run_details import run_details
from headrace.suites import trial_order
from headrace.suites.records import Added, Ended, Started, Trial
from headrace.suites.suite_state import SuiteState
from support.packing import image_source, in_process, make_context, write_image
from support.runs import make_run

pytestmark = pytest.mark.usefixtures("headrace_home")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other package adds a planner."""
    monkeypatch.setattr(planning, "load_group", lambda _: {})
    monkeypatch.setattr(trial_order, "load_group", lambda _: {})
    planning.planner.cache_clear()
    yield
    planning.planner.cache_clear()


def _batch_system(monkeypatch: pytest.MonkeyPatch, longest_s: float | None = None) -> None:
    system = SimpleNamespace(name="Slurm", longest_job_s=lambda _: longest_s)
    monkeypatch.setattr(planning, "system_of", lambda _: system)


def _auto(site: Site, most_s: float | None) -> Site:
    """Return the site with a role `gpu` whose lifetime is chosen."""
    role = site.roles["gpu"].model_copy(update={"lifetime": "auto", "lifetime_max": most_s})
    return site.model_copy(update={"roles": {**site.roles, "gpu": role}})


@pytest.mark.usefixtures("alone")
def test_a_run_is_foretold_nothing_and_is_shown():
    run = make_run()
    note_prediction(run)
    found = Prediction.model_validate_json(run.folder.prediction.read_bytes())
    assert (found.seconds, found.parts) == (None, ())
    assert found.unknown == ("pack", "stage", "train", "evaluate")
    assert run_details(run.run_id).ahead is None
    assert cost_page().budgets == ()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("most_s", "why"),
    [(7200.0, "`lifetime_max`, 2:00:00"), (None, "Slurm's longest job, 1 day, 0:00:00")],
)
def test_a_lifetime_that_is_to_be_chosen_is_the_longest(
    most_s: float | None, why: str, monkeypatch: pytest.MonkeyPatch
):
    _batch_system(monkeypatch, 86_400.0)
    site, recipe = load_site("laptop"), load_recipe("digits")
    assert walltime_of(recipe, site, "gpu", "train") is None
    found = walltime_of(recipe, _auto(site, most_s), "gpu", "train")
    assert found.seconds == (most_s or 86_400.0)
    assert found.why == f"the longest, without a forecast: {why}"


@pytest.mark.usefixtures("alone")
def test_trials_take_what_those_before_took_on_average():
    suite_state = SuiteState()
    for number in range(1, 5):
        trial = Trial(number=number, name=str(number), values={}, group=number)
        suite_state.take(Added(trial=trial))
    order = trial_order.trial_order(load_recipe("digits", ()))
    times = {"started_at": 1000.0, "finished_at": 1010.0}
    suite_state.take(Started(number=1, attempt=1, node="node-0", at=1000.0))
    assert order.left(suite_state, lambda _: 0.0, 4) is None
    suite_state.take(Ended(number=1, attempt=1, state=StepState.SUCCEEDED, is_final=True, **times))
    suite_state.take(Started(number=2, attempt=1, node="node-0", at=time.time()))
    eta = order.left(suite_state, lambda _: 0.0, 4)
    assert eta.seconds == pytest.approx(30.0, abs=1.0)


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


def _found(monkeypatch: pytest.MonkeyPatch, walltime: Callable[..., Any]) -> tuple[Walltime, int]:
    """Return the time limit by a planner, and the number of its failures."""
    monkeypatch.setattr(planning, "planner", type("Other", (Planner,), {"walltime": walltime}))
    _batch_system(monkeypatch)
    run = make_run()
    found = walltime_of(run.recipe, _auto(run.site, 7200.0), "gpu", "train", run)
    return found, failures_of(run.folder).count


@pytest.mark.parametrize(("walltime", "count"), FAULTS.values(), ids=FAULTS)
def test_a_failed_forecast_gives_the_longest_time_and_says_so(
    walltime: Callable[..., Any], count: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(planning, "DECISION_S", 0.2 if walltime is _hangs else 60.0)
    found, failures = _found(monkeypatch, walltime)
    assert (found.seconds, found.most_s) == (7200.0, 7200.0)
    assert found.why == "the longest, without a forecast: `lifetime_max`, 2:00:00"
    assert failures == count


def test_a_forecast_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch):
    found, failures = _found(monkeypatch, _gives(60.0))
    assert (found.seconds, found.why, failures) == (60.0, "a guess", 0)


__all__ = ["image_source", "in_process", "make_context"]


def test_the_time_limit_of_a_job_is_explained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_CONF", "/somewhere/slurm.conf")
    found = {each.role: each for each in previews(load_recipe("digits"), load_site("slurm-dev"))}
    assert "#SBATCH --time=01:00:00" in found["gpu"].script
    assert found["gpu"].time.startswith("time limit 1:00:00, the `lifetime` of the role; the lease")
    assert "goes on in another job" in found["gpu"].time
    assert "goes on" not in found["cpu"].time


def test_a_lease_of_this_machine_has_no_time_limit_but_its_own():
    found = previews(load_recipe("digits"), load_site("laptop"))
    assert {each.script for each in found} == {""}
    assert all(each.time.endswith("the `lifetime` of the role") for each in found)


@pytest.mark.parametrize("form", ["files", "table"])
def test_what_is_packed_already_asks_a_queue_for_no_lease_of_its_own(
    image_source, make_context, in_process, monkeypatch, form
):
    source = image_source
    if form == "table":
        source = source.with_name("rows.csv")
        source.write_text("x,label\n" + "".join(f"{each},{each % 2}\n" for each in range(40)))
    context = make_context(source)
    own = {"folder": context.site.folder, "allowed_sources": ("/",)}
    site, recipe = load_site("slurm-dev").model_copy(update=own), context.recipe

    def leases():
        return [each.role for each in previews(recipe, site, "suite")]

    assert leases() == ["cpu", "gpu"]
    pack(context, in_process)
    assert leases() == ["gpu"]
    if form == "files":
        _check_what_the_nodes_are_asked(recipe, site, monkeypatch)
        write_image(source / "cat" / "new.png", 77)
    else:
        source.write_text(source.read_text() + "40,0\n")
    assert leases() == ["cpu", "gpu"]


@pytest.mark.parametrize("kind", ["suite", "pack"])
def test_folders_of_unclear_meaning_ask_a_queue_for_nothing(image_source, make_context, kind):
    context = make_context(image_source)
    image_source.joinpath("cat").rename(image_source / "train")
    own = {"folder": str(image_source.parent), "allowed_sources": ("/",)}
    with pytest.raises(RecipeError, match=r"'train' .* may be a split or not"):
        previews(context.recipe, load_site("slurm-dev").model_copy(update=own), kind)


def _check_what_the_nodes_are_asked(recipe, site, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(resolve, "_LISTING_S", -1.0)  # a source that takes longer to list
        assert [each.role for each in previews(recipe, site, "suite")] == ["cpu", "gpu"]
    code = recipe.dataset.model_copy(update={"reader": "mine.read"})  # is not called here
    with_code = recipe.model_copy(update={"dataset": code})
    with monkeypatch.context() as patch:
        patch.setattr("headrace.packing.opened_source.is_packed", lambda *_: True)
        assert resolve._on_one_lease(recipe, site).packing_role == "gpu"
        assert resolve._on_one_lease(with_code, site) is with_code
