"""What the user is told when training fails, and that nothing is tried again in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import WorkerLostError
from headrace.states import FailureClass
from headrace.steps.context import StepContext
from headrace.steps.run import failure_of
from support.training import (
    CODE,
    failure,
    make_context,
    make_recipe,
    make_site,
)

pytestmark = pytest.mark.slow


def start(
    folder: Path,
    *,
    ranks: int = 2,
    train: dict[str, Any] | None = None,
    evaluate: dict[str, Any] | None = None,
    **options: Any,
) -> StepContext:
    notes = folder / "notes"
    notes.mkdir(parents=True)
    recipe = make_recipe(
        {
            "code": [str(CODE)],
            "data": {"global_batch_size": 8},
            "model": {"_target_": "blob_models.BlobModel", "notes": str(notes), **options},
            "trainer": {"accelerator": "cpu", "max_epochs": 2, "checkpoint_every_steps": 5},
            "train": train or {},
            "evaluate": evaluate,
        }
    )
    return make_context(folder, recipe, make_site(folder, ranks=ranks, allowed_code=[str(CODE)]))


def num_launches(context: StepContext) -> int:
    return len(list(context.folder.parts.glob("launch-*")))


def test_a_model_that_raises_is_a_user_error_with_one_trace(
    dataset, tmp_path, no_leftover_processes
):
    """Rank 0 fails in its wake; only rank 1, which raised, is named."""
    context = start(tmp_path, raises_at=7)
    told = failure_of(failure(context, dataset))
    assert told.failure_class is FailureClass.USER_ERROR
    assert told.where == "rank 1 on node-0"
    assert told.message.startswith(
        "Rank 1 on node-0: training_step raised ValueError: the blobs are too round\n"
    )
    lines = told.trace.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "blob_models.py" in lines[1]
    assert lines[-1] == "ValueError: the blobs are too round"
    assert told.trace.count("Traceback") == 1
    assert "lightning" not in told.trace
    assert num_launches(context) == 1


def test_a_model_that_calls_sys_exit_is_a_user_error(dataset, tmp_path, no_leftover_processes):
    """Though its process says that all is well, it is not started again as one that was lost."""
    context = start(tmp_path, exits_at=7)
    told = failure_of(failure(context, dataset))
    assert told.failure_class is FailureClass.USER_ERROR
    assert told.message.startswith("Rank 1 on node-0: training_step raised SystemExit: 0\n")
    assert "blob_models.py" in told.trace.splitlines()[1]
    assert num_launches(context) == 1


def test_a_model_that_cannot_be_evaluated_is_told_before_it_is_trained(dataset, tmp_path):
    context = start(tmp_path, ranks=1, evaluate={"split": "val", "step": "test", "task": "custom"})
    told = failure_of(failure(context, dataset))
    assert told.failure_class is FailureClass.USER_ERROR
    assert told.message.startswith("Rank 0 on node-0: The model BlobModel has no test_step, which")
    assert "evaluate.step: predict" in told.message
    assert told.trace == ""
    assert not list((tmp_path / "notes").iterdir())  # no batch was trained on


def test_a_loss_that_is_not_finite_names_the_step(dataset, tmp_path):
    context = start(tmp_path, ranks=1, nan_at=7)
    error = failure(context, dataset)
    assert error.failure_class is FailureClass.USER_ERROR
    assert error.what == "Rank 0 on node-0: The loss became NaN or infinite in step 7 (epoch 1)"
    assert "trainer.stop_on_nan=false" in error.hint
    assert num_launches(context) == 1


@pytest.mark.parametrize(("fault", "behind"), [("hangs_at", 1), ("skips_at", 0)])
def test_the_rank_that_is_behind_is_named_and_shows_where(
    fault, behind, dataset, tmp_path, no_leftover_processes
):
    """Pains 34: the ranks that wait for it are not blamed; nor for one that has skipped a
    collective, the rank that stands there alone is told."""
    train = {"hang_timeout": "8s", "max_restarts": 0}
    context = start(tmp_path, train=train, **{fault: 3})
    error = failure(context, dataset)
    assert isinstance(error, WorkerLostError)
    assert error.what.startswith(f"Rank {behind} on node-0: no sign of life for ")
    assert "in misbehave" in (context.folder.logs / f"rank-{behind}.log").read_text()


def test_a_target_that_the_site_does_not_allow_is_refused(dataset, tmp_path):
    recipe = make_recipe(
        {
            "data": {"global_batch_size": 8},
            "model": {"_target_": "torch.nn.Linear", "in_features": {"_target_": "os.getpid"}},
            "trainer": {"accelerator": "cpu"},
        }
    )
    context = make_context(tmp_path, recipe, make_site(tmp_path, ranks=1))
    error = failure(context, dataset)
    assert error.failure_class is FailureClass.USER_ERROR
    assert "does not allow the target 'os.getpid'" in error.what
    assert "headrace.data.transforms" in error.hint
    assert num_launches(context) == 1
