"""`headrace clean`: what may go, what never goes, races, kills and links."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.cleanup.clean import carry_out, forget
from headrace.cleanup.disk_use import disk_use
from headrace.cleanup.plan import CleanPlan, make_plan
from headrace.errors import AccessError, RemovedError, UserError
from headrace.files.removal import disk_bytes, remove
from headrace.ledger.ledger import open_ledger
from headrace.recipe.retention import RetentionRule
from headrace.runs.audit import Actor
from headrace.runs.on_disk import check_there, note_sizes
from headrace.runs.runs import Run
from headrace.states import BY_HAND, StepState
from support.past_runs import step_ended
from support.runs import lease_on_disk, make_run

ADA = Actor("ada", "here")
ALL = RetentionRule(older_than=0.0, what=("runs",))
"""Never all kinds: this machine's staged copies and caches are those of other tests, too."""


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


def cleaned(rule: RetentionRule = ALL, *run_ids: str) -> CleanPlan:
    plan = make_plan(rule, run_ids=run_ids)
    assert all(each.is_gone for each in carry_out(plan, ADA)), [*carry_out(plan, ADA)]
    return plan


def names(plan: CleanPlan) -> set[str]:
    return {each.name for each in plan.items}


def test_of_a_removed_run_the_record_stays_and_disk_and_plan_agree(headrace_home: Path):
    run = ended()
    before = disk_use()
    plan = cleaned()
    after = disk_use()
    left = sorted(each.name for each in run.folder.path.iterdir())
    assert left == ["prediction.json"] * (run.folder.prediction.exists()) + [
        "provenance.json", "recipe.json", "request.json", "site.json"
    ]  # fmt: skip
    assert not any((run.site_folder.leases).iterdir())
    assert plan.total == sum(row.num_bytes for row in before.rows if "runs" in row.what) - sum(
        row.num_bytes for row in after.rows if "runs" in row.what
    )
    row = open_ledger().run(run.run_id)
    assert row.removed is not None
    assert row.removed.words == f"removed on {time.strftime('%Y-%m-%d', time.gmtime())} by ada"
    assert make_plan(ALL).items == ()


def kept_open(run: Run) -> None:
    open_ledger().reopen_run(run.run_id)


def referred_to(run: Run) -> None:
    make_run(overrides=(f"train.init_from={run.folder.checkpoints}/final.ckpt",))


def evaluated(run: Run) -> None:
    make_run(overrides=(f"evaluate.checkpoint={run.folder.checkpoints}/final.ckpt",))


def other_users(run: Run) -> None:
    os.chown(run.folder.path, 4001, 4001)


NEVER = {
    "open": kept_open,
    "fine-tuned from": referred_to,
    "evaluated": evaluated,
    "another user's": other_users,
}


@pytest.mark.parametrize("kind", NEVER)
def test_never_removed(kind: str, headrace_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.runs.resolve._check_weights", lambda *_: None)
    run = ended()
    NEVER[kind](run)
    plan = make_plan(ALL)
    assert run.run_id not in names(plan)
    assert make_plan(ALL, run_ids=[run.run_id]).items == ()
    assert (run.folder.checkpoints / "final.ckpt").exists()


@pytest.mark.parametrize("kept", [{"is_starred": True}, {"tags": ("keep",)}, {"tags": ("paper",)}])
def test_kept_runs_stay(kept: dict[str, Any], headrace_home: Path):
    from headrace.cleanup.plan import is_kept

    row = open_ledger().run(ended().run_id)
    for name, value in kept.items():
        setattr(row, name, value)
    assert is_kept(row, ["paper"])
    assert is_kept(row) is ("paper" not in kept.get("tags", ()))


def test_the_newest_and_best_of_each_recipe_stay(headrace_home: Path):
    runs = [ended() for _ in range(4)]
    for run, value in zip(runs, (0.9, 0.7, 0.8, 0.6), strict=True):
        outputs = {"evaluate": {"metrics": {"accuracy": value}}}
        open_ledger().reopen_run(run.run_id)
        open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, time.time(), outputs)
    plan = make_plan(RetentionRule(keep_last=1, keep_best=("accuracy",), what=("runs",)))
    assert names(plan) == {runs[1].run_id, runs[2].run_id}
    assert sum(plan.kept.values()) == 2
    low = make_plan(RetentionRule(keep_last=0, keep_best=("accuracy:min",), what=("runs",)))
    assert names(low) == {run.run_id for run in runs[:3]}
    assert make_plan(RetentionRule(older_than=3600.0)).items == ()
    assert make_plan(RetentionRule()).items == ()


def test_checkpoints_that_resume_needs_stay_unless_the_run_goes(headrace_home: Path):
    run = ended(StepState.FAILED)
    assert make_plan(RetentionRule(older_than=0.0, what=("checkpoints",))).items == ()
    cleaned(RetentionRule(older_than=0.0, what=("logs",)))
    assert (run.folder.checkpoints / "final.ckpt").exists()
    cleaned()
    assert not run.folder.checkpoints.exists()


def test_a_run_that_begins_again_after_the_plan_stays(headrace_home: Path):
    run = ended()
    plan = make_plan(ALL)
    open_ledger().reopen_run(run.run_id)
    (done,) = carry_out(plan, ADA)
    assert (done.is_gone, done.why_not) == (False, "it has begun again")
    assert (run.folder.checkpoints / "final.ckpt").exists()


def test_a_run_that_is_referred_to_after_the_plan_stays(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.runs.resolve._check_weights", lambda *_: None)
    run = ended()
    plan = make_plan(ALL)
    referred_to(run)
    (done,) = carry_out(plan, ADA)
    assert done.why_not == "another run refers to it now"
    assert open_ledger().run(run.run_id).removed is None
    check_there(open_ledger().run(run.run_id), "checkpoints")


def test_nothing_refers_to_a_run_that_goes(headrace_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.runs.resolve._check_weights", lambda *_: None)
    run = ended()
    cleaned()
    with pytest.raises(RemovedError, match=f"checkpoints of run {run.run_id} were removed on"):
        referred_to(run)
    with pytest.raises(RemovedError, match=r"were removed on .* by ada"):
        open_ledger().reopen_run(run.run_id)


KILLED = """
import os, sys
from headrace.cleanup import clean
from headrace.files import removal
from headrace.cleanup.plan import make_plan
from headrace.recipe.retention import RetentionRule
from headrace.runs.audit import Actor
calls = iter(range(1000))
def counted(function):
    def call(*given, **named):
        if next(calls) == int(sys.argv[1]):
            os.kill(os.getpid(), 9)
        return function(*given, **named)
    return call
for module, name in ((clean, "remove"), (clean, "note_sizes"), (clean, "_is_referred_to"),
                     (os, "unlink"), (os, "rename"), (removal, "_remove_all")):
    setattr(module, name, counted(getattr(module, name)))
plan = make_plan(RetentionRule(older_than=0.0, what=("runs",)))
assert all(each.is_gone for each in clean.carry_out(plan, Actor("ada", "here")))
"""


def test_killed_at_any_point_and_begun_again_it_has_the_same_end(headrace_home: Path):
    ends, num_killed = set(), 0
    for at in range(0, 60, 4):
        run = ended()
        code = subprocess.run([sys.executable, "-c", KILLED, str(at)], check=False).returncode
        num_killed += code == -9
        gone = open_ledger().run(run.run_id).removed
        assert gone is not None or (run.folder.checkpoints / "final.ckpt").exists()
        cleaned()
        left = [str(each.relative_to(run.folder.path)) for each in run.folder.path.rglob("*")]
        ends.add((*sorted(left), *(each.name for each in run.site_folder.leases.iterdir())))
        assert make_plan(ALL).items == ()
        if code == 0:
            break
    assert num_killed > 3
    assert len(ends) == 1


def test_what_a_kill_left_of_a_dataset_goes(headrace_home: Path):
    dataset, _ = packed(ended())
    dataset.rename(dataset.with_name(".removed-digits-00000000"))
    plan = make_plan(RetentionRule())
    assert [(each.what, each.why) for each in plan.items] == [
        ("datasets", "an earlier removal was interrupted")
    ]
    cleaned(RetentionRule())
    assert not [*dataset.parent.iterdir()]


def packed(run: Run) -> tuple[Path, Run]:
    dataset = run.site_folder.datasets / "digits-0123456789ab"
    (dataset / "shards").mkdir(parents=True, exist_ok=True)
    (dataset / "shards" / "train-0.h5").write_bytes(b"x" * 50_000)
    outputs = {"dataset": str(dataset), "fingerprint": "f", "reused": False, "num_bytes": 50_000}
    lease_id = open_ledger().leases(run_id=run.run_id)[0].lease_id
    step_ended(run, "pack", lease_id, 1.0, outputs=outputs, number=1)
    return dataset, run


def test_a_dataset_goes_when_nothing_needs_it_and_runs_say_so(headrace_home: Path):
    from headrace.status.run_details import run_details

    dataset, run = packed(ended())
    going = make_run()
    plan = RetentionRule(older_than=0.0, what=("datasets",))
    assert names(make_plan(plan)) == set()  # the open run may find it packed
    open_ledger().finish_run(going.run_id, StepState.SUCCEEDED, time.time())
    made = make_plan(plan)
    assert str(dataset) in names(made)
    other = make_run()
    assert [each.is_gone for each in carry_out(made, ADA)] == [False]
    assert (dataset / "shards" / "train-0.h5").exists()
    open_ledger().finish_run(other.run_id, StepState.SUCCEEDED, time.time())
    cleaned(plan)
    assert not dataset.exists()
    assert "removed on" in run_details(run.run_id).dataset_removed


def test_links_are_never_followed(tmp_path: Path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    top = tmp_path / "site"
    (top / "runs" / "a").mkdir(parents=True)
    (top / "runs" / "a" / "link").symlink_to(precious)
    (top / "runs" / "b").symlink_to(precious)
    assert remove(top, "runs/a")
    with pytest.raises(AccessError, match="is a link"):
        remove(top, "runs/b/file")
    assert remove(top, "runs/b")  # the link itself
    (top / "runs").rename(top / "real")
    (top / "runs").symlink_to(precious.parent / "site" / "real")
    with pytest.raises(AccessError, match="is a link"):
        remove(top, "runs/a")
    assert (precious / "file").read_text() == "x"


def test_a_run_behind_a_link_stays(headrace_home: Path, tmp_path: Path):
    run = ended()
    plan = make_plan(ALL)
    run.folder.path.rename(tmp_path / "moved")
    run.folder.path.symlink_to(tmp_path / "moved")
    (done,) = carry_out(plan, ADA)
    assert "is a link" in done.why_not
    assert (tmp_path / "moved" / "checkpoints" / "final.ckpt").exists()
    assert open_ledger().run(run.run_id).removed is None


def test_a_read_only_disk_is_named_and_nothing_is_lost(
    headrace_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = ended()
    plan = make_plan(ALL)
    place = run.folder.path
    subprocess.run(["mount", "--bind", place, place], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        (done,) = carry_out(plan, ADA)
    finally:
        subprocess.run(["umount", place], check=True)
    assert "Read-only file system" in done.why_not
    assert open_ledger().run(run.run_id).removed is None
    assert (run.folder.checkpoints / "final.ckpt").exists()
    cleaned()


def test_a_folder_removed_by_hand_is_marked_and_forgotten(headrace_home: Path):
    from headrace.status.run import run_views

    run = ended()
    note_sizes([run.run_id])
    with pytest.raises(UserError, match="still has its files"):
        forget(run.run_id, ADA)
    moved = run.folder.path.rename(headrace_home / "moved")
    (view,) = run_views([open_ledger().run(run.run_id)])
    assert view.removed is not None
    assert view.removed.by == BY_HAND
    moved.rename(run.folder.path)  # a file system that was away
    assert run_views([open_ledger().run(run.run_id)])[0].removed is None
    run.folder.path.rename(headrace_home / "moved")
    forget(run.run_id, ADA)
    assert open_ledger().runs() == ()
    assert open_ledger().run(run.run_id).state is StepState.SUCCEEDED


def test_names_and_holes_of_files_count_once(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"x" * 8192)
    os.link(tmp_path / "a", tmp_path / "b")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**9)
    (tmp_path / "link").symlink_to("/usr")
    assert 8192 <= disk_bytes(tmp_path, set()) < 30_000
