"""Choosing the port of the web UI."""

from __future__ import annotations

import socket

from headrace.errors import UserError

PREFERRED = 8080
_NUM_TRIED = 100


def choose_port(asked: int | None) -> int:
    """The port that was asked for, or the first free one from 8080 on.

    Args:
        asked: Port that somebody wants; None for any.

    Raises:
        UserError: The port is taken.
    """
    if asked is not None:
        if not is_free(asked):
            raise UserError(
                f"Port {asked} of 127.0.0.1 is taken",
                "Name another one, or none to have a free one chosen.",
            )
        return asked
    for port in range(PREFERRED, PREFERRED + _NUM_TRIED):
        if is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
