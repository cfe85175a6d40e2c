"""A short real job of a role's shape: all its nodes join, and tell what they saw."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.batch.findings import Finding, Grade, fail, ok, warn
from headrace.clusters import client, preflight
from headrace.clusters.lease_status import last_heartbeat
from headrace.clusters.records import LeaseSpec
from headrace.errors import HeadraceError
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, RunFolder, SiteFolder
from headrace.processes import ProcessIdentity
from headrace.recipe.load import load_recipe
from headrace.recipe.site import Role, Site
from headrace.states import LeaseState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepSpec

_POLL_S = 0.5
_OVER = "the check of the site has ended"
_ANY_RECIPE = "digits"
_SHORT = {"lifetime": 600.0, "lifetime_max": None}


@dataclass(frozen=True)
class _Trial:
    """A lease that is opened to see whether it can be; its folder stays behind when it cannot."""

    site: Site
    folder: LeaseFolder
    spec: LeaseSpec
    wait_s: float
    """Longest wait for the nodes, in the queue too."""
    begun_s: float
    tell: Callable[[str], None]
    """Called with what it waits for."""

    def opened(self) -> LeaseState:
        """Open the lease, and wait until it is ready or cannot be."""
        client.start(self.folder, self.spec)
        while True:
            state = client.state(self.folder, self.spec.lost_after_s)
            if state is not LeaseState.STARTING or self.is_late():
                return state
            self.tell(client.waiting_for(self.folder) or "its nodes are starting")
            time.sleep(_POLL_S)

    def used(self) -> str:
        """Give a pool work for one node; what went wrong, or empty."""
        run = RunFolder(self.folder.path / "run")
        write_record(run.recipe, load_recipe(_ANY_RECIPE))
        write_record(run.site, self.site)
        step = mailbox.submit(self.folder, StepSpec(
            key=f"{self.folder.lease_id}/look/1", kind="probe", run_id="", name="look", attempt=1,
            run_folder=str(run.path), inputs={"nodes": 1},
        ))  # fmt: skip
        while client.state(self.folder, self.spec.lost_after_s).is_active and not self.is_late():
            result = mailbox.outcome(step)
            if result is not None:
                return result.failure.message if result.failure is not None else ""
            self.tell(client.waiting_for(self.folder) or "its node is starting")
            time.sleep(_POLL_S)
        return client.waiting_for(self.folder) or "its node did not come in time"

    def passed_s(self) -> float:
        return time.monotonic() - self.begun_s

    def is_late(self) -> bool:
        return self.passed_s() > self.wait_s


def try_role(
    site: Site, role_name: str, wait_s: float, tell: Callable[[str], None]
) -> Iterator[Finding]:
    """Open a lease of the role's shape, with a full pre-flight, and end it.

    The host of a pool that is a job of its own is tried afterwards, see `try_host`.

    Args:
        site: The site.
        role_name: One of its roles, on a batch system.
        wait_s: Longest wait for the nodes, in the queue too.
        tell: Called with what it waits for.
    """
    role = site.roles[role_name]
    found = list(_try_nodes(_trial(site, role_name, shape(role), wait_s, tell)))
    yield from found
    is_good = all(each.grade is not Grade.FAIL for each in found)
    if role.kind == "pool" and role.host == "job" and is_good:
        yield from try_host(site, role_name, wait_s, tell)


def try_host(
    site: Site, role_name: str, wait_s: float, tell: Callable[[str], None]
) -> Iterator[Finding]:
    """Open a pool whose host is a job, have its host submit a node, and end it."""
    role = site.roles[role_name].model_copy(update={**_SHORT, "nodes": 1, "node_lifetime": None})
    trial = _trial(site, role_name, role, wait_s, tell, "-host")
    folder = trial.folder
    try:
        state = trial.opened()
        host_s = trial.passed_s()
        told = trial.used() if state is LeaseState.READY else ""
        why = client.why_ended(folder) or told or client.waiting_for(folder)
        client.end(folder, reason=_OVER)
    except HeadraceError as error:
        yield fail("host", error.what, error.hint)
        return
    if state is not LeaseState.READY or why:
        told = why or f"its job did not start within {wait_s:g} s"
        advice = f"See {folder.log}; `host_options` of the role add to what its job asks for."
        yield fail("host", told, advice)
        return
    after = f"after {host_s:.0f} s, and had a node after {trial.passed_s():.0f} s"
    yield ok("host", f"its job was there {after}")
    shutil.rmtree(folder.path, ignore_errors=True)


def shape(role: Role) -> Role:
    """The role as a short gang; a pool as one of its nodes."""
    batch = role.batch.model_copy(update={"preflight": "full"})
    changes: dict[str, object] = {**_SHORT, "batch": batch, "idle_stop": 60.0}
    if role.kind == "pool":
        changes |= {"kind": "gang", "nodes": 1, "host": "control", "host_options": ()}
    return role.model_copy(update=changes)


def _try_nodes(trial: _Trial) -> Iterator[Finding]:
    folder = trial.folder
    try:
        state = trial.opened()
        why = client.why_ended(folder) or client.waiting_for(folder)
        beat_at = last_heartbeat(folder)
        skew_s = 0.0 if beat_at is None else time.time() - beat_at
        client.end(folder, reason=_OVER)
    except HeadraceError as error:
        yield fail("job", error.what, error.hint)
        return
    yield from _nodes(preflight.reports(folder))
    if state is not LeaseState.READY:
        told = why or f"its nodes did not come within {trial.wait_s:g} s"
        yield fail("job", told, f"See {folder.log}.")
        return
    nodes = trial.spec.role.nodes
    count = "1 node was" if nodes == 1 else f"{nodes} nodes were"
    yield ok("job", f"{count} there after {trial.passed_s():.0f} s")
    yield _clock(skew_s)
    shutil.rmtree(folder.path, ignore_errors=True)


def _trial(
    site: Site, role_name: str, role: Role, wait_s: float, tell: Callable[[str], None],
    suffix: str = "",
) -> _Trial:  # fmt: skip
    root = SiteFolder(Path(site.folder).expanduser().absolute())
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    folder = root.lease(f"check-{role_name}{suffix}-{stamp}")
    spec = LeaseSpec(
        lease_id=folder.lease_id,
        key=folder.lease_id,
        run_id="",
        role_name=role_name,
        role=role,
        heartbeat_s=site.limits.heartbeat,
        owner=ProcessIdentity.of(),
        tiers=site.tiers,
    )
    return _Trial(site, folder, spec, wait_s, time.monotonic(), tell)


def _nodes(found: tuple[preflight.NodeReport, ...]) -> Iterator[Finding]:
    for report in found:
        if report.problems:
            advice = "Tell the administrators, or avoid it with `batch.exclude`."
            yield fail(report.node, "; ".join(report.problems), advice)
        else:
            seen = ", ".join(f"{each.name} {each.seconds:.1f} s" for each in report.checks)
            yield ok(report.node, seen)


def _clock(skew_s: float) -> Finding:
    """By how much the first node's clock is behind this one's; its last heartbeat included."""
    if abs(skew_s) > 2 * preflight.MAX_SKEW_S:
        seen = f"that of the first node differs by {skew_s:.0f} s from this machine's"
        return warn("clock", seen, "Leases may look lost: have the clocks set (NTP).")
    return ok("clock", "that of the first node agrees with this machine's")
