"""headrace's pages as people see them: a real run in a real Airflow, in Chromium.

`pytest --pictures docs/images` on this file also makes the pictures of the docs.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from playwright.sync_api import FrameLocator, Locator, Page, Request, Route, expect

from headrace.cli.airflow_server import MARK, AirflowApi
from headrace.execution.reap import end_run
from headrace.files.layout import RunFolder
from headrace.files.manifest import Quarantined
from headrace.files.manifest_file import write_manifest
from headrace.leases import run_leases
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import end_processes
from headrace.runs.runs import Run
from headrace.states import FailureClass, LeaseState, StepState
from headrace.steps.history import HistoryRow, training_file
from support.airflow_service import DAG_ID, LONG_S, AirflowService
from support.browser import NETWORK_CHANGED, load, page
from support.leases import START_TIMEOUT_S, wait_for_state
from support.ports import find_free_port
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.shards import write_dataset
from support.suite_journal import added, ended, failed, journal, make_suite, started

__all__ = ["page"]

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.browser,
    pytest.mark.slow,
]

_GENEROUS_MS = 60_000
_AXE = Path(__file__).parents[2] / "support" / "vendor" / "axe.min.js"
_SIZES = ((1440, 900), (390, 844))
_EVIL = "<img src=x onerror=\"document.title='hacked'\">"
_TRIALS = 10_000
_CURVED = 7
"""A trial that has curves."""
_PICTURES = {
    ("suite", "dark", 1440): "suite-page",
    ("run", "dark", 390): "run-page-narrow",
    ("dataset", "light", 1440): "dataset-page",
}
"""Pictures of the docs, besides that of a run under way."""

Visit = Callable[[str], None]
Picture = Callable[[str], None]


@pytest.fixture
def told(page: Page, airflow_service: AirflowService) -> Iterator[list[str]]:
    """Errors in the console of a browser that is logged in; a test ends without any."""
    token = airflow_service.asked(airflow_service.api.cookie)
    page.context.add_cookies([{"name": "_token", "value": token, "url": airflow_service.url}])
    said: list[str] = []
    page.on("console", lambda it: said.append(it.text) if it.type == "error" else None)
    page.on("pageerror", lambda it: said.append(str(it)))
    yield said
    assert [each for each in said if NETWORK_CHANGED not in each] == []


@pytest.fixture
def visit(page: Page, airflow_service: AirflowService, told: list[str]) -> Visit:
    """Opens a page of headrace, by its address below `/headrace/`, without Airflow around it."""

    def open_page(address: str) -> None:
        load(page, f"{airflow_service.url}/headrace/{address}")
        expect(page.get_by_role("heading", level=1)).not_to_be_empty(timeout=_GENEROUS_MS)
        expect(page.locator(".loading")).to_have_count(0, timeout=_GENEROUS_MS)

    return open_page


@pytest.fixture
def picture(page: Page, request: pytest.FixtureRequest) -> Picture:
    """Takes a picture for the docs, where pictures are asked for."""
    folder = request.config.getoption("--pictures")

    def take(name: str) -> None:
        if folder and name:
            page.screenshot(path=Path(folder) / f"{name}.png")

    return take


@pytest.fixture(scope="module")
def dag_run(airflow_service: AirflowService, request: pytest.FixtureRequest) -> str:
    """A run of the digits that has just been triggered; a longer one for pictures."""
    epochs = 100 if request.config.getoption("--pictures") else 8
    monitored = ["trainer.monitor=val/accuracy", "trainer.monitor_mode=max"]
    logged = "trainer.loggers=[csv,tensorboard]"
    return airflow_service.trigger(overrides=[f"trainer.max_epochs={epochs}", logged, *monitored])


@pytest.fixture(scope="module")
def trained(airflow_service: AirflowService, dag_run: str) -> str:
    """The id of that run, once it has ended."""
    assert airflow_service.wait_end(dag_run) == "success"
    return airflow_service.wait_for_run(dag_run)


@pytest.fixture(scope="module")
def suite(airflow_service: AirflowService) -> RunFolder:
    """A suite of ten thousand trials, most of them over."""
    with airflow_service.settings():
        run = make_suite(overrides=("trainer.monitor=val_loss",)).folder
        journal(run, *(entry for number in range(1, _TRIALS + 1) for entry in _trial(number)))
        _trained(run.trial(_CURVED), loss=0.5)
    return run


def _trained(run: RunFolder, **row: Any) -> None:
    """A history of one row."""
    training_file(run).parent.mkdir(parents=True)
    told = HistoryRow(at=1.0, launch=1, epoch=0, step=5, **row)
    training_file(run).write_text(f"{told.model_dump_json()}\n")


def _rate(number: int) -> float:
    return float(10 ** (-5 + 4 * (number * 0.618034 % 1)))


def _trial(number: int) -> Iterator[Any]:
    rate = _rate(number)
    name = {"model__optimizer": _EVIL if number == _TRIALS else "adamw" if number % 2 else "sgd"}
    yield added(number, model__lr=rate, **name)
    if number % 50 == 3:
        yield from (started(number), failed(number, message=_EVIL))
    elif number <= 0.8 * _TRIALS:
        value = 0.2 + 0.1 * abs(math.log10(rate) + 3) + (math.sin(1e4 * number) + 1) / 40
        yield from (started(number, node=f"node-{number % 8}"), ended(number, value))


@pytest.fixture(scope="module")
def hostile(airflow_service: AirflowService) -> Run:
    """A run that failed, in which everything that users choose is HTML."""
    with airflow_service.settings():
        run = make_run(owner=_EVIL)
        lease_id = lease_on_disk(run)
        attempt_row_of(run, "train", lease_id, number=1)
        logs = run.lease_folder(lease_id).step(1).logs
        logs.mkdir(parents=True)
        (logs / "rank-0.log").write_text(f"{_EVIL}\n")
        _trained(run.folder, loss=1.0, metrics={_EVIL: 1.0})
        run.folder.checkpoints.mkdir(parents=True)
        (run.folder.checkpoints / "<b onclick=x>-5.ckpt").touch()
        open_ledger().set_attempt(
            run.run_id, "train", 1, state=StepState.FAILED, message=_EVIL,
            failure_class=FailureClass.USER_ERROR,
        )  # fmt: skip
        end_run(run, StepState.FAILED, "a test")
    return run


@pytest.fixture(scope="module")
def odd_dataset(airflow_service: AirflowService) -> str:
    """The name of a packed dataset with waves and films, in which all names are HTML."""
    count, folder = 40, airflow_service.home / "odd" / "odd"
    fields = {
        "film": np.arange(count * 5 * 64, dtype=np.float32).reshape(count, 5, 8, 8),
        "wave": np.sin(np.arange(count * 500.0)).reshape(count, 500),
        "label": np.arange(count) % 2,
    }
    known = write_dataset(folder, fields, splits={"train": count}, classes=(_EVIL, "b"))
    more = {
        "class_counts": {"train": {_EVIL: 20, "b": 20}},
        "quarantined": (Quarantined(path=_EVIL, reason=_EVIL),),
        "provenance": {"source": _EVIL, "recipe": _EVIL, "versions": {_EVIL: _EVIL}},
    }
    write_manifest(folder, known.model_copy(update=more))
    with airflow_service.settings():
        run = make_run(recipe=str(airflow_service.home / "recipes" / "held.yaml"), site="chaos")
        given = {"dataset": str(folder), "fingerprint": known.fingerprint, "reused": True}
        row = {"state": StepState.SUCCEEDED, "outputs": given}
        attempt_row_of(run, "pack", lease_on_disk(run), **row)
        end_run(run, StepState.SUCCEEDED, "a test")
    return "odd"


@pytest.fixture(scope="module")
def lease(airflow_service: AirflowService) -> Iterator[str]:
    """A lease with a Dask cluster, which nobody uses."""
    with airflow_service.settings():
        run = make_run()
        lease_id = run_leases.acquire(run, "gpu")
        wait_for_state(run.lease_folder(lease_id), LeaseState.READY, START_TIMEOUT_S)
        run_leases.note_ready(run, lease_id)
        yield lease_id
        run_leases.release(run, "gpu", "the test has seen enough")
        end_run(run, StepState.CANCELLED, "a test")


def _open_runs(page: Page) -> None:
    """From Airflow's start page."""
    page.get_by_test_id("nav-sidebar").get_by_role("link", name="headrace").click()


def _within(page: Page) -> FrameLocator:
    """What Airflow shows of headrace."""
    return page.frame_locator("iframe[src*='headrace']")


def test_a_run_is_watched_live_in_airflow(
    airflow_service: AirflowService,
    page: Page,
    told: list[str],
    dag_run: str,
    picture: Picture,
    request: pytest.FixtureRequest,
):
    """From the list in Airflow's navigation to the end of the run, without a reload."""
    run_id = airflow_service.wait_for_run(dag_run)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(airflow_service.url)
    _open_runs(page)
    row = _within(page).get_by_role("row").filter(has_text=run_id)
    expect(row).to_contain_text("running", timeout=_GENEROUS_MS)
    row.get_by_role("link").click()
    run = _within(page)
    expect(run.locator(".chart canvas").first).to_be_visible(timeout=LONG_S * 1000)
    if request.config.getoption("--pictures"):
        step = run.locator(".stat:has(dt:text-is('Step')) .note")
        late = re.compile("epoch ([4-9][0-9]|1[0-9]{2})/")
        expect(step).to_have_text(late, timeout=LONG_S * 1000)
    picture("run-page")
    page.goto(f"{airflow_service.api.run_url(DAG_ID, dag_run)}/plugin/headrace-run")
    expect(run.get_by_role("heading", level=1, name="digits")).to_be_visible(timeout=_GENEROUS_MS)
    expect(run.locator(".state.big")).to_have_text("succeeded", timeout=LONG_S * 1000)
    expect(run.get_by_role("list", name="Steps").locator("[data-state=succeeded]")).to_have_count(4)
    expect(run.get_by_role("button", name="Cancel run")).to_have_count(0)
    run.get_by_role("button", name="Copy the id").click()
    expect(run.get_by_role("button", name="Copied the id")).to_be_visible()
    for theme in ("dark", "light"):
        page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
        page.evaluate("""localStorage.setItem('timezone', '"Asia/Tokyo"')""")
        page.reload()
        expect(run.locator(f"html[data-theme={theme}]")).to_be_attached(timeout=_GENEROUS_MS)
        expect(run.locator(".chart canvas").first).to_be_visible(timeout=_GENEROUS_MS)
        expect(run.locator("time").first).to_have_attribute("title", re.compile(r"GMT\+9$"))


def test_the_empty_list_opens_the_dag_around_it(
    airflow_service: AirflowService, page: Page, told: list[str]
):
    """The link leaves Airflow's frame without a reload; the answer is as before the first run."""

    def without_runs(route: Route) -> None:
        answer = route.fetch().json()
        route.fulfill(json=answer | {"rows": [], "refused": []})

    page.route("**/data/runs?*", without_runs)
    page.goto(airflow_service.url)
    _open_runs(page)
    _within(page).get_by_role("button", name=f"Open the DAG {DAG_ID}").click()
    page.wait_for_url(f"**/dags/{DAG_ID}")
    trigger = page.get_by_role("button", name="Trigger")
    expect(trigger.first).to_be_visible(timeout=_GENEROUS_MS)
    expect(page.locator("iframe[src*='headrace']")).to_have_count(0)


def test_every_page_is_legible_for_everybody(
    page: Page,
    visit: Visit,
    trained: str,
    suite: RunFolder,
    hostile: Run,
    odd_dataset: str,
    picture: Picture,
):
    """Light and dark, wide and narrow: nothing beyond the edge, and nothing that axe finds."""
    pages = {
        "runs": f"?compare={trained}",
        "run": f"run/?id={trained}",
        "failed-run": f"run/?id={hostile.run_id}",
        "suite": f"suite/?id={suite.run_id}",
        "leases": "leases/",
        "datasets": "datasets/",
        "dataset": "datasets/?id=digits",
        "odd-dataset": f"datasets/?id={odd_dataset}",
        "cost": "cost/?by=site",
    }
    axe = _AXE.read_text()
    for name, address in pages.items():
        page.emulate_media(color_scheme="light")
        visit(address)
        page.evaluate(axe)
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            expect(page.locator(f"html[data-theme={theme}]")).to_be_attached()
            for width, height in _SIZES:
                page.set_viewport_size({"width": width, "height": height})
                beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert beyond <= 0, (name, width)
                if (theme == "light") == (width > 1000):  # once in each theme, once in each width
                    assert _problems(page) == [], (name, theme, width)
                picture(_PICTURES.get((name, theme, width), ""))


def _problems(page: Page) -> list[tuple[str, str]]:
    """What axe finds, and the first place of each."""
    found = page.evaluate("axe.run(document, {iframes: false})")["violations"]
    return [(each["id"], each["nodes"][0]["html"]) for each in found]


def test_dask_and_tensorboard_are_watched_through_airflow(
    airflow_service: AirflowService, page: Page, told: list[str], lease: str, trained: str
):
    """Plots are drawn by messages of the lease's scheduler, curves from event files; no cookie."""
    sent: list[str] = []
    inside = "/headrace/proxy/"

    def note(request: Request) -> None:
        if inside in request.url and not request.is_navigation_request():
            sent.append(request.all_headers().get("cookie", ""))

    page.on("requestfinished", note)
    page.goto(f"{airflow_service.url}/plugin/headrace")
    _within(page).get_by_role("link", name="Leases").click()
    _within(page).get_by_role("link", name=f"Dask dashboard of {lease}").click()
    shown = _within(page).frame_locator("iframe[title='Dask dashboard']")
    expect(shown.locator("canvas").first).to_be_visible(timeout=_GENEROUS_MS)
    shown.get_by_role("link", name="Workers").click()
    expect(shown.get_by_text("tls://127.0.0.1").first).to_be_visible(timeout=_GENEROUS_MS)
    assert shown.locator("body").evaluate("() => origin") == "null"
    _within(page).get_by_role("link", name="Back").click()
    expect(_within(page).get_by_role("heading", level=1, name="Leases")).to_be_visible()

    page.goto(f"{airflow_service.url}/headrace/run/?id={trained}")
    page.get_by_role("link", name="TensorBoard").click()
    shown = page.frame_locator("iframe[title=TensorBoard]")
    card = shown.locator("card-view").first  # its table has what was asked for by POST
    expect(card.get_by_text("tensorboard/version_0").first).to_be_visible(timeout=_GENEROUS_MS)
    page.get_by_role("link", name="Back").click()
    expect(page.get_by_role("heading", level=1, name="digits")).to_be_visible()
    assert len(sent) > 10
    assert set(sent) == {""}


def test_a_run_is_found_and_compared_without_a_mouse(
    page: Page, visit: Visit, trained: str, hostile: Run
):
    visit("")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    _tab_to(page, page.get_by_role("button", name="Failed"))
    page.keyboard.press("Enter")
    rows = page.get_by_role("table", name="Runs").locator("tbody").get_by_role("row")
    expect(rows.filter(has_text=trained)).to_have_count(0, timeout=_GENEROUS_MS)
    expect(rows.filter(has_text=hostile.run_id)).to_have_count(1)
    _tab_to(page, page.get_by_role("searchbox"), back=True)
    page.keyboard.type(trained)
    expect(page.get_by_text("No run matches.")).to_be_visible(timeout=_GENEROUS_MS)
    _tab_to(page, page.get_by_role("button", name="All", exact=True), back=True)
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1, timeout=_GENEROUS_MS)
    _tab_to(page, page.get_by_role("checkbox", name=f"Compare {trained}"))
    page.keyboard.press("Space")
    expect(page.locator(".chart canvas").first).to_be_visible(timeout=_GENEROUS_MS)
    visit(f"?compare={trained}+{hostile.run_id}&text={trained}")
    differ = page.get_by_role("table", name="What differs")
    monitored = differ.get_by_role("row").filter(has_text="trainer.monitor_mode")
    expect(monitored.get_by_role("cell")).to_have_text(
        ["recipe trainer.monitor_mode", "max", "min"], timeout=_GENEROUS_MS
    )
    expect(page.locator(".legend .name").filter(has_text="digits ")).not_to_have_count(0)
    _tab_to(page, rows.get_by_role("link"))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/headrace/run/?id={trained}")
    expect(page.get_by_role("log")).to_be_visible(timeout=_GENEROUS_MS)
    expect(page.frame_locator("iframe[title=Report]").locator("h1")).not_to_be_empty()


def _tab_to(page: Page, place: Locator, *, back: bool = False) -> None:
    """Press Tab, or Shift and Tab, until a place has the focus."""
    place.wait_for()
    for _ in range(60):
        if place.evaluate("node => node === document.activeElement"):
            return
        page.keyboard.press("Shift+Tab" if back else "Tab")
    pytest.fail(f"Tab does not reach {place}")


def test_samples_are_looked_through_without_a_mouse(
    page: Page, visit: Visit, trained: str, odd_dataset: str
):
    visit("datasets/")
    _tab_to(page, page.get_by_role("link", name="digits", exact=True))
    page.keyboard.press("Enter")
    seen = page.get_by_role("img", name=re.compile("^image of sample 0 of train"))
    expect(seen).to_be_visible(timeout=_GENEROUS_MS)
    assert seen.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [8, 8]
    used = page.get_by_role("table", name="Runs that trained on it")
    expect(used.get_by_role("link", name=trained)).to_be_visible()
    _tab_to(page, page.get_by_role("button", name="Next"))
    page.keyboard.press("Enter")
    place = page.locator(".place")
    expect(place).to_contain_text("sample 1 of train", timeout=_GENEROUS_MS)
    page.get_by_role("combobox", name="Class").select_option("7")
    expect(page.locator(".shown").filter(has_text="label")).to_contain_text("7 (7)")
    page.get_by_role("combobox", name="Split").select_option("val")
    page.get_by_role("spinbutton", name="Number of the sample").fill("12")
    page.keyboard.press("Enter")
    expect(place).to_contain_text("of val, 180 in all", timeout=_GENEROUS_MS)
    assert "split=val" in page.url
    visit(f"datasets/?id={odd_dataset}&at=39")
    expect(page.locator(".chart canvas")).to_be_visible(timeout=_GENEROUS_MS)
    page.get_by_role("slider", name="Picture of film").press("End")
    expect(page.get_by_text("Picture 5 of 5")).to_be_visible(timeout=_GENEROUS_MS)
    page.get_by_role("button", name="Previous").press("Enter")
    expect(place).to_contain_text("sample 38 of train", timeout=_GENEROUS_MS)


def test_a_lease_in_the_queue_tells_when_it_is_expected_to_begin(
    page: Page, visit: Visit, lease: str
):
    """The answer is that of the server, as if the batch system had told of a start."""

    def as_if_queued(route: Route) -> None:
        answer = route.fetch().json()
        (row,) = (each for each in answer["rows"] if each["lease_id"] == lease)
        row |= {"waits_for": "priority", "expected_start": answer["now"] + 750}
        route.fulfill(json=answer)

    page.route("**/data/leases", as_if_queued)
    visit("leases/")
    row = page.get_by_role("table", name="Leases").get_by_role("row").filter(has_text=lease)
    expect(row).to_contain_text(re.compile("priority.*in about 12 min 30 s"))


def test_html_of_users_is_text(
    page: Page, visit: Visit, hostile: Run, suite: RunFolder, odd_dataset: str
):
    """In the cause, the log, names of metrics, checkpoints, classes, and values of trials."""
    visit(f"run/?id={hostile.run_id}")
    expect(page.locator(".notice.bad")).to_have_text(_EVIL)
    expect(page.get_by_role("log")).to_contain_text(_EVIL, timeout=_GENEROUS_MS)
    expect(page.locator(".legend").filter(has_text=_EVIL)).to_have_count(1)
    expect(page.get_by_role("table", name="Checkpoints")).to_contain_text("<b onclick=x>-5.ckpt")
    visit(f"suite/?id={suite.run_id}&text=<img")
    expect(page.get_by_role("cell", name=_EVIL).first).to_be_visible(timeout=_GENEROUS_MS)
    visit(f"datasets/?id={odd_dataset}")
    for name in ("Samples of each class", "Samples that could not be packed"):
        cell = page.get_by_role("table", name=name).get_by_role("cell", name=_EVIL)
        expect(cell.first).to_be_visible()
    expect(page.locator(".shown").filter(has_text="label")).to_contain_text(_EVIL)
    expect(page.locator(".lineage")).to_contain_text(_EVIL)
    assert page.locator("img[src=x]").count() == 0
    visit(f"?text={hostile.run_id}")
    expect(page.get_by_role("cell").filter(has_text=_EVIL).first).to_be_visible()
    assert page.locator("img").count() == 0
    assert "hacked" not in page.title()


def test_ten_thousand_trials_are_sorted(page: Page, visit: Visit, suite: RunFolder):
    """Only rows in sight are in the page."""
    visit(f"suite/?id={suite.run_id}")
    table = page.get_by_role("table", name="Trials")
    expect(table).to_have_attribute("aria-rowcount", str(_TRIALS + 1))
    assert table.get_by_role("row").count() < 100
    table.get_by_role("button", name="Trial", exact=True).click()
    first = table.locator("tbody tr:not(.spacer)").first
    expect(first).to_contain_text("10000")
    expect(table.get_by_role("columnheader", name="Trial")).to_have_attribute(
        "aria-sort", "descending"
    )
    page.locator(".table-box.windowed").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    expect(table.locator("tbody tr:not(.spacer)").last).to_have_attribute(
        "aria-rowindex", str(_TRIALS + 1)
    )


def test_parts_of_axes_choose_trials_and_ticked_ones_show_their_curves(
    page: Page, visit: Visit, suite: RunFolder
):
    visit(f"suite/?id={suite.run_id}")
    table = page.get_by_role("table", name="Trials")
    rate = page.get_by_role("slider", name="Part of lr")
    rate.press("ArrowUp")
    expect(rate).to_have_attribute("aria-valuetext", re.compile(r"^0\.00\d+ to 0\.0\d+$"))
    expect(table).to_have_attribute("aria-rowcount", re.compile(r"^2[3-7]\d\d$"))
    optimizer = page.get_by_role("slider", name="Part of optimizer")
    box = optimizer.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] - 5)  # sgd is on top
    page.mouse.down()
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] * 0.6, steps=5)
    page.mouse.up()
    expect(table).to_have_attribute("aria-rowcount", re.compile(r"^1[12]\d\d$"))
    expect(table.get_by_role("cell", name="sgd")).to_have_count(0)
    optimizer.press("Escape")
    page.get_by_role("button", name="Show all", exact=True).click()
    expect(table).to_have_attribute("aria-rowcount", str(_TRIALS + 1))
    page.get_by_role("searchbox").fill(f"lr{_rate(_CURVED)}")
    page.get_by_role("checkbox", name=f"Trial {_CURVED}", exact=True).check()
    curves = page.get_by_role("heading", name="Curves of one trial")
    expect(curves).to_be_visible(timeout=_GENEROUS_MS)
    expect(page.locator(".legend").filter(has_text=f"trial {_CURVED}")).not_to_have_count(0)
    rerun = page.get_by_role("button", name="Copy rerun command").last
    expect(rerun).to_have_attribute("title", f"headrace rerun {suite.run_id}:{_CURVED}")


@pytest.fixture
def behind_a_base_path(airflow_service: AirflowService) -> Iterator[str]:
    """One more API server of the same Airflow, at an address with a path; gives the address."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}/some/base"
    with airflow_service.settings():
        environment = {**os.environ, **airflow_service.server.environment}
    environment |= {"AIRFLOW__API__BASE_URL": url, "AIRFLOW__API__PORT": str(port)}
    environment |= {MARK: str(airflow_service.home), "SPT_NOENV": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "airflow", "api-server", "--port", str(port)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as server:
        api = AirflowApi(url, airflow_service.login)
        airflow_service.asked(api.health)
        yield url
        end_processes([psutil.Process(server.pid), *psutil.Process(server.pid).children(True)])


def test_pages_behind_a_base_path(
    airflow_service: AirflowService,
    behind_a_base_path: str,
    page: Page,
    told: list[str],
    dag_run: str,
    trained: str,
    suite: RunFolder,
):
    """List, run, tab, and what is asked: whatever the address before Airflow's own."""
    token = airflow_service.asked(airflow_service.api.cookie)
    page.context.add_cookies([{"name": "_token", "value": token, "url": behind_a_base_path}])
    page.goto(f"{behind_a_base_path}/")
    _open_runs(page)
    frame = _within(page)
    frame.get_by_role("row").filter(has_text=trained).get_by_role("link").click()
    expect(frame.get_by_role("log")).to_be_visible(timeout=_GENEROUS_MS)
    expect(frame.frame_locator("iframe[title=Report]").locator("h1")).not_to_be_empty()
    run_page = AirflowApi(behind_a_base_path, airflow_service.login).run_url(DAG_ID, dag_run)
    page.goto(f"{run_page}/plugin/headrace-run")
    expect(frame.get_by_role("heading", level=1)).to_have_text("digits", timeout=_GENEROUS_MS)
    page.goto(f"{behind_a_base_path}/headrace/suite/?id={suite.run_id}")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Requested: pause")).to_be_visible(timeout=_GENEROUS_MS)
    assert '"what":"pause"' in suite.controls.read_text()
