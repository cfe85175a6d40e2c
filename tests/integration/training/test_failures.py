"""What the user is told when training fails, and that nothing is tried again in vain."""

from __future__ import annotations

import pytest

from headrace.errors import WorkerLostError
from headrace.states import FailureClass
from headrace.steps.context import StepContext
from headrace.steps.run import failure_of
from support.training import blob_step, failure, make_context, make_recipe, make_site

pytestmark = pytest.mark.slow


def num_launches(context: StepContext) -> int:
    return len(list(context.folder.parts.glob("launch-*")))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raises_at", "raised ValueError: the blobs are too round\n"),
        ("exits_at", "raised SystemExit: 0\n"),  # though its process says that all is well
    ],
)
def test_a_model_that_raises_or_exits_is_a_user_error_with_one_trace(
    dataset, tmp_path, no_leftover_processes, fault, words
):
    """Rank 0 fails in its wake; only rank 1, which raised, is named."""
    context = blob_step(tmp_path, {fault: 7})
    told = failure_of(failure(context, dataset))
    assert told.failure_class is FailureClass.USER_ERROR
    assert told.where == "rank 1 on node-0"
    assert told.message.startswith(f"Rank 1 on node-0: training_step {words}")
    lines = told.trace.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "blob_models.py" in lines[1]
    assert told.trace.count("Traceback") == 1
    assert "lightning" not in told.trace
    assert num_launches(context) == 1


def test_a_model_that_quits_the_process_is_a_user_error(dataset, tmp_path, no_leftover_processes):
    context = blob_step(tmp_path, {"quits_at": 7})
    error = failure(context, dataset)
    assert error.failure_class is FailureClass.USER_ERROR
    assert error.what == "Rank 1 on node-0: ended with exit code 0 in the middle of training"
    assert num_launches(context) == 1


def test_a_model_that_cannot_be_evaluated_is_told_before_it_is_trained(dataset, tmp_path):
    evaluate = {"split": "val", "step": "test", "task": "custom"}
    context = blob_step(tmp_path, site={"ranks": 1}, evaluate=evaluate)
    told = failure_of(failure(context, dataset))
    assert told.failure_class is FailureClass.USER_ERROR
    assert told.message.startswith("Rank 0 on node-0: The model BlobModel has no test_step, which")
    assert "evaluate.step: predict" in told.message
    assert told.trace == ""
    assert not list((tmp_path / "notes").iterdir())  # no batch was trained on


def test_a_loss_that_is_not_finite_names_the_step(dataset, tmp_path):
    context = blob_step(tmp_path, {"nan_at": 7}, site={"ranks": 1})
    error = failure(context, dataset)
    assert error.failure_class is FailureClass.USER_ERROR
    assert error.what == "Rank 0 on node-0: The loss became NaN or infinite in step 7 (epoch 1)"
    assert "trainer.stop_on_nan=false" in error.hint
    assert num_launches(context) == 1


def test_a_training_that_ends_without_a_step_says_so(dataset, tmp_path):
    """Not that rank 0 left no outcome, which nothing in a recipe would heal."""
    timer = {"_target_": "lightning.pytorch.callbacks.Timer", "duration": {"seconds": 0}}
    context = blob_step(tmp_path, site={"ranks": 1}, trainer={"callbacks": [timer]})
    error = failure(context, dataset)
    assert error.failure_class is FailureClass.USER_ERROR
    assert error.what == "Rank 0 on node-0: Training ended without an optimizer step"
    assert num_launches(context) == 1


@pytest.mark.parametrize(("fault", "behind"), [("hangs_at", 1), ("skips_at", 0)])
def test_the_rank_that_is_behind_is_named_and_shows_where(
    fault, behind, dataset, tmp_path, no_leftover_processes
):
    """Pains 34: the ranks that wait for it are not blamed; nor for one that has skipped a
    collective, the rank that stands there alone is told."""
    train = {"hang_timeout": "8s", "max_restarts": 0}
    context = blob_step(tmp_path, {fault: 3}, train=train)
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
