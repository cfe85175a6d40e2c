"""`headrace`: start of the command line, before imports that take a second."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress

from headrace import __version__
from headrace.cli import EXIT_INTERRUPTED


def main() -> None:
    """Entry point: Ctrl-C ends the command quietly also during imports."""
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not under nohup
    if interrupts:
        signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    if sys.argv[1:] == ["--version"]:
        with suppress(OSError):  # the command reports it, or drops the output
            os.write(1, f"{__version__}\n".encode())
            return
    gc.disable()  # imported objects stay: collecting takes a tenth of a short command
    from headrace.cli.commands import run

    if interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
