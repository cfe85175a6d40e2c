"""Checkpoints hold plain values: old ones resume, and what could not is told by the first one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UserError
from headrace.steps.context import StepContext
from support.training import blob_step, train_here, write_blobs

BEFORE = Path(__file__).parent / "checkpoints_before"
"""After step 7, by the release that still loaded any pickle."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blobs") / "dataset"
    write_blobs(folder, train_samples=83)
    return folder


def start(folder: Path, trainer: dict[str, Any] | None = None, **site: Any) -> StepContext:
    return blob_step(
        folder,
        site={"ranks": 1, **site},
        trainer={"checkpoint_every_steps": 7, **(trainer or {})},
        train={"max_restarts": 0},
    )


def steps(folder: Path) -> list[int]:
    lines = (folder / "notes/rank-0.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_checkpoint_of_the_release_before_resumes(tmp_path: Path, dataset: Path) -> None:
    context = start(tmp_path)
    checkpoints = Path(context.spec.run_folder) / "checkpoints"
    checkpoints.mkdir()
    shutil.copy(BEFORE / "step-000000007.ckpt", checkpoints)
    assert train_here(context, dataset)["steps"] == 20
    assert steps(tmp_path) == list(range(8, 21))
    written = (tmp_path / "notes/left-open-0").read_text().split()
    assert written == [str(step) for step in range(8, 21)]  # Python's own end, see `end_quickly`


def test_state_that_could_not_be_loaded_ends_training_at_its_first_checkpoint(
    tmp_path: Path, dataset: Path
) -> None:
    trainer = {"callbacks": [{"_target_": "blob_callbacks.KeepsADate"}]}
    with pytest.raises(UserError, match=r"'datetime\.date' at callbacks\.KeepsADate\.day") as error:
        train_here(start(tmp_path, trainer), dataset)
    assert "pickled_checkpoints: allow" in error.value.hint
    assert steps(tmp_path)[-1] == 7
    assert list((tmp_path / "runs/run/checkpoints").glob("*.ckpt")) == []


def test_a_site_may_allow_it(tmp_path: Path, dataset: Path) -> None:
    """And one that does not anymore says so at the resume, with the file and the key."""
    trainer = {"callbacks": [{"_target_": "blob_callbacks.KeepsADate"}]}
    train_here(start(tmp_path, trainer, pickled_checkpoints="allow"), dataset)
    checkpoints = tmp_path / "runs/run/checkpoints"
    (checkpoints / "final.json").unlink()
    (checkpoints / "final.ckpt").unlink()
    with pytest.raises(UserError, match=r"step-000000014\.ckpt holds 'datetime\.date'") as error:
        train_here(start(tmp_path, trainer), dataset)
    assert "pickled_checkpoints: allow" in error.value.hint
    assert steps(tmp_path) == list(range(1, 21))
