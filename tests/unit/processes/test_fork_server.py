"""What a fork server does beyond what `test_children` asks of every child."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from headrace.processes.children import Child, ChildGroup
from headrace.processes.fork_server import ForkServers
from headrace.processes.identity import holds_gpu
from headrace.processes.working_folder import python_module
from support.waiting import wait_until

TESTS = str(Path(__file__).parents[1])
MODULE = "support.forked_code"
TELL = "import os; print(os.getpid(), os.getppid(), os.environ.get('WORD'))"
SLEEP = "import time; time.sleep(600)"


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch, no_leftover_processes):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([TESTS, *sys.path]))


@pytest.fixture
def servers() -> ForkServers:
    return ForkServers(MODULE, frozenset({"WORD"}), idle_s=1)


def child(folder: Path, code: str, name: str = "one", **env: str) -> Child:
    program = python_module(MODULE, code)
    return Child(name=name, command=program, log=folder / "logs" / f"{name}.log", env=env)


def told(servers: ForkServers, *children: Child) -> list[list[str]]:
    with ChildGroup(children, start=servers.start) as group:
        ends = group.supervise(lambda: True)
    assert [end.code for end in ends] == [0] * len(children)
    return [each.log.read_text().split() for each in children]


def test_children_and_later_groups_share_one_server(tmp_path, servers):
    first, second = told(
        servers, child(tmp_path, TELL, "a", WORD="x"), child(tmp_path, TELL, "b", WORD="y")
    )
    (later,) = told(servers, child(tmp_path, TELL, "c"))
    assert first[0] != second[0]
    assert first[1] == second[1] == later[1]
    assert (first[2], second[2], later[2]) == ("x", "y", "None")


def test_a_server_that_was_warmed_up_is_there_for_the_first_child(tmp_path, monkeypatch):
    """Not for one whose environment differs: a library may have read a variable at its import."""
    servers = ForkServers(MODULE, frozenset({"WORD"}), idle_s=60)
    monkeypatch.setenv("WORD", "of a rank")  # may vary
    before = set(psutil.Process().children())
    servers.warm_up()
    (warm,) = set(psutil.Process().children()) - before
    monkeypatch.delenv("WORD")
    first, other = (
        told(servers, child(tmp_path, TELL, name, **env))[0]
        for name, env in (("a", {"WORD": "x"}), ("b", {"OTHER": "1"}))
    )
    assert (int(first[1]), first[2]) == (warm.pid, "x")
    assert int(other[1]) != warm.pid
    for server in (warm, psutil.Process(int(other[1]))):
        server.kill()


def test_a_process_with_many_open_files_has_servers_as_well(tmp_path, servers):
    """`select` ends at descriptor 1023: thousands of mapped shards or sockets are normal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 1500)), hard))
    with ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while held.enter_context(Path(os.devnull).open()).fileno() < 1030:
            pass
        assert len(told(servers, child(tmp_path, TELL))) == 1


def test_another_environment_gets_a_server_that_was_started_with_it(tmp_path, servers):
    """A library may have read a variable at its import."""
    (first,) = told(servers, child(tmp_path, TELL, "a", OTHER="1"))
    (second,) = told(servers, child(tmp_path, TELL, "b", OTHER="2"))
    assert first[1] != second[1]


def test_a_server_without_work_ends_and_is_replaced(tmp_path):
    servers = ForkServers(MODULE, frozenset(), idle_s=0.05)
    (first,) = told(servers, child(tmp_path, TELL, "a"))
    server = int(first[1])
    wait_until(lambda: not psutil.pid_exists(server), 90, "the server to end")
    (second,) = told(servers, child(tmp_path, TELL, "b"))
    assert second[1] != first[1]


def test_a_server_sees_the_ends_of_its_forks_where_its_parent_ignores_them(tmp_path, servers):
    """Programs inherit which signals are ignored."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        first, second = (told(servers, child(tmp_path, TELL, name))[0] for name in "ab")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert first[1] == second[1]


def test_a_killed_server_is_the_end_of_its_children(tmp_path, servers):
    code = "import os, signal; os.kill(os.getppid(), signal.SIGKILL); " + SLEEP
    with ChildGroup([child(tmp_path, code)], start=servers.start) as group:
        (end,) = group.supervise(lambda: True)
    assert end.cause == "signal SIGKILL"
    assert end.failed
    assert told(servers, child(tmp_path, TELL, "next"))


def test_an_import_that_fails_is_told_in_each_log(tmp_path, servers):
    children = [child(tmp_path, TELL, name, IMPORT_FAILS="no such library") for name in "ab"]
    with ChildGroup(children, start=servers.start) as group:
        ends = group.supervise(lambda: True)
    assert any(end.failed and end.cause == "exit code 1" for end in ends)
    assert "ImportError: no such library" in children[0].log.read_text()


def test_children_that_wait_for_the_import_are_stopped_at_once(tmp_path, servers):
    hold = tmp_path / "hold"
    hold.touch()
    children = [child(tmp_path, TELL, name, IMPORT_HOLDS=str(hold)) for name in "ab"]
    with ChildGroup(children, grace_s=60, start=servers.start) as group:
        ends = group.supervise(lambda: False)
    assert [end.stopped for end in ends] == [True, True]
    hold.unlink()
    later = child(tmp_path, TELL, "later", IMPORT_HOLDS=str(hold))
    assert len(told(servers, later)) == 1  # from the same server, which has forked none of the two
    assert children[1].log.exists() is False
    assert [end.last_words for end in ends] == ["", ""]  # of one that never was there, too


def test_a_server_ends_at_once_and_a_child_as_python_does(tmp_path, servers):
    """Taking apart what was imported is nothing that the end of a lease should wait for."""
    one = child(tmp_path, TELL, LAST_WORD="bye")
    ((_, server, *_),) = told(servers, one)
    wait_until(lambda: not psutil.pid_exists(int(server)), 60, "the server to end")
    assert one.log.read_text().split().count("bye") == 1


def test_a_child_has_the_name_that_it_was_given(tmp_path, servers):
    code = "from pathlib import Path; print(Path('/proc/self/comm').read_text())"
    assert told(servers, child(tmp_path, code, "rank 3")) == [["rank", "3"]]


def test_code_that_reads_the_command_line_sees_that_of_its_child(tmp_path, servers):
    """As loggers do, and parsers of arguments; not that of the server."""
    one = child(tmp_path, "import sys; print(sys.argv[0], len(sys.argv))")
    assert told(servers, one) == [[MODULE, "2"]]


def test_children_draw_different_numbers(tmp_path, servers):
    """What was imported holds the state of numpy's generator."""
    code = "import numpy; print(numpy.random.random())"
    drawn = told(servers, *(child(tmp_path, code, name, IMPORT_NUMPY="1") for name in "ab"))
    assert drawn[0] != drawn[1]


def test_children_die_with_a_killed_parent(tmp_path):
    log = tmp_path / "logs" / "one.log"
    code = f"import os; print(os.getpid(), flush=True); {SLEEP}"
    parent = (
        "from pathlib import Path; from headrace.processes.children import *\n"
        "from headrace.processes.fork_server import *\n"
        f"command = python_module({MODULE!r}, {code!r})\n"
        f"c = Child(name='one', command=command, log=Path({str(log)!r}))\n"
        f"servers = ForkServers({MODULE!r}, frozenset())\n"
        "with ChildGroup([c], start=servers.start) as group: group.supervise(lambda: True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    pid = int(wait_until(lambda: log.exists() and log.read_text(), 90, "the child to start"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not psutil.pid_exists(pid), 90, "the child to end")


@pytest.mark.parametrize(
    ("opened", "is_held"),
    [("/dev/nvidia0", True), ("/dev/kfd", True), ("socket:[1]", False), ("/x/dev/nvidia", False)],
)
def test_a_gpu_is_held_by_what_has_opened_it(tmp_path, opened, is_held):
    (tmp_path / "0").symlink_to(os.devnull)
    (tmp_path / "1").symlink_to(opened)
    assert holds_gpu(tmp_path) is is_held


def test_a_server_that_has_opened_a_gpu_does_not_fork_for_good(tmp_path, servers):
    """What CUDA has begun does not survive a fork: the child becomes the program instead."""
    show = "print(open('/proc/self/cmdline').read().split(chr(0))[4], os.environ['WORD'])"
    one = child(tmp_path, f"import os; {show}", WORD="one", IMPORT_TAKES_GPU="1")
    assert told(servers, one) == [[MODULE, "one"]]
