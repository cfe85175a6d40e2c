"""The second look at a lease that gives no sign of life, before anybody ends it for that.

One look may deceive: a shared file system shows a folder of another machine as it was up to a
minute ago, a host was stopped for a moment, or its clock is wrong.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from headrace.clusters.lease_status import decide, lease_status
from headrace.clusters.records import LeaseSpec
from headrace.files.atomic import look_afresh, read_record, read_text
from headrace.files.layout import LeaseFolder
from headrace.files.locks import locked_at_once
from headrace.states import LeaseState

_BEATS = 3
_USUAL_BEAT_S = 2.0
_LOOKS = 12


def sure_state(folder: LeaseFolder, lost_after_s: float) -> LeaseState:
    """How the lease stands, for whoever would end it; see `sure_states`."""
    return sure_states({folder: lost_after_s})[folder]


def sure_states(leases: Mapping[LeaseFolder, float]) -> dict[LeaseFolder, LeaseState]:
    """How leases stand; a silent one counts as lost only when the time of more beats brings none.

    Waits for that time, once for all of them, and only if one of them is silent.
    """
    statuses = {folder: lease_status(folder) for folder in leases}
    states = {each: decide(statuses[each], leases[each]) for each in leases}
    silent = {
        each: read_text(each.heartbeat)
        for each, state in states.items()
        if state is LeaseState.LOST and not statuses[each].is_certain
    }
    pause_s = _BEATS * max(map(_beat_s, silent), default=0.0) / _LOOKS
    for _ in range(_LOOKS):
        alive = [each for each, beat in silent.items() if _gives_a_sign(each, leases[each], beat)]
        states |= dict.fromkeys(alive, LeaseState.STARTING)
        silent = {each: beat for each, beat in silent.items() if each not in alive}
        if not silent:
            break
        _wait(pause_s)
    return states | {each: decide(lease_status(each), leases[each]) for each in silent}


def _gives_a_sign(folder: LeaseFolder, lost_after_s: float, known_beat: str | None) -> bool:
    look_afresh(folder.path)
    beat = read_text(folder.heartbeat)
    if beat is not None and beat != known_beat:  # by whatever clock
        return True
    return decide(lease_status(folder), lost_after_s).is_active or _is_being_started(folder)


def _is_being_started(folder: LeaseFolder) -> bool:
    """Whether a process of this or another machine is about to submit its job, or to start it."""
    if folder.host.exists() or folder.job.exists() or not folder.start_lock.exists():
        return False
    handle = locked_at_once(folder.start_lock)
    if handle is None:
        return True
    os.close(handle)
    return False


def _beat_s(folder: LeaseFolder) -> float:
    spec = read_record(folder.spec, LeaseSpec)
    return _USUAL_BEAT_S if spec is None else spec.heartbeat_s


def _wait(seconds: float) -> None:
    time.sleep(seconds)
