"""Going on with a run on other machines: where and how wide may change, never what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, RecipeError, SiteError, StepError
from headrace.execution.resume import take_over_changed
from headrace.ledger.ledger import open_ledger
from headrace.runs.lifecycle import finish_run
from headrace.runs.owners import process_owner
from headrace.runs.runs import Run, open_run
from headrace.states import LeaseState, StepState
from headrace.suites.points import trial_recipe
from support.command_line import headrace
from support.runs import attempt_row_of, ended_owner, lease_on_disk, make_run


def wide_site(home: Path, name: str = "wide", **changes: object) -> str:
    """A site whose gang has two nodes; its file."""
    content = {"folder": home, "max_leases": 2, **changes}
    file = home.parent / f"{name}.yaml"
    file.write_text(
        f"folder: {content['folder']}\n"
        "roles: {cpu: {}, gpu: {kind: gang, nodes: 2, ranks_per_node: 2}}\n"
        f"tiers: [{{name: disk, folder: {home}/tier}}]\n"
        f"limits: {{max_leases: {content['max_leases']}}}\n"
    )
    return str(file)


def changed(run: Run, *overrides: str, site: str = "") -> Run:
    return take_over_changed(run.run_id, process_owner(), overrides, site)


def test_a_run_goes_on_with_fewer_nodes_and_with_more_again(headrace_home):
    """pains 30, 31: the lease asks for as many as train; the change is on record."""
    site = wide_site(headrace_home)
    run = make_run(site=site, owner=ended_owner())
    assert run.site.roles["gpu"].nodes == 2
    fewer = changed(run, "train.nodes=1", "train.ranks_per_node=4")
    assert (fewer.recipe.train.nodes, fewer.recipe.train.ranks_per_node) == (1, 4)
    assert fewer.site.roles["gpu"].nodes == 1
    assert fewer == open_run(run.run_id)
    finish_run(fewer, StepState.FAILED)
    with pytest.raises(RecipeError, match="nodes is 2, but role 'gpu' has only 1") as caught:
        changed(run, "train.nodes=2")
    assert "--site SITE` reads that anew" in caught.value.hint
    more = changed(run, "train.nodes=2", site=wide_site(headrace_home, max_leases=3))
    assert (more.site.roles["gpu"].nodes, more.site.limits.max_leases) == (2, 3)
    assert more.request.words == (
        *("run", "digits", "train.nodes=1", "train.ranks_per_node=4", "train.nodes=2"),
        *("--site", site),
    )
    told = headrace("status", run.run_id).output
    for words in ("train.nodes null -> 1", "train.nodes 1 -> 2", 'site "wide" -> "wide"'):
        assert words in told
    record = open_ledger().run(run.run_id)
    assert (record.state, record.overrides) == (StepState.RUNNING, more.request.overrides)


def test_a_run_goes_on_with_other_worker_processes(headrace_home):
    """As after one of them was killed for memory."""
    run = make_run(owner=ended_owner())
    assert changed(run, "data.workers=0").recipe.data.workers == 0


def test_another_site_with_the_same_folder_takes_a_run_up(headrace_home):
    run = make_run(site=wide_site(headrace_home), owner=ended_owner())
    other = changed(run, site="laptop")
    assert other.site.roles["gpu"].nodes == 1
    assert open_ledger().run(run.run_id).site_name == "laptop"
    finish_run(other, StepState.FAILED)
    with pytest.raises(SiteError, match="has the folder /elsewhere") as caught:
        changed(run, site=wide_site(headrace_home, "away", folder="/elsewhere"))
    assert "train.init_from=" in caught.value.hint


def test_what_decides_what_comes_of_a_run_cannot_be_changed(headrace_home):
    run = make_run(owner=ended_owner())
    with pytest.raises(RecipeError, match=r"seed, trainer\.max_epochs would change what") as caught:
        changed(run, "seed=5", "trainer.max_epochs=99", "train.ranks_per_node=1")
    assert "May be changed: pack_role, train.role, train.nodes, " in caught.value.hint
    assert f"headrace run digits KEY=VALUE train.init_from={run.run_id}:last" in caught.value.hint
    with pytest.raises(HeadraceError, match="64, which 3 ranks cannot share equally"):
        changed(run, "train.ranks_per_node=3")
    assert open_run(run.run_id) == run
    assert open_ledger().run(run.run_id).owner == run.request.owner


def test_a_run_that_is_worked_on_is_not_changed(headrace_home):
    run = make_run()
    with pytest.raises(StepError, match="worked on by process"):
        changed(run, "train.ranks_per_node=1")
    assert open_run(run.run_id) == run


def test_what_still_runs_with_the_old_numbers_is_ended_first(headrace_home):
    run = make_run(owner=ended_owner())
    lease_id = lease_on_disk(run, "gpu")
    attempt_row_of(run, "train", lease_id, state=StepState.RUNNING)
    attempt_row_of(run, "pack", lease_id, state=StepState.SUCCEEDED)
    goes_on = changed(run, "train.ranks_per_node=1")
    (lease,) = open_ledger().leases(run_id=run.run_id)
    assert lease.state is not LeaseState.STARTING
    states = {each.step: each.state for each in open_ledger().attempts(run.run_id)}
    assert states == {"train": StepState.LOST, "pack": StepState.SUCCEEDED}
    assert goes_on.lease_folder(lease_id).closed.exists()


def test_trials_of_a_suite_are_as_wide_as_it_goes_on(headrace_home):
    grid = ('suite.grid={"seed": [1, 2]}',)
    run = make_run(overrides=grid, kind="suite", owner=ended_owner())
    assert changed(run, "train.ranks_per_node=1").recipe.train.ranks_per_node == 1
    trial = trial_recipe(json.loads(run.folder.source.read_bytes()), {"seed": 2})
    assert (trial.train.ranks_per_node, trial.seed) == (1, 2)


def test_a_gang_has_as_many_nodes_as_train(headrace_home):
    told = headrace("plan", "digits", "--site", wide_site(headrace_home), "train.nodes=1").output
    assert "gang of 1 node, 2 ranks each" in told
