"""The connection of a suite's driver to the part at one site: files only, in a thread of its own.

A folder that hangs delays the thread of its site, and no other work.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from headrace.errors import HeadraceError, UnknownNameError
from headrace.execution.ticks import Tick
from headrace.files.atomic import is_there, read_record
from headrace.files.layout import TrialFolder
from headrace.files.lines import append_line
from headrace.informing import inform
from headrace.ledger.ledger import open_ledger
from headrace.multi_site.part import start_part
from headrace.multi_site.parts import make_part, trial_at
from headrace.runs.costs import run_cost
from headrace.runs.parts import part_key, part_status
from headrace.runs.runs import Run, run_of_record
from headrace.runs.suites import has_more_to_do
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.suites.records import Control, Entry, SuiteSummary, entries_from

logger = logging.getLogger(__name__)

_ROUND_S = 0.5
_COST_EVERY_S = 20.0
_BLOCK_BYTES = 2**22
_OF_THE_PART = shutil.ignore_patterns("attempts", "recipe.json", "site.json")


@dataclass(frozen=True, kw_only=True)
class PartLook:
    """A part of a suite when it was last reached."""

    run_id: str = ""
    """Empty before the site was first used."""
    state: StepState | None = None
    """State of its run."""
    failed_at: float | None = None
    """When its run ended without success, seconds since the epoch; None if it did not."""
    why: str = ""
    """Why it did."""
    phase: str = ""
    """What it does before its trials, as copying the dataset; empty if it does nothing."""
    summary: SuiteSummary | None = None
    usd: float | None = None
    seen_s: float = float("-inf")
    """When the site was last reached, on the monotonic clock."""
    error: str = ""
    """Why it could not be reached since; empty if it was."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A command to a part."""

    control: Control | None = None
    pruned: tuple[tuple[int, int, str], ...] = ()
    """Number and attempt of trials that a pruner ends, and why."""
    surplus: tuple[int, ...] = ()
    """Trials whose checkpoints are not kept."""
    moved: tuple[tuple[int, Path], ...] = ()
    """Trials that have run at other sites, with their folders there: it gets their checkpoints."""


class SiteLink:
    """Sends commands to the part at a site, starts its process, and reads its journal.

    Args:
        suite: The suite.
        name: Name of the site.

    Attributes:
        look: The part when it was last reached.
        news: Entries of its journal that have not been taken.
    """

    def __init__(self, suite: Run, name: str) -> None:
        self._suite, self.name = suite, name
        self.look = PartLook(seen_s=time.monotonic())  # silence counts from now on
        self.news: SimpleQueue[Entry] = SimpleQueue()
        self._messages: list[Message] = []
        self._lock, self._ends = threading.Lock(), threading.Event()
        self._part: Run | None = None
        self._offset, self._cost_s = 0, float("-inf")
        self._is_new, self._done_at = False, (-1, -1)
        self.has_read = threading.Event()
        """Set when the journal was read once, or the site cannot be reached."""
        threading.Thread(target=self._run, name=f"site-{name}", daemon=True).start()

    def folder(self, number: int) -> Path | None:
        """Return the folder of a trial in the part; None before there is one."""
        return None if self._part is None else self._part.folder.trial(number).path

    @property
    def num_unsent(self) -> int:
        """Number of commands that have not reached the site."""
        return len(self._messages)

    def send(self, *messages: Message) -> None:
        """Send commands; they wait as long as the site is out of reach."""
        with self._lock:
            self._messages += messages

    def take(self) -> list[Entry]:
        """Return the entries since the last call."""
        return [self.news.get() for _ in range(self.news.qsize())]

    def close(self) -> None:
        """End the thread, without waiting for it; the part continues."""
        self._ends.set()

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self._round()
            except Exception as error:  # noqa: BLE001  the thread goes on; the site shows why
                what = error.what if isinstance(error, HeadraceError) else str(error)
                if what != self.look.error:
                    logger.warning("Site %s is out of reach: %s", self.name, what)
                self.look = replace(self.look, error=what)
            self.has_read.set()
            self._ends.wait(_ROUND_S)

    def _round(self) -> None:
        if self._part is None:
            self._part = self._found()
        part = self._part
        if part is None:
            self.look = PartLook(seen_s=time.monotonic())
            return
        self._read(part)  # first: it raises if the folder is gone
        self._send(part)
        self._reached()  # the site is within reach also while the ledger is not
        record = open_ledger().run(part.run_id)
        is_over = record.state.is_final
        has_failed = is_over and record.state is not StepState.SUCCEEDED
        if not is_over or self._is_new or (not has_failed and self._has_more(part)):
            start_part(part)
            self._is_new = False
        status = part_status(part.folder)
        usd, has_just_ended = self.look.usd, is_over and self.look.state is not record.state
        if has_just_ended or time.monotonic() - self._cost_s > _COST_EVERY_S:
            cost = inform(part.folder, "cost", partial(run_cost, part.run_id))
            usd = cost.usd if cost is not None and not cost.unpriced else usd
            self._cost_s = time.monotonic()
        self.look = PartLook(
            run_id=part.run_id,
            state=record.state,
            failed_at=record.finished_at if has_failed else None,
            why=_why(part.run_id) or status.why if has_failed else "",
            phase="" if status.phase in ("running", "ended") else status.phase,
            summary=read_record(part.folder.summary, SuiteSummary),
            usd=usd,
            seen_s=time.monotonic(),
        )

    def _reached(self) -> None:
        self.look = replace(self.look, seen_s=time.monotonic())

    def _has_more(self, part: Run) -> bool:
        """Whether a part that has ended has commands left; read only if its files have grown."""
        controls = part.folder.controls
        size = (self._offset, controls.stat().st_size if is_there(controls) else 0)
        if size != self._done_at and has_more_to_do(part.folder):
            return True
        self._done_at = size
        return False

    def _found(self) -> Run | None:
        """Return the part; None before the site is first used."""
        record = open_ledger().run_by_key(part_key(self._suite.run_id, self.name))
        if record is not None:
            return run_of_record(record)
        return make_part(self._suite, self.name) if self._messages else None

    def _send(self, part: Run) -> None:
        while self._messages:
            message = self._messages[0]
            for number, folder in message.moved:
                _bring(folder, part.folder.trial(number), self._reached)
            for number, attempt, why in message.pruned:
                mailbox.request_cancel(part.folder.trial(number).step(attempt), why)
            for number in message.surplus:
                shutil.rmtree(part.folder.trial(number).checkpoints, ignore_errors=True)
            if (control := message.control) is not None:
                given = tuple(
                    each.model_copy(update={"trial": trial_at(part, self._suite, each.trial)})
                    for each in control.trials
                )
                control = control.model_copy(update={"trials": given})
                append_line(part.folder.controls, control.model_dump_json())
                self._is_new = self._is_new or bool(given)
            with self._lock:
                del self._messages[0]

    def _read(self, part: Run) -> None:
        if not is_there(part.folder.path):
            raise UnknownNameError(f"The folder of {part.run_id} is gone: {part.folder.path}")
        entries, self._offset = entries_from(part.folder.journal, self._offset)
        for entry in entries:
            self.news.put(entry)


def _bring(source: Path, target: TrialFolder, tick: Tick) -> None:
    """Copy what a trial has saved at another site; without it, the trial begins anew."""

    def copy(of: str, to: str) -> None:
        with open(of, "rb") as read, open(to, "wb") as written:
            while block := read.read(_BLOCK_BYTES):
                written.write(block)
                tick()
        shutil.copystat(of, to)

    try:
        if source.resolve() != target.path.resolve() and source.is_dir():
            shutil.copytree(
                source, target.path, ignore=_OF_THE_PART, copy_function=copy, dirs_exist_ok=True
            )
    except (OSError, shutil.Error) as error:
        logger.warning("Trial %s begins anew: %s", target.run_id, error)
        shutil.rmtree(target.checkpoints, ignore_errors=True)


def _why(run_id: str) -> str:
    """Return the message of a run's last failed attempt."""
    attempts = open_ledger().attempts(run_id)
    return next((row.message.partition("\n")[0] for row in reversed(attempts) if row.message), "")
