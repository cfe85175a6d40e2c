"""`headrace clean`: what may go, what never goes, races, kills and links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from headrace.cleanup.clean import carry_out, make_plan, retention_plan
from headrace.cleanup.items import Item, measure
from headrace.cli.view import _places
from headrace.errors import AccessError, StepError, UnknownNameError, UserError
from headrace.files.atomic import write_record
from headrace.files.removal import check_removable, disk_bytes, remove
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import Marks
from headrace.multi_site.parts import make_part
from headrace.recipe.site import RetentionRule
from headrace.runs.audit import Actor
from headrace.runs.runs import Run, open_run
from headrace.runs.trials import note_trials
from headrace.states import BY_HAND, StepState
from headrace.status.run import run_views
from headrace.status.run_details import run_details
from headrace.suites.records import SuiteSummary
from support.many_sites import packed_suite
from support.past_runs import step_ended
from support.runs import lease_on_disk, make_run
from support.suite_journal import added, journal, make_suite, started
from support.suite_journal import ended as trial_ended

ADA = Actor("ada", "here")
ALL = RetentionRule(older_than=0.0)


@pytest.fixture(autouse=True)
def _weights_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.runs.resolve._check_weights", lambda *_: None)


def ended(state: StepState = StepState.SUCCEEDED, **request: Any) -> Run:
    """A run that has ended, with a checkpoint, history and a lease's log."""
    run = make_run(**request)
    lease_id = lease_on_disk(run)
    for name in ("checkpoints/final.ckpt", "history/train.jsonl", "work/big.bin"):
        file = run.folder.path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * 20_000)
    run.lease_folder(lease_id).log.write_text("log\n" * 1000)
    open_ledger().finish_run(run.run_id, state, time.time())
    return run


def packed(run: Run, name: str = "digits-0123456789ab") -> Path:
    """The dataset that a run has packed."""
    dataset = run.site_folder.datasets / name
    (dataset / "shards").mkdir(parents=True, exist_ok=True)
    (dataset / "shards" / "train-0.h5").write_bytes(b"x" * 50_000)
    outputs = {"dataset": str(dataset), "fingerprint": "f", "reused": False, "num_bytes": 50_000}
    lease_id = open_ledger().leases(run_id=run.run_id)[0].lease_id
    step_ended(run, "pack", lease_id, 1.0, outputs=outputs, number=1)
    return dataset


def going(rule: RetentionRule = ALL, named: Collection[str] = ()) -> list[Item]:
    return [item for item in make_plan(rule, named=named) if not item.stays]


def cleaned(rule: RetentionRule = ALL, named: Collection[str] = ()) -> None:
    done = [*carry_out(make_plan(rule, named=named), ADA)]
    assert [item for item in done if item.stays] == []


def names(items: Collection[Item]) -> set[str]:
    return {item.name for item in items}


def checkpoint(run: Run) -> Path:
    return run.folder.checkpoints / "final.ckpt"


def test_of_a_removed_run_the_record_stays_and_disk_and_plan_agree():
    run = ended()
    before = sum(item.num_bytes for item in measure() if item.name == run.run_id)
    (item,) = going()
    cleaned()
    after = sum(item.num_bytes for item in measure() if item.name == run.run_id)
    assert item.num_bytes == before - after > 60_000
    assert all(each.is_file() for each in run.folder.path.iterdir())
    assert run.folder.recipe.exists()
    assert not any(run.site_folder.leases.iterdir())
    row = open_ledger().run(run.run_id)
    assert row.removed is not None
    assert row.removed.words == f"removed on {time.strftime('%Y-%m-%d', time.gmtime())} by ada"
    assert going() == []


def starred(run: Run) -> None:
    open_ledger().mark_runs([run.run_id], Marks(star=True))


def tagged(run: Run) -> None:
    open_ledger().mark_runs([run.run_id], Marks(tag=("keep",)))


def resumed(run: Run) -> None:
    open_ledger().reopen_run(run.run_id)


def interrupted(run: Run) -> None:
    resumed(run)
    open_ledger().finish_run(run.run_id, StepState.FAILED, time.time())


def run_again(run: Run) -> None:
    """Its copy of the code and its record stay for `headrace rerun`; see the test above."""
    make_run(recipe=str(run.folder.recipe), overrides=(f"train.init_from={checkpoint(run)}",))


def tuned(run: Run) -> None:
    make_run(overrides=(f"train.init_from={checkpoint(run)}",))


def evaluated(run: Run) -> None:
    make_run(overrides=(f"evaluate.checkpoint={checkpoint(run)}",))


def kept_by_a_failed_run(run: Run) -> None:
    """What a run that `headrace resume` can continue needs."""
    ended(StepState.FAILED, overrides=(f"train.init_from={checkpoint(run)}",))


def of_another_user(run: Run) -> None:
    os.chown(run.folder.path, 4001, 4001)


NEVER = (
    resumed, interrupted, run_again, tuned, evaluated, kept_by_a_failed_run, of_another_user,
    starred, tagged,
)  # fmt: skip


@pytest.mark.parametrize("needed", NEVER)
def test_never_removed(needed: Any):
    run = ended()
    needed(run)
    assert run.run_id not in names(going())
    named = {interrupted: {run.run_id}}  # a user may name it
    assert names(going(named=[run.run_id])) == named.get(needed, set())
    assert checkpoint(run).exists()


def test_runs_with_a_given_tag_stay():
    run = ended()
    open_ledger().mark_runs([run.run_id], Marks(tag=("paper",)))
    assert names(going()) == {run.run_id}
    assert going(ALL.model_copy(update={"keep_tags": ("paper",)})) == []


def test_the_direction_of_a_metric_is_known_or_refused():
    """A guess from its name would remove the best run."""
    ended_with = {"evaluate": {"metrics": {"own_error_free": 0.9}}}
    run = ended()
    open_ledger().reopen_run(run.run_id)
    open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, time.time(), ended_with)
    with pytest.raises(UserError, match="lower or higher values of 'own_error_free'"):
        going(RetentionRule(keep_best=("own_error_free",)))
    assert going(RetentionRule(keep_best=("own_error_free:max",))) == []
    with pytest.raises(UnknownNameError, match="has the metric 'of_no_run'"):
        going(RetentionRule(keep_best=("of_no_run",)))


def test_the_newest_and_best_of_each_recipe_stay():
    runs = [ended() for _ in range(4)]
    for run, value in zip(runs, (0.9, 0.7, 0.8, 0.6), strict=True):
        outputs = {"evaluate": {"metrics": {"accuracy": value}}}
        open_ledger().reopen_run(run.run_id)
        open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, time.time(), outputs)
    plan = going(RetentionRule(keep_last=1, keep_best=("accuracy",)))
    assert names(plan) == {runs[1].run_id, runs[2].run_id}
    low = going(RetentionRule(keep_last=0, keep_best=("accuracy:min",)))
    assert names(low) == {run.run_id for run in runs[:3]}
    assert going(RetentionRule(older_than=3600.0)) == []
    assert going(RetentionRule()) == []


def test_a_suite_is_as_good_as_its_best_trial():
    suites = [make_suite(overrides=("trainer.monitor=val_loss",)) for _ in range(2)]
    for suite, value in zip(suites, (0.25, 0.5), strict=True):
        journal(suite.folder, added(1, seed=1), started(1), trial_ended(1, value))
        note_trials(suite.folder)
        summary = SuiteSummary(total=1, counts={"succeeded": 1}, best=1, best_value=value)
        write_record(suite.folder.summary, summary)
        suite.folder.trial(1).checkpoints.mkdir(parents=True)
        open_ledger().finish_run(suite.run_id, StepState.SUCCEEDED, time.time())
    assert names(going(RetentionRule(keep_best=("val_loss",)))) == {suites[1].run_id}


def test_a_run_that_begins_again_after_the_plan_stays():
    run = ended()
    plan = make_plan(ALL)
    open_ledger().reopen_run(run.run_id)
    (done,) = carry_out(plan, ADA)
    assert done.stays == "it has begun again"
    assert checkpoint(run).exists()


def test_a_run_that_is_referred_to_after_the_plan_stays():
    run = ended()
    plan = make_plan(ALL)
    tuned(run)
    (done,) = carry_out(plan, ADA)
    assert done.stays == "another run refers to it now"
    assert open_ledger().run(run.run_id).removed is None
    assert checkpoint(run).exists()


def test_a_run_that_stays_against_the_plan_keeps_what_it_refers_to():
    base, other = ended(), ended()
    dataset = packed(other)
    tuned_run = ended(overrides=(f"train.init_from={checkpoint(base)}",))
    plan = make_plan(ALL)
    assert {base.run_id, other.run_id, str(dataset)} <= names(plan)
    open_ledger().mark_runs([tuned_run.run_id, other.run_id], Marks(star=True))
    stays = {item.name: item.stays for item in carry_out(plan, ADA)}
    assert stays[base.run_id] == stays[str(dataset)] == "another run refers to it"
    assert (stays[tuned_run.run_id], stays[other.run_id]) == ("star or tag", "star or tag")
    assert checkpoint(base).exists()
    assert dataset.exists()


def test_a_link_of_a_users_program_goes_without_what_is_behind_it(tmp_path: Path):
    run = ended()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (run.folder.path / "latest").symlink_to(tmp_path / "precious")
    cleaned()
    assert not (run.folder.path / "latest").is_symlink()
    assert (tmp_path / "precious" / "file").exists()


def test_nothing_refers_to_a_run_that_goes():
    run = ended()
    cleaned()
    for refer in (tuned, evaluated, resumed):
        with pytest.raises(UnknownNameError, match=f"Run {run.run_id} was removed on .* by ada"):
            refer(run)
    assert [row.run_id for row in open_ledger().runs()] == [run.run_id]


KILLED = """
import os, shutil, sys
from headrace.cleanup import clean
from headrace.ledger.run_filter import Marks
from headrace.multi_site.parts import make_part
from headrace.recipe.site import RetentionRule
from headrace.runs.audit import Actor
calls = iter(range(1000))
def counted(function):
    def call(*given, **named):
        if next(calls) == at:
            os.kill(os.getpid(), 9)
        return function(*given, **named)
    return call
for module, name in ((clean, "remove"), (clean, "note_sizes"), (clean, "mentioned"),
                     (os, "unlink"), (os, "rename"), (shutil, "rmtree")):
    setattr(module, name, counted(getattr(module, name)))
for at in map(int, sys.argv[1:]):
    calls = iter(range(1000))
    if os.fork() == 0:
        plan = clean.make_plan(RetentionRule(older_than=0.0))
        assert not any(each.stays for each in clean.carry_out(plan, Actor("ada", "here")))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    sys.stdin.readline() if sys.stdout.flush() is None else None
"""


def test_killed_at_any_point_and_begun_again_it_has_the_same_end():
    ends, codes, points = set(), [], [str(at) for at in range(0, 24, 3)]
    run = ended()
    words = [sys.executable, "-c", KILLED, *points]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in points:
            codes.append(int(process.stdout.readline()))
            gone = open_ledger().run(run.run_id).removed
            assert gone is not None or checkpoint(run).exists()
            cleaned()
            left = [str(each.relative_to(run.folder.path)) for each in run.folder.path.rglob("*")]
            ends.add((*sorted(left), *(each.name for each in run.site_folder.leases.iterdir())))
            assert going() == []
            run = ended()
            process.stdin.write("\n")
            process.stdin.flush()
    assert codes.count(-9) > 3
    assert set(codes) <= {-9, 0}
    assert len(ends) == 1


def test_what_a_kill_left_of_a_dataset_goes():
    dataset = packed(ended())
    left = dataset.rename(dataset.with_name(".digits-0123456789ab.0123abcd.partial"))
    plan = going(RetentionRule())
    assert [(item.kind, item.why) for item in plan] == [
        ("dataset", "an earlier removal was interrupted")
    ]
    cleaned(RetentionRule())
    assert not left.exists()


def test_a_dataset_goes_when_nothing_needs_it_and_runs_say_so():
    run = ended()
    dataset, other = packed(run), packed(ended(), "faces-0123456789ab")
    later = make_run()
    old = RetentionRule(older_than=0.0)
    assert str(other) in names(going(old))
    assert str(dataset) not in names(going(old))  # the open run may find it packed
    open_ledger().finish_run(later.run_id, StepState.SUCCEEDED, time.time())
    plan = make_plan(old)
    assert str(dataset) in names(plan)
    later = make_run()
    assert "a run uses it" in [item.stays for item in carry_out(plan, ADA)]
    assert (dataset / "shards" / "train-0.h5").exists()
    open_ledger().finish_run(later.run_id, StepState.SUCCEEDED, time.time())
    cleaned(RetentionRule(older_than=0.0, unreferenced=True))
    cleaned(RetentionRule(unreferenced=True))
    assert not dataset.exists()
    removed = open_ledger().run(run.run_id).removed
    assert removed is not None
    (shown,) = [text for title, text in _places(run_details(run.run_id)) if title == "dataset"]
    assert shown == f"{dataset} ({removed.words})"


def test_a_dataset_removed_by_hand_is_named():
    run = ended()
    dataset = packed(run)
    shutil.rmtree(dataset)
    assert ("dataset", f"{dataset} (removed by hand)") in [*_places(run_details(run.run_id))]


def test_a_dataset_of_a_run_that_stays_is_not_unreferenced():
    dataset = packed(ended())
    assert going(RetentionRule(unreferenced=True)) == []
    cleaned()
    assert not dataset.exists()


def test_caches_go_when_they_are_old_and_no_run_is_open(headrace_home: Path, tmp_path: Path):
    made = [headrace_home / "environments" / "e1", tmp_path / "cache/headrace/builds/b1",
            headrace_home / "airflow/logs/tasks/dag_id=a/run_id=b",
            headrace_home / "cache" / "datasets" / "0123"]  # fmt: skip
    for folder in made:
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 10_000)
    assert {str(each) for each in made} <= names(measure())
    assert going(RetentionRule(older_than=3600.0)) == []
    run = make_run()
    assert going() == []  # it may need a copy again that no process uses now
    open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, time.time())
    cleaned()
    assert not any(each.exists() for each in made)


def test_the_retention_of_sites(headrace_home: Path):
    run = ended()
    assert retention_plan() == []
    (headrace_home / "sites").mkdir()
    (headrace_home / "sites" / "laptop.yaml").write_text("retention: {older_than: 0s}")
    assert names(retention_plan()) == {run.run_id}


def test_links_are_never_followed(tmp_path: Path):
    precious, top = tmp_path / "precious", tmp_path / "site"
    (precious / "a").mkdir(parents=True)
    (precious / "a" / "file").write_text("x")
    (top / "runs" / "a").mkdir(parents=True)
    (top / "runs" / "a" / "link").symlink_to(precious)
    remove(top / "runs" / "a")
    (top / "runs" / "b").symlink_to(precious)
    with pytest.raises(AccessError, match="is a link"):
        check_removable(top / "runs" / "b", top)
    remove(top / "runs" / "b")
    (top / "runs").rmdir()
    (top / "runs").symlink_to(precious)
    with pytest.raises(AccessError, match="is a link"):
        check_removable(top / "runs" / "a", top)
    assert (precious / "a" / "file").read_text() == "x"


def test_a_run_behind_a_link_stays(tmp_path: Path):
    run = ended()
    plan = make_plan(ALL)
    run.folder.path.rename(tmp_path / "moved")
    run.folder.path.symlink_to(tmp_path / "moved")
    (done,) = carry_out(plan, ADA)
    assert "is a link" in done.stays
    assert (tmp_path / "moved" / "checkpoints" / "final.ckpt").exists()
    assert open_ledger().run(run.run_id).removed is None


def test_a_read_only_disk_is_named_and_nothing_is_lost():
    run = ended()
    plan = make_plan(ALL)
    place = run.folder.path
    subprocess.run(["mount", "--bind", place, place], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        (done,) = carry_out(plan, ADA)
    finally:
        subprocess.run(["umount", place], check=True)
    assert "cannot be written" in done.stays
    assert open_ledger().run(run.run_id).removed is None
    assert checkpoint(run).exists()
    cleaned()


def test_a_folder_removed_by_hand_is_marked_and_forgotten(headrace_home: Path):
    run = ended()
    moved = run.folder.path.rename(headrace_home / "moved")
    (view,) = run_views([open_ledger().run(run.run_id)])
    assert view.removed is not None
    assert view.removed.by == BY_HAND
    moved.rename(run.folder.path)  # a file system that was away
    assert run_views([open_ledger().run(run.run_id)])[0].removed is None
    open_ledger().put_sizes({run.run_id: {"checkpoints": 20_000}})
    run.folder.path.rename(headrace_home / "moved")
    assert going() == []  # no removal of headrace was interrupted
    with pytest.raises(StepError, match=r"was removed on .* by hand"):
        open_run(run.run_id)  # as any folder that cannot be read: forecasts leave it out
    cleaned(named=[run.run_id])
    assert open_ledger().runs() == ()
    assert open_ledger().run(run.run_id).state is StepState.SUCCEEDED


def test_a_removed_run_that_is_named_again_is_forgotten():
    run = ended()
    cleaned(named=[run.run_id])
    assert run.folder.recipe.exists()
    cleaned(named=[run.run_id])
    assert not run.folder.path.exists()
    assert open_ledger().runs() == ()


def test_names_and_holes_of_files_count_once(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"x" * 8192)
    os.link(tmp_path / "a", tmp_path / "b")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**9)
    (tmp_path / "link").symlink_to("/usr")
    assert 8192 <= disk_bytes(tmp_path, set()) < 30_000


def test_parts_of_a_suite_go_with_it_and_never_alone(headrace_home: Path) -> None:
    suite = packed_suite(headrace_home)
    part = make_part(suite, "box").run_id
    folder = open_run(part).folder
    checkpoint = folder.trial(1).checkpoints / "final.ckpt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"x" * 20_000)
    suite.folder.trials.mkdir()
    suite.folder.trial(1).path.symlink_to(folder.trial(1).path)
    open_ledger().finish_run(suite.run_id, StepState.SUCCEEDED, time.time())
    assert names(going()) == set()  # its part has not ended
    open_ledger().finish_run(part, StepState.FAILED, time.time())
    assert names(going(named=[suite.run_id])) == {suite.run_id, part}
    assert sum(item.num_bytes for item in measure() if item.name == suite.run_id) < 300_000
    open_ledger().mark_runs([suite.run_id], Marks(star=True))
    assert names(going()) == set()
    plan = [item.model_copy(update={"stays": ""}) for item in make_plan(ALL)]
    assert {item.stays for item in carry_out(plan, ADA)} == {
        "star or tag",
        "another run refers to it",
    }
    assert checkpoint.exists()
    open_ledger().mark_runs([suite.run_id], Marks(star=False))
    cleaned()
    assert not checkpoint.exists()
    assert folder.recipe.exists()
    assert names(going()) == set()
    cleaned(named=[suite.run_id])
    assert not folder.path.exists()
    assert not suite.folder.path.exists()
