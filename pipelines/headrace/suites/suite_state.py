"""The state of a suite's trials by its events, and commands to it while it runs."""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from headrace.errors import RecipeError, words_of
from headrace.files.layout import RunFolder
from headrace.files.lines import whole_lines
from headrace.recipe.suite import Objective
from headrace.states import StepState
from headrace.steps.retry_policy import Attempt
from headrace.suites.records import (
    FAILED,
    FOLD,
    PRUNED,
    Added,
    Assigned,
    CommandsApplied,
    Control,
    Ended,
    Entry,
    Point,
    Started,
    Trial,
    Withdrawn,
)

logger = logging.getLogger(__name__)

AddPoint = Callable[[Point], Iterable[Trial]]
"""Makes the trials of a point, with numbers after the existing ones."""

_GONE = (StepState.LOST, StepState.PREEMPTED)
"""Ends of attempts whose machine was lost: if it returns, it is used again."""


@dataclass(slots=True)
class TrialState:
    """A trial and its state."""

    trial: Trial
    state: StepState = StepState.QUEUED
    pruned: bool = False
    attempts: int = 0
    """Number of its newest attempt."""
    failed: tuple[Attempt, ...] = ()
    """Attempts that count against `suite.retries`, from the last one that made progress on."""
    started: Started | None = None
    """Its running attempt."""
    avoids: frozenset[str] = frozenset()
    """Machines where it has failed."""
    priority: float = 0.0
    unwanted: bool = False
    """Whether it was cancelled."""
    leaves: bool = False
    """Whether it leaves this part of a suite as soon as it does not run."""
    site: str = ""
    """Site that it is assigned to, of several, or where it has ended; empty: none."""
    since: float = field(default=0.0, compare=False)
    """Start of its wait, seconds since the epoch."""
    took_s: float = 0.0
    """Seconds of its attempts that have ended."""
    start_s: float = 0.0
    """Seconds of these before the first batches: the first trials wait for new processes."""
    evaluate_s: float = 0.0
    """Seconds of these for evaluation."""
    objectives: tuple[float, ...] = ()
    why: str = ""
    """Why it failed, in a line."""

    @property
    def kept(self) -> float:
        """Progress of its checkpoints at the end of its attempts."""
        return max((each.kept for each in self.failed), default=0.0)

    @property
    def counted_as(self) -> str:
        """Its state for counts."""
        return PRUNED if self.pruned else self.state.value

    @property
    def has_failed(self) -> bool:
        """Whether it ended without success and was not cancelled."""
        return self.state in FAILED


@dataclass
class SuiteState:
    """All trials of a suite, from the journal's entries in order."""

    objectives: Sequence[Objective] = ()
    rows: dict[int, TrialState] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    running: dict[int, TrialState] = field(default_factory=dict)
    """Trials with a running attempt, by number."""
    best: TrialState | None = None
    """The best trial; None with several objectives, or without a value."""
    span: tuple[float, float] = (math.inf, -math.inf)
    """Start of the first attempt and end of the last one, seconds since the epoch."""
    applied: int = 0
    """Number of lines of the commands that have been applied."""
    is_cancelled: bool = False
    """Whether all trials were cancelled at once, and no command for more followed."""

    @property
    def shown_best(self) -> TrialState | None:
        """The best trial; None for folds, where only the mean counts."""
        return None if self.best is None or FOLD in self.best.trial.values else self.best

    @property
    def num_failed(self) -> int:
        """Number of trials that ended without success and were not cancelled."""
        return sum(self.counts[state.value] for state in FAILED)

    @property
    def commonest_failure(self) -> str:
        """The most frequent cause of failed trials and its count; empty without any."""
        whys = Counter(row.why for row in self.rows.values() if row.has_failed)
        return "; ".join(f"{count} of them: {why}" for why, count in whys.most_common(1))

    @property
    def num_ended(self) -> int:
        """Number of trials that have ended."""
        return len(self.rows) - self.counts[StepState.QUEUED.value] - len(self.running)

    def take(self, entry: Entry) -> list[TrialState]:
        """Update the state by an entry; return the trials that it concerns, as far as known."""
        if isinstance(entry, Added):
            return self._add(entry)
        if isinstance(entry, CommandsApplied):
            return self._apply(entry)
        row = self.rows.get(entry.number)
        if row is None:
            return []
        if isinstance(entry, Assigned):
            row.site = entry.site
            return [row]
        self.counts[row.counted_as] -= 1
        if isinstance(entry, Withdrawn):
            del self.rows[entry.number]
            row.state = StepState.CANCELLED
            return [row]
        if isinstance(entry, Started):
            row.attempts, row.started, row.state = entry.attempt, entry, StepState.RUNNING
            self.running[entry.number] = row
        elif not row.state.is_final and (row.started is not None or entry.is_final):
            self._end(row, entry)
        self.counts[row.counted_as] += 1
        return [row]

    def waiting(self) -> list[TrialState]:
        """Return the trials that wait for an attempt, by number."""
        return [row for row in self.rows.values() if row.state is StepState.QUEUED]

    def _add(self, entry: Added) -> list[TrialState]:
        number = entry.trial.number
        row = self.rows.get(number)
        if row is None:
            row = TrialState(entry.trial, priority=entry.trial.priority, since=entry.at)
            row.attempts = entry.attempts
            self.rows[number] = row
            self.counts[row.counted_as] += 1
        elif row.state.is_final and entry.attempts >= row.attempts:  # it comes back to this part
            row.attempts = entry.attempts
            self._again(row, entry.at)
        return [row]

    def _apply(self, entry: CommandsApplied) -> list[TrialState]:
        self.applied = entry.lines
        named = {*entry.cancelled, *entry.priorities, *entry.retried, *entry.leaving}
        rows = [self.rows[number] for number in sorted(named & self.rows.keys())]
        for row in rows:
            number = row.trial.number
            row.unwanted = row.unwanted or number in entry.cancelled
            row.leaves = row.leaves or number in entry.leaving
            row.priority = entry.priorities.get(number, row.priority)
            if number in entry.retried:
                self._again(row, entry.at)
        return rows

    def _again(self, row: TrialState, at: float) -> None:
        row.unwanted = row.leaves = False
        row.failed, row.avoids, row.site = (), frozenset(), ""
        if row.state.is_final:
            self.counts[row.counted_as] -= 1
            row.state, row.pruned, row.since = StepState.QUEUED, False, at
            self.counts[row.counted_as] += 1

    def _end(self, row: TrialState, entry: Ended) -> None:
        row.attempts, row.started = entry.attempt, None
        self.running.pop(entry.number, None)
        took_s = max(entry.finished_at - entry.started_at, 0.0)  # clocks may be set back
        row.took_s += took_s
        row.start_s += min(entry.usage.start_s or 0.0, took_s)
        row.evaluate_s += entry.usage.evaluate_s or 0.0
        if entry.attempt:
            began, ended = self.span
            self.span = min(began, entry.started_at), max(ended, entry.finished_at)
        if not entry.is_final:
            row.state, row.since = StepState.QUEUED, entry.at
            came_further = entry.kept > row.kept
            if came_further or entry.is_counted:
                row.failed = (*(() if came_further else row.failed), entry.as_failed)
            if entry.is_counted and entry.state not in _GONE:
                row.avoids |= set(entry.machines)
            return
        row.state, row.pruned, row.objectives = entry.state, entry.pruned, entry.objectives
        row.site = entry.site or row.site  # it may have been given up there
        row.why = entry.message.partition("\n")[0]
        if entry.state is StepState.SUCCEEDED:
            self.compare(row)

    def compare(self, row: TrialState) -> None:
        """Let a succeeded trial be the best one if it is."""
        if len(self.objectives) != 1 or not row.objectives or row.pruned:
            return
        sign = 1 if self.objectives[0].mode == "min" else -1
        rows = (row,) if self.best is None else (self.best, row)  # of equal ones the first
        self.best = min(rows, key=lambda each: (sign * each.objectives[0], each.trial.number))


@dataclass
class SiteControl:
    """Commands to a suite, or to one of its several sites."""

    is_paused: bool = False
    """Whether no more trials start there."""
    leaves: bool = False
    """Whether its trials are moved elsewhere."""
    limit: int | None = None
    """Most trials at once; None: no limit."""


class Controls:
    """Reads new lines of `controls.jsonl` of a suite.

    Attributes:
        is_closed: Of a part: whether no more trials are assigned to it.
        sites: Commands to each of several sites.
        whole: Commands to the suite.
    """

    def __init__(self, run: RunFolder, limit: int | None) -> None:
        self._path = run.controls
        self._offset = self._lines = 0
        self.is_closed = False
        self.whole = SiteControl(limit=limit)
        self.sites = defaultdict[str, SiteControl](SiteControl, {"": self.whole})

    def apply_commands(self, suite_state: SuiteState, add: AddPoint) -> list[Entry]:
        """Return the entries of commands since the last call; set pause and limit.

        Commands that the journal lists as applied are skipped.
        """
        added: list[Added] = []
        retried: set[int] = set()
        cancelled: set[int] = set()
        leaving: set[int] = set()
        priorities: dict[int, float] = {}
        for line, control in self._new():
            self._set(control, suite_state)
            if line <= suite_state.applied:
                continue
            named = control.numbers or suite_state.rows
            rows = [suite_state.rows[each] for each in named if each in suite_state.rows]
            if control.what == "add":
                added += [Added(trial=trial) for trial in _added(control, add)]
            elif control.what == "assign":
                added += control.trials
                given = {each.trial.number for each in control.trials}
                leaving, cancelled = leaving - given, cancelled - given
            elif control.what == "withdraw":
                leaving |= _leaving(control, rows, {each.trial.number for each in added})
            elif control.what == "retry":
                retried |= {each.trial.number for each in rows if each.has_failed or each.unwanted}
                cancelled -= retried
            elif control.what == "cancel":
                cancelled |= {each.trial.number for each in rows if not each.state.is_final}
            elif control.what == "prioritize":
                priorities |= dict.fromkeys(control.numbers, control.priority or 0.0)
        if self._lines <= suite_state.applied:
            return []
        applied = CommandsApplied(
            lines=self._lines,
            retried=tuple(sorted(retried)),
            cancelled=tuple(sorted(cancelled)),
            leaving=tuple(sorted(leaving)),
            priorities=priorities,
        )
        return [*added, applied]

    def _set(self, control: Control, suite_state: SuiteState) -> None:
        what, place = control.what.removesuffix("-site"), self.sites[control.site]
        if what in ("pause", "resume", "leave"):
            place.is_paused, place.leaves = what != "resume", what == "leave"
        elif what == "limit":
            place.limit = control.limit
        elif what in ("assign", "close"):
            self.is_closed = what == "close"
        elif what in ("cancel", "retry", "add"):
            is_all = suite_state.is_cancelled or not control.numbers
            suite_state.is_cancelled = what == "cancel" and is_all

    def _new(self) -> Iterator[tuple[int, Control]]:
        """Yield commands with their line numbers; malformed lines are left out."""
        lines, self._offset = whole_lines(self._path, self._offset)
        for line in lines:
            self._lines += 1
            try:
                yield self._lines, Control.model_validate_json(line)
            except ValidationError as error:
                logger.warning(
                    "Line %d of %s is malformed: %s", self._lines, self._path, words_of(error)
                )


def _leaving(control: Control, rows: Iterable[TrialState], added: set[int]) -> set[int]:
    """Return which trials a `withdraw` concerns: that wait, or also that run if it stops them."""
    here = (StepState.QUEUED, StepState.RUNNING) if control.stops else (StepState.QUEUED,)
    found = {each.trial.number for each in rows if each.state in here}
    return found | (added & set(control.numbers))


def _added(control: Control, add: AddPoint) -> Iterator[Trial]:
    update = {} if control.priority is None else {"priority": control.priority}
    for point in control.points:
        try:
            yield from [trial.model_copy(update=update) for trial in add(point)]
        except RecipeError as error:
            logger.warning("The point %s is not added: %s", point, error)
