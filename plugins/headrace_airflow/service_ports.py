"""Choosing the port of the web UI, so that two who start at once do not choose the same one."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import psutil

from headrace.errors import CapacityError, UserError

PREFERRED = 8080
_NUM_TRIED = 100


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A port that no other supervisor on this machine takes while this one lives.

    The API server binds its port only after many seconds; until then a name in the abstract
    namespace of Unix sockets, which the kernel frees with the process, stands for it.
    """

    port: int
    holder: socket.socket


def reserve_port(asked: int | None) -> Reservation:
    """Reserve the port that was asked for, or the first free one from 8080 on.

    Args:
        asked: Port that somebody wants; None for any.

    Raises:
        UserError: The port is taken.
        CapacityError: A hundred ports are taken.
    """
    candidates = range(PREFERRED, PREFERRED + _NUM_TRIED) if asked is None else (asked,)
    for port in candidates:
        holder = _hold(port) if is_free(port) else None
        if holder is not None:
            return Reservation(port=port, holder=holder)
    if asked is not None:
        raise UserError(
            f"Port {asked} of 127.0.0.1 is taken",
            "Name another one, or none to have a free one chosen.",
        )
    raise CapacityError(
        f"The ports {PREFERRED} to {PREFERRED + _NUM_TRIED - 1} of 127.0.0.1 are all taken",
        "Name another one: headrace up --port 9090",
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def listens(pid: int, port: int) -> bool:
    """Whether a process, or one that it has started, listens on a port.

    Args:
        pid: The process.
        port: The port.
    """
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        connections = [one for member in family for one in member.net_connections("tcp")]
    except psutil.NoSuchProcess:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)


def _hold(port: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0headrace-airflow-{port}")
    except OSError:
        holder.close()
        return None
    return holder
