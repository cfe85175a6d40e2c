"""What is pressed on headrace's pages happens to real runs, suites and leases of an Airflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from headrace.states import StepState
from support.airflow_service import LONG_S, AirflowService
from support.browser import page
from support.held_training import HeldTraining
from support.page_logins import Doors, doors
from support.terminal import HEADRACE, INTERRUPT, typed

__all__ = ["doors", "page"]

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.browser,
    pytest.mark.slow,
]

_LONG_MS = LONG_S * 1000
_SUITE = "headrace_suite"


@pytest.fixture(autouse=True)
def patience(page: Page) -> None:
    """What was asked is seen after the suite's driver, the server and the page have looked."""
    expect.set_options(timeout=_LONG_MS)


def _log_in(page: Page, service: AirflowService, token: str) -> None:
    page.context.add_cookies([{"name": "_token", "value": token, "url": service.url}])
    page.set_default_timeout(_LONG_MS)


def _press(page: Page, name: str, within: Locator | None = None) -> None:
    """A button, and the one of the dialog that asks once more."""
    (within or page.locator("main")).get_by_role("button", name=name).first.click()
    page.locator("dialog[open]").get_by_role("button", name=name.split()[0]).last.click()


def _state(page: Page, trial: int, state: str) -> None:
    row = page.get_by_role("table", name="Trials").get_by_role("row")
    shown = row.filter(has=page.get_by_role("cell", name=str(trial), exact=True))
    expect(shown.locator("[data-state]")).to_have_text(state)


def _tick(page: Page, trial: int) -> None:
    page.get_by_role("checkbox", name=f"Trial {trial}", exact=True).check()


def test_a_suite_is_paused_added_to_and_cancelled(
    airflow_service: AirflowService, doors: Doors, page: Page, tmp_path: Path
):
    """Each button once; the trials wait for a file, so that there is time for all of them."""
    words = [
        f"train.function.notes={tmp_path}",
        "train.function.x=1,2",
    ]
    dag_run = airflow_service.trigger("waiting", overrides=words, dag_id=_SUITE)
    run_id = airflow_service.wait_for_run(dag_run, _SUITE)
    _log_in(page, airflow_service, doors.tokens["op"])
    page.goto(f"{airflow_service.url}/headrace/suite/?id={run_id}&sort=number")
    _state(page, 1, "running")
    _press(page, "Pause")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    _add_trials(page)
    _state(page, 3, "queued")
    _tick(page, 3)
    _press(page, "Cancel 1")
    _state(page, 3, "cancelled")
    _tick(page, 3)
    _press(page, "Retry 1")
    _state(page, 3, "queued")
    _press(page, "Resume")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    (tmp_path / "go-1").touch()
    _state(page, 1, "succeeded")
    _only_looks(page, airflow_service, doors.tokens["viewer"])
    _press(page, "Cancel trials")
    for trial, state in enumerate(("succeeded", "cancelled", "cancelled"), 1):
        _state(page, trial, state)
    assert airflow_service.wait_end(dag_run, dag_id=_SUITE) == "failed"
    expect(page.locator(".state.big")).to_have_text("cancelled")
    airflow_service.assert_books_closed(run_id)
    _noted(page, "op", ["cancel", "resume", "retry", "cancel", "add", "pause"])
    _noted(page, airflow_service.login.user, ["start"])


def _noted(page: Page, user: str, acts: list[str]) -> None:
    """Each act has one line with the name of who asked, the newest first."""
    rows = page.get_by_role("table", name="Who did what").get_by_role("row")
    of_user = rows.filter(has=page.get_by_role("cell", name=f"{user} in Airflow", exact=True))
    expect(of_user.get_by_role("cell").nth(2)).to_be_visible()
    told = [row.get_by_role("cell").nth(2).inner_text() for row in of_user.all()]
    assert told == acts


def _add_trials(page: Page) -> None:
    """A wrong word is told by its name, and a right one counted, before anything is asked."""
    page.get_by_role("button", name="Add trials").click()
    dialog = page.get_by_role("dialog", name="Add trials")
    words = dialog.get_by_label("Values")
    words.fill("train.function.y=3")
    dialog.get_by_role("button", name="Count them").click()
    expect(dialog.get_by_role("alert")).to_contain_text("train.function")
    words.fill("train.function.x=1,3")
    dialog.get_by_role("button", name="Count them").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Trials 1 and 3 are the same")
    words.fill("train.function.x=3")
    dialog.get_by_role("button", name="Count them").click()
    expect(dialog.get_by_role("status")).to_have_text("1 trial would be added.")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_text("Asked to add 1 trial")).to_be_visible()


def _only_looks(page: Page, service: AirflowService, token: str) -> None:
    """A viewer sees the same page without its buttons; what these would ask is refused (403)."""
    browser = page.context.browser
    assert isinstance(browser, Browser)
    other = browser.new_page()
    _log_in(other, service, token)
    other.goto(page.url)
    expect(other.get_by_role("checkbox", name="Trial 3", exact=True)).to_be_visible()
    other.get_by_role("checkbox", name="Trial 3", exact=True).check()
    expect(other.get_by_role("button", name="Copy rerun command")).to_have_count(2)
    acts = other.get_by_role("button", name=re.compile("^(Pause|Resume|Cancel|Retry|Add)"))
    expect(acts).to_have_count(0)
    other.close()


def test_a_lease_is_closed_and_a_run_cancelled_while_terminals_watch(
    airflow_service: AirflowService, doors: Doors, page: Page, tmp_path: Path
):
    """Training goes on after its lease was closed, on another one, until it is cancelled."""
    training = HeldTraining(airflow_service, tmp_path / "run")
    training.wait_held()
    _log_in(page, airflow_service, doors.tokens["op"])
    page.goto(f"{airflow_service.url}/headrace/leases/")
    lease = page.get_by_role("row").filter(has_text=f"{training.run_id}-gpu-1")
    _press(page, "Close", within=lease)
    expect(lease.locator("[data-state]")).to_have_text("closed")
    training.wait_held(2)
    page.goto(f"{airflow_service.url}/headrace/run/?id={training.run_id}")
    attempts = page.get_by_role("table", name="Attempts").get_by_role("row")
    expect(attempts.filter(has_text="op in Airflow")).to_have_count(1)
    _watched(airflow_service, training)
    _press(page, "Cancel run")
    expect(page.locator(".state.big")).to_have_text("cancelled")
    training.wait_run(StepState.CANCELLED)
    _noted(page, "op", ["cancel", "close"])


def _watched(service: AirflowService, training: HeldTraining) -> None:
    """`lease list --watch` and `attach` show the same anew until Ctrl-C."""
    lease_id = f"{training.run_id}-gpu-2"
    with service.settings():
        words = [HEADRACE, "lease", "list", "--watch"]
        leases = typed(words, [(lease_id, ""), (lease_id, INTERRUPT)], LONG_S)
        words = [HEADRACE, "attach", training.run_id]
        status = typed(words, [("running (2)", ""), ("running (2)", INTERRUPT)], LONG_S)
    assert (leases.exit_code, status.exit_code) == (130, 130)
    assert "Traceback" not in leases.output + status.output
