"""Records what a command shows on a terminal as an SVG: `scripts/record_terminal.py OUT COMMAND…`.

The picture has a state of the live table of a run while it trains, and the table of its end. It
names no font of the network, and the home folder is shown as `~`.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import struct
import sys
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 100, 50
_LIVE = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
_FONTS = re.compile(r"@font-face \{\{.*?\n    \}\}", re.DOTALL)
_CURSOR = re.compile(r"\x1b\[\?25[lh]")


def shown_by(command: list[str]) -> str:
    """All that a command writes to a terminal; its exit code must be 0."""
    child, terminal = pty.fork()
    if not child:
        os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written = b""
    try:
        while part := os.read(terminal, 65536):
            written += part
    except OSError:  # the other end was closed
        pass
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"{shlex.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return _CURSOR.sub("", written.decode()).replace("\r\n", "\n")


def main() -> None:
    """Run the command and write the picture."""
    out, *command = sys.argv[1:]
    frames = _LIVE.split(shown_by(command))
    learned = [frame for frame in frames if "so far" in frame]
    closing = [frame[frame.index("┏") :].partition("⠋")[0] for frame in frames if "┏" in frame]
    parts = [f"$ {shlex.join(command)}", learned[len(learned) * 2 // 3], "…", closing[-1]]
    console = Console(width=COLUMNS, record=True, file=io.StringIO())
    for part in parts:
        text = part.replace(str(Path.home()), "~").strip("\n")
        console.print(Text.from_ansi(text), soft_wrap=True)
    svg = console.export_svg(title=command[0], code_format=_FONTS.sub("", CONSOLE_SVG_FORMAT))
    Path(out).write_text(svg)


if __name__ == "__main__":
    main()
