"""The console that commands print to."""

from __future__ import annotations

from rich.console import Console

_PIPE_WIDTH = 200


def open_console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; in files and pipes wide enough not to cut ids and paths.

    Args:
        stderr: Print to standard error, when standard output is for programs.
    """
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_PIPE_WIDTH)
