"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import random
import socket

_PORTS = range(10_000, 17_000)
"""Below those that the kernel gives to whoever names none, as another test does any moment."""


def find_free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on right now, by chance another one for each call."""
    return next(port for port in random.sample(_PORTS, len(_PORTS)) if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
