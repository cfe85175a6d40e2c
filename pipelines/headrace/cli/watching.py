"""Progress in the terminal: of a run, or of another command."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from headrace.cli import suite_view as of_suites
from headrace.cli.console import output_is_gone
from headrace.cli.view import closing, history_of, live, remarks, trains
from headrace.files.layout import RunFolder
from headrace.informing import inform
from headrace.ledger.ledger import open_ledger
from headrace.status.run_details import RunDetails, run_details
from headrace.status.step import StepView
from headrace.status.suite import SuiteView, suite_views

REFRESH_S = 0.5
"""Time between two updates."""

EVERY_S = 5.0
"""Shortest time between two lines, if standard error is not a terminal."""

Tick = Callable[[str], None]


class Pause:
    """Whether a pause is over: at the first call, and some seconds after each True."""

    def __init__(self, seconds: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._now_s, self._at = seconds, now_s, -math.inf

    def __call__(self) -> bool:
        """Whether it is over; then the next pause begins."""
        now = self._now_s()
        is_over = now - self._at >= self._seconds
        self._at = now if is_over else self._at
        return is_over


class Watching:
    """Shows a live table on a terminal; elsewhere a line whenever a step changes its state.

    For a suite whose trials have begun, it is the suite's table, or a line of trials by state. As a
    context manager it gives a function to call while waiting for the run.
    """

    def __init__(self, run_id: str, console: Console, folder: RunFolder | None = None) -> None:
        self._run_id, self._folder = run_id, folder
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._shows, self._counts = Pause(REFRESH_S), Pause(EVERY_S)
        self._told: dict[str, str] = {}
        self._why: dict[str, str] = {}
        self._dashboard_url = ""
        self._remarks: tuple[str, ...] = ()
        self._counted: tuple[bool, dict[str, int], dict[str, str]] = (False, {}, {})

    def __enter__(self) -> Callable[[], None]:
        self._inform(partial(self._console.print, f"run: {self._run_id}"))
        if self._live is not None:
            self._inform(self._live.start)
        return self._tick

    def __exit__(self, *_: object) -> None:
        self._inform(self.show)
        if self._live is not None:
            self._inform(self._live.stop)

    def _tick(self) -> None:
        if self._shows():
            self._inform(self.show)

    def _inform(self, work: Callable[[], object]) -> None:
        inform(self._folder, "progress on the terminal", work)

    def show(self) -> RunDetails:
        """Show and return the current state of the run."""
        view = run_details(self._run_id)
        if self._live is not None:
            self._live.update(look(view), refresh=True)
            return view
        if view.dashboard_url and self._dashboard_url != view.dashboard_url:
            self._dashboard_url = view.dashboard_url
            self._console.print(f"Dask dashboard: {view.dashboard_url}")
        if (notes := tuple(remarks(view))) != self._remarks:
            self._remarks = notes
            for remark in notes:
                self._console.print(remark, soft_wrap=True)
        if (suite := _begun_suite(view)) is not None:
            self.count(suite)
        for step in view.steps:
            state = f"{step.state.value if step.state else ''} {step.attempt}"
            if step.state is not None and self._told.get(step.name) != state:
                self._told[step.name] = state
                self._console.print(self._line(step), soft_wrap=True)
        return view

    def count(self, suite: SuiteView) -> None:
        """Print trials by state in a line after a change, not too often, and at their end."""
        states = {each.site: str(each.state) for each in suite.sites}
        counted = (suite.state.is_final, suite.trials.counts, states)
        if counted != self._counted and (suite.state.is_final or self._counts()):
            self._counted = counted
            self._console.print(of_suites.counts_words(suite), soft_wrap=True)

    def _line(self, step: StepView) -> str:
        """Return a step's state; of a new attempt also why the last one failed, in a line."""
        line = f"{step.name}: {step.state.value if step.state else ''}"
        line += f" (attempt {step.attempt})" if step.attempt > 1 else ""
        why = self._why.pop(step.name, "")
        if step.message and step.state and step.state.is_final:
            self._why[step.name] = step.message.splitlines()[0]
        return f"{line}, after: {why}" if why else line


def watch(run_id: str, console: Console) -> None:
    """Show the state of a run until it ends or is abandoned, or until its reader has left."""
    watching = Watching(run_id, console)
    with watching:
        while not output_is_gone() and watching.show().goes_on:
            time.sleep(REFRESH_S)


def _begun_suite(view: RunDetails) -> SuiteView | None:
    """Return the suite of a run whose trials have begun; else None."""
    has_ended = view.kind == "suite" and view.state.is_final
    if has_ended or any(step.name == "suite" and step.state for step in view.steps):
        return suite_views([open_ledger().run(view.run_id)])[0]
    return None


def look(view: RunDetails) -> RenderableType:
    """Return the view of a running run; for a suite whose trials have begun, of these."""
    suite = _begun_suite(view)
    if suite is None:
        return live(view, history_of(RunFolder(Path(view.folder))) if trains(view) else None)
    notes = [Text(remark, style="yellow") for remark in remarks(view)]
    return Group(of_suites.live(suite), *notes)


def end_of(view: RunDetails) -> RenderableType:
    """Return the view of an ended run; for a suite also its results."""
    suite = _begun_suite(view)
    return closing(view) if suite is None else Group(closing(view), of_suites.closing(suite))


@contextmanager
def telling(console: Console, now_s: Callable[[], float] = time.perf_counter) -> Iterator[Tick]:
    """Yield a function to call with the current activity, for a console of standard error."""
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
    began, is_due = now_s(), Pause(EVERY_S, now_s)

    def tell(text: str) -> None:
        if is_due():
            line = f"{now_s() - began:4.0f} s  {text}"
            console.print(line, soft_wrap=True)

    return tell
