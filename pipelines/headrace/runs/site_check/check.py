"""Everything that is looked at when a site is checked, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.batch.findings import Finding, Grade, fail
from headrace.batch.systems import system_of
from headrace.clusters.lease_jobs import job_spec
from headrace.clusters.records import LeaseSpec
from headrace.errors import HeadraceError, LoginError, SiteError, nearest
from headrace.files.layout import SiteFolder
from headrace.recipe.batch import Login
from headrace.recipe.site import Site
from headrace.record import Record
from headrace.runs.site_check import elsewhere, storage, trial
from headrace.runs.walltime import FLOOR_S

_Queue = tuple[str, str | None, Login | None]
"""Which queue a role uses."""

_SILENT = ("commands", Grade.FAIL)
"""Subject and grade of a queue that is not asked again for another role."""

_PROBE_S = 15.0
"""A command that a batch system does not answer for so long is not waited for."""


class Section(Record):
    """What was found about one part of the site."""

    part: str
    """`site`, or the name of a role."""
    findings: tuple[Finding, ...]
    """What was found, in the order in which it was looked at."""

    @property
    def has_failed(self) -> bool:
        """Whether something keeps leases from working."""
        return any(each.grade is Grade.FAIL for each in self.findings)


def check(
    site: Site,
    role_names: Sequence[str] = (),
    submit_wait_s: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Section, ...]:
    """Look at a site.

    Side effects: makes the site's folder and, where nodes are this machine, those of the tiers.

    Args:
        site: The resolved site.
        role_names: Roles to look at; all when empty.
        submit_wait_s: Submit a short job for each role that has a queue, and wait so long for its
            nodes; None to submit nothing.
        tell: Called with what a job waits for.

    Raises:
        SiteError: The site has no such role.
    """
    for name in role_names:
        if name not in site.roles:
            raise SiteError(f"Site {site.name} has no role '{name}'", nearest(name, site.roles))
    names = [name for name in role_names or site.roles if site.roles[name].backend != "local"]
    silent: dict[_Queue, Finding] = {}
    roles = [_role(site, name, submit_wait_s, tell, silent) for name in names]
    is_proved = submit_wait_s is not None and not any(each.has_failed for each in roles)
    of_site = (
        *storage.shared_folder(site, is_proved=is_proved and bool(roles)),
        *storage.tier_folders(site),
    )
    return (Section(part="site", findings=of_site), *roles)


def _role(
    site: Site,
    name: str,
    submit_wait_s: float | None,
    tell: Callable[[str], None],
    silent: dict[_Queue, Finding],
) -> Section:
    role = site.roles[name]
    queue = (role.backend, role.batch.config, role.batch.login)
    found = [silent[queue]] if queue in silent else list(_queue(site, name))
    for each in found:
        if (each.subject, each.grade) == _SILENT:
            silent[queue] = each
    tried: list[Finding] = []
    if submit_wait_s is not None and not any(each.grade is Grade.FAIL for each in found):
        tried = list(trial.try_role(site, name, submit_wait_s, tell))
    is_proved = bool(tried) and all(each.grade is not Grade.FAIL for each in tried)
    if not any(each.subject == "python" for each in found):  # hosts have been asked
        found.append(storage.python_of_nodes(role, is_proved=is_proved))
    found += [*storage.container_image(role), *tried]
    return Section(part=name, findings=tuple(found))


def _queue(site: Site, name: str) -> Iterator[Finding]:
    role = site.roles[name]
    shaped = role if role.kind == "gang" else role.model_copy(update={"nodes": 1})
    if isinstance(role.lifetime, str):  # never more than the queue gives, so any will do
        shaped = shaped.model_copy(update={"lifetime": FLOOR_S})
    root = Path(site.folder).expanduser().absolute()
    folder = SiteFolder(root).lease(f"check-{name}")
    lease = LeaseSpec(
        lease_id=folder.lease_id, key=folder.lease_id, run_id="", role_name=name, role=shaped
    )
    spec = job_spec(folder, lease, os.environ.get("PYTHONPATH", ""))
    try:
        if role.batch.hosts:
            yield from elsewhere.hosts(role, root, spec)
            return
        system = system_of(role, _PROBE_S)
        if role.batch.login is not None:
            yield from elsewhere.login_node(system.commands, role.batch.login, root)
        yield from system.check(spec)
    except LoginError as error:
        yield fail("login", error.what, error.hint)
    except HeadraceError as error:
        yield fail("queue", error.what, error.hint)
