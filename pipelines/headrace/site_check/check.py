"""All checks of a site, and a short real job of a role's shape."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.batch.findings import Finding, Grade, Section, fail, ok, warn
from headrace.batch.system import system_of
from headrace.clusters import lease_client, preflight
from headrace.clusters.lease_files import LeaseFiles, last_heartbeat
from headrace.clusters.lease_machines import job_spec
from headrace.clusters.lease_records import FLOOR_S, LeaseSpec
from headrace.errors import HeadraceError, LoginError, SiteError, nearest
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder, SiteFolder
from headrace.recipe.batch import Login
from headrace.recipe.load import load_recipe
from headrace.recipe.site import Role, Site
from headrace.site_check import site_paths, users
from headrace.site_secrets import HERE, secrets_for
from headrace.states import LeaseState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepSpec

_Queue = tuple[str, str | None, Login | None]
"""The queue of a role."""

_SILENT = ("commands", Grade.FAIL)
"""Subject and grade of a queue that is not asked again for another role."""

_PROBE_S = 15.0
"""Timeout of a batch system's commands."""

_POLL_S = 0.5
_OVER = "the check of the site has ended"
_ANY_RECIPE = "digits"
_SHORT = {"lifetime": 600.0, "lifetime_max": None}


@dataclass(frozen=True)
class NodeWait:
    """Longest wait for nodes, including the queue, and a callback for what they wait for."""

    most_s: float
    tell: Callable[[str], None]


def check(
    site: Site,
    role_names: Sequence[str] = (),
    submit_wait_s: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Section, ...]:
    """Check a site, with all its roles or some.

    Side effects: makes the site's folder and, if nodes are this machine, those of the tiers.
    With `submit_wait_s`, submits a short job for each role that has a queue, waits so long for its
    nodes, and calls `tell` with what it waits for.

    Raises:
        SiteError: The site has no such role.
    """
    for name in role_names:
        if name not in site.roles:
            raise SiteError(f"Site {site.name} has no role '{name}'", nearest(name, site.roles))
    names = [name for name in role_names or site.roles if not site.roles[name].is_here]
    silent: dict[_Queue, Finding] = {}
    wait = None if submit_wait_s is None else NodeWait(submit_wait_s, tell)
    roles = [_role(site, name, wait, silent) for name in names]
    is_proved = wait is not None and not any(each.has_failed for each in roles)
    of_site = (
        *site_paths.shared_folder(site, is_proved=is_proved and bool(roles)),
        *site_paths.tier_folders(site),
        *users.users(site),
        *users.secrets(site),
    )
    return (Section(part="site", findings=of_site), *roles)


def _role(site: Site, name: str, wait: NodeWait | None, silent: dict[_Queue, Finding]) -> Section:
    role = site.roles[name]
    queue = (role.backend, role.batch.config, role.batch.login)
    found = [silent[queue]] if queue in silent else list(_queue(site, name))
    for each in found:
        if (each.subject, each.grade) == _SILENT:
            silent[queue] = each
    tried: list[Finding] = []
    if wait is not None and not any(each.grade is Grade.FAIL for each in found):
        tried = list(_try_role(site, name, wait))
    is_proved = bool(tried) and all(each.grade is not Grade.FAIL for each in tried)
    if not any(each.subject == "python" for each in found):  # unless hosts were asked
        found.append(site_paths.python_of_nodes(role, is_proved=is_proved))
    found += [*site_paths.container_image(role), *tried]
    return Section(part=name, findings=tuple(found))


def _queue(site: Site, name: str) -> Iterator[Finding]:
    role = site.roles[name]
    shaped = role if role.kind == "gang" else role.model_copy(update={"nodes": 1})
    if isinstance(role.lifetime, str):  # at most the queue's limit: any value works
        shaped = shaped.model_copy(update={"lifetime": FLOOR_S})
    root = _root(site)
    folder = root.lease(f"check-{name}")
    lease = LeaseSpec(
        lease_id=folder.lease_id, key=folder.lease_id, run_id="", role_name=name, role=shaped
    )
    spec = job_spec(folder, lease)
    try:
        if role.batch.hosts:
            yield from site_paths.hosts(role, root.path, spec)
            return
        system = system_of(role, _PROBE_S)
        if role.batch.login is not None:
            yield from site_paths.login_node(system.commands, role.batch.login, root.path)
        yield from system.check(spec)
    except LoginError as error:
        yield fail("login", error.what, error.hint)
    except HeadraceError as error:
        yield fail("queue", error.what, error.hint)


class _Trial:
    """A lease that is opened as a test; its folder stays if it cannot be opened."""

    def __init__(
        self, site: Site, role_name: str, role: Role, wait: NodeWait, suffix: str = ""
    ) -> None:
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        self.folder = _root(site).lease(f"check-{role_name}{suffix}-{stamp}")
        self.spec = LeaseSpec.of_this_process(self.folder, site, role_name, role)
        self._site = site
        self._wait = wait
        self._begun_s = time.monotonic()

    def opened(self) -> LeaseState:
        """Open the lease, and wait until it is ready, has failed, or the time is over."""
        lease_client.start(self.folder, self.spec, partial(secrets_for, self._site, HERE))
        while (state := self._state()) is LeaseState.STARTING and not self._is_late():
            self._pause("its nodes are starting")
        return state

    def used(self) -> str:
        """Give a pool work for one node; return what went wrong, or an empty string."""
        run = RunFolder(self.folder.path / "run")
        write_record(run.recipe, load_recipe(_ANY_RECIPE))
        write_record(run.site, self._site)
        step = mailbox.submit(self.folder, StepSpec(
            key=f"{self.folder.lease_id}/look/1", kind="nodes", run_id="", name="look", attempt=1,
            run_folder=str(run.path), inputs={"nodes": 1},
        ))  # fmt: skip
        while self._state().is_active and not self._is_late():
            result = mailbox.outcome(step)
            if result is not None:
                return result.failure.message if result.failure is not None else ""
            self._pause("its node is starting")
        return LeaseFiles.read(self.folder).wait().why or "its node did not come in time"

    def passed_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _state(self) -> LeaseState:
        return LeaseFiles.read(self.folder).state(self.spec.lost_after_s)

    def _pause(self, what: str) -> None:
        self._wait.tell(LeaseFiles.read(self.folder).wait().why or what)
        time.sleep(_POLL_S)

    def _is_late(self) -> bool:
        return self.passed_s() > self._wait.most_s


def _try_role(site: Site, role_name: str, wait: NodeWait) -> Iterator[Finding]:
    """Open a lease of the role's shape, with a full pre-flight, and end it; then test its host."""
    role = site.roles[role_name]
    found = list(_try_nodes(_Trial(site, role_name, _shape(role), wait), wait))
    yield from found
    is_good = all(each.grade is not Grade.FAIL for each in found)
    if role.kind == "pool" and role.host == "job" and is_good:
        yield from try_host(site, role_name, wait)


def try_host(site: Site, role_name: str, wait: NodeWait) -> Iterator[Finding]:
    """Open a pool whose host is a job, let its host submit a node, and end it."""
    role = site.roles[role_name].model_copy(update={**_SHORT, "nodes": 1, "node_lifetime": None})
    trial = _Trial(site, role_name, role, wait, "-host")
    folder = trial.folder
    try:
        state = trial.opened()
        host_s = trial.passed_s()
        told = trial.used() if state is LeaseState.READY else ""
        files = LeaseFiles.read(folder)
        why = files.why_ended or told or files.wait().why
        lease_client.end(folder, reason=_OVER)
    except HeadraceError as error:
        yield fail("host", error.what, error.hint)
        return
    if state is not LeaseState.READY or why:
        found = why or f"its job did not start within {wait.most_s:g} s"
        advice = f"See {folder.log}; `host_options` of the role add to what its job asks for."
        yield fail("host", found, advice)
        return
    after = f"after {host_s:.0f} s, and had a node after {trial.passed_s():.0f} s"
    yield ok("host", f"its job was there {after}")
    shutil.rmtree(folder.path, ignore_errors=True)


def _root(site: Site) -> SiteFolder:
    return SiteFolder(Path(site.folder).expanduser().absolute())


def _shape(role: Role) -> Role:
    """Return the role as a short gang; for a pool, as one of its nodes."""
    batch = role.batch.model_copy(update={"preflight": "full"})
    changes: dict[str, object] = {**_SHORT, "batch": batch, "idle_stop": 60.0}
    if role.kind == "pool":
        changes |= {"kind": "gang", "nodes": 1, "host": "control", "host_options": ()}
    return role.model_copy(update=changes)


def _try_nodes(trial: _Trial, wait: NodeWait) -> Iterator[Finding]:
    folder = trial.folder
    try:
        state = trial.opened()
        files = LeaseFiles.read(folder)
        why = files.why_ended or files.wait().why
        beat_at = last_heartbeat(folder)
        skew_s = 0.0 if beat_at is None else time.time() - beat_at
        lease_client.end(folder, reason=_OVER)
    except HeadraceError as error:
        yield fail("job", error.what, error.hint)
        return
    yield from _nodes(preflight.reports(folder))
    if state is not LeaseState.READY:
        found = why or f"its nodes did not come within {wait.most_s:g} s"
        yield fail("job", found, f"See {folder.log}.")
        return
    nodes = trial.spec.role.nodes
    count = "1 node was" if nodes == 1 else f"{nodes} nodes were"
    yield ok("job", f"{count} there after {trial.passed_s():.0f} s")
    yield _clock(skew_s)
    shutil.rmtree(folder.path, ignore_errors=True)


def _nodes(found: tuple[preflight.NodeReport, ...]) -> Iterator[Finding]:
    for report in found:
        if report.problems:
            advice = "Tell the administrators, or avoid it with `batch.exclude`."
            yield fail(report.node, "; ".join(report.problems), advice)
        else:
            times = ", ".join(f"{each.name} {each.seconds:.1f} s" for each in report.checks)
            yield ok(report.node, times)


def _clock(skew_s: float) -> Finding:
    """Compare the first node's clock with this one's, by its last heartbeat."""
    if abs(skew_s) > 2 * preflight.MAX_SKEW_S:
        found = f"that of the first node differs by {skew_s:.0f} s from this machine's"
        return warn("clock", found, "Leases may look lost: synchronize the clocks (NTP).")
    return ok("clock", "that of the first node agrees with this machine's")
