"""Lists and pages of runs in Chromium, on a real ledger and real folders, without Airflow."""

from __future__ import annotations

import re
import shutil
import time

import pytest
from playwright.sync_api import Page, expect

from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.states import LeaseState, StepState
from headrace.steps.mailbox import Progress, StepStatus
from support.browser import page
from support.ledger_rows import act_row, add_ended_lease
from support.page_server import Visit, visit
from support.past_runs import past_run
from support.runs import make_run, running

__all__ = ["page", "visit"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

EVIL = "<img src=x onerror=\"document.title='hacked'\">"


def rows(page: Page, name: str = "Runs"):
    return page.get_by_role("table", name=name, exact=True).locator("tbody").get_by_role("row")


def training(**changes) -> Run:
    """A run whose training goes on: 4 min of it are left, at 50 batches per second."""
    status = StepStatus(
        state=StepState.RUNNING, updated_at=time.time(), elapsed_s=60.0, eta_s=240.0, rate=50.0,
        progress=Progress(done=3.0, total=15.0, unit="batches", phase="epoch 3/15"),
        metrics={"loss": 0.5, "samples_per_s": 900.0},
    )  # fmt: skip
    return running("train", status, **changes)


def test_an_empty_list_leads_to_the_form_and_names_the_command(page: Page, visit: Visit):
    visit("")
    expect(page.get_by_text("headrace run digits --site laptop")).to_be_visible()
    visit("?user=bob")
    expect(page.get_by_text("No run matches.")).to_be_visible()


def test_rows_say_what_differs_and_filters_stay_in_the_address(page: Page, visit: Visit):
    first = past_run(3, "seed=5")
    second = past_run(4, "seed=6")
    pack = make_run(kind="pack")
    open_ledger().add_act(
        act_row(what="start", run_id="airflow:headrace_train:a", details=EVIL, refused="no key x",
                created_at=time.time())
    )  # fmt: skip
    visit("")
    expect(rows(page)).to_have_count(2)
    row = rows(page).filter(has_text=first.run_id)
    for text in ("max_epochs=3", "and 1 more"):
        expect(row).to_contain_text(text)
    expect(rows(page).filter(has_text=pack.run_id)).to_have_count(0)
    expect(rows(page, "Refused requests")).to_contain_text([EVIL])
    assert "hacked" not in page.title()
    page.get_by_text("Filters and order").click()
    page.get_by_label("Key or metric").fill("seed=6")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text([second.run_id])
    assert "where=seed%3D6" in page.url
    page.reload()
    expect(rows(page)).to_have_count(1)
    page.get_by_role("button", name="Clear all").click()
    page.get_by_label("Packings too").check()
    expect(rows(page)).to_have_count(3)


def test_a_run_is_marked_and_found_by_its_tag(page: Page, visit: Visit):
    run, _ = past_run(3), past_run(4)
    visit(f"run/?id={run.run_id}")
    page.get_by_role("button", name="Star", exact=True).click()
    expect(page.get_by_role("button", name="Star", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    page.get_by_label("New tag").fill("base-1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Remove tag base-1")).to_be_visible()
    page.get_by_label("New tag").fill("not;valid")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_role("button", name="Add a note").click()
    page.get_by_label("Note", exact=True).fill(EVIL)
    page.get_by_role("button", name="Save note").click()
    expect(page.get_by_text(EVIL)).to_be_visible()
    visit("?tag=base-1&starred=true")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text([run.run_id])
    expect(rows(page).get_by_role("img", name="starred")).to_be_visible()
    expect(rows(page)).to_contain_text([EVIL])


def test_a_removed_run_shows_what_is_kept(page: Page, visit: Visit):
    run = past_run(3)
    shutil.rmtree(run.folder.path)
    words = "removed on [-0-9]{10} by hand"
    visit("")
    expect(rows(page).filter(has_text=run.run_id)).to_contain_text(re.compile(words))
    visit(f"run/?id={run.run_id}")
    expect(page.locator(".notice")).to_contain_text(re.compile(f"This run was {words}"))
    expect(page.get_by_role("table", name="Attempts, the newest first")).to_be_visible()
    for name in ("Training", "Checkpoints", "Log", "Report"):
        expect(page.get_by_role("heading", name=name, exact=True)).to_have_count(0)
    expect(page.get_by_text(str(run.folder.path))).to_have_count(0)


def test_more_than_eight_runs_are_compared(page: Page, visit: Visit):
    ids = [past_run(number).run_id for number in range(2, 12)]
    visit(f"?compare={'+'.join(ids[:-1])}")
    page.get_by_label(f"Compare {ids[-1]}").check()
    differ = page.get_by_role("table", name="What differs")
    epochs = differ.get_by_role("row").filter(has_text="trainer.max_epochs")
    expect(epochs.get_by_role("cell")).to_have_count(11)


def test_a_running_step_has_one_throughput_one_time_left_and_a_solid_bar(page: Page, visit: Visit):
    run = training()
    visit(f"run/?id={run.run_id}")
    stats = page.locator(".stat")
    expect(stats.filter(has_text="Left")).to_contain_text("4 min 00 s")
    expect(stats.filter(has_text="Left")).to_contain_text("of train; the rest is unknown")
    main = page.locator("main")
    assert len(re.findall("4 min 00 s", main.inner_text())) == 1
    assert "left" not in page.get_by_role("list", name="Steps").inner_text()
    assert "/s" not in page.get_by_role("list", name="Steps").inner_text()
    expect(page.locator(".track .ran.tone-active")).to_have_text("running")
    ran, waited = (page.locator(f".track .{kind}").bounding_box() for kind in ("ran", "waited"))
    lane = page.locator(".track").first.bounding_box()
    assert ran["x"] >= lane["x"] - 1, "a step whose node's clock is behind begins in the picture"
    assert ran["width"] > 10 * (waited["width"] if waited else 0)
    expect(page.locator(".timeline .legend")).to_contain_text("waited")
    visit("")
    expect(rows(page)).to_contain_text(["4 min 00 s left of train"])


def test_leases_say_how_long_they_were_held_and_why_they_ended(page: Page, visit: Visit):
    run = past_run(3)
    changes = {"run_id": run.run_id, "created_at": 1000.0, "ended_at": 1090.0, "key": "k"}
    add_ended_lease("lease-9", 1.0, None, why_ended="its time was over", **changes)
    assert open_ledger().lease("lease-9").state is LeaseState.CLOSED
    visit("leases/")
    row = rows(page, "Leases").filter(has_text="lease-9")
    expect(row).to_contain_text("1 min 30 s")
    expect(row).to_contain_text("its time was over")
    expect(page.get_by_role("columnheader", name="why it ended")).to_be_visible()


def test_the_page_of_costs_says_what_is_wasted_on_a_phone(page: Page, visit: Visit):
    past_run(3)
    page.set_viewport_size({"width": 400, "height": 800})
    visit("cost/")
    expect(page.get_by_text("Wasted: the share of the node hours")).to_be_visible()
