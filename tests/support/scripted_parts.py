"""Parts of a suite over several sites in tests: in this process, in simulated time, with faults."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, RunFolder, StepFolder
from headrace.files.lines import append_line
from headrace.multi_site.driver import SitesDriver
from headrace.multi_site.site_link import Message, PartLook
from headrace.multi_site.sites import SiteState
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.suite import SuiteSpec
from headrace.states import FailureClass, StepState
from headrace.steps.context import StepContext
from headrace.steps.mailbox import Failure, StepResult
from headrace.steps.run import open_context
from headrace.suites.event_log import Journal, Retention
from headrace.suites.records import Ended, Entry, Started, SuiteSummary, Withdrawn
from headrace.suites.suite_state import Controls, SuiteState
from headrace.suites.trial_policy import ended, judge, never_begun
from support.factories import step_spec
from support.scripted_trials import Listed


@dataclass
class Clock:
    """Stands for the module `time`."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class ScriptedPart:
    """A part with its link: what a real one does with its commands, step by step.

    Attributes:
        is_reachable: Whether its files can be read and written; it works in any case.
        is_failed: Whether its run has failed; it begins again with the next trials.
        is_full: Whether its disk is full, so that each attempt fails.
        too_large: Trials that its nodes are too small for.
        usd: What its machines have cost.
    """

    run: RunFolder
    recipe: Recipe
    clock: Clock
    slots: int = 2
    trial_s: float = 5.0
    is_reachable: bool = True
    is_failed: bool = False
    is_full: bool = False
    too_large: set[int] = field(default_factory=set)
    usd: float | None = None
    messages: list[Message] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    num_read: int = 0
    executed: list[int] = field(default_factory=list)
    has_read: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.run.path.mkdir(parents=True, exist_ok=True)
        self.suite_state = SuiteState(objectives=self.recipe.objectives)
        self.controls = Controls(self.run, None)
        keep = self.recipe.suite.keep_checkpoints if self.recipe.suite else "all"
        self.retention = Retention(keep, lambda row: self.remove(row.trial.number))
        self.has_read.set()
        self.failed_at = 0.0
        self.seen_s, self.is_used = self.clock.now, False
        self.running: dict[int, float] = {}

    @property
    def num_unsent(self) -> int:
        return len(self.messages)

    @property
    def look(self) -> PartLook:
        if self.is_reachable:
            self.seen_s = self.clock.now
        state = StepState.FAILED if self.is_failed else StepState.RUNNING
        return PartLook(
            run_id=self.run.run_id if self.is_used else "",
            state=state if self.is_used else None,
            failed_at=self.failed_at if self.is_failed else None,
            why="killed" if self.is_failed else "",
            usd=self.usd,
            summary=SuiteSummary(total=0, slots=self.slots, nodes=0 if self.is_failed else 1),
            seen_s=self.seen_s,
        )

    def send(self, *messages: Message) -> None:
        self.messages += messages

    def take(self) -> list[Entry]:
        if not self.is_reachable:
            return []
        new, self.num_read = self.entries[self.num_read :], len(self.entries)
        return new

    def folder(self, number: int) -> Path:
        return self.run.trial(number).path

    def read_again(self) -> None:
        """Stand for the link of another driver."""
        self.num_read, self.messages = 0, []

    def note(self, *entries: Entry) -> None:
        for entry in entries:
            self.suite_state.take(entry)
            self.entries.append(entry)

    def step(self) -> None:
        """Do what a part does in a moment."""
        if self.is_reachable:
            for message in self.messages:
                for number in message.surplus:
                    self.remove(number)
                if message.control is None:
                    continue
                append_line(self.run.controls, message.control.model_dump_json())
                self.is_used = True
                if message.control.what == "assign":
                    self.is_failed = False
            self.messages = []
        if self.is_failed:
            return
        self.note(*self.controls.apply_commands(self.suite_state, lambda _: ()))
        rows = self.suite_state.rows
        for number in [number for number in self.suite_state.running if number not in self.running]:
            self.end(number, StepState.LOST, FailureClass.LOST)  # of a driver before
        self._end_running()
        leaving = [row for row in rows.values() if row.leaves and row.state is StepState.QUEUED]
        self.note(*(Withdrawn(number=row.trial.number) for row in leaving))
        too_large = [
            row for row in self.suite_state.waiting() if row.trial.number in self.too_large
        ]
        self.note(*(never_begun(row, "", FailureClass.USER_ERROR) for row in too_large))
        most = self.controls.whole.limit or self.slots
        for row in self.suite_state.waiting()[: max(most - len(self.running), 0)]:
            number = row.trial.number
            self.running[number] = self.clock.now + self.trial_s
            attempt = row.attempts + 1
            self.note(Started(number=number, attempt=attempt, node="n", at=self.clock.now))

    def _end_running(self) -> None:
        rows = self.suite_state.rows
        for number, end_s in list(self.running.items()):
            if rows[number].leaves:
                self.end(number, StepState.CANCELLED, FailureClass.CANCELLED)
            elif self.is_full:
                self.end(number, StepState.FAILED, FailureClass.CAPACITY)
            elif self.clock.now >= end_s:
                self.executed.append(number)
                self.end(number, StepState.SUCCEEDED)

    def end(self, number: int, state: StepState, why: FailureClass | None = None) -> None:
        """End a running attempt."""
        self.running.pop(number, None)
        row = self.suite_state.rows[number]
        assert row.started is not None
        values = row.trial.values
        metrics = {"metrics": {"loss": float(str(values["loss"]))}}
        result = StepResult(
            state=state,
            failure=Failure(failure_class=why, error="", message="") if why else None,
            outputs={} if why else metrics,
            started_at=row.started.at,
            finished_at=self.clock.now,
        )
        folder = self.run.trial(number).step(row.attempts)
        for each in (folder.path, self.run.trial(number).checkpoints):
            each.mkdir(parents=True, exist_ok=True)
        write_record(folder.result, result)
        spec = self.recipe.suite or SuiteSpec()
        entry = ended(row.started, result, self.suite_state.objectives)
        self.note(judge(row, entry, spec, is_orphan=state is StepState.LOST))
        self.retention.look(self.suite_state, [number])

    def remove(self, number: int) -> None:
        """Remove the checkpoints of a trial."""
        shutil.rmtree(self.run.trial(number).checkpoints, ignore_errors=True)

    def kill(self) -> None:
        """Let the part's run fail, with what runs there."""
        self.is_failed, self.running, self.failed_at = self.is_used, {}, self.clock.now


@dataclass
class ScriptedSuite:
    """A suite over scripted parts; `driver` is the present one."""

    path: Path
    num_trials: int
    clock: Clock
    spec: dict[str, Any]
    parts: list[ScriptedPart] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recipe = load_recipe("digits").model_copy(update={"suite": SuiteSpec(**self.spec)})
        site = load_site("laptop")
        limits = site.limits.model_copy(update={"lost_after": 5.0})
        self.site = site.model_copy(update={"limits": limits})
        self.run = RunFolder(self.path / "runs" / "S")
        for name in self.spec["sites"]:
            part = ScriptedPart(
                RunFolder(self.path / name / "runs" / name), self.recipe, self.clock
            )
            self.parts.append(part)
        self.begin()

    def begin(self) -> None:
        """Let another driver go on."""
        lease = LeaseFolder(self.path / "leases" / "L")
        number = next(n for n in range(1, 99) if not lease.step(n).path.exists())
        folder = lease.step(number)
        folder.logs.mkdir(parents=True)
        write_record(self.run.recipe, self.recipe)
        write_record(self.run.site, self.site)
        write_record(folder.spec, step_spec(self.run, "sites", key=f"S/suite/{number}"))
        context: StepContext = open_context(StepFolder(folder.path))
        source: Any = Listed(*({"loss": float(each)} for each in range(self.num_trials)))
        self.journal = Journal(self.run, f"driver {number}")
        for part in self.parts:
            part.read_again()
        self.driver = SitesDriver(context, self.journal, source, list(self._sites()))
        self.driver._restore()

    def _sites(self) -> Iterator[SiteState]:
        for part, name in zip(self.parts, self.spec["sites"], strict=True):
            site: Site = self.site.model_copy(update={"name": name})
            link: Any = part
            role: Role = site.roles["gpu"]
            yield SiteState(
                site=site, role=role, link=link, role_slots=2, usd_per_hour=None, is_own=True
            )

    @property
    def is_over(self) -> bool:
        state = self.driver.suite_state
        return len(state.rows) == self.num_trials == state.num_ended

    def turn(self) -> None:
        """Let everybody do a moment's work."""
        self.driver._turn()
        for part in self.parts:
            part.step()
        self.clock.now += 0.25

    def ends(self) -> list[Ended]:
        """Return the final ends of trials in the suite's journal."""
        return [
            each for each in self.journal.entries() if isinstance(each, Ended) and each.is_final
        ]


def patched(monkeypatch: Any, clock: Clock) -> None:
    """Let drivers run in simulated time."""
    for module in ("multi_site.driver", "multi_site.sites", "suites.driver", "suites.trial_order"):
        monkeypatch.setattr(f"headrace.{module}.time", clock)
    informed = SimpleNamespace(inform=lambda _run, _what, call, *_: call())
    monkeypatch.setattr("headrace.multi_site.driver.inform", informed.inform)
    monkeypatch.setattr("headrace.suites.driver.inform", informed.inform)
