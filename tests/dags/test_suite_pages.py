"""Pages of a suite and of a trial in Chromium, on a real ledger and real folders."""

from __future__ import annotations

from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect

from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.steps.history import HistoryRow, training_file
from headrace.suites.records import Control, SuiteSummary
from support.browser import page
from support.page_server import Visit, visit
from support.suite_journal import added, ended, failed, journal, make_suite, over_sites, started

__all__ = ["page", "visit"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def suite(headrace_home) -> Run:
    """Two batch sizes with three seeds each, 60 to 360 epochs; the last one has failed."""
    run = make_suite(overrides=("trainer.monitor=val_loss", "+suite={seeds: 3}"))
    for number in range(1, 7):
        values = {
            "data__global_batch_size": 32 + 32 * (number > 3),
            "model__long_name_of_a_key": number // 4,
            "seed": number % 3,
        }
        end = failed(6) if number == 6 else ended(number, 0.9 - 0.1 * number)
        group = 1 + 3 * (number > 3)
        journal(run.folder, added(number, group=group, **values), started(number), end)
    trial = run.folder.trial(2)
    for file, text in (
        (training_file(trial), HistoryRow(at=1, launch=1, epoch=0, step=5, loss=0.5)),
        (trial.step(1).logs / "rank-0.log", "a line of the log"),
        (trial.checkpoints / "step-000000005.ckpt", ""),
    ):
        file.parent.mkdir(parents=True)
        file.write_text(text if isinstance(text, str) else f"{text.model_dump_json()}\n")
    return run


def asked(run: Run) -> list[tuple[str, tuple[int, ...]]]:
    lines = run.folder.controls.read_text().splitlines()
    return [(each.what, each.numbers) for each in map(Control.model_validate_json, lines)]


def test_a_trial_opens_and_shows_what_a_run_shows(page: Page, visit: Visit, suite: Run):
    visit(f"suite/?id={suite.run_id}")
    page.get_by_role("table", name="Trials").get_by_role("link", name="2", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("digits, trial 2")
    for name in ("Training", "Timeline", "Attempts", "Log"):
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    expect(page.get_by_text("a line of the log")).to_be_visible()
    expect(page.get_by_role("table", name="Checkpoints")).to_contain_text("step-000000005.ckpt")
    rerun = page.get_by_role("button", name="Copy rerun command")
    expect(rerun).to_have_attribute("title", f"headrace rerun {suite.run_id}:2")
    visit(f"run/?id={suite.run_id}:6")
    expect(page.get_by_role("table", name="Attempts, the newest first")).to_contain_text("it broke")
    page.get_by_role("link", name="Suite", exact=True).click()
    expect(page.get_by_role("table", name="Trials")).to_be_visible()


@pytest.mark.parametrize("width", [400, 1280])
def test_sites_are_shown_with_the_price_of_deadlines_and_left(
    page: Page, visit: Visit, suite: Run, width: int
):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if width == 400 else "light")
    visit(f"suite/?id={over_sites(suite).run_id}")
    lanes = page.get_by_role("table", name="Sites")
    box, aws = (lanes.get_by_role("row").filter(has_text=name) for name in ("box", "aws"))
    expect(box).to_contain_text("ssh: no route to host")
    for words in ("$0.55", "0 of 2", "limited from 4", "of $3.50", "10 min 00 s"):
        expect(aws).to_contain_text(words)
    aws.get_by_role("button", name="Limit aws").click()
    aws.get_by_label("Most trials at once").fill("3")
    page.locator("dialog[open]").get_by_role("button", name="Limit").click()
    expect(page.get_by_text("Requested: limit-site aws")).to_be_visible()
    box.get_by_role("button", name="Move off box").click()
    page.locator("dialog[open]").get_by_role("button", name="Move off").click()
    expect(page.get_by_text("Requested: leave-site box")).to_be_visible()
    assert asked(suite) == [("limit-site", ()), ("leave-site", ())]
    picture = page.get_by_role("img", name="US dollars against the time to the end, by policy")
    for words in ("own-first", "cheapest", "spread", "hours to the end"):
        expect(picture.get_by_text(words, exact=True)).to_be_visible()
    expect(picture.locator("circle")).to_have_count(4 + 3 + 1)
    first = picture.locator("polyline").first
    assert first.evaluate("it => getComputedStyle(it).stroke") not in ("none", "rgb(0, 0, 0)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_running_trial_is_cancelled_on_its_page(page: Page, visit: Visit, suite: Run):
    journal(suite.folder, added(7), started(7))
    visit(f"run/?id={suite.run_id}:7")
    page.get_by_role("button", name="Cancel trial").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel trial").click()
    expect(page.get_by_text("Requested: cancel of trials 7")).to_be_visible()
    assert asked(suite) == [("cancel", (7,))]


@pytest.mark.parametrize("width", [400, 1280])
def test_seeds_repeat_a_point_and_names_of_axes_are_whole(
    page: Page, visit: Visit, suite: Run, width: int
):
    page.set_viewport_size({"width": width, "height": 900})
    visit(f"suite/?id={suite.run_id}")
    means = page.get_by_role("table", name="Points, the best mean first")
    for words in ("0.6, 0.7, 0.8", "0.4, 0.5", "2 of 3"):
        expect(means).to_contain_text(words)
    names = page.locator(".parallel .axis .name")
    expect(names).to_have_text(["global_batch_size", "long_name_of_a_key", "val_loss"])
    places = [box for each in names.all() if (box := each.bounding_box()) is not None]
    ends = [(box["x"], box["x"] + box["width"]) for box in places]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    assert all(each.evaluate("it => it.scrollWidth <= it.clientWidth") for each in names.all())
    expect(page.locator(".parallel .axis").nth(1)).to_contain_text("1")
    expect(page.locator(".parallel .axis").nth(1)).not_to_contain_text("0.5")
    width_px = page.evaluate("document.documentElement.scrollWidth")
    assert width_px <= width


def test_the_report_is_on_the_page_and_a_paused_suite_has_no_time_left(
    page: Page, visit: Visit, suite: Run
):
    summary = SuiteSummary(total=9, counts={"succeeded": 5}, paused=True, eta_s=90, eta_error_s=1)
    write_record(suite.folder.summary, summary)
    visit(f"suite/?id={suite.run_id}")
    expect(page.get_by_text("paused: no more start")).to_be_visible()
    expect(page.get_by_text("Left", exact=True)).to_have_count(0)
    end_run(suite, StepState.CANCELLED, "a test")
    visit("")
    expect(page.get_by_role("row").filter(has_text=suite.run_id)).to_contain_text("cancelled")
    visit(f"suite/?id={suite.run_id}")
    page.locator("iframe").scroll_into_view_if_needed()
    report = page.frame_locator("iframe").get_by_role("heading", level=1)
    expect(report).to_have_text(suite.run_id)
