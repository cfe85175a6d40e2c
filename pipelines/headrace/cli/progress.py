"""What a command does right now, on standard error: a moving line, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

EVERY_S = 5.0
"""Where standard error is no terminal: time between two lines at least."""

Tick = Callable[[str], None]


@contextmanager
def telling(console: Console, now_s: Callable[[], float] = time.perf_counter) -> Iterator[Tick]:
    """Gives a function to call with what goes on now.

    Args:
        console: Where to tell it; of standard error, as standard output is for results.
        now_s: The time, in seconds from any moment.
    """
    if console.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("beginning", total=None)
            yield lambda text: progress.update(task, description=text)
    else:
        yield _lines(console, now_s)


def _lines(console: Console, now_s: Callable[[], float]) -> Tick:
    began = now_s()
    told_at = began - EVERY_S

    def tell(text: str) -> None:
        nonlocal told_at
        if now_s() - told_at >= EVERY_S:
            told_at = now_s()
            line = f"{told_at - began:4.0f} s  {text}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    return tell
