"""Processes: their identity, and children that end with their parent."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headrace.processes.children import Child, ChildEnd, ChildGroup, Process, start_program
from headrace.processes.fork_server import ForkServers
from headrace.processes.identity import ProcessIdentity, end_processes
from headrace.processes.working_folder import python_module
from support.waiting import wait_until

SLEEP = "import time; time.sleep(600)"
TESTS = str(Path(__file__).parents[1])
MODULE = "support.forked_code"

Start = Callable[[Child], Process]


def child(folder: Path, name: str, code: str, **env: str) -> Child:
    command = python_module(MODULE, code)
    return Child(name=name, command=command, log=folder / f"{name}.log", env=env)


def go_on() -> bool:
    return True


@pytest.fixture(params=["program", "forked"])
def start(request, monkeypatch) -> Start:
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    if request.param == "program":
        return start_program
    return ForkServers(MODULE, frozenset({"WORD"}), idle_s=1).start


def test_all_end_well_with_logs_and_environment(tmp_path, start):
    children = [
        child(tmp_path, f"c{i}", "import os; print(os.environ['WORD'])", WORD=f"word-{i}")
        for i in range(2)
    ]
    with ChildGroup(children, start=start) as group:
        ends = group.supervise(go_on)
    assert sorted((end.name, end.code, end.failed) for end in ends) == [
        ("c0", 0, False),
        ("c1", 0, False),
    ]
    assert (tmp_path / "c1.log").read_text() == "word-1\n"


def test_a_signal_to_the_group_of_its_parent_is_not_for_a_child(tmp_path, start):
    code = "import os; print(os.environ['WORD'] == str(os.getpgrp()))"
    with ChildGroup([child(tmp_path, "one", code, WORD=str(os.getpgrp()))], start=start) as group:
        group.supervise(go_on)
    assert (tmp_path / "one.log").read_text() == "False\n"


def test_the_first_failure_ends_the_others(tmp_path, start, no_leftover_processes):
    children = [child(tmp_path, "good", SLEEP), child(tmp_path, "bad", "raise SystemExit(3)")]
    with ChildGroup(children, start=start) as group:
        ends = {end.name: end for end in group.supervise(go_on)}
    assert ends["bad"].failed
    assert ends["bad"].cause == "exit code 3"
    assert ends["good"].stopped
    assert not ends["good"].failed


def test_a_killed_child_names_the_signal(tmp_path, start, no_leftover_processes):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with ChildGroup([child(tmp_path, "one", code)], start=start) as group:
        (end,) = group.supervise(go_on)
    assert end.code == -signal.SIGKILL
    assert end.cause == "signal SIGKILL"
    assert end.failed


def test_children_that_ignore_sigterm_are_killed_with_what_they_started(
    tmp_path, start, no_leftover_processes
):
    code = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n"
        "print('ready', flush=True)\n" + SLEEP
    )
    log = tmp_path / "deaf.log"
    with ChildGroup([child(tmp_path, "deaf", code)], grace_s=0.2, start=start) as group:
        ends = group.supervise(lambda: not (log.exists() and "ready" in log.read_text()))
    assert [(end.code, end.stopped) for end in ends] == [(-signal.SIGKILL, True)]


def test_an_error_while_watching_ends_the_children(tmp_path, start, no_leftover_processes):
    children = [child(tmp_path, "one", SLEEP)]
    with pytest.raises(KeyError), ChildGroup(children, start=start) as group:
        group.supervise(lambda: {}["missing"])
    assert group.running == ()


def test_a_child_that_cannot_start_ends_those_that_did(tmp_path, no_leftover_processes):
    one = Child(name="one", command=(sys.executable, "-c", SLEEP), log=tmp_path / "one.log")
    missing = Child(name="missing", command=("/no/such/program",), log=tmp_path / "m.log")
    with pytest.raises(FileNotFoundError), ChildGroup([one, missing]):
        pass


def test_children_die_with_a_killed_supervisor(tmp_path, no_leftover_processes):
    supervisor = (
        "from pathlib import Path; from headrace.processes.children import *; import sys\n"
        f"c = Child(name='c', command=(sys.executable, '-m', 'headrace.processes', '--', "
        f"sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); "
        f"time.sleep(600)'), log=Path({str(tmp_path / 'c.log')!r}))\n"
        "with ChildGroup([c]) as group: group.supervise(lambda: True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", supervisor])
    log = tmp_path / "c.log"
    pid = int(wait_until(lambda: log.exists() and log.read_text(), 90, "the child to start"))
    process.kill()
    process.wait()
    wait_until(lambda: not psutil.pid_exists(pid), 90, "the child to end")


def test_a_program_that_was_let_go_gives_no_warning_and_leaves_no_zombie(tmp_path):
    go_on = tmp_path / "go-on"
    code = (
        f"import pathlib, time\nwhile not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.02)"
    )
    command = (sys.executable, "-c", code)
    pid = start_program(Child(name="one", command=command, log=tmp_path / "log")).pid
    gc.collect()  # a process object that was dropped while its process runs complains here
    assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    go_on.touch()
    wait_until(lambda: not psutil.pid_exists(pid), 90, "the process to be gone")


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    """A rank that warns at every step writes gigabytes, which the worker must not hold."""
    log = tmp_path / "rank-0.log"
    log.write_text(f"{'x' * 2**20} the cause")
    end = ChildEnd(name="rank 0", code=1, at=0, stopped=False, log=log)
    assert end.last_words.endswith(" the cause")
    assert len(end.last_words) < 2**17


def test_lines_of_an_earlier_process_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("earlier\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("later\nlast\n")
    end = ChildEnd(name="rank 0", code=1, at=0, stopped=False, log=log, log_start=start)
    assert end.last_words == "later\nlast"


def test_no_command_is_an_error():
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.processes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "python -m headrace.processes -- COMMAND" in ended.stderr


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a name that looks like the fields behind it, until its input ends."""
    code = (
        "import pathlib, sys; pathlib.Path('/proc/self/comm').write_bytes(b'a) Z 1 (\\xe9');"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield process


def test_a_process_lives_until_it_has_ended_though_nobody_waited_for_it(
    sleeping: subprocess.Popen[bytes],
) -> None:
    identity = ProcessIdentity.of(sleeping.pid)
    assert identity.is_here
    assert identity.is_alive
    sleeping.stdin.close()
    wait_until(lambda: not identity.is_alive, 90, "the process to end")
    assert psutil.pid_exists(sleeping.pid)
    sleeping.wait()
    assert not identity.is_alive


def test_a_recycled_pid_is_another_process() -> None:
    me = ProcessIdentity.of()
    assert not me.model_copy(update={"started_s": me.started_s - 0.01}).is_alive


def test_a_process_is_known_again_when_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil takes the start of the machine from the time of day, in whole seconds."""
    me = ProcessIdentity.of()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 0.0)
    assert psutil.Process().create_time() < 1e9
    assert me.is_alive
    assert ProcessIdentity.of() == me


def test_there_is_no_identity_of_a_process_that_has_gone(sleeping: subprocess.Popen[bytes]) -> None:
    sleeping.communicate()
    with pytest.raises(ProcessLookupError, match=f"no process {sleeping.pid}"):
        ProcessIdentity.of(sleeping.pid)


def test_a_process_of_somebody_else_keeps_no_other_from_being_ended(
    sleeping: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the starter of a container that runs as root."""
    send_signal = psutil.Process.send_signal

    def send(process: psutil.Process, sig: signal.Signals) -> None:
        if process.pid == os.getpid():
            raise psutil.AccessDenied(process.pid)
        send_signal(process, sig)

    monkeypatch.setattr(psutil.Process, "send_signal", send)
    identity = ProcessIdentity.of(sleeping.pid)
    end_processes([psutil.Process(), psutil.Process(sleeping.pid)], grace_s=0.1)
    assert not identity.is_alive


ENTRY_POINT = """
import subprocess, sys
from headrace.processes.identity import tell_children
if sys.argv[1:] == ["tells"]:
    tell_children()
child = "from headrace.processes.identity import die_with_parent; die_with_parent()"
sys.exit(subprocess.run([sys.executable, "-c", child], stderr=subprocess.DEVNULL).returncode)
"""


@pytest.mark.parametrize(("arguments", "code"), [(["tells"], 0), ([], 1)])
def test_process_1_is_a_parent_only_when_it_says_so(arguments: list[str], code: int) -> None:
    """In a container headrace may be the entry point; elsewhere process 1 is who takes orphans."""
    alone = ["unshare", "--pid", "--fork", "--kill-child"]
    if os.getuid() != 0 or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("a process number 1 of its own takes root")
    done = subprocess.run([*alone, sys.executable, "-c", ENTRY_POINT, *arguments])
    assert done.returncode == code
