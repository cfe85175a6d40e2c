"""Asks a training that is under way for a profile, and waits for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.clusters import client
from headrace.errors import StepError, UserError
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.record import Record
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.status.step import look, step_folders
from headrace.steps import mailbox
from headrace.steps.mailbox import StepStatus
from headrace.steps.profile import LOOK_S, ProfileRequest, RankProfile
from headrace.training.records import LaunchFolder, NodeReady

_POLL_S = 0.3
MOST_STEPS = 100
"""Steps of a profile at most: traces of more are too large to look at."""


class Wish(Record):
    """What somebody wants to know of a training."""

    num_steps: int = 5
    ranks: tuple[int, ...] = (0,)
    memory: bool = False
    lines: tuple[str, ...] = ()


def profile_run(run: Run, wish: Wish, tick: Callable[[int], None]) -> tuple[RankProfile, ...]:
    """Have ranks of a run record some steps; comes back when all have written what they recorded.

    The wish is taken back when the wait is interrupted.

    Args:
        run: A run that trains a model just now.
        wish: What to record, and of which ranks.
        tick: Called while it takes time, with the step at which recording begins.

    Raises:
        UserError: The run trains no model just now, has no such rank or too few steps left; or a
            rank cannot do what was asked for.
        StepError: Training ended before.
    """
    step = _training(run)
    request = _request(run, step, wish)
    with _asking(step, request):
        while not (answers := _answers(run, request)):
            if mailbox.outcome(step) is not None or _is_over(step):
                raise StepError(
                    f"The training of {run.run_id} ended before all ranks had their profile",
                    f"See headrace status {run.run_id}.",
                )
            tick(request.first_step)
            time.sleep(_POLL_S)
    failed = next((each for each in answers if each.error), None)
    if failed is not None:
        raise UserError(f"Rank {failed.rank} on {failed.node}: {failed.error}")
    return answers


@contextmanager
def _asking(step: StepFolder, request: ProfileRequest) -> Iterator[None]:
    write_record(step.profile, request)
    try:
        yield
    finally:
        step.profile.unlink(missing_ok=True)


def _training(run: Run) -> StepFolder:
    """The step that trains just now."""
    train = run.recipe.train
    if run.recipe.model is None:
        own = f"script {train.script}" if train.function is None else train.function.target
        raise UserError(
            f"{run.run_id} trains by the {own}, whose steps headrace does not see",
            "Let your own code use torch.profiler itself.",
        )
    found = step_folders(run, "train")
    step = StepFolder(found[-1][1]) if found else None
    if step is None or mailbox.status(step).state is not StepState.RUNNING or _is_over(step):
        raise UserError(
            f"{run.run_id} does not train just now",
            f"headrace status {run.run_id} tells what it does.",
        )
    return step


def _is_over(step: StepFolder) -> bool:
    lease = LeaseFolder(step.path.parent.parent)
    return look(lease, step, client.spec(lease).lost_after_s).final


def _request(run: Run, step: StepFolder, wish: Wish) -> ProfileRequest:
    status, size = mailbox.status(step), _world_size(step)
    if size is None or status.progress.unit != "steps" or not status.progress.done:
        raise UserError(
            f"The ranks of {run.run_id} are starting", "Ask again when headrace status tells steps."
        )
    wrong = next((rank for rank in wish.ranks if rank >= size), None)
    if wrong is not None:
        raise UserError(f"There is no rank {wrong}", f"The training has ranks 0 to {size - 1}.")
    first = first_step(status, wish.num_steps)
    request = ProfileRequest(first_step=first, **wish.model_dump())
    while request.folder(run.folder).exists():  # of before a restart that went back
        request = request.model_copy(update={"first_step": request.first_step + 1})
    return request


def first_step(status: StepStatus, num_steps: int) -> int:
    """The step at which all ranks can begin together, as they look about once a second.

    Raises:
        UserError: There are too few steps left.
    """
    done, total = status.progress.done, status.progress.total
    ahead = math.ceil((status.rate or 0.0) * 2 * LOOK_S) + 1
    last = math.inf if total is None else total - num_steps - 1
    if done + 1 > last:
        raise UserError(
            f"After step {done:g} of {total:g} there are too few left to record {num_steps}",
            "Ask for fewer by --steps, or of a longer training.",
        )
    return int(min(done + ahead, last))


def _world_size(step: StepFolder) -> int | None:
    """Ranks of the newest launch; None before there is one."""
    launches = sorted(step.parts.glob("launch-*"))
    ready = read_record(LaunchFolder(launches[-1]).ready(0), NodeReady) if launches else None
    return None if ready is None else ready.launch.world_size


def _answers(run: Run, request: ProfileRequest) -> tuple[RankProfile, ...]:
    """What the ranks answer; empty until all have."""
    files: Sequence[Path] = [request.answer(run.folder, rank) for rank in request.ranks]
    found = [read_record(file, RankProfile) for file in files]
    return tuple(each for each in found if each is not None) if all(found) else ()
