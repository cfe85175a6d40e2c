"""The time limit of a lease, of a run or only planned, from what earlier runs took."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.batch.registry import system_of
from headrace.clusters.lease_records import HostRecord, LeaseInfo, LeaseSpec, PoolRecord, Walltime
from headrace.errors import BatchError, StepError
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.runs.flow import PlannedStep, steps_of
from headrace.runs.interruptions import Pace
from headrace.runs.runs import Run, open_run
from headrace.runs.walltime import MOST_S, Most, Past, Work, choose, expected, shown, slots, step_s
from headrace.states import FailureClass, StepState
from headrace.steps.retry_policy import KEPT, TOTAL

_NUM_RUNS = 10
_NUM_ATTEMPTS = 200
_NUM_STARTS = 3


def for_plan(
    recipe: Recipe, site: Site, role_name: str, steps: Sequence[PlannedStep]
) -> Walltime | None:
    """The time limit that a lease of a new run would get; None where the site says it.

    Side effects: asks the batch system for its longest job.
    """
    role = site.roles[role_name]
    if not isinstance(role.lifetime, str):
        return None
    return _choose(site, role_name, steps, Work(recipe=recipe, role=role), None)


def for_run(run: Run, role_name: str) -> Walltime | None:
    """The time limit of the next lease of a run; None where the site says it.

    Side effects: asks the batch system for its longest job.
    """
    role = run.site.roles[role_name]
    if not isinstance(role.lifetime, str):
        return None
    planned = [step for step in steps_of(run.recipe, run.request.kind) if step.role == role_name]
    names = {step.name for step in planned}
    attempts = [each for each in open_ledger().attempts(run.run_id) if each.step in names]
    done = {each.step for each in attempts if each.state is StepState.SUCCEEDED}
    _, kept, total = _trained([each for each in attempts if each.kind == "train"])
    work = Work(recipe=run.recipe, role=role, kept_steps=kept, total_steps=total)
    left = [step for step in planned if step.name not in done]
    return _choose(run.site, role_name, left, work, _too_short_s(run, attempts))


def pace(recipe: Recipe, site: Site, role_name: str) -> Pace:
    """What the newest earlier runs tell of steps of training, and of starts, on a role."""
    attempts = open_ledger().past_attempts(recipe.name, site.name, role_name, limit=_NUM_ATTEMPTS)
    trained = [step_s(past, recipe) for past in _pasts(attempts, role_name) if past.steps]
    longest_s = max(starts_of(site.name, role_name)[:_NUM_STARTS], default=None)
    return Pace(step_s=next(iter(trained), None), start_s=longest_s)


def starts_of(site_name: str, role_name: str) -> list[float]:
    """Seconds from asking for leases of a role until they were ready, the newest first."""
    return [
        lease.ready_at - lease.created_at
        for lease in open_ledger().leases()
        if (lease.site_name, lease.role) == (site_name, role_name) and lease.ready_at is not None
    ]


def can_grow(run: Run, lease_id: str) -> bool:
    """Whether the run's next lease gets more time than this one, should this have been too short.

    A pool does not: it lasts as long as it may, only its nodes have a chosen time.
    """
    spec = read_record(run.lease_folder(lease_id).spec, LeaseSpec)
    if spec is None or spec.walltime is None or spec.role.kind == "pool":
        return False
    return spec.walltime.seconds < spec.walltime.most_s


def _choose(
    site: Site,
    role_name: str,
    steps: Sequence[PlannedStep],
    work: Work,
    too_short_s: float | None,
) -> Walltime:
    attempts = open_ledger().past_attempts(
        work.recipe.name, site.name, role_name, limit=_NUM_ATTEMPTS
    )
    pasts = _pasts(attempts, role_name)
    leases = SiteFolder(Path(site.folder).expanduser()).leases
    return choose(
        [expected(step.name, step.kind, work, pasts) for step in steps],
        _most(work.role),
        start_s(attempts, leases) if work.role.kind == "gang" else 0.0,
        too_short_s,
    )


def _most(role: Role) -> Most:
    system, own, silence = system_of(role), role.lifetime_max, ""
    try:
        longest_s = system.longest_job_s(role.batch)
    except BatchError as error:
        longest_s, silence = None, f" ({error.what})"
    if longest_s is not None and longest_s <= (own or longest_s):
        return Most(seconds=longest_s, whose=f"{system.name}'s longest job, {shown(longest_s)}")
    if own is not None:
        return Most(seconds=own, whose=f"`lifetime_max`, {shown(own)}")
    whose = f"the day that headrace takes where {system.name} tells no limit{silence}"
    return Most(seconds=MOST_S, whose=whose)


def _too_short_s(run: Run, attempts: Sequence[AttemptRecord]) -> float | None:
    """Time limit of the last lease, if a step ran out of it and how much is left is not known."""
    if not attempts or attempts[-1].failure_class is not FailureClass.TIMED_OUT:
        return None
    *before, last = attempts
    spec = read_record(run.lease_folder(last.lease_id).spec, LeaseSpec)
    if spec is None or spec.walltime is None:
        return None
    most = max((_kept(each) for each in before if each.step == last.step), default=0.0)
    is_known = last.outputs.get(TOTAL) is not None and _kept(last) > most
    return None if is_known else spec.walltime.seconds


def _pasts(attempts: Sequence[AttemptRecord], role_name: str) -> tuple[Past, ...]:
    """What runs tell of their steps, the newest first; those that cannot be read tell nothing."""
    by_run: dict[str, list[AttemptRecord]] = {}
    for attempt in attempts:
        by_run.setdefault(attempt.run_id, []).insert(0, attempt)
    found: list[Past] = []
    for run_id, of_run in itertools.islice(by_run.items(), _NUM_RUNS):
        with suppress(StepError):
            found += list(_of_run(open_run(run_id), role_name, of_run))
    return tuple(found)


def _of_run(run: Run, role_name: str, attempts: Sequence[AttemptRecord]) -> Iterator[Past]:
    """Packing that found its dataset there tells nothing: the next one may have to pack."""
    role = run.site.roles.get(role_name)
    if role is None:
        return
    for kind in dict.fromkeys(attempt.kind for attempt in attempts):
        mine = [attempt for attempt in attempts if attempt.kind == kind]
        num_slots = slots(kind, run.recipe, role)
        if kind == "train" and run.recipe.model is not None:
            seconds, steps, total = _trained(mine)
            if steps:
                yield Past(kind=kind, recipe=run.recipe, slots=num_slots, seconds=seconds,
                           steps=steps, total_steps=total)  # fmt: skip
            continue
        last = mine[-1]
        if last.state is StepState.SUCCEEDED and not last.outputs.get("reused"):
            seconds = _seconds(last) - _without_nodes_s(run, last)
            yield Past(kind=kind, recipe=run.recipe, slots=num_slots, seconds=max(seconds, 0.0),
                       was_done=last.outputs.get("copied_bytes") == 0)  # fmt: skip


def start_s(attempts: Sequence[AttemptRecord], leases: Path) -> float:
    """Longest time from the start of a job until its machines were ready, in the newest leases.

    The attempts are those on one role, the newest first; `leases` is the site's folder of leases.
    """
    names = dict.fromkeys(attempt.lease_id for attempt in attempts)
    seen = [_start_s(LeaseFolder(leases / name)) for name in itertools.islice(names, _NUM_STARTS)]
    return max(seen, default=0.0)


def _start_s(folder: LeaseFolder) -> float:
    with suppress(StepError):
        host, info = read_record(folder.host, HostRecord), read_record(folder.info, LeaseInfo)
        if host is not None and info is not None:
            return max(info.ready_at - host.started_at, 0.0)
    return 0.0


def _trained(attempts: Sequence[AttemptRecord]) -> tuple[float, float, float | None]:
    """Seconds of the attempts at one training that came further, steps they did, steps in all."""
    seconds, steps, total = 0.0, 0.0, None
    for attempt in attempts:
        is_done = attempt.state is StepState.SUCCEEDED
        kept = float(attempt.outputs.get("steps") or 0.0) if is_done else _kept(attempt)
        total = kept if is_done else attempt.outputs.get(TOTAL) or total
        if kept > steps:
            seconds += _seconds(attempt)
            steps = kept
    return seconds, steps, total


def _kept(attempt: AttemptRecord) -> float:
    return float(attempt.outputs.get(KEPT) or 0.0)


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
