"""What steps of earlier runs took: the one reader of what has been."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from headrace.clusters.lease_records import PoolRecord
from headrace.errors import StepError
from headrace.files.atomic import read_record
from headrace.files.lines import read_last_line
from headrace.files.sharing import open_to_read
from headrace.ledger.database import default_url
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.recipe.gang_size import gang_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.runs.runs import Run, open_run
from headrace.states import StepState
from headrace.steps.history import HistoryRow, training_file
from headrace.steps.retry_policy import KEPT, TOTAL
from headrace.steps.step_kinds import StepOptions

if TYPE_CHECKING:
    from headrace_foresight.forecast import Features

_NUM_ATTEMPTS = 400
_NUM_RUNS = 60
_SQLITE = "sqlite:///"
_LENGTHS = ("trainer.max_epochs", "trainer.max_steps")
_FOUND = 0.02
"""Share of the time of packing that it takes to find a dataset packed, before one was found. An
assumption."""

SUITE = "suite"
"""Kind of the step that runs trials: also one that has failed tells of those that succeeded."""


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """What one step of an earlier run took, all its attempts together."""

    kind: str
    recipe: Recipe
    ranks: int
    """Ranks that trained, or tasks that packed at once."""
    seconds: float
    """Of a training that has not succeeded: what the whole of it would have taken."""
    queue_s: float = 0.0
    """Seconds of these in which it waited for the first node of its pool."""
    was_done: bool
    """Whether it found its work done: a dataset that is packed, shards that are staged."""
    attempts: int
    samples: float = 0.0
    """Samples that training went over, every epoch counted; 0 where that is not known."""
    loop_samples: float = 0.0
    """Those of them after its first batch, which is slower than all others."""
    loop_s: float = 0.0
    """Seconds that these took; the rest does not grow with the work."""
    num_samples: float | None = None
    """Samples that it packed, all splits, or evaluated; None where the step does not tell."""
    num_bytes: float | None
    """Size of the dataset; None where the step does not tell."""
    run_id: str
    options: StepOptions | None = None
    """What a step of another package was given; None of other steps."""
    succeeded: bool = True
    """Whether it did; of others suites tell, of trials that did, and trainings that came on."""


def earlier(recipe: Recipe, site: Site, role_name: str) -> tuple[PastAttempt, ...]:
    """What steps of earlier runs of this recipe took on a role of a site, the newest last.

    Runs that cannot be read tell nothing, nor do steps that gave nothing.
    """
    if not has_ledger():
        return ()
    rows = open_ledger().past_attempts(recipe.name, site.name, role_name, limit=_NUM_ATTEMPTS)
    by_run: dict[str, list[AttemptRecord]] = {}
    for row in rows:
        by_run.setdefault(row.run_id, []).append(row)
    found: list[PastAttempt] = []
    for run_id in reversed(list(by_run)[:_NUM_RUNS]):
        with suppress(StepError):
            found += _of_run(open_run(run_id), role_name, by_run[run_id])
    return tuple(found)


def has_ledger() -> bool:
    """Whether there can be earlier runs: asking for them makes no file."""
    url = default_url()
    return not url.startswith(_SQLITE) or Path(url.removeprefix(_SQLITE)).exists()


def _of_run(run: Run, role_name: str, rows: Sequence[AttemptRecord]) -> Iterator[PastAttempt]:
    role = run.site.roles.get(role_name)
    for step in dict.fromkeys(row.step for row in rows):
        mine = sorted((row for row in rows if row.step == step), key=lambda row: row.attempt)
        last, outputs = mine[-1], mine[-1].outputs
        succeeded = last.state is StepState.SUCCEEDED
        seconds, batch = sum(map(took_s, mine)), run.recipe.data.global_batch_size
        steps = float(outputs.get("steps") or 0.0)
        if not succeeded and last.kind == "train":
            kept_s, kept, total = trained(mine)
            steps = total or 0.0
            seconds = kept_s * steps / kept if kept else 0.0
        is_telling = succeeded or last.kind == SUITE or (last.kind == "train" and seconds > 0)
        if role is None or not is_telling:
            continue
        is_one = last.kind == "train" and last.attempt == 1 and succeeded
        in_one, loop_steps, loop_s = _loop(run) if is_one else (0, 0, 0.0)
        yield PastAttempt(
            kind=last.kind,
            recipe=run.recipe,
            ranks=slots(last.kind, run.recipe, role),
            seconds=seconds,
            queue_s=_without_nodes_s(run, last) if last.kind == "pack" else 0.0,
            attempts=last.attempt,
            was_done=bool(outputs.get("reused")) or outputs.get("copied_bytes") == 0,
            samples=(in_one or steps) * batch,
            loop_samples=loop_steps * batch,
            loop_s=loop_s,
            num_samples=outputs.get("num_samples"),
            num_bytes=outputs.get("num_bytes"),
            run_id=run.run_id,
            options=run.request.options,
            succeeded=succeeded,
        )


def trained(attempts: Sequence[AttemptRecord]) -> tuple[float, float, float | None]:
    """Seconds of the attempts at one training that came further, steps they did, steps in all."""
    seconds, steps, total = 0.0, 0.0, None
    for attempt in attempts:
        is_done = attempt.state is StepState.SUCCEEDED
        kept = float(attempt.outputs.get("steps" if is_done else KEPT) or 0.0)
        total = kept if is_done else attempt.outputs.get(TOTAL) or total
        if kept > steps:
            seconds += took_s(attempt)
            steps = kept
    return seconds, steps, total


def took_s(row: AttemptRecord) -> float:
    """Seconds of an attempt that has begun and ended; 0 of others."""
    return row.finished_at - row.started_at if row.started_at and row.finished_at else 0.0


def _without_nodes_s(run: Run, row: AttemptRecord) -> float:
    """How long a step waited in a queue for the first node of its pool."""
    pool = read_record(run.lease_folder(row.lease_id).pool, PoolRecord)
    if pool is None or pool.first_node_at is None or row.started_at is None:
        return 0.0
    return max(pool.first_node_at - row.started_at, 0.0)


def _loop(run: Run) -> tuple[int, int, float]:
    """Optimizer steps of a training in one go, those after its first row, and their seconds."""
    with suppress(OSError, ValidationError):
        file = training_file(run.folder)
        with open_to_read(file) as lines:
            first, second = (HistoryRow.model_validate_json(next(lines, b"")) for _ in range(2))
        last = read_last_line(file, HistoryRow)
        if last is not None and last.launch == first.launch and first.step == 0 < last.step:
            begin = second if second.step < last.step else first
            return last.step, last.step - begin.step, last.at - begin.at
    return 0, 0, 0.0


def known_of(
    kind: str, recipe: Recipe, taken: Sequence[PastAttempt], *, anew: bool = False
) -> list[tuple[Features, float]]:
    """Known durations of a kind of step that tell of this recipe, the newest last.

    The dataset must be the same, for training and evaluation the model or script as well. What a
    training took is scaled to the samples of this one: only the time after its first batch grows
    with them. What is packed and staged already is found there the next time, but with `anew`.
    """
    every = [each for each in taken if each.kind == kind and is_alike(kind, each.recipe, recipe)]
    ended = preferred(every, lambda each: each.succeeded)
    alike = preferred(ended, lambda each: each.attempts == 1)
    if kind == "pack" and anew:
        packed = [each for each in alike if not each.was_done]
        return [({"ranks": float(each.ranks)}, each.seconds - each.queue_s) for each in packed]
    if kind == "pack":
        return [({}, seconds) for seconds in _packing_s(recipe, alike)]
    if kind == "stage":
        some = alike if anew else usual(alike, taken)
        return [({}, each.seconds) for each in preferred(some, lambda each: each.was_done != anew)]
    alike = usual(alike, taken)
    wanted = _samples(recipe, taken) if kind == "train" else None
    measured = [each for each in alike if each.loop_samples]
    if wanted and measured:
        return _scaled(measured, wanted)
    return [(features_for(kind, each.recipe, each.ranks), each.seconds) for each in alike]


def slots(kind: str, recipe: Recipe, role: Role) -> int:
    """Ranks that train, or tasks that pack at once."""
    if kind == "pack":
        return role.nodes * role.threads_per_node
    nodes, ranks_per_node = gang_size(recipe, role)
    return nodes * ranks_per_node


def is_alike(kind: str, past: Recipe, now: Recipe) -> bool:
    """Whether a step of one recipe tells of the other's: of the same dataset, and the same model.

    The model, function or script counts for steps that train or evaluate.
    """
    if past.dataset != now.dataset:
        return False
    return kind in ("pack", "stage") or _model_of(past) == _model_of(now)


def _model_of(recipe: Recipe) -> tuple[object, ...]:
    made = recipe.model or recipe.train.function
    model = None if made is None else made.target
    return (model, recipe.train.script, recipe.train.args)


def usual(some: Sequence[PastAttempt], taken: Sequence[PastAttempt]) -> Sequence[PastAttempt]:
    """What runs took that found their dataset packed, if there are such, as the next run will.

    Elsewhere processes start while shards are packed, and nobody waits for them.
    """
    first = {each.run_id for each in taken if each.kind == "pack" and not each.was_done}
    return preferred(some, lambda each: each.run_id not in first)


def preferred(
    some: Sequence[PastAttempt], is_telling: Callable[[PastAttempt], bool]
) -> Sequence[PastAttempt]:
    """Those that tell best; all where there are none."""
    return [each for each in some if is_telling(each)] or some


def _packing_s(recipe: Recipe, alike: Sequence[PastAttempt]) -> list[float]:
    """Seconds of packing: what was packed in the same way is found there the next time."""
    same = [each for each in alike if each.recipe.pack == recipe.pack]
    if not same:
        return [each.seconds for each in alike if not each.was_done]
    found = [each.seconds for each in same if each.was_done]
    return found or [_FOUND * each.seconds for each in same]


def _scaled(alike: Sequence[PastAttempt], samples: float) -> list[tuple[Features, float]]:
    """What trainings would have taken with so many samples.

    A sample takes as long as on average in all trainings with the same features: what a short one
    tells of a long one is little.
    """
    features = [features_for("train", each.recipe, each.ranks, scaled=True) for each in alike]
    from headrace_foresight.forecast import AGEING  # it brings numpy

    keys = [frozenset(of.items()) for of in features]
    loop_s: defaultdict[object, float] = defaultdict(float)
    loop_samples: defaultdict[object, float] = defaultdict(float)
    for age, (each, key) in enumerate(zip(alike[::-1], keys[::-1], strict=True)):
        loop_s[key] += AGEING**age * each.loop_s
        loop_samples[key] += AGEING**age * each.loop_samples
    rest_s = [max(each.seconds - each.loop_s, 0.0) for each in alike]
    more = [samples - each.samples + each.loop_samples for each in alike]
    return [
        (of, seconds + loop_s[key] / loop_samples[key] * num)
        for of, seconds, key, num in zip(features, rest_s, keys, more, strict=True)
    ]


def features_for(kind: str, recipe: Recipe, ranks: int, *, scaled: bool = False) -> Features:
    """What the duration of a step depends on; nothing of how long training goes on if `scaled`."""
    from headrace_foresight.forecast import features_of

    found = features_of(recipe, ranks)
    if kind == "evaluate":
        return {name: value for name, value in found.items() if not name.startswith("trainer.")}
    return {name: value for name, value in found.items() if not (scaled and name in _LENGTHS)}


def _samples(recipe: Recipe, taken: Sequence[PastAttempt]) -> float | None:
    """Samples that a training will go over; None where no earlier run tells an epoch's."""
    batch, trainer = recipe.data.global_batch_size, recipe.trainer
    limits = [float(trainer.max_steps * batch)] if trainer.max_steps >= 0 else []
    an_epoch = recipe.data.samples_per_epoch or _epoch(recipe, taken)
    if an_epoch is not None:
        batches = an_epoch // batch if recipe.data.drop_last else math.ceil(an_epoch / batch)
        limits.append(float(batches * batch * trainer.max_epochs))
    return min(limits, default=None)


def _epoch(recipe: Recipe, taken: Sequence[PastAttempt]) -> float | None:
    share = None if recipe.dataset is None else recipe.dataset.splits.get("train")
    sizes = [
        each.num_samples
        for each in taken
        if each.kind == "pack" and each.num_samples and each.recipe.dataset == recipe.dataset
    ]
    return sizes[-1] * share if sizes and share is not None else None
