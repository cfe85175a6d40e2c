"""Asking for a run: the form in the web UI, the REST API; links and docs."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Locator, Page, Response, expect

from headrace.clusters import lease_client
from headrace.errors import StepError
from headrace.recipe.load import available
from headrace.recipe.unix_accounts import account
from headrace.runs.runs import Run
from headrace.states import StepState
from support.airflow_service import DAG_ID, PACK_DAG_ID, AirflowService
from support.browser import log_in, page
from support.command_line import headrace
from support.held_training import HeldTraining
from support.waiting import wait_until

__all__ = ["page"]

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

_MEANT_FOR = {
    DAG_ID: "pack if needed, stage, train, evaluate",
    PACK_DAG_ID: "Pack raw samples into a dataset of HDF5 shards",
    "headrace_suite": "many trials of one recipe, packed once, on one lease",
    "headrace_reaper": "Do not trigger, pause or mark it",
}
"""Words of the documentation that the web UI shows of each DAG."""
_GENEROUS_MS = 120_000.0


@pytest.mark.browser
def test_the_form_offers_choices_checks_overrides_and_starts_the_run_and_dags_have_docs(
    airflow_service: AirflowService, page: Page, tmp_path: Path
):
    """The run waits in training, so that its links can be followed while its lease lives."""
    log_in(page, airflow_service.url, airflow_service.login)
    page.set_viewport_size({"width": 900, "height": 1000})
    form = _open_form(airflow_service, page)
    assert form.evaluate("it => it.scrollWidth <= it.clientWidth")  # nothing is cut
    with airflow_service.settings():
        names = {kind: sorted(available(kind)) for kind in ("recipes", "sites")}
    assert _choices(page, form, 0) == names["recipes"]
    page.get_by_role("option", name="held", exact=True).click()
    assert _choices(page, form, 1) == names["sites"]
    page.get_by_role("option", name="chaos", exact=True).click()
    assert _submit(page, form, ["nonsense"]).status == 400
    told = "Invalid input for param overrides: 'nonsense'"
    expect(form).to_contain_text(told, timeout=_GENEROUS_MS)
    form.get_by_text("Main keys of the recipe").click()
    form.locator("[name=element_seed]").fill("11")
    assert form.evaluate("it => it.scrollWidth <= it.clientWidth")
    form.get_by_text("Run Parameters").click()

    def by_form(overrides: list[str]) -> str:
        answer = _submit(page, form, overrides)
        assert answer.ok, answer.text()
        return str(answer.json()["dag_run_id"])

    training = HeldTraining(airflow_service, tmp_path / "model", by_form)
    run = airflow_service.run(training.run_id)
    assert run.request.recipe == "held"
    assert run.request.site == "chaos"
    assert run.recipe.seed == 11
    for dag_id, words in _MEANT_FOR.items():
        page.goto(f"{airflow_service.url}/dags/{dag_id}")
        page.get_by_role("button", name="Dag Docs").click()
        expect(page.get_by_role("dialog")).to_contain_text(words, timeout=_GENEROUS_MS)
    _assert_prepare_shows_recipe_and_plan(airflow_service, page, training.dag_run)
    page.set_viewport_size({"width": 1400, "height": 1400})
    training.wait_held()
    _follow_dashboard_link(airflow_service, page, training.dag_run, run)
    training.release()
    assert airflow_service.wait_end(training.dag_run) == "success"
    training.wait_run(StepState.SUCCEEDED)
    log = airflow_service.task_log(DAG_ID, training.dag_run, "finish")
    assert f"Succeeded: run {run.run_id} in {run.folder.path}" in log


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"recipe": "digitz"},
            "'digitz' is not one of ['arrivals', 'digits', 'held', ",
        ),
        ({"recipe": "/etc/passwd.yaml"}, "is not one of"),
        (
            {"site": "mars"},
            "'mars' is not one of ['aws', 'chaos', 'laptop', 'narrow', 'slurm-dev']",
        ),
        ({"overrides": ["nonsense"]}, "'nonsense' does not match"),
        ({"overrides": ["code=[/tmp]"]}, "'code=[/tmp]' does not match"),
        ({"overrides": ["seed=${oc.env:HOME}"]}, "does not match"),
        ({"overrides": "trainer.max_epochs=1"}, "is not of type 'null', 'array'"),
        ({"trainer.max_epochs": 0}, "0 is less than the minimum of 1"),
    ],
)
def test_the_rest_api_refuses_with_the_valid_choices(
    airflow_service: AirflowService, changes: dict[str, object], words: str
):
    """Whoever may trigger a DAG cannot read files or the environment of the host (pains 22)."""
    conf = {"recipe": "digits", "site": "chaos", "overrides": [], **changes}
    with pytest.raises(StepError) as refused:
        airflow_service.api.trigger(DAG_ID, conf)
    assert "Airflow answered 400" in str(refused.value)
    assert words in str(refused.value)


def test_a_recipe_that_is_added_is_offered_at_once(airflow_service: AirflowService):
    """By what the DAG processor is asked to do, see `HeadraceDagBundle`; else within a minute."""
    recipe = airflow_service.home / "recipes" / "newcomer.yaml"
    recipe.parent.mkdir(exist_ok=True)
    recipe.write_text("name: newcomer\ndataset: {source: /nowhere}\n")
    wait_until(lambda: _is_offered(airflow_service, "newcomer"), 60.0, "the recipe in the form")
    recipe.unlink()
    wait_until(lambda: not _is_offered(airflow_service, "newcomer"), 60.0, "it to be gone")


def test_a_refusal_is_told_where_the_user_looks(airflow_service: AirflowService, tmp_path: Path):
    """The form's pattern cannot see what is wrong; the task that makes the run can.

    No lease is taken. What says why is in the DAG run's note, at the end of the task's log and on
    headrace's pages; of a run whose step cannot do with its data, too.
    """
    service, broken = airflow_service, tmp_path / "broken"
    broken.mkdir()
    (broken / "a.png").write_bytes(b"no picture")
    asked = {
        "unknown key 'trainer.max_epoch'": ["trainer.max_epoch=1"],
        "does not let recipes go": ["dataset.source=/etc"],
        "holds an interpolation": ['dataset.name={"a b": "\\u0024{oc.env:HOME}"}'],
    }
    with service.site_with(allowed_sources=[str(tmp_path)]):
        words = [f"dataset.source={broken}", "dataset.index=null", "dataset.name=broken"]
        bad_data = service.trigger(overrides=words, dag_id=PACK_DAG_ID)
        refused = {
            why: service.trigger(overrides=words, dag_id=PACK_DAG_ID)
            for why, words in asked.items()
        }
        run_id = service.wait_for_run(bad_data, PACK_DAG_ID)
    for why, dag_run in refused.items():
        assert service.wait_end(dag_run, dag_id=PACK_DAG_ID) == "failed"
        states = service.task_states(dag_run, PACK_DAG_ID)
        assert (states["prepare"], states["pack"]) == ("failed", "upstream_failed")
        key = f"airflow:{PACK_DAG_ID}:{dag_run}"
        assert service.ledger.run_by_key(key) is None
        told = _assert_ends_with(service, dag_run, "prepare", why)
        assert service.note(dag_run, PACK_DAG_ID) == told[:1000]
        listed = service.api.page("runs")["refused"]
        (act,) = [row for row in listed if row["run_id"] == key]
        assert act["refused"] == told
        assert asked[why][0] in act["details"]
        for place in ({"dag_id": PACK_DAG_ID, "dag_run_id": dag_run}, {"id": key}):
            with pytest.raises(StepError) as shown:
                service.api.page("run", **place)
            assert "Airflow answered 409" in str(shown.value)
            assert json.dumps(told.splitlines()[0])[1:-1] in str(shown.value)
    assert service.wait_end(bad_data, dag_id=PACK_DAG_ID) == "failed"
    told = _assert_ends_with(service, bad_data, "pack", "a.png")
    assert service.note(bad_data, PACK_DAG_ID) == told
    _assert_ends_with(service, bad_data, "finish", f"Run {run_id} failed: pack is failed")
    service.assert_books_closed(run_id)
    with service.settings():
        listed = headrace("runs").stdout + headrace("runs", "--kind", "all").stdout
    assert f"ago to {account()} in Airflow: " in listed
    assert run_id in listed


def _assert_ends_with(service: AirflowService, dag_run: str, task: str, why: str) -> str:
    """What is said at the end of a task's log, in which is no trace of Airflow's own code."""
    log = service.task_log(PACK_DAG_ID, dag_run, task)
    lines = sorted(map(json.loads, log.splitlines()), key=lambda line: str(line["timestamp"]))
    last = [line for line in lines if not line["event"].startswith("::")][-1]
    assert why in last["event"]
    assert last["level"] == "error"
    assert "Traceback" not in log
    assert not [line for line in lines if "error_detail" in line]
    return str(last["event"])


def _is_offered(service: AirflowService, recipe: str) -> bool:
    """Whether the form of a DAG has a recipe among its choices."""
    params = service.asked(lambda: service.api.params(DAG_ID))
    return recipe in params["recipe"]["schema"]["enum"]


def _open_form(service: AirflowService, page: Page) -> Locator:
    page.goto(f"{service.url}/dags/{DAG_ID}")
    page.get_by_test_id("trigger-dag-button").click()
    form = page.get_by_role("dialog")
    form.locator("[name=element_overrides]").wait_for()
    return form


def _choices(page: Page, form: Locator, index: int) -> list[str]:
    form.get_by_role("combobox").nth(index).click()
    page.get_by_role("option").first.wait_for()
    return sorted(page.get_by_role("option").all_inner_texts())


def _submit(page: Page, form: Locator, overrides: list[str]) -> Response:
    """Press the button; gives Airflow's answer."""
    form.locator("[name=element_overrides]").fill("\n".join(overrides))
    with page.expect_response(
        lambda it: it.request.method == "POST" and "/dagRuns" in it.url
    ) as it:
        form.get_by_role("button", name="Trigger").click()
    return it.value


def _assert_prepare_shows_recipe_and_plan(
    service: AirflowService, page: Page, dag_run: str
) -> None:
    page.goto(f"{service.api.run_url(DAG_ID, dag_run)}/tasks/prepare/rendered_templates")
    shown = page.get_by_role("table")
    expect(shown).to_contain_text("gpu: gang of 1 node", timeout=_GENEROUS_MS)
    expect(shown).to_contain_text("seed: 11")
    log = service.task_log(DAG_ID, dag_run, "prepare")
    assert "gpu: gang of 1 node" in log
    assert "seed: 11" in log


def _follow_dashboard_link(service: AirflowService, page: Page, dag_run: str, run: Run) -> None:
    """The link leads to the page that is in Airflow; Prometheus asks the dashboard itself."""
    page.goto(f"{service.api.run_url(DAG_ID, dag_run)}/tasks/train/details")
    link = page.get_by_role("link", name="Dask dashboard")
    link.wait_for()
    page.goto(link.get_attribute("href") or "")
    dashboard = page.frame_locator("iframe[src*='headrace']").frame_locator("iframe")
    expect(dashboard.locator("canvas").first).to_be_visible(timeout=_GENEROUS_MS)
    lease = service.ledger.latest_attempt(run.run_id, "train")
    assert lease is not None
    info = lease_client.info(run.lease_folder(lease.lease_id))
    assert info is not None
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(urljoin(info.dashboard_url, "metrics"), timeout=30) as answer:
        figures = answer.read().decode()
    assert re.search(
        r'headrace_step_done\{run="held-[^"]*",step="train",unit="steps"\} \d', figures
    )
    assert "dask_scheduler_workers" in figures
