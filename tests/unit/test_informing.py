"""The boundary around what only informs: whatever it does, the work gets None and goes on."""

from __future__ import annotations

import contextvars
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import informing
from headrace.clusters.lease_records import Walltime
from headrace.errors import LedgerError, StepError
from headrace.files.layout import RunFolder
from headrace.informing import AFTERWARDS_S, failures_of, inform
from headrace.runs.prediction import Ahead, PredictedPart, Prediction
from headrace.suites.trial_order import Eta

_SOON_S = 0.05


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "digits-1")
    folder.path.mkdir(parents=True)
    return folder


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Ends what hangs on it, at the latest with the test."""
    event = threading.Event()
    yield event
    event.set()


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError


def _raising(error: BaseException) -> Callable[[], Any]:
    def work() -> None:
        raise error

    return work


ERRORS = {
    "a KeyError": (KeyError("model.dropout"), "KeyError: 'model.dropout'"),
    "headrace's own": (LedgerError("It is gone", "Start it."), "It is gone"),
    "no memory": (MemoryError(), "MemoryError"),
    "more lines": (ValueError("one\n  two"), "ValueError: one two"),
    "no text": (_UnprintableError(), "<exception str() failed>"),
    "a secret": (OSError("https://me:secret@hook.example/x"), "https://***@hook.example/x"),
    "half a letter": (ValueError("a\udc80b"), r"a\udc80b"),
    "much": (ValueError("x" * 10_000), "…"),
}


@pytest.mark.parametrize("within_s", [5.0, None])
@pytest.mark.parametrize(("error", "why"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_logged_in_a_line_and_counted(
    error: Exception,
    why: str,
    within_s: float | None,
    run: RunFolder,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.DEBUG)
    assert inform(run, "forecast", _raising(error), within_s=within_s) is None
    warning, trace = caplog.records
    assert (warning.levelno, trace.levelno) == (logging.WARNING, logging.DEBUG)
    assert "forecast: " in warning.getMessage()
    assert why in warning.getMessage()
    assert "\n" not in warning.getMessage()
    assert "Traceback" in trace.getMessage()
    found = failures_of(run)
    assert found.count == 1
    assert found.last.startswith("forecast: ")
    assert why in found.last
    assert len(found.last) < 300


def test_an_answer_and_none_are_given_as_they_are(run: RunFolder):
    assert inform(run, "forecast", lambda: 3, int) == 3
    assert inform(run, "forecast", lambda: 3, int, within_s=None) == 3
    assert inform(run, "forecast", lambda: None, int) is None
    assert failures_of(run) == informing.LeftOutSum()
    assert not run.informing.exists()


def test_what_hangs_is_left_and_its_late_answer_is_dropped(
    run: RunFolder, released: threading.Event
):
    calls = []

    def hanging() -> str:
        calls.append(threading.current_thread())
        released.wait()
        return "late"

    assert inform(run, "forecast", hanging, str, _SOON_S) is None
    assert failures_of(run).last == "forecast: no answer within 0.05 s"
    for _ in range(3):  # it is not asked again, nor waited for, while it hangs
        assert inform(run, "forecast", hanging, str, _SOON_S) is None
    assert (len(calls), failures_of(run).count) == (1, 1)
    assert inform(run, "another part", lambda: 1, int) == 1
    assert inform(RunFolder(run.path.with_name("digits-2")), "forecast", lambda: 1, int) == 1
    assert calls[0].daemon  # so that it does not keep the process


def test_accounting_after_the_work_waits_for_the_one_that_hung_before(
    run: RunFolder, released: threading.Event
):
    order = []

    def first() -> None:
        released.wait()
        order.append("first")

    inform(run, "accounting", first, within_s=_SOON_S)
    timer = threading.Timer(_SOON_S, released.set)
    timer.start()
    inform(run, "accounting", lambda: order.append("second"), within_s=AFTERWARDS_S)
    timer.join()
    assert order == ["first", "second"]


def test_a_part_that_fails_again_and_again_rests_for_longer_each_time(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    now_s, called_at = 0.0, []
    monkeypatch.setattr(informing.time, "monotonic", lambda: now_s)

    def failing() -> None:
        called_at.append(now_s)
        raise ValueError

    for second in range(1, 5000):
        inform(run, "progress", failing, within_s=None)
        now_s = float(second)
    assert called_at[:5] == [0.0, 1.0, 3.0, 7.0, 15.0]
    assert max(b - a for a, b in itertools.pairwise(called_at)) == 600.0
    assert failures_of(run).count == len(called_at) < 20


def test_interrupting_the_work_interrupts_it(run: RunFolder):
    with pytest.raises(KeyboardInterrupt):
        inform(run, "progress", _raising(KeyboardInterrupt()), within_s=None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_leaving_the_program_is_not_for_what_informs(run: RunFolder):
    assert inform(run, "notice", _raising(SystemExit(3)), within_s=_SOON_S) is None
    assert failures_of(run).count == 1


def test_no_further_thread_is_a_failure_of_the_part(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(threading.Thread, "start", _raising_method)
    assert inform(run, "progress", lambda: 1, int) is None
    assert failures_of(run).count == 1


def _raising_method(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_the_part_has_the_context_of_the_work(run: RunFolder):
    variable = contextvars.ContextVar[str]("span")
    variable.set("of the task")
    assert inform(run, "telemetry", variable.get, str) == "of the task"


_PART = PredictedPart(name="train", seconds=1.0, spread=0.1, shared=0.1, num_known=1)
_WHOLE = Prediction(
    seconds=1.0, half_s=0.1, parts=(_PART,), unknown=(), gpu_hours=0.0, num_bytes=None, made_at=1.0
)
_NAN, _INFINITE = float("nan"), float("inf")

NONSENSE = {
    "a text": ("soon", Prediction),
    "a number": (3.0, Prediction),
    "another record": (Eta(seconds=1.0, half_s=1.0), Ahead),
    "NaN": (_WHOLE.model_copy(update={"seconds": _NAN}), Prediction),
    "NaN in a part": (
        _WHOLE.model_copy(update={"parts": (_PART.model_copy(update={"seconds": _NAN}),)}),
        Prediction,
    ),
    "infinite": (_WHOLE.model_copy(update={"gpu_hours": _INFINITE}), Prediction),
    "negative": (_WHOLE.model_copy(update={"half_s": -1.0}), Prediction),
    "a text in a record": (_WHOLE.model_copy(update={"seconds": "soon"}), Prediction),
    "a record that lacks a value": (Prediction.model_construct(seconds=1.0), Prediction),
    "a negative time that is left": (Eta(seconds=-1.0, half_s=1.0), Eta),
    "NaN in a limit": (Walltime(seconds=_NAN, most_s=1.0, why=""), Walltime),
    "NaN in a mapping": ({1: 1.0, 2: _NAN}, dict),
}


@pytest.mark.parametrize(("answer", "expected"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_not_used(answer: object, expected: type, run: RunFolder):
    assert inform(run, "forecast", lambda: answer, expected) is None
    assert failures_of(run).count == 1
    assert "the answer " in failures_of(run).last


@pytest.mark.parametrize("answer", [_WHOLE, Eta(seconds=0.0, half_s=0.0), {1: 0.0}, True])
def test_sense_is_used(answer: Any, run: RunFolder):
    assert inform(run, "forecast", lambda: answer, type(answer)) is answer


def test_a_failure_of_a_trial_counts_for_its_suite(run: RunFolder):
    inform(run.trial(3), "history", _raising(ValueError("lost")), within_s=None)
    assert failures_of(run).last == "history: ValueError: lost"


@pytest.mark.parametrize("content", ["", "{", '{"at": 1}\n', "\x00\xff\n" * 3])
def test_a_damaged_count_is_none(content: str, run: RunFolder):
    run.informing.write_text(content)
    assert failures_of(run).count == 0
    inform(run, "forecast", _raising(StepError("damaged")))
    assert failures_of(run).count == 1


def test_a_failure_that_cannot_be_counted_is_logged(
    run: RunFolder, caplog: pytest.LogCaptureFixture
):
    run.path.rmdir()
    assert inform(run, "forecast", _raising(ValueError("lost"))) is None
    assert inform(None, "forecast", _raising(ValueError("lost"))) is None
    assert [each.levelname for each in caplog.records].count("WARNING") == 2
    assert failures_of(run).count == 0
