"""A process that answers calls and is kept for the next ones."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from headrace.errors import (
    MemoryExhaustedError,
    RecipeError,
    StepCancelledError,
    StepError,
    UserCodeError,
    WorkerLostError,
)
from headrace.processes import children
from headrace.processes.call_server import CallServer
from headrace.processes.children import Child, start_program
from headrace.processes.fork_server import ForkServers
from headrace.processes.working_folder import python_module
from support.waiting import wait_until

TESTS = str(Path(__file__).parents[2])
MODULE = "support.forked_code"
ANSWERS = """
import os, time
from headrace.processes.call_server import answer_calls
answer_calls(lambda code: eval(code, globals()), float(os.environ.get("WAIT_S", "60")))
"""


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch, no_leftover_processes):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([TESTS, *sys.path]))


@pytest.fixture(params=["program", "forked"])
def kept(request):
    if request.param == "program":
        made = CallServer(start_program)
    else:
        made = CallServer(ForkServers(MODULE, frozenset({"WAIT_S"}), idle_s=0.2).start)
    yield made
    made.end()


def child(folder: Path, name: str = "one", **env: str) -> Child:
    return Child(
        name=name,
        command=python_module(MODULE, ANSWERS),
        log=folder / "logs" / f"{name}.log",
        env=env,
    )


def go_on() -> bool:
    return True


def test_one_process_answers_call_after_call(tmp_path, kept):
    first = kept.call(child(tmp_path), "os.getpid()", go_on)
    assert first != os.getpid()
    assert kept.call(child(tmp_path), "os.getpid()", go_on) == first
    assert kept.call(child(tmp_path), "input", go_on) is input


def test_the_process_outlives_the_thread_that_called_first(tmp_path, kept):
    """The kernel ties a process that dies with its parent to the thread that started it."""
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(kept.call, child(tmp_path), "os.getpid()", go_on).result()
    assert kept.call(child(tmp_path), "os.getpid()", go_on) == first


def test_another_child_takes_its_place(tmp_path, kept):
    first = kept.call(child(tmp_path), "os.getpid()", go_on)
    assert kept.call(child(tmp_path, "two"), "os.getpid()", go_on) != first
    assert not psutil.pid_exists(first)


def test_one_that_waited_too_long_is_started_again(tmp_path, kept):
    first = kept.call(child(tmp_path, WAIT_S="0"), "os.getpid()", go_on)
    wait_until(lambda: not _runs(first), 90, "the process to end")
    assert kept.call(child(tmp_path, WAIT_S="0"), "os.getpid()", go_on) != first


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_errors_are_raised_in_the_caller(tmp_path, kept):
    raising = "(_ for _ in ()).throw(__import__('headrace.errors', fromlist=['x']).{})"
    with pytest.raises(RecipeError, match="no model") as no_model:
        kept.call(child(tmp_path), raising.format("RecipeError('no model', 'Set one.')"), go_on)
    assert no_model.value.hint == "Set one."
    code = raising.format("UserCodeError('raised', trace='line 3', where='rank 2')")
    with pytest.raises(UserCodeError) as raised:
        kept.call(child(tmp_path), code, go_on)
    assert (raised.value.trace, raised.value.where) == ("line 3", "rank 2")
    has_notes = sys.version_info >= (3, 11)
    with pytest.raises(ZeroDivisionError if has_notes else StepError) as other:
        kept.call(child(tmp_path), "1 // 0", go_on)
    told = other.value.__notes__[0] if has_notes else str(other.value)
    assert 'File "<string>", line 1' in told


def test_its_death_is_told_with_its_last_words(tmp_path, kept):
    dying = "print('last words', flush=True), os.kill(os.getpid(), 9)"
    kept.call(child(tmp_path), "print('earlier words', flush=True)", go_on)
    with pytest.raises(WorkerLostError, match="one ended by signal SIGKILL") as lost:
        kept.call(child(tmp_path), dying, go_on)
    assert "more memory" in lost.value.hint
    assert lost.value.hint.endswith("last words")
    with pytest.raises(WorkerLostError, match="one ended by exit code 3"):
        kept.call(child(tmp_path), "os._exit(3)", go_on)
    with pytest.raises(WorkerLostError, match="ended before its first answer"):
        kept.call(child(tmp_path), "os._exit(0)", go_on)
    assert kept.call(child(tmp_path), "1 + 1", go_on) == 2


def test_sys_exit_is_an_error_of_the_code_that_calls_it(tmp_path, kept):
    """Also with the code 0, which looks as if all were well."""
    first = kept.call(child(tmp_path), "os.getpid()", go_on)
    with pytest.raises(UserCodeError, match=r"in <string>, line 1, called sys\.exit\(0\)"):
        kept.call(child(tmp_path), "__import__('sys').exit(0)", go_on)
    with pytest.raises(UserCodeError, match=r"line 1, raised KeyboardInterrupt\(\)"):
        kept.call(child(tmp_path), "exec('raise KeyboardInterrupt')", go_on)
    assert kept.call(child(tmp_path), "os.getpid()", go_on) == first


def test_one_that_was_killed_for_memory_says_so(tmp_path, kept, monkeypatch):
    """The kernel's counter tells it from other kills."""
    kills = iter((4, 5))
    monkeypatch.setattr(children, "num_memory_kills", lambda: next(kills))
    with pytest.raises(
        MemoryExhaustedError, match="signal SIGKILL: the kernel killed it because the memory"
    ) as no:
        kept.call(child(tmp_path), "os.kill(os.getpid(), 9)", go_on)
    assert no.value.hint.startswith("Give it more memory")


def test_a_call_that_nobody_waits_for_ends_with_its_process(tmp_path, kept):
    pids = tmp_path / "pids"
    code = f"open({str(pids)!r}, 'w').write(str(os.getpid())), time.sleep(600)"
    with pytest.raises(StepCancelledError):
        kept.call(child(tmp_path), code, lambda: not (pids.exists() and pids.read_text()))
    assert not psutil.pid_exists(int(pids.read_text()))


def test_an_interrupted_call_leaves_no_answer_for_the_next(tmp_path, kept):
    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.call(child(tmp_path), "time.sleep(2)", interrupt)
    assert kept.call(child(tmp_path), "1 + 1", go_on) == 2


def test_what_a_dead_process_has_started_does_not_keep_its_caller_waiting(tmp_path, kept):
    """Fork, as workers of a data loader do: the copy holds the line open."""
    with pytest.raises(WorkerLostError, match="exit code 5"):
        kept.call(child(tmp_path), "time.sleep(600) if os.fork() == 0 else os._exit(5)", go_on)
