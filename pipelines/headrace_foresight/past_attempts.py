"""What steps of earlier runs took: the one reader of the past."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pydantic import ValidationError

from headrace.clusters.lease_records import PoolRecord
from headrace.errors import StepError, UnknownNameError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.files.lines import read_last_line
from headrace.files.sharing import open_to_read
from headrace.ledger.database import default_url, grouped
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, RunRecord
from headrace.recipe.fence import absolute
from headrace.recipe.gang_size import gang_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.runs.parts import suite_of_part
from headrace.runs.planned_steps import steps_of
from headrace.runs.runs import Run, open_run, run_of_record
from headrace.states import StepState
from headrace.steps.history import HistoryRow, training_file
from headrace.steps.retry_policy import PROGRESS, TOTAL
from headrace.steps.step_kinds import StepOptions
from headrace.suites.records import Point, entries_in
from headrace.suites.suite_state import SuiteState, TrialState

if TYPE_CHECKING:
    from headrace_foresight.forecast import Features

_NUM_ATTEMPTS = 400
_NUM_RUNS = 60
_NUM_TRIALS = 60
_SQLITE = "sqlite:///"
_FOUND = 0.02
"""Share of the packing time that it takes to find a dataset packed, before this was measured. An
assumption."""

Value = TypeVar("Value")

BATCH = "data.global_batch_size"

SUITE = "suite"
"""Kind of the step that runs trials: a failed one also informs, by its successful trials."""


class Steps(NamedTuple):
    """Optimizer steps of an uninterrupted training; of other trainings at most their number."""

    num: float = 0.0
    """Optimizer steps."""
    a_batch: int = 1
    """More than one if a model steps several optimizers by itself."""
    in_loop: float = 0.0
    """Steps after its first batch, which is slower than all others."""
    loop_s: float = 0.0
    """Seconds of these steps."""

    @property
    def seconds(self) -> float:
        """Seconds of all steps; the rest of a training does not grow with them."""
        return self.loop_s * self.num / self.in_loop if self.in_loop else 0.0


NO_STEPS = Steps()


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """What one step of an earlier run took, all its attempts together."""

    kind: str
    recipe: Recipe
    ranks: int
    """Ranks that trained, or tasks that packed at once."""
    seconds: float
    """Expected total of a training that has not succeeded."""
    queue_s: float = 0.0
    """Seconds of these in which it waited for the first node of its pool."""
    was_done: bool
    """Whether its work was already done: a packed dataset, staged shards."""
    attempts: int
    steps: Steps = NO_STEPS
    num_samples: float | None = None
    """Samples packed (all splits) or evaluated; None if not reported."""
    num_bytes: float | None
    """Size of the dataset; None if not reported."""
    run_id: str
    options: StepOptions | None = None
    """Options of a step of another package; None for other steps."""
    succeeded: bool = True
    """Whether it succeeded; failed suites still inform by their trials, trainings by progress."""
    values: Point = field(default_factory=dict)
    """Differences between a trial and its suite's recipe."""
    is_trial: bool = False
    """Whether it belongs to a trial, whose processes exist before it begins."""
    is_pruned: bool = False
    """Whether it was ended early, because its results were poor."""

    @property
    def start_s(self) -> float:
        """Seconds of a training besides its steps, mostly the start of its processes."""
        return max(self.seconds - self.steps.seconds, 0.0)


def earlier(recipe: Recipe, site: Site, role_name: str) -> tuple[PastAttempt, ...]:
    """Return what steps of earlier runs of this recipe took on a role of a site, the newest last.

    Unreadable runs and steps without a result are left out.
    """
    if not has_ledger():
        return ()
    rows = open_ledger().past_attempts(recipe.name, site.name, role_name, limit=_NUM_ATTEMPTS)
    by_run = grouped((row.run_id, row) for row in rows)
    found: list[PastAttempt] = []
    for run in reversed(runs_of(list(by_run)[:_NUM_RUNS])):
        with suppress(StepError, UnknownNameError):
            found += _of_run(run_of_record(run), role_name, by_run[run.run_id])
    return tuple(found)


def runs_of(run_ids: Sequence[str]) -> tuple[RunRecord, ...]:
    """Return runs by their ids, the newest first; without any no ledger is opened."""
    return open_ledger().runs_of(run_ids) if run_ids else ()


def has_ledger() -> bool:
    """Whether earlier runs can exist; asking for them creates no file."""
    url = default_url()
    return not url.startswith(_SQLITE) or Path(url.removeprefix(_SQLITE)).exists()


def starts_of(site_name: str, role_name: str) -> list[float]:
    """Return the seconds from requests for leases of a role until they were ready, newest first."""
    return [
        lease.ready_at - lease.created_at
        for lease in (open_ledger().leases() if has_ledger() else ())
        if (lease.site_name, lease.role) == (site_name, role_name)
        and lease.ready_at is not None
        and "-rehearsal-" not in lease.lease_id
    ]


def recipe_of(run: Run) -> Recipe:
    """Return a run's recipe as its user wrote it; that of a part has the suite's dataset."""
    suite_id = suite_of_part(run.run_id)
    if suite_id is None:
        return run.recipe_as_asked
    dataset = open_run(suite_id).recipe.dataset
    return run.recipe_as_asked.model_copy(update={"dataset": dataset})


def _of_run(run: Run, role_name: str, rows: Sequence[AttemptRecord]) -> Iterator[PastAttempt]:
    role = run.site.roles.get(role_name)
    for step in dict.fromkeys(row.step for row in rows):
        mine = sorted((row for row in rows if row.step == step), key=lambda row: row.attempt)
        last, outputs = mine[-1], mine[-1].outputs
        succeeded = last.state is StepState.SUCCEEDED
        seconds = sum(row.took_s or 0.0 for row in mine)
        batch = run.recipe.data.global_batch_size
        steps = Steps(float(outputs.get("steps") or 0.0))
        if not succeeded and last.kind == "train":
            kept_s, kept, total = trained(mine)
            steps = Steps(total or 0.0)
            seconds = kept_s * steps.num / kept if kept else 0.0
        is_telling = succeeded or last.kind == SUITE or (last.kind == "train" and seconds > 0)
        if role is None or not is_telling:
            continue
        if last.kind == "train" and last.attempt == 1 and succeeded:
            steps = _steps(run.folder, batch) or steps
        yield PastAttempt(
            kind=last.kind,
            recipe=recipe_of(run),
            ranks=slots(last.kind, run.recipe, role),
            seconds=seconds,
            queue_s=_without_nodes_s(run, last) if last.kind == "pack" else 0.0,
            attempts=last.attempt,
            was_done=bool(outputs.get("reused")) or outputs.get("copied_bytes") == 0,
            steps=steps,
            num_samples=outputs.get("num_samples"),
            num_bytes=outputs.get("num_bytes"),
            run_id=run.run_id,
            options=run.request.options,
            succeeded=succeeded,
        )


def trained(attempts: Sequence[AttemptRecord]) -> tuple[float, float, float | None]:
    """Return seconds of a training's attempts with progress, steps they did, steps in all."""
    seconds, steps, total = 0.0, 0.0, None
    for attempt in attempts:
        is_done = attempt.state is StepState.SUCCEEDED
        kept = float(attempt.outputs.get("steps" if is_done else PROGRESS) or 0.0)
        total = kept if is_done else attempt.outputs.get(TOTAL) or total
        if kept > steps:
            seconds += attempt.took_s or 0.0
            steps = kept
    return seconds, steps, total


def _without_nodes_s(run: Run, row: AttemptRecord) -> float:
    """Return the seconds that a step waited in a queue for the first node of its pool."""
    pool = read_record(run.lease_folder(row.lease_id).pool, PoolRecord)
    if pool is None or pool.first_node_at is None or row.started_at is None:
        return 0.0
    return max(pool.first_node_at - row.started_at, 0.0)


def _steps(folder: RunFolder, batch: float) -> Steps | None:
    """Return the steps in a training's history; None if the training was interrupted."""
    with suppress(OSError, ValidationError):
        file = training_file(folder)
        with open_to_read(file) as lines:
            first, second = (HistoryRow.model_validate_json(next(lines, b"")) for _ in range(2))
        last = read_last_line(file, HistoryRow)
        if last is not None and last.launch == first.launch and first.step == 0 < last.step:
            begin = second if second.step < last.step else first
            batches = (second.samples_per_s or 0.0) * (second.at - first.at) / batch
            steps_a_batch = max(round(second.step / batches), 1) if batches else 1
            return Steps(last.step, steps_a_batch, last.step - begin.step, last.at - begin.at)
    return None


def past_of(
    recipe: Recipe, site: Site, kind: str, options: StepOptions | None = None
) -> tuple[PastAttempt, ...]:
    """Return what steps of earlier runs took on the roles of a kind of run, given the same options.

    It includes trials of similar suites, if a suite is wanted or no run has trained; and packing on
    any role, because every role can find the dataset packed.
    """
    roles = {step.role for step in steps_of(recipe, kind)}
    found = tuple(
        one
        for role in sorted(site.roles)
        for one in earlier(recipe, site, role)
        if one.options == options and (role in roles or one.kind == "pack")
    )
    if kind in (SUITE, "part") or (kind == "train" and not alike_of("train", recipe, found)):
        found += tuple(one for suite in suites_of(found, recipe) for one in _trials(suite))
    return found


def suites_of(taken: Sequence[PastAttempt], recipe: Recipe) -> Sequence[PastAttempt]:
    """Return suites of similar trials: the successful ones, if there are any."""
    alike = [one for one in taken if one.kind == SUITE and is_alike("train", one.recipe, recipe)]
    return preferred(alike, lambda one: one.succeeded)


def suite_state_of(folder: RunFolder) -> SuiteState:
    """Return the trials of a suite, as far as its event log is written."""
    suite_state = SuiteState()
    for entry in entries_in(folder.journal):
        suite_state.take(entry)
    return suite_state


def _trials(suite: PastAttempt) -> Iterator[PastAttempt]:
    """Yield trainings and evaluations of a suite's successful trials.

    The first trials' wait for the start of processes is left out.
    """
    run, ranks = open_run(suite.run_id), ranks_of_trial(suite.recipe)
    rows = [
        row for row in suite_state_of(run.folder).rows.values() if row.state is StepState.SUCCEEDED
    ]
    whole, pruned = ([row for row in rows if row.pruned is each] for each in (False, True))
    for row, seconds in (*own_seconds(pruned), *own_seconds(whole)):
        batch = row.trial.values.get(BATCH, suite.recipe.data.global_batch_size)
        trial = replace(
            suite,
            kind="train",
            ranks=ranks,
            seconds=max(seconds - row.evaluate_s, 0.0),
            attempts=row.attempts,
            steps=_steps(run.folder.trial(row.trial.number), float(str(batch))) or NO_STEPS,
            succeeded=True,
            values=row.trial.values,
            is_trial=True,
            is_pruned=row.pruned,
        )
        yield trial
        if row.evaluate_s:
            yield replace(trial, kind="evaluate", seconds=row.evaluate_s)


def own_seconds(rows: Sequence[TrialState]) -> list[tuple[TrialState, float]]:
    """Return some trials that succeeded at the first attempt, if there are any, and their seconds.

    The first trials' wait for the start of processes is left out.
    """
    chosen = [row for row in rows if row.attempts == 1] or rows
    usual_s = usual_start_s(chosen)
    return [
        (row, row.took_s - max(row.start_s - usual_s, 0.0)) for row in some_of(chosen, _NUM_TRIALS)
    ]


def usual_start_s(rows: Sequence[TrialState]) -> float:
    """Return their lower quartile: most trials of a short suite are first ones."""
    return sorted(row.start_s for row in rows)[len(rows) // 4] if rows else 0.0


def some_of(values: Sequence[Value], most: int) -> Sequence[Value]:
    """Return values at random places, always the same places, in their order."""
    if len(values) <= most:
        return values
    places = random.Random(0).sample(range(len(values)), most)
    return [values[place] for place in sorted(places)]


def ranks_of_trial(recipe: Recipe) -> int:
    """Return the ranks of a trial: one, unless its recipe has more."""
    return (recipe.train.nodes or 1) * (recipe.train.ranks_per_node or 1)


def known_of(
    kind: str, recipe: Recipe, taken: Sequence[PastAttempt], *, anew: bool = False
) -> list[tuple[Features, float]]:
    """Return known durations of a kind of step that inform about this recipe, the newest last.

    A dataset that is packed and staged is found the next time, except with `anew`.
    """
    alike = alike_of(kind, recipe, taken)
    if kind == "pack" and anew:
        packed = [each for each in alike if not each.was_done]
        return [({"ranks": float(each.ranks)}, each.seconds - each.queue_s) for each in packed]
    if kind == "pack":
        return [({}, seconds) for seconds in _packing_s(recipe, alike)]
    if kind == "stage":
        some = alike if anew else usual(alike, taken)
        return [({}, each.seconds) for each in preferred(some, lambda each: each.was_done != anew)]
    return [(features_for(each.recipe, each.ranks), each.seconds) for each in usual(alike, taken)]


def alike_of(kind: str, recipe: Recipe, taken: Sequence[PastAttempt]) -> Sequence[PastAttempt]:
    """Return the past of a kind of step that informs about this recipe, the newest last.

    The dataset must be the same, for training and evaluation the model or script as well.
    """
    every = [each for each in taken if each.kind == kind and is_alike(kind, each.recipe, recipe)]
    ended = preferred(every, lambda each: each.succeeded)
    return preferred(ended, lambda each: each.attempts == 1)


def slots(kind: str, recipe: Recipe, role: Role) -> int:
    """Return the ranks that train, or the tasks that pack at once."""
    if kind == "pack":
        return role.nodes * role.threads_per_node
    nodes, ranks_per_node = gang_size(recipe, role)
    return nodes * ranks_per_node


def is_alike(kind: str, past: Recipe, now: Recipe) -> bool:
    """Whether a step of one recipe informs about the other's: the same dataset, the same model.

    The model, function or script counts for steps that train or evaluate. Recipes are compared as
    runs record them, with their paths resolved.
    """
    past, now = absolute(past), absolute(now)
    if past.dataset != now.dataset:
        return False
    return kind in ("pack", "stage") or _model_of(past) == _model_of(now)


def _model_of(recipe: Recipe) -> tuple[object, ...]:
    made, train = recipe.model or recipe.train.function, recipe.train
    model = None if made is None else made.target
    return (model, train.script, train.module, train.command, train.args)


def usual(some: Sequence[PastAttempt], taken: Sequence[PastAttempt]) -> Sequence[PastAttempt]:
    """Return runs that found their dataset packed, if there are any, as the next run will.

    In other runs processes start while shards are packed, so their start takes no extra time.
    """
    first = {each.run_id for each in taken if each.kind == "pack" and not each.was_done}
    return preferred(some, lambda each: each.run_id not in first)


def preferred(
    some: Sequence[PastAttempt], is_telling: Callable[[PastAttempt], bool]
) -> Sequence[PastAttempt]:
    """Return the most informative ones; all if there are none."""
    return [each for each in some if is_telling(each)] or some


def _packing_s(recipe: Recipe, alike: Sequence[PastAttempt]) -> list[float]:
    """Return the seconds of packing; a dataset packed in the same way is found the next time."""
    pack = absolute(recipe).pack
    same = [each for each in alike if absolute(each.recipe).pack == pack]
    if not same:
        return [each.seconds for each in alike if not each.was_done]
    found = [each.seconds for each in same if each.was_done]
    return found or [_FOUND * each.seconds for each in same]


def features_for(recipe: Recipe, ranks: int) -> Features:
    """Return what the duration of an evaluation depends on."""
    from headrace_foresight.forecast import features_of  # imports NumPy

    found = features_of(recipe, ranks)
    kept = {name: each for name, each in found.items() if not name.startswith("trainer.")}
    kept["world_size"] = kept.pop("ranks")
    return kept


def epoch_of(recipe: Recipe, taken: Sequence[PastAttempt]) -> float | None:
    """Return the samples of an epoch by packed datasets; None if no earlier run has them."""
    share = None if recipe.dataset is None else recipe.dataset.splits.get("train")
    sizes = [
        each.num_samples
        for each in taken
        if each.num_samples and is_alike("pack", each.recipe, recipe) and each.kind == "pack"
    ]
    return sizes[-1] * share if sizes and share is not None else None
