"""`headrace`: where the command line begins, before what takes a second to import."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress

from headrace import __version__
from headrace.cli import EXIT_INTERRUPTED


def main() -> None:
    """Entry point: Ctrl-C ends the command quietly also while it is imported."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not under nohup
    if heeds:
        signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    if sys.argv[1:] == ["--version"]:
        with suppress(OSError):  # which the command names, or drops
            os.write(1, f"{__version__}\n".encode())
            return
    gc.disable()  # what is imported stays: looking for garbage takes a tenth of a short command
    from headrace.cli.commands import run

    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
