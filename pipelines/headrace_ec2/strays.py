"""What runs in EC2 by headrace, whose lease it is, and the end of what nobody answers for.

It is looked for in the regions and accounts of the sites and leases of this headrace home.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

from headrace.clusters import lease_client
from headrace.clusters.lease_files import sure_state
from headrace.clusters.lease_records import LeaseSpec, job_name
from headrace.errors import BatchError, HeadraceError, SiteError, StepError, UnknownNameError
from headrace.files.atomic import is_there, read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord
from headrace.recipe.load import available, load_site, site_now
from headrace.recipe.site import Site
from headrace_ec2.api import Ec2Api, Ec2Error, whoami
from headrace_ec2.options import Ec2Options
from headrace_ec2.tagged import LOOKS, Resource
from headrace_ec2.tagged import end as end_resources

logger = logging.getLogger(__name__)

Standing = Literal["alive", "ended", "unknown"]
"""How a lease stands, as far as that can be known here."""

_Standing = tuple[Standing, float | None]
"""That, and when it ended, seconds since the epoch, where that is known."""

_JOB = re.compile(r"(headrace-(.+)-[0-9a-f]{8})(?:-\d+)?")
_LEAVES_S = 60.0
"""Instances of a lease that has ended have this time to end themselves."""
_LATE_S = 1800.0
"""What is past its end by more than this is a stray, whoever started it. EC2 takes no request whose
clock differs by more than 15 minutes: the one that wrote the tag, and the one that reads it."""
_AT_ONCE = 8
_LAST_LEASES = 200
"""Of so many the place is looked up: a site may be named by a path, or its region be changed."""


@dataclass(frozen=True, kw_only=True)
class Ec2Places:
    """Where to look."""

    roles: dict[str, Ec2Options]
    """A role for each region, profile and server, by what users call that place."""
    roots: tuple[SiteFolder, ...]
    """Folders in which this home's leases lie."""


def known_places(site_name: str | None = None) -> Ec2Places:
    """All places of all sites that can be named here and of the last leases; or those of one site.

    Raises:
        SiteError: The site cannot be read, or has no role on EC2.
    """
    sites = list(_sites())
    if site_name is None:
        roles = [*_roles(sites), *_of_leases()]
    else:
        chosen = load_site(site_name)
        sites.append(chosen)
        roles = _roles([chosen])
        if not roles:
            told = "`headrace site list` names the others; leave `--site` out to look at all."
            raise SiteError(f"Site {chosen.name} has no role of backend ec2", told)
    folders = dict.fromkeys(Path(site.folder).expanduser().absolute() for site in sites)
    return Ec2Places(
        roles={_title(role): role for role in roles}, roots=tuple(map(SiteFolder, folders))
    )


def _sites() -> Iterator[Site]:
    for name in available("sites"):
        try:
            yield site_now(name)
        except SiteError as error:
            logger.warning("Site %s is passed over: %s", name, error.what)


def _roles(sites: list[Site]) -> list[Ec2Options]:
    roles = [role for site in sites for role in site.roles.values()]
    return [role.own_options for role in roles if isinstance(role.own_options, Ec2Options)]


def _of_leases() -> Iterator[Ec2Options]:
    for record in open_ledger().leases(limit=_LAST_LEASES):
        if record.backend == "ec2":
            with suppress(StepError, OSError):  # of another release, or of another user
                spec = read_record(LeaseFolder(Path(record.folder)).spec, LeaseSpec)
                if spec is not None and isinstance(spec.role.own_options, Ec2Options):
                    yield spec.role.own_options


def _title(role: Ec2Options) -> str:
    profile = f" as {role.profile}" if role.profile else ""
    return f"{role.region}{profile}{f' at {role.endpoint_url}' if role.endpoint_url else ''}"


class Stray(Resource):
    """Something of headrace's in EC2, and what is known of its lease."""

    place: str
    """Region and account."""
    lease_id: str
    """Its lease; empty when the name of the job tells none."""
    lease: Standing
    """Whether the lease lives or has ended; `unknown` when it is not one of this home."""
    stray: str
    """Why nobody answers for it; empty when somebody may."""
    is_own: bool
    """Whether this user has started it, from this machine."""


def look(places: Ec2Places) -> tuple[list[Stray], list[str]]:
    """Look in all places at once; one that does not answer hides no other.

    Returns:
        What was found, and a line for each place that gave no answer.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        seen = list(pool.map(_look_at, places.roles.values()))
    standing = cache(partial(_standing, places))
    found: dict[str, Stray] = {}  # two profiles may be of one account
    unreached = []
    for place, (resources, failures) in zip(places.roles, seen, strict=True):
        unreached += [f"{place}: {told}" for told in failures]
        for each in resources:
            found.setdefault(each.id, _judged(each, place, standing))
    return list(found.values()), unreached


def end(places: Ec2Places, chosen: Sequence[Stray], tell: Callable[[str], None]) -> bool:
    """End what was chosen, and tell a line for each; gives whether all of it was ended."""
    is_done = True
    for place in dict.fromkeys(each.place for each in chosen):
        here = [each for each in chosen if each.place == place]
        try:
            for each, refusal in end_resources(Ec2Api(places.roles[place]), here):
                is_done = is_done and not refusal
                of = f" of lease {each.lease_id}" if each.lease_id else ""
                how = f"not ended: {refusal}" if refusal else "ended"
                tell(f"{each.kind} {each.id} ({each.type} in {each.zone}){of}: {how}")
        except BatchError as error:
            is_done = False
            tell(f"{place}: not ended: {error.what}")
    return is_done


def reap() -> list[str]:
    """End all strays; a line for each, and for each place that could not be looked at."""
    places = known_places()
    found, unreached = look(places)
    lines = [f"strays were not looked for in {told}" for told in unreached]
    end(places, [each for each in found if each.stray], lines.append)
    return lines


def why_stray(lease: Standing, ended_s: float | None, late_s: float | None) -> str:
    """Why nobody answers for something; empty when somebody may; pure.

    The lease is over for `ended_s`, None when that is not known; by its tag, it should be gone for
    `late_s`, None without one.
    """
    if lease == "ended" and (ended_s is None or ended_s > _LEAVES_S):
        return "its lease has ended"
    if late_s is not None and late_s > _LATE_S:
        return f"it should have ended {late_s / 3600:.1f} h ago"
    return ""


def _look_at(role: Ec2Options) -> tuple[list[Resource], list[str]]:
    found: list[Resource] = []
    failures = []
    for looks in LOOKS:
        try:
            found += looks(Ec2Api(role))
        except Ec2Error as error:  # one right is missing
            failures.append(error.what)
        except BatchError as error:
            return found, [*failures, f"{error.what}. {error.hint}"]
    return found, failures


def _judged(seen: Resource, place: str, standing: Callable[[str], _Standing]) -> Stray:
    told = _JOB.fullmatch(seen.job)
    lease, ended_at = standing(told[1]) if told else ("unknown", None)
    now = time.time()
    return Stray(
        **dict(seen),
        place=place,
        lease_id=told[2] if told else "",
        lease=lease,
        stray=why_stray(lease, _ago(ended_at, now), _ago(seen.ends_at, now)),
        is_own=seen.owner == whoami(),
    )


def _ago(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment


def _standing(places: Ec2Places, job: str) -> _Standing:
    """How a lease stands and when it ended; its job's name proves that it is of a folder here."""
    lease_id = job.removeprefix("headrace-").rpartition("-")[0]
    folders = [root.lease(lease_id) for root in places.roots]
    record = None
    with suppress(UnknownNameError):
        record = open_ledger().lease(lease_id)
        folders.append(LeaseFolder(Path(record.folder)))
    for folder in folders:
        if job_name(folder) == job:
            return _seen(folder) or _on_record(record, folder)
    return "unknown", None


def _seen(folder: LeaseFolder) -> _Standing | None:
    """What the lease's own files tell; None when there are none."""
    try:
        if not is_there(folder.spec):
            return None
        if sure_state(folder, lease_client.spec(folder).lost_after_s).is_active:
            return "alive", None
        return "ended", folder.closed.stat().st_mtime if is_there(folder.closed) else None
    except (HeadraceError, OSError):  # another user's, damaged, or its queue does not answer
        return "unknown", None


def _on_record(record: LeaseRecord | None, folder: LeaseFolder) -> _Standing:
    if record is None or record.folder != str(folder.path):
        return "unknown", None
    return ("alive", None) if record.state.is_active else ("ended", record.ended_at)
