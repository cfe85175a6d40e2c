"""A module for a fork server, whose children run Python code; its import can be watched."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from pathlib import Path

from headrace.processes.fork_server import forked
from headrace.processes.identity import die_with_parent

if "IMPORT_HOLDS" in os.environ:
    while Path(os.environ["IMPORT_HOLDS"]).exists():
        time.sleep(0.02)
if "LAST_WORD" in os.environ:
    atexit.register(print, os.environ["LAST_WORD"])
if "IMPORT_FAILS" in os.environ:
    raise ImportError(os.environ["IMPORT_FAILS"])


def main() -> None:
    die_with_parent()
    child = forked(socket.socket(fileno=int(sys.argv[1])), float(os.environ.get("IDLE_S", "30")))
    die_with_parent()
    exec(child.command[-1], {"__name__": "__main__"})


if __name__ == "__main__":
    main()
