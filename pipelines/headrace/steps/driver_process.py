"""Step drivers of a lease, all forked from a server that has imported what steps need.

The server is `python -m headrace.steps.driver_process FD`, which the lease's host starts.
"""

from __future__ import annotations

import gc
import importlib
import socket
import sys

from headrace.processes.fork_server import forked
from headrace.processes.identity import die_with_parent, end_quickly
from headrace.steps import run


def load() -> None:
    """Import what drivers need; without garbage collection, since all of it stays."""
    gc.disable()
    for module in run.MODULES.values():
        importlib.import_module(module)
    gc.enable()


def main(arguments: list[str]) -> int:
    """Run the server, after `load`, and each driver forked from it."""
    end_quickly()
    child = forked(socket.socket(fileno=int(arguments[0])))
    return run.main(list(child.command[-1:]))


if __name__ == "__main__":
    die_with_parent()
    load()
    sys.exit(main(sys.argv[1:]))
