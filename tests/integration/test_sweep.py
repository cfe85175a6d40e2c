"""`headrace sweep` and `headrace evaluate --watch`: killed, and then they go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.clusters.lease_records import HostRecord
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.ledger.ledger import Ledger
from headrace.steps.history import EvaluatedRow, read_evaluated
from headrace.suites.records import ENTRY, Ended, Started
from support.bad_input import HEADRACE, Place, make_place, status_of, words
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

_LONG_S = 240.0
_INTERRUPTED = 130


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path / "home")


def started(place: Place, *arguments: str) -> subprocess.Popen[bytes]:
    with (place.home / "output.log").open("ab") as log:
        return subprocess.Popen(
            [str(HEADRACE), *arguments],
            env=place.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _ended(run: RunFolder) -> list[Ended]:
    return [each for each in _entries(run) if isinstance(each, Ended) and each.is_final]


def _entries(run: RunFolder) -> Sequence[object]:
    text = run.journal.read_text() if run.journal.exists() else ""
    return [ENTRY.validate_json(line) for line in text.splitlines()]


def test_what_has_ended_is_not_run_again(place: Place) -> None:
    """Trial N waits in its step N until it may go on: none ends before it is looked at."""
    trials = "model.holds=[1],[2],[3],[4]"
    command = started(place, "sweep", "blobs", trials, "--site", "here", "suite.max_running=1")

    def end(number: int) -> None:
        (place.home / f"go-{number}").touch()
        wait_until(lambda: len(_ended(run)) == number, _LONG_S, f"trial {number} to end")

    wait_until(place.has_run, _LONG_S, "the run to be there")
    record, _ = place.newest()
    run = RunFolder(Path(record.folder))
    end(1)
    ledger = Ledger.open(f"sqlite:///{place.home}/ledger.db")
    (lease,) = [each for each in ledger.leases(run_id=record.run_id) if each.role == "gpu"]
    host = read_record(LeaseFolder(Path(lease.folder)).host, HostRecord)
    os.kill(host.process.pid, signal.SIGKILL)
    end(2)
    os.killpg(command.pid, signal.SIGINT)
    assert command.wait(_LONG_S) == _INTERRUPTED
    place.wait_for_quiet()
    command = started(place, "resume", record.run_id)
    end(3)
    for file in place.home.glob("ledger.db*"):
        file.unlink()
    os.killpg(command.pid, signal.SIGINT)
    assert command.wait(_LONG_S) == 1
    shown = (place.home / "output.log").read_text()
    words(shown, "The ledger", "was removed", "headrace lease adopt")
    words(shown, "best loss")  # as `headrace status` tells it
    place.wait_for_quiet()
    (place.home / "go-4").touch()
    adopted = place.headrace("lease", "adopt", "--site", "here")
    words(adopted.stdout, f"headrace resume {record.run_id}")
    done = place.headrace("resume", record.run_id, "--json")
    assert done.returncode == 0, done.stdout + done.stderr

    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    assert steps["suite"]["outputs"]["counts"] == {"succeeded": 4}
    assert steps["suite"]["attempt"] == 4
    ends = _ended(run)
    assert [each.number for each in ends] == [1, 2, 3, 4]
    assert all(each.metrics for each in ends)
    for each in ends:
        begun = [one for one in _entries(run) if isinstance(one, Started)]
        assert max(one.attempt for one in begun if one.number == each.number) == each.attempt
    assert len({one.lease_id for one in _entries(run) if isinstance(one, Started)}) == 4
    _use_models(place, run)


def _use_models(place: Place, suite: RunFolder) -> None:
    """A trial is evaluated, and its weights begin another training, as those of a run."""
    second = f"{suite.run_id}:2"
    done = place.headrace("evaluate", second, "evaluate.split=val", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    evaluated = RunFolder(Path(place.newest()[0].folder))
    checkpoints = suite.trial(2).checkpoints
    assert str(checkpoints) in evaluated.recipe.read_text()
    for name in (second, suite.run_id):
        begun = place.headrace("check", "blobs", f"train.init_from={name}", "--site", "here")
        assert begun.returncode == 0, begun.stdout + begun.stderr
    done = place.headrace("run", "blobs", f"train.init_from={second}", "--site", "here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(checkpoints) in RunFolder(Path(place.newest()[0].folder)).recipe.read_text()


def test_a_sweep_that_cannot_run_is_refused_before_anything_runs(place: Place) -> None:
    for arguments, expected in (
        (("blobs",), "names no trials"),
        (("blobs", "seed=1,2", "modle.lr=1,2"), "modle"),
        (("blobs", "model.width=range(0,10000000)"), "10,000,000"),
    ):
        done = place.headrace("sweep", *arguments, "--site", "here")
        assert done.returncode == 2
        words(done.stderr, expected)
    assert not place.has_run()


HELD, LAST = 7, 10
_WATCH_S = 400.0


@pytest.fixture
def trained_place(tmp_path: Path) -> Place:
    """A recipe whose training writes checkpoints after 3, 6 and 9 steps, and waits in step 7."""
    trained_place = make_place(tmp_path / "home")
    model = {"_target_": "blob_models.BlobModel", "notes": str(trained_place.home), "holds": [HELD]}
    trained_place.write_recipe(
        "held",
        model=model,
        train={"ranks_per_node": 1},
        trainer={"accelerator": "cpu", "max_epochs": 1, "checkpoint_every_steps": 3},
    )
    return trained_place


def trained(trained_place: Place) -> Counter[tuple[int, int]]:
    """How often a sample was trained in a step that counts: `(step, sample)`."""
    found: dict[tuple[str, int], list[int]] = {}
    for file in sorted(trained_place.home.glob("rank-*.jsonl")):
        for line in file.read_text().splitlines():
            note = json.loads(line)
            found[file.name, note["step"]] = note["samples"]
    return Counter((step, sample) for (_, step), samples in found.items() for sample in samples)


def test_checkpoints_are_evaluated_while_training_goes_on(trained_place: Place) -> None:
    """pains 30: the training itself goes on with another number of ranks, each sample once."""
    training = started(trained_place, "run", "held", "--site", "here")
    wait_until((trained_place.home / f"held-{HELD}").exists, _WATCH_S, "training to wait")
    record, _ = trained_place.newest()
    run = RunFolder(Path(record.folder))

    def evaluated() -> tuple[EvaluatedRow, ...]:
        return read_evaluated(run)

    watching = started(trained_place, "evaluate", record.run_id, "--watch", "evaluate.split=val")
    wait_until(lambda: len(evaluated()) == 2, _WATCH_S, "two checkpoints to be evaluated")
    assert training.poll() is None
    seen = [
        lease["running"]
        for lease in json.loads(trained_place.shown("lease", "list", "--watch", "--json").stdout)
    ]
    assert sorted(seen) == [["evaluate"], ["train"]]
    assert "· running\n" in trained_place.shown("status", record.run_id).stdout
    watching.kill()
    watching.wait()
    training.kill()
    training.wait()
    watcher, _ = trained_place.newest()
    trained_place.wait_for_quiet()
    (trained_place.home / f"go-{HELD}").touch()
    wider = trained_place.headrace("resume", record.run_id, "train.ranks_per_node=2", "--json")
    assert wider.returncode == 0, wider.stdout + wider.stderr
    view = json.loads(wider.stdout)
    (outputs,) = (step["outputs"] for step in view["steps"] if step["name"] == "train")
    assert (outputs["world_size"], outputs["steps"]) == (2, LAST)
    assert "train.ranks_per_node 1 -> 2" in view["changed"][0]
    counts = trained(trained_place)
    assert set(counts.values()) == {1}
    assert len({sample for _, sample in counts}) == len(counts) == LAST * 8

    resumed = trained_place.headrace("resume", watcher.run_id)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    rows = evaluated()
    steps = [row.step for row in rows]
    assert steps[:2] == [6, 3]
    assert sorted(steps) == sorted({*steps, LAST})
    outputs = status_of(trained_place)["steps"]["evaluate"]["outputs"]
    assert outputs["steps"] == sorted(steps)

    report = Path(outputs["report"]).read_text()
    for line in ("Learning rate", record.run_id, "Changed from the recipe file"):
        assert line in report
