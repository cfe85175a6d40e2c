"""`headrace evaluate --watch`: beside a training, killed and resumed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.files.layout import RunFolder
from headrace.steps.history import EvaluatedRow, read_evaluated
from support.bad_input import HEADRACE, Place, make_place, status_of
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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
            cwd=place.home,
        )


def test_checkpoints_are_evaluated_while_training_goes_on(place: Place) -> None:
    training = begun(place, "run", "held", "--site", "here")
    wait_until((place.home / f"held-{HELD}").exists, _LONG_S, "training to wait")
    record, _ = place.newest()
    run = RunFolder(Path(record.folder))

    def evaluated() -> tuple[EvaluatedRow, ...]:
        return read_evaluated(run)

    watching = begun(place, "evaluate", record.run_id, "--watch", "evaluate.split=val")
    wait_until(lambda: len(evaluated()) == 2, _LONG_S, "two checkpoints to be evaluated")
    assert training.poll() is None
    watching.kill()
    watching.wait()
    (place.home / f"go-{HELD}").touch()
    assert training.wait(_LONG_S) == 0, (place.home / "run.log").read_text()

    watcher, _ = place.newest()
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
