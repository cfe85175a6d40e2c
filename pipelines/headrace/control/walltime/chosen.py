"""The time limit of a lease of a run, or of one that is only planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.batch.systems import system_of
from headrace.control.flow import PlannedStep, steps_of
from headrace.control.ledgers import open_ledger
from headrace.control.retrying import KEPT, TOTAL
from headrace.control.runs import Run
from headrace.control.walltime import history
from headrace.control.walltime.choice import MOST_S, Most, choose, shown
from headrace.control.walltime.estimate import Work, expected
from headrace.errors import BatchError
from headrace.leases.records import LeaseSpec, Walltime
from headrace.ledger.records import AttemptRecord
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.states import FailureClass, StepState
from headrace.storage.atomic import read_record
from headrace.storage.layout import SiteFolder


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
    _, kept, total = history.trained([each for each in attempts if each.kind == "train"])
    work = Work(recipe=run.recipe, role=role, kept_steps=kept, total_steps=total)
    left = [step for step in planned if step.name not in done]
    return _choose(run.site, role_name, left, work, _too_short_s(run, attempts))


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
    attempts = history.attempts_at(work.recipe.name, site.name, role_name)
    pasts = history.pasts(attempts, role_name)
    leases = SiteFolder(Path(site.folder).expanduser()).leases
    return choose(
        [expected(step.name, step.kind, work, pasts) for step in steps],
        _most(work.role),
        history.start_s(attempts, leases) if work.role.kind == "gang" else 0.0,
        too_short_s,
    )


def _most(role: Role) -> Most:
    system = system_of(role)
    own = role.lifetime_max
    try:
        told_s = system.longest_job_s(role.batch)
    except BatchError as error:
        told_s = None
        silence = f" ({error.what})"
    else:
        silence = ""
    if told_s is not None and told_s <= (own or told_s):
        return Most(seconds=told_s, whose=f"{system.name}'s longest job, {shown(told_s)}")
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


def _kept(attempt: AttemptRecord) -> float:
    return float(attempt.outputs.get(KEPT) or 0.0)
