"""The one boundary around work that only informs: it never ends, delays or changes the work.

A forecast, accounting, provenance, progress, a notice or output may fail, hang or return nonsense.
Then it is left out: logged in one line (trace at debug level) and counted in the run's folder.
"""

from __future__ import annotations

import contextvars
import logging
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from headrace.errors import HeadraceError, shortened, without_secrets
from headrace.files.layout import RunFolder
from headrace.files.lines import append_line, read_lines
from headrace.record import Record

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""Longest wait of the work for a part that informs."""

DECISION_S = 20.0
"""The same if a decision depends on the answer, as a time limit."""

AFTERWARDS_S = 60.0
"""The same once the work is done; a part that has failed is then called without a pause."""

_LONGEST_REST_S = 600.0

Answer = TypeVar("Answer")


class LeftOut(Record):
    """A line of `informing.jsonl` of a run: a part that informs has failed."""

    at: float
    """When, in seconds since the epoch."""
    part: str
    why: str


class LeftOutSum(Record):
    """Failures of the parts that inform about a run; its work continued."""

    count: int = 0
    last: str = ""
    """The part that failed last, and why; empty without a failure."""

    @property
    def words(self) -> str:
        """Return the same in a line."""
        return f"{self.count} failures of parts that only inform; the last: {self.last}"


def failures_of(run: RunFolder) -> LeftOutSum:
    """Return the failures that processes of a run have counted."""
    found: list[LeftOut] = []
    with suppress(OSError):
        found = read_lines(run.informing, LeftOut)
    return LeftOutSum(count=len(found), last="".join(f"{x.part}: {x.why}" for x in found[-1:]))


def inform(
    run: RunFolder | None,
    part: str,
    work: Callable[[], Answer | None],
    expected: type[Answer] | None = None,
    within_s: float | None = PATIENCE_S,
) -> Answer | None:
    """Call a part that only informs; return its answer, or None if it has none or fails.

    A part that has failed pauses in this process: for a second, then twice as long each time, at
    most ten minutes; and always while it hangs.

    Args:
        run: Folder of the run that counts failures; None if there is no single run.
        part: Name of the part, for the user.
        work: The part.
        expected: Type of its answer, whose numbers are finite and not negative; None: any.
        within_s: Seconds to wait for the answer; a later one is dropped. None: as long as it takes.
    """
    before = _failed.get((run, part))
    if before is not None and before.rests(within_s):
        return None
    call = _Call(work, within_s, 1 if before is None else before.count + 1)
    if why := call.fault(expected):
        _failed[run, part] = call
        _note(run, part, why, call.error)
        return None
    return call.answer


def shielded(
    run: RunFolder, part: str, work: Callable[..., object], within_s: float | None = None
) -> Callable[..., object]:
    """Return a function that calls a part as `inform` does, with any arguments."""
    return lambda *given, **named: inform(run, part, partial(work, *given, **named), None, within_s)


class _Call(Generic[Answer]):
    """One call of a part; a call with a deadline has its own thread."""

    def __init__(
        self, work: Callable[[], Answer | None], within_s: float | None, count: int
    ) -> None:
        self._work, self._within_s, self.count = work, within_s or 0.0, count
        self._has_ended = False
        self.answer: Answer | None = None
        self.error: Exception | None = None
        run = partial(contextvars.copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name="headrace-informing", daemon=True)
        if within_s is None:
            self._run()
        else:
            with suppress(RuntimeError):  # no further thread can be started
                self._thread.start()
                self._thread.join(within_s)
        self._until_s = time.monotonic() + min(2.0 ** min(count - 1, 10), _LONGEST_REST_S)

    def _run(self) -> None:
        try:
            self.answer = self._work()
        except Exception as error:  # noqa: BLE001  here alone: what informs ends no work
            self.error = error
        self._has_ended = True

    def rests(self, within_s: float | None) -> bool:
        """Whether the part pauses after this call; a part that hangs gets the longer pause."""
        if self._thread.is_alive():
            self._thread.join(max((within_s or AFTERWARDS_S) - self._within_s, 0.0))
            return self._thread.is_alive()
        return within_s != AFTERWARDS_S and time.monotonic() < self._until_s

    def fault(self, expected: type[Answer] | None) -> str:
        """Return what is wrong with the call or its answer; empty if nothing is wrong."""
        if isinstance(self.error, HeadraceError):
            return self.error.what
        if self.error is not None:  # its `str` may raise
            return traceback.format_exception_only(self.error)[-1]
        if not self._has_ended:
            return f"no answer within {self._within_s:g} s"
        return "" if expected is None or self.answer is None else _nonsense(self.answer, expected)


_failed: dict[tuple[RunFolder | None, str], _Call[Any]] = {}
"""The last call of a run's part that has failed in this process."""


def _nonsense(answer: object, expected: type[Any]) -> str:
    """Return why an answer is unusable; empty if it is usable."""
    if not isinstance(answer, expected):
        return f"the answer is a {type(answer).__name__}, not a {expected.__name__}"
    try:
        if isinstance(answer, BaseModel):
            type(answer).model_validate(dict(answer))
    except ValueError as error:
        return f"the answer is not a valid {expected.__name__}: {error}"
    wrong = next((each for each in _numbers(answer) if not 0 <= each < math.inf), None)
    return "" if wrong is None else f"the answer has the number {wrong:g}"


def _numbers(value: object) -> Iterator[float]:
    """Yield all numbers of a record, mapping or sequence."""
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        content = dict(value).values() if isinstance(value, (BaseModel, Mapping)) else value
        for each in content:
            yield from _numbers(each)


def _note(run: RunFolder | None, part: str, why: str, error: Exception | None) -> None:
    """Log a failure and append it to the run's file; a trial's to its suite's."""
    trace = "" if error is None else "".join(traceback.format_exception(error))
    why, trace = (
        without_secrets(text.encode(errors="backslashreplace").decode()) for text in (why, trace)
    )
    why = shortened(" ".join(why.split()))
    logger.warning("Left out, the work continues: %s: %s", part, why)
    logger.debug("%s:\n%s", part, trace)
    if run is not None:
        with suppress(OSError):
            line = LeftOut(at=time.time(), part=part, why=why).model_dump_json()
            append_line(run.whole.informing, line)
