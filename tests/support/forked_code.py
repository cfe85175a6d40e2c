"""A module for a fork server, whose children run Python code; its import can be watched."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import time
from pathlib import Path

from headrace.processes.identity import die_with_parent

if "IMPORT_HOLDS" in os.environ:
    while Path(os.environ["IMPORT_HOLDS"]).exists():
        time.sleep(0.02)
if "LAST_WORD" in os.environ:
    atexit.register(print, os.environ["LAST_WORD"])
if "IMPORT_NUMPY" in os.environ:
    importlib.import_module("numpy.random")
if "IMPORT_TAKES_GPU" in os.environ:
    sys.modules["__main__"].holds_gpu = lambda: True
if "IMPORT_FAILS" in os.environ:
    raise ImportError(os.environ["IMPORT_FAILS"])


def main(arguments: list[str]) -> int:
    die_with_parent()
    exec(arguments[-1], {"__name__": "__main__"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
