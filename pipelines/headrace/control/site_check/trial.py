"""A short real job of a role's shape: all its nodes join, and tell what they saw."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.batch.findings import Finding, Grade, fail, ok, warn
from headrace.errors import HeadraceError
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, RunFolder, SiteFolder
from headrace.leases import client, preflight
from headrace.leases.lease_status import last_heartbeat
from headrace.leases.records import LeaseSpec
from headrace.processes import ProcessIdentity
from headrace.recipe.load import load_recipe
from headrace.recipe.site import Role, Site
from headrace.states import LeaseState
from headrace.steps import mailbox
from headrace.steps.records import StepSpec

_LIFETIME_S = 600.0
_POLL_S = 0.5
_OVER = "the check of the site has ended"
_ANY_RECIPE = "digits"


def try_role(
    site: Site, role_name: str, wait_s: float, tell: Callable[[str], None]
) -> Iterator[Finding]:
    """Open a lease of the role's shape, with a full pre-flight, and end it.

    The host of a pool that is a job of its own is tried afterwards, see `try_host`. The folder of
    a lease stays behind when it fails.

    Args:
        site: The site.
        role_name: One of its roles, on a batch system.
        wait_s: Longest wait for the nodes, in the queue too.
        tell: Called with what it waits for.
    """
    role = site.roles[role_name]
    found = list(_try_nodes(site, role_name, wait_s, tell))
    yield from found
    if role.kind == "pool" and role.host == "job" and not any(map(_is_failure, found)):
        yield from try_host(site, role_name, wait_s, tell)


def _try_nodes(
    site: Site, role_name: str, wait_s: float, tell: Callable[[str], None]
) -> Iterator[Finding]:
    folder = _new_folder(site, role_name)
    spec = _spec(site, role_name, shape(site.roles[role_name]), folder)
    begun_s = time.monotonic()
    try:
        client.start(folder, spec)
        state = _wait(folder, spec, begun_s + wait_s, tell)
        why = client.why_ended(folder) or client.waiting_for(folder)
        skew_s = _skew_s(folder)
        client.end(folder, reason=_OVER)
    except HeadraceError as error:
        yield fail("job", error.what, error.hint)
        return
    found = preflight.reports(folder)
    yield from _nodes(found)
    if state is not LeaseState.READY:
        told = why or f"its nodes did not come within {wait_s:g} s"
        yield fail("job", told, f"See {folder.log}.")
        return
    count = "1 node was" if spec.role.nodes == 1 else f"{spec.role.nodes} nodes were"
    yield ok("job", f"{count} there after {time.monotonic() - begun_s:.0f} s")
    yield _clock(skew_s)
    shutil.rmtree(folder.path, ignore_errors=True)


def try_host(
    site: Site, role_name: str, wait_s: float, tell: Callable[[str], None]
) -> Iterator[Finding]:
    """Open a pool whose host is a job, have its host submit a node, and end it.

    Args:
        site: The site.
        role_name: A pool with `host: job`.
        wait_s: Longest wait for the host and its node, in the queue too.
        tell: Called with what it waits for.
    """
    folder = _new_folder(site, f"{role_name}-host")
    spec = _spec(site, role_name, host_shape(site.roles[role_name]), folder)
    begun_s = time.monotonic()
    try:
        client.start(folder, spec)
        state = _wait(folder, spec, begun_s + wait_s, tell)
        host_s = time.monotonic() - begun_s
        told = ""
        if state is LeaseState.READY:
            told = _use_a_node(site, folder, spec, begun_s + wait_s, tell)
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
    node_s = time.monotonic() - begun_s
    yield ok("host", f"its job was there after {host_s:.0f} s, and had a node after {node_s:.0f} s")
    shutil.rmtree(folder.path, ignore_errors=True)


def shape(role: Role) -> Role:
    """The role as a short gang; a pool as one of its nodes."""
    batch = role.batch.model_copy(update={"preflight": "full"})
    changes = {"batch": batch, "lifetime": _LIFETIME_S, "lifetime_max": None, "idle_stop": 60.0}
    if role.kind == "pool":
        changes |= {"kind": "gang", "nodes": 1, "host": "control", "host_options": ()}
    fields = {name: value for name, value in changes.items() if name in Role.model_fields}
    return role.model_copy(update=fields)


def host_shape(role: Role) -> Role:
    """The role as a short pool of one node; pure."""
    changes = {"nodes": 1, "lifetime": _LIFETIME_S, "lifetime_max": None, "node_lifetime": None}
    return role.model_copy(update=changes)


def _use_a_node(
    site: Site,
    folder: LeaseFolder,
    spec: LeaseSpec,
    deadline_s: float,
    tell: Callable[[str], None],
) -> str:
    """Give the pool work for one node; what went wrong, or empty."""
    run = RunFolder(folder.path / "run")
    write_record(run.recipe, load_recipe(_ANY_RECIPE))
    write_record(run.site, site)
    step = mailbox.submit(folder, StepSpec(
        key=f"{folder.lease_id}/look/1", kind="probe", run_id="", name="look", attempt=1,
        run_folder=str(run.path), inputs={"nodes": 1},
    ))  # fmt: skip
    while client.state(folder, spec.lost_after_s).is_active and time.monotonic() < deadline_s:
        result = mailbox.outcome(step)
        if result is not None:
            return result.failure.message if result.failure is not None else ""
        tell(client.waiting_for(folder) or "its node is starting")
        time.sleep(_POLL_S)
    return client.waiting_for(folder) or "its node did not come in time"


def _new_folder(site: Site, name: str) -> LeaseFolder:
    root = SiteFolder(Path(site.folder).expanduser().absolute())
    return root.lease(f"check-{name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}")


def _is_failure(finding: Finding) -> bool:
    return finding.grade is Grade.FAIL


def _spec(site: Site, role_name: str, role: Role, folder: LeaseFolder) -> LeaseSpec:
    return LeaseSpec(
        lease_id=folder.lease_id,
        key=folder.lease_id,
        run_id="",
        role_name=role_name,
        role=role,
        heartbeat_s=site.limits.heartbeat,
        owner=ProcessIdentity.of(),
        tiers=site.tiers,
    )


def _wait(
    folder: LeaseFolder, spec: LeaseSpec, deadline_s: float, tell: Callable[[str], None]
) -> LeaseState:
    while True:
        state = client.state(folder, spec.lost_after_s)
        if state is not LeaseState.STARTING or time.monotonic() > deadline_s:
            return state
        tell(client.waiting_for(folder) or "its nodes are starting")
        time.sleep(_POLL_S)


def _skew_s(folder: LeaseFolder) -> float:
    """By how much the first node's clock is behind this one's; its last heartbeat included."""
    beaten_at = last_heartbeat(folder)
    return 0.0 if beaten_at is None else time.time() - beaten_at


def _nodes(found: tuple[preflight.NodeReport, ...]) -> Iterator[Finding]:
    for report in found:
        looked = ", ".join(f"{each.name} {each.seconds:.1f} s" for each in report.checks)
        if report.problems:
            advice = "Tell the administrators, or avoid it with `batch.exclude`."
            yield fail(report.node, "; ".join(report.problems), advice)
        else:
            yield ok(report.node, looked)


def _clock(skew_s: float) -> Finding:
    if abs(skew_s) > 2 * preflight.MAX_SKEW_S:
        seen = f"that of the first node differs by {skew_s:.0f} s from this machine's"
        return warn("clock", seen, "Leases may look lost: have the clocks set (NTP).")
    return ok("clock", "that of the first node agrees with this machine's")
