"""`headrace evaluate --watch` beside a training: both are killed and go on, one with more ranks."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from headrace.files.layout import RunFolder
from headrace.steps.history import EvaluatedRow, read_evaluated
from support.bad_input import HEADRACE, Place, make_place, status_of
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

HELD, LAST = 7, 10
_LONG_S = 400.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A recipe whose training writes checkpoints after 3, 6 and 9 steps, and waits in step 7."""
    place = make_place(tmp_path / "home")
    model = {"_target_": "blob_models.BlobModel", "notes": str(place.home), "holds": [HELD]}
    place.write_recipe(
        "held",
        model=model,
        train={"ranks_per_node": 1},
        trainer={"accelerator": "cpu", "max_epochs": 1, "checkpoint_every_steps": 3},
    )
    return place


def begun(place: Place, *arguments: str) -> subprocess.Popen[bytes]:
    with (place.home / f"{arguments[0]}.log").open("wb") as log:
        return subprocess.Popen(
            [str(HEADRACE), *arguments],
            env=place.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def trained(place: Place) -> Counter[tuple[int, int]]:
    """How often a sample was trained in a step that counts: `(step, sample)`."""
    found: dict[tuple[str, int], list[int]] = {}
    for file in sorted(place.home.glob("rank-*.jsonl")):
        for line in file.read_text().splitlines():
            note = json.loads(line)
            found[file.name, note["step"]] = note["samples"]
    return Counter((step, sample) for (_, step), samples in found.items() for sample in samples)


def test_checkpoints_are_evaluated_while_training_goes_on(place: Place) -> None:
    """pains 30: the training itself goes on with another number of ranks, each sample once."""
    training = begun(place, "run", "held", "--site", "here")
    wait_until((place.home / f"held-{HELD}").exists, _LONG_S, "training to wait")
    record, _ = place.newest()
    run = RunFolder(Path(record.folder))

    def evaluated() -> tuple[EvaluatedRow, ...]:
        return read_evaluated(run)

    watching = begun(place, "evaluate", record.run_id, "--watch", "evaluate.split=val")
    wait_until(lambda: len(evaluated()) == 2, _LONG_S, "two checkpoints to be evaluated")
    assert training.poll() is None
    seen = [
        lease["running"]
        for lease in json.loads(place.shown("lease", "list", "--watch", "--json").stdout)
    ]
    assert sorted(seen) == [["evaluate"], ["train"]]
    assert "· running\n" in place.shown("status", record.run_id).stdout
    watching.kill()
    watching.wait()
    training.kill()
    training.wait()
    watcher, _ = place.newest()
    place.wait_for_quiet()
    (place.home / f"go-{HELD}").touch()
    wider = place.headrace("resume", record.run_id, "train.ranks_per_node=2", "--json")
    assert wider.returncode == 0, wider.stdout + wider.stderr
    view = json.loads(wider.stdout)
    (outputs,) = (step["outputs"] for step in view["steps"] if step["name"] == "train")
    assert (outputs["world_size"], outputs["steps"]) == (2, LAST)
    assert "train.ranks_per_node 1 -> 2" in view["changed"][0]
    counts = trained(place)
    assert set(counts.values()) == {1}
    assert len({sample for _, sample in counts}) == len(counts) == LAST * 8

    resumed = place.headrace("resume", watcher.run_id)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    rows = evaluated()
    steps = [row.step for row in rows]
    assert steps[:2] == [6, 3]
    assert sorted(steps) == sorted({*steps, LAST})
    outputs = status_of(place)["steps"]["evaluate"]["outputs"]
    assert outputs["steps"] == sorted(steps)

    report = Path(outputs["report"]).read_text()
    for words in ("Learning rate", record.run_id, "Changed from the recipe file"):
        assert words in report
