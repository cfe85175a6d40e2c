"""The console that commands print to."""

from __future__ import annotations

from rich.console import Console

_PIPE_WIDTH = 200


def open_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console as wide as the terminal; in files and pipes wide enough not to cut ids and paths.

    Text is shown as it is: `[x]` in a name, path or message is no markup.

    Args:
        stderr: Print to standard error, when standard output is for programs.
        quiet: Print nothing.
    """
    console = Console(stderr=stderr, quiet=quiet, markup=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console
