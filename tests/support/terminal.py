"""A command on a terminal of its own, as a user types into it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HEADRACE = str(Path(sys.executable).with_name("headrace"))


@dataclass(frozen=True)
class Ended:
    """How a command ended on its terminal."""

    exit_code: int
    output: str
    """All that the terminal showed, with what was typed."""


INTERRUPT = "\x03"
"""A line of its own: Ctrl-C."""


def typed(command: Sequence[str], lines: Sequence[tuple[str, str]], timeout_s: float) -> Ended:
    """Run a command on a terminal and type a line each time its output goes on with a text."""
    ours, its = pty.openpty()
    deadline, shown, left = time.monotonic() + timeout_s, "", list(lines)
    seen = 0
    with subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, start_new_session=True
    ) as run:
        os.close(its)
        try:
            while (more := _read(ours, deadline)) is not None:
                shown += more
                if left and left[0][0] in shown[seen:]:
                    text, line = left.pop(0)
                    seen = shown.index(text, seen) + len(text)
                    if line == INTERRUPT:
                        run.send_signal(signal.SIGINT)
                    else:
                        os.write(ours, f"{line}\n".encode())
            code = run.wait(max(deadline - time.monotonic(), 1.0))
        except BaseException:
            run.kill()
            raise
        finally:
            os.close(ours)
    return Ended(code, shown)


def _read(terminal: int, deadline: float) -> str | None:
    """What comes next; None at the end."""
    ready, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0.0))
    if not ready:
        raise TimeoutError("nothing more came")
    try:
        return os.read(terminal, 4096).decode(errors="replace") or None
    except OSError:  # of Linux, when nobody has the other side any more
        return None
