"""Tells the user's terminal and desktop that a command has ended which took long."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress

from rich.console import Console

VARIABLE = "HEADRACE_NOTIFY"
"""Environment variable: seconds from which on a command that ends is told."""

_WAIT_S = 5.0


class Bell:
    """Made when a command begins."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def ring(self, words: str, console: Console) -> None:
        """Tell by a beep, OSC 9 and 777, and `notify-send`, where the console is a terminal.

        Terminals that do not know the sequences pass over them.
        """
        text = os.environ.get(VARIABLE, "")
        if not text or not console.is_terminal:
            return
        try:
            after_s = float(text)
        except ValueError:  # no reason for a command to fail that has done its work
            console.print(f"{VARIABLE} is '{text}'. Set it to seconds, as in 60, or unset it.")
            return
        if time.monotonic() - self._began_s >= after_s:
            _ring(words, console)


def _ring(words: str, console: Console) -> None:
    told = "".join(each for each in words if each.isprintable()).replace(";", ",")
    console.file.write(f"\a\x1b]9;{told}\x1b\\\x1b]777;notify;headrace;{told}\x1b\\")
    console.file.flush()
    desktop = shutil.which("notify-send")
    if desktop and {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        command = [desktop, "--app-name=headrace", "headrace", told]
        with suppress(subprocess.TimeoutExpired):  # the command has ended, whoever shows it
            subprocess.run(command, check=False, timeout=_WAIT_S, stderr=subprocess.DEVNULL)
