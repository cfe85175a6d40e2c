"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import socket


def find_free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
