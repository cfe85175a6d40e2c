"""What earlier runs tell of how long steps take: read from the ledger and their folders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.control.ledgers import open_ledger
from headrace.control.retrying import KEPT, TOTAL
from headrace.control.runs import Run, open_run
from headrace.control.walltime.estimate import Past, slots
from headrace.errors import StepError
from headrace.leases.records import HostRecord, LeaseInfo, PoolRecord
from headrace.ledger.records import AttemptRecord
from headrace.states import StepState
from headrace.storage.atomic import read_record
from headrace.storage.layout import LeaseFolder

_NUM_RUNS = 10
_NUM_ATTEMPTS = 200
_NUM_STARTS = 3


def attempts_at(recipe_name: str, site_name: str, role_name: str) -> tuple[AttemptRecord, ...]:
    """Attempts at steps of a recipe that have ended on a role of a site, the newest first."""
    return open_ledger().past_attempts(recipe_name, site_name, role_name, limit=_NUM_ATTEMPTS)


def pasts(attempts: Sequence[AttemptRecord], role_name: str) -> tuple[Past, ...]:
    """What runs tell of their steps, the newest first.

    Runs whose folder has gone tell nothing, nor does packing that found its dataset there: the next
    one may have to pack.

    Args:
        attempts: Attempts of those runs on one role, the newest first.
        role_name: The role.
    """
    by_run: dict[str, list[AttemptRecord]] = {}
    for attempt in attempts:
        by_run.setdefault(attempt.run_id, []).insert(0, attempt)
    found = []
    for run_id, of_run in itertools.islice(by_run.items(), _NUM_RUNS):
        try:
            run = open_run(run_id)
        except StepError:
            continue
        found += list(_of_run(run, role_name, of_run))
    return tuple(found)


def start_s(attempts: Sequence[AttemptRecord], leases: Path) -> float:
    """Longest time from the start of a job until its machines were ready, in the newest leases.

    Args:
        attempts: Attempts on one role, the newest first.
        leases: Folder of all leases of the site.
    """
    names = dict.fromkeys(attempt.lease_id for attempt in attempts)
    seen = [_start_s(LeaseFolder(leases / name)) for name in itertools.islice(names, _NUM_STARTS)]
    return max(seen, default=0.0)


def _start_s(folder: LeaseFolder) -> float:
    host, info = read_record(folder.host, HostRecord), read_record(folder.info, LeaseInfo)
    if host is None or info is None:
        return 0.0
    return max(info.ready_at - host.started_at, 0.0)


def _of_run(run: Run, role_name: str, attempts: Sequence[AttemptRecord]) -> Iterator[Past]:
    role = run.site.roles.get(role_name)
    if role is None:
        return
    for kind in dict.fromkeys(attempt.kind for attempt in attempts):
        mine = [attempt for attempt in attempts if attempt.kind == kind]
        num_slots = slots(kind, run.recipe, role)
        if kind == "train" and run.recipe.train.script is None:
            seconds, steps, total = trained(mine)
            if steps:
                yield Past(kind=kind, recipe=run.recipe, slots=num_slots, seconds=seconds,
                           steps=steps, total_steps=total)  # fmt: skip
            continue
        last = mine[-1]
        if last.state is StepState.SUCCEEDED and not last.outputs.get("reused"):
            seconds = _seconds(last) - _without_nodes_s(run, last)
            yield Past(kind=kind, recipe=run.recipe, slots=num_slots, seconds=max(seconds, 0.0),
                       was_done=last.outputs.get("copied_bytes") == 0)  # fmt: skip


def trained(attempts: Sequence[AttemptRecord]) -> tuple[float, float, float | None]:
    """What the attempts at one training came to.

    Args:
        attempts: Attempts at it, the first one first.

    Returns:
        Seconds of those attempts that came further, optimizer steps that they did, and how many
        the whole training has, if that is known.
    """
    seconds, steps, total = 0.0, 0.0, None
    for attempt in attempts:
        is_done = attempt.state is StepState.SUCCEEDED
        kept = float(attempt.outputs.get("steps" if is_done else KEPT) or 0.0)
        total = kept if is_done else attempt.outputs.get(TOTAL) or total
        if kept > steps:
            seconds += _seconds(attempt)
            steps = kept
    return seconds, steps, total


def _seconds(attempt: AttemptRecord) -> float:
    if attempt.started_at is None or attempt.finished_at is None:
        return 0.0
    return attempt.finished_at - attempt.started_at


def _without_nodes_s(run: Run, attempt: AttemptRecord) -> float:
    """How long the step waited in a queue for the first node of its pool."""
    pool = read_record(run.lease_folder(attempt.lease_id).pool, PoolRecord)
    if pool is None or pool.first_node_at is None or attempt.started_at is None:
        return 0.0
    return max(pool.first_node_at - attempt.started_at, 0.0)
