"""What runs in EC2 by headrace, whose lease it is, and the end of what nobody answers for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Literal

from headrace.batch.ec2_api import Ec2Api, Ec2Error, whoami
from headrace.batch.ec2_strays import LOOKS, Resource
from headrace.batch.ec2_strays import end as end_resources
from headrace.clusters import lease_client
from headrace.clusters.lease_jobs import job_name
from headrace.clusters.lease_state import sure_state
from headrace.errors import BatchError, HeadraceError, UnknownNameError
from headrace.files.atomic import is_there
from headrace.files.layout import LeaseFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord
from headrace.recipe.ec2 import Ec2
from headrace.runs.ec2_places import Places

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


class Found(Resource):
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


def look(places: Places) -> tuple[list[Found], list[str]]:
    """Look in all places at once; one that does not answer hides no other.

    Returns:
        What was found, and a line for each place that gave no answer.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        seen = list(pool.map(_look_at, places.roles.values()))
    standing = cache(partial(_standing, places))
    found: dict[str, Found] = {}  # two profiles may be of one account
    unreached = []
    for place, (resources, failures) in zip(places.roles, seen, strict=True):
        unreached += [f"{place}: {told}" for told in failures]
        for each in resources:
            found.setdefault(each.id, _judged(each, place, standing))
    return list(found.values()), unreached


def end(places: Places, chosen: Sequence[Found], tell: Callable[[str], None]) -> bool:
    """End what was chosen, and tell a line for each; gives whether all of it was ended."""
    is_done = True
    for place in dict.fromkeys(each.place for each in chosen):
        here = [each for each in chosen if each.place == place]
        try:
            for each, refusal in end_resources(Ec2Api(places.roles[place]), here):
                is_done = is_done and not refusal
                tell(f"{_name(each)}: {f'not ended: {refusal}' if refusal else 'ended'}")
        except BatchError as error:
            is_done = False
            tell(f"{place}: not ended: {error.what}")
    return is_done


def reap(places: Places) -> list[str]:
    """End all strays; a line for each, and for each place that could not be looked at."""
    found, unreached = look(places)
    lines = [f"strays were not looked for in {told}" for told in unreached]
    end(places, [each for each in found if each.stray], lines.append)
    return lines


def why_stray(lease: Standing, ended_s: float | None, late_s: float | None) -> str:
    """Why nobody answers for something; empty when somebody may; pure.

    Args:
        lease: How its lease stands.
        ended_s: For how long the lease is over; None when that is not known.
        late_s: For how long it should be gone, by its tag; None without one.
    """
    if lease == "ended" and (ended_s is None or ended_s > _LEAVES_S):
        return "its lease has ended"
    if late_s is not None and late_s > _LATE_S:
        return f"it should have ended {late_s / 3600:.1f} h ago"
    return ""


def _look_at(role: Ec2) -> tuple[list[Resource], list[str]]:
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


def _judged(seen: Resource, place: str, standing: Callable[[str], _Standing]) -> Found:
    told = _JOB.fullmatch(seen.job)
    lease, ended_at = standing(told[1]) if told else ("unknown", None)
    now = time.time()
    return Found(
        **dict(seen),
        place=place,
        lease_id=told[2] if told else "",
        lease=lease,
        stray=why_stray(lease, _ago(ended_at, now), _ago(seen.ends_at, now)),
        is_own=seen.owner == whoami(),
    )


def _ago(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment


def _standing(places: Places, job: str) -> _Standing:
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


def _name(each: Found) -> str:
    of = f" of lease {each.lease_id}" if each.lease_id else ""
    return f"{each.kind} {each.id} ({each.type} in {each.zone}){of}"
