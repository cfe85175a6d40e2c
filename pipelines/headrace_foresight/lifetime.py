"""`lifetime: auto`: the time limit of a lease, a quantile of the forecast of its steps.

Also: what interruptions of spot instances cost a training on average. If the notice comes in time
only the start is lost. Otherwise the work since the last checkpoint is repeated: on average half
the time between two checkpoints, because an interruption comes at any moment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.clusters.lease_records import (
    FLOOR_S,
    HostRecord,
    LeaseInfo,
    LeaseSpec,
    Walltime,
    shown,
)
from headrace.errors import StepError
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.recipe.backend import Interruptions
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.runs.planned_steps import steps_of
from headrace.runs.planning import longest
from headrace.runs.prediction import PredictedPart
from headrace.runs.runs import Run
from headrace.states import FailureClass, StepState
from headrace.steps.retry_policy import PROGRESS, TOTAL
from headrace.suites.trial_order import ASSUMED_START_S
from headrace_foresight.forecast import Running, corrected, longest_s
from headrace_foresight.past_attempts import earlier, past_of, starts_of, trained
from headrace_foresight.prediction import part_of

DEFAULT_S = 3600.0
"""The least time limit if the duration of a step is unknown."""

LEVEL = 0.95
"""Probability that the steps of a lease end within its time."""

_EXTRA_S = 300.0
"""Additional time of a lease, for its end."""

_ROUNDING_S = ((3600.0, 300.0), (4 * 3600.0, 900.0), (math.inf, 3600.0))
_UNSURE = 0.3
"""Spread of a training that is known only by its own progress. An assumption."""

_NUM_ATTEMPTS = 200
_NUM_STARTS = 3


def lifetime(
    recipe: Recipe, site: Site, role_name: str, kind: str, run: Run | None = None
) -> Walltime | None:
    """Return the time limit of a run's next lease, or a new run's first; None if the site sets it.

    The steps end within this time with the probability `LEVEL`. It includes the start and 5
    minutes, and is rounded up to 5 minutes, 15 minutes from one hour on, an hour from four on.

    Side effects: queries the batch system for its longest job.
    """
    role = site.roles[role_name]
    if not isinstance(role.lifetime, str):
        return None
    mine: Sequence[AttemptRecord] = ()
    left = [step for step in steps_of(recipe, kind) if step.role == role_name]
    if run is not None:
        names = {step.name for step in left}
        mine = [each for each in open_ledger().attempts(run.run_id) if each.step in names]
        done = {each.step for each in mine if each.state is StepState.SUCCEEDED}
        left = [step for step in left if step.name not in done]
    options = None if run is None else run.request.options
    past = [
        each
        for each in past_of(recipe, site, kind, options)
        if run is None or each.run_id != run.run_id
    ]
    parts = {}
    for step in left:
        # the dataset is usually packed before the training's lease starts
        anew = step.kind != "pack" or step.role != recipe.train.role
        part = part_of(step, recipe, site, past, anew=anew)
        parts[step.name] = _left(part, step.name, step.kind, mine)
    begin_s = 0.0
    if role.kind == "gang":
        rows = open_ledger().past_attempts(recipe.name, site.name, role_name, limit=_NUM_ATTEMPTS)
        begin_s = start_s(rows, SiteFolder(Path(site.folder).expanduser()).leases)
    return choose(parts, longest(role), begin_s, _too_short_s(run, mine))


def _left(
    part: PredictedPart | None, name: str, kind: str, mine: Sequence[AttemptRecord]
) -> PredictedPart | None:
    """Return the rest of a step: for training, what attempts of this run have not done yet."""
    seconds, kept, total = trained([each for each in mine if each.kind == kind == "train"])
    if not kept or not total:
        return part
    done = min(kept / total, 1.0)
    by_itself = PredictedPart(name=name, seconds=seconds / done, spread=_UNSURE, num_known=1)
    known = part or by_itself
    whole = corrected(Running(forecast=known, elapsed_s=seconds, done=done))
    left = {"seconds": whole.seconds * (1 - done), "spread": whole.spread, "shared": whole.shared}
    return known.model_copy(update=left)


def choose(
    parts: dict[str, PredictedPart | None],
    most: Walltime,
    start_s: float = 0.0,
    too_short_s: float | None = None,
) -> Walltime:
    """Choose the time limit of a lease with some steps; None stands for an unknown step.

    It is at least twice `too_short_s`, the limit of a previous lease in which a step made no
    progress.
    """
    known = [part for part in parts.values() if part is not None]
    whole_s = longest_s(known, LEVEL)
    needed_s = whole_s + start_s + _EXTRA_S if known else 0.0
    if len(known) < len(parts):
        needed_s = max(needed_s, DEFAULT_S)
    if too_short_s is not None:
        needed_s = max(needed_s, 2 * too_short_s)
    wanted_s = max(rounded_up(needed_s), FLOOR_S)
    reasons = [] if parts else ["none of its steps is left"]
    if known:
        num_runs = max(part.num_known for part in known)
        times = [f"{part.name} {shown(part.seconds)}" for part in known]
        times += [f"start {shown(start_s)}"] if start_s else []
        runs = "one earlier run" if num_runs == 1 else f"{num_runs} earlier runs"
        reasons.append(
            f"{', '.join(times)} by {runs}, done within {shown(whole_s + start_s)} with a "
            f"probability of {LEVEL:.0%}, plus 5 minutes"
        )
    if unknown := [name for name, part in parts.items() if part is None]:
        reasons.append(
            f"no earlier run shows how long {' and '.join(unknown)} will take here; then it is at "
            f"least {shown(DEFAULT_S)}"
        )
    if too_short_s is not None:
        reasons.append(f"{shown(too_short_s)} was too short for the previous lease, so twice that")
    if wanted_s > most.seconds:
        reasons.append(f"{shown(wanted_s)} is more than {most.why}")
    seconds = min(wanted_s, most.seconds)
    return Walltime(seconds=seconds, most_s=most.seconds, why="; ".join(reasons))


def rounded_up(seconds: float) -> float:
    """Return a time rounded up to a round number."""
    step_s = next(step_s for until_s, step_s in _ROUNDING_S if seconds <= until_s)
    return math.ceil(seconds / step_s) * step_s


def _too_short_s(run: Run | None, attempts: Sequence[AttemptRecord]) -> float | None:
    """Return the time limit of the last lease, if a step exceeded it and its rest is unknown."""
    if run is None or not attempts or attempts[-1].failure_class is not FailureClass.TIMED_OUT:
        return None
    *before, last = attempts
    spec = read_record(run.lease_folder(last.lease_id).spec, LeaseSpec)
    if spec is None or spec.walltime is None:
        return None
    kept = [float(each.outputs.get(PROGRESS) or 0.0) for each in (*before, last)
            if each.step == last.step]  # fmt: skip
    is_known = last.outputs.get(TOTAL) is not None and kept[-1] > max(kept[:-1], default=0.0)
    return None if is_known else spec.walltime.seconds


def start_s(attempts: Sequence[AttemptRecord], leases: Path) -> float:
    """Return the longest time from a job's start to ready machines, in the newest leases.

    The attempts are those on one role, the newest first; `leases` is the site's folder of leases.
    """
    names = dict.fromkeys(attempt.lease_id for attempt in attempts)
    newest = (LeaseFolder(leases / name) for name in itertools.islice(names, _NUM_STARTS))
    return max(itertools.chain.from_iterable(map(_starts, newest)), default=0.0)


def _starts(folder: LeaseFolder) -> Iterator[float]:
    with suppress(StepError):
        host, info = read_record(folder.host, HostRecord), read_record(folder.info, LeaseInfo)
        if host is not None and info is not None:
            yield max(info.ready_at - host.started_at, 0.0)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What an interruption of a gang costs on average, if its notice does not come in time."""

    steps: float
    """Optimizer steps that are repeated."""
    per_hour: float
    """Interruptions of any of the nodes per hour."""
    step_s: float | None = None
    """Seconds of an optimizer step, with the time between steps; None: unknown."""
    start_s: float | None = None
    """Seconds from a request for a lease until its nodes are ready; None: unknown."""

    @property
    def assumed_start_s(self) -> float:
        """Time from an interruption until the training continues; assumed if unknown."""
        return ASSUMED_START_S if self.start_s is None else self.start_s

    @property
    def seconds(self) -> float:
        """Lost time: the start and, if their time is known, the repeated steps."""
        return self.assumed_start_s + self.steps * (self.step_s or 0.0)

    @property
    def share(self) -> float:
        """Share of the time that is lost."""
        return self.per_hour * self.seconds / (3600.0 + self.per_hour * self.seconds)


def expected_loss(recipe: Recipe, nodes: int, of_one: Interruptions, **times: float | None) -> Loss:
    """Return the expected loss of a training on nodes, given `step_s` and `start_s` if known."""
    steps = 0.0 if recipe.model is None else _interval(recipe) / 2
    return Loss(steps=steps, per_hour=nodes * of_one.per_hour, **times)


def times_of(recipe: Recipe, site: Site, role_name: str) -> dict[str, float | None]:
    """Return `step_s` and `start_s` of a `Loss` on a role, by the newest earlier runs."""
    past = [each for each in earlier(recipe, site, role_name) if each.kind == "train"]
    return {
        "step_s": next((one.seconds / one.steps.num for one in past[::-1] if one.steps.num), None),
        "start_s": max(starts_of(site.name, role_name)[:_NUM_STARTS], default=None),
    }


def loss_in_words(recipe: Recipe, nodes: int, of_one: Interruptions, loss: Loss) -> str:
    """Return a loss in one line for the user."""
    is_assumed = " (assumed)" if loss.start_s is None else ""
    return (
        f"spot: an interruption costs a start of {shown(loss.assumed_start_s)}{is_assumed} and, if "
        f"its notice does not come in time, {_again(recipe, loss)}; {loss.per_hour:.2g} "
        f"interruptions per hour of {nodes} node{'s' if nodes > 1 else ''} ({of_one.source}) take "
        f"{'at least ' if loss.step_s is None else ''}{100 * loss.share:.2g} % of the time"
    )


def _again(recipe: Recipe, loss: Loss) -> str:
    """Return what is repeated after an interruption."""
    if recipe.model is None:
        own = "script" if recipe.train.function is None else "function"
        return (
            f"half of the work between two checkpoints of the {own}, which headrace does not know"
        )
    time = f"{shown(loss.steps * loss.step_s)}: " if loss.step_s is not None else ""
    whose = f"half of trainer.checkpoint_every_steps, {recipe.trainer.checkpoint_every_steps}"
    if _interval(recipe) < recipe.trainer.checkpoint_every_steps:
        whose = f"half of trainer.max_steps, {recipe.trainer.max_steps}: no checkpoint comes before"
    return f"{time}{loss.steps:g} steps ({whose})"


def _interval(recipe: Recipe) -> int:
    """Return the optimizer steps between two checkpoints; the last one is at the end."""
    every, most = recipe.trainer.checkpoint_every_steps, recipe.trainer.max_steps
    return every if most < 0 else min(every, most)
