"""A command on a terminal of its own, as a user types into it."""

from __future__ import annotations

import os
import pty
import select
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


def typed(command: Sequence[str], lines: Sequence[tuple[str, str]], timeout_s: float) -> Ended:
    """Run a command on a terminal and type a line each time its output has the text before it."""
    ours, its = pty.openpty()
    deadline, shown, left = time.monotonic() + timeout_s, "", list(lines)
    with subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, start_new_session=True
    ) as run:
        os.close(its)
        try:
            while (more := _read(ours, deadline)) is not None:
                shown += more
                if left and left[0][0] in shown:
                    os.write(ours, f"{left.pop(0)[1]}\n".encode())
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
