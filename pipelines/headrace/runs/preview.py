"""What a run would ask of a site, without asking for anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from headrace.clusters.backends import backend
from headrace.clusters.lifetime import leaving_s
from headrace.clusters.records import LeaseSpec, Walltime
from headrace.files.layout import SiteFolder
from headrace.recipe.fit import absolute, check_packing, check_training, opened
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.record import Record
from headrace.runs.flow import PlannedStep, check_dataset, check_stores, steps_of
from headrace.runs.walltime_history import for_plan

RUN_ID = "RUN"
"""Stands for the id that a real run gets."""


class LeasePreview(Record):
    """One lease that a run would ask for."""

    role: str
    steps: tuple[str, ...]
    machines: str
    """What it consists of, for the user."""
    time: str
    """How long it may last, and what that means for the steps."""
    walltime: Walltime | None = None
    """How `lifetime: auto` was chosen; null where the site says the time."""
    script: str
    """What is submitted; empty where there is no queue."""


def previews(recipe: Recipe, site: Site) -> tuple[LeasePreview, ...]:
    """The leases that a run of the recipe would ask for, in order of their first steps.

    Side effects: for `lifetime: auto`, asks the batch system for its longest job.

    Raises:
        SiteError: The site lacks a role that the recipe needs.
        UserError: The recipe does not fit the site in another way.
    """
    recipe, site = absolute(recipe), opened(site, is_from_terminal=True)
    check_packing(recipe, site)
    check_stores(recipe, site)
    check_training(recipe, site)
    check_dataset(recipe, site, recipe.dataset.path)
    steps: dict[str, list[PlannedStep]] = {}
    for step in steps_of(recipe, "train"):
        steps.setdefault(step.role, []).append(step)
    return tuple(_preview(recipe, site, role, served) for role, served in steps.items())


def _preview(
    recipe: Recipe, site: Site, role_name: str, served: Sequence[PlannedStep]
) -> LeasePreview:
    role, walltime = site.roles[role_name], for_plan(recipe, site, role_name, served)
    role = role if walltime is None else walltime.of(role)
    steps = tuple(step.name for step in served)
    lease_id = f"{RUN_ID}-{role_name}-1"
    spec = LeaseSpec(
        lease_id=lease_id,
        key=f"{RUN_ID}/{role_name}",
        run_id=RUN_ID,
        role_name=role_name,
        role=role,
        walltime=walltime,
        code=recipe.code,
    )
    folder = SiteFolder(Path(site.folder).expanduser()).lease(lease_id)
    nodes = f"{role.nodes} node{'s' if role.nodes > 1 else ''}"
    pool, gang = f"pool of up to {nodes}", f"gang of {nodes}, {role.ranks_per_node} ranks each"
    machines = pool if role.kind == "pool" else gang
    script = backend(role.backend).preview(folder, spec)
    return LeasePreview(
        role=role_name,
        steps=steps,
        machines=f"{machines}, on {role.backend}",
        time=_time(role, steps, script, walltime),
        walltime=walltime,
        script=script,
    )


def _time(role: Role, steps: tuple[str, ...], script: str, walltime: Walltime | None) -> str:
    limit = timedelta(seconds=role.lifetime_s)
    if not script:
        return f"at most {limit}, the `lifetime` of the role"
    if walltime is not None and role.kind == "pool":
        chosen = timedelta(seconds=walltime.seconds)
        return (
            f"time limit {chosen} of each node, chosen: {walltime.why}; nodes are replaced before "
            f"it, and the pool lasts {limit} at most"
        )
    whose = "the `lifetime` of the role" if walltime is None else f"chosen: {walltime.why}"
    text = (
        f"time limit {limit}, {whose}; the lease ends {leaving_s(role.lifetime_s):.0f} s before it"
    )
    if "train" in steps:
        text += (
            ", and training that is not done by then stops with a checkpoint and goes on in "
            "another job"
        )
    if walltime is not None:
        return text
    return (
        f"{text}. A shorter `lifetime` starts sooner where the queue is filled up with short jobs"
    )
