"""Long commands tell what they do, on a terminal and in a log file."""

import io

from rich.console import Console

from headrace.cli.watching import EVERY_S, telling


def test_in_a_file_there_is_a_line_now_and_then():
    console = Console(file=io.StringIO(), width=40)
    moments = iter([0.0, 0.5, 0.5, EVERY_S, EVERY_S + 0.5, EVERY_S + 0.5])
    with telling(console, lambda: next(moments)) as tick:
        for text in ("writing [red]", "too soon", "round 1"):
            tick(text)
    assert console.file.getvalue() == "   0 s  writing [red]\n   6 s  round 1\n"


def test_on_a_terminal_there_is_one_moving_line():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with telling(console) as tick:
        tick("reading, round 1 of 5")
    assert "reading, round 1 of 5" in console.file.getvalue()
