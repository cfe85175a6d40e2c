"""Whose fault it was: what ranks say, and the verdict over all of them."""

from __future__ import annotations

import errno
import os
import signal
import socket
from datetime import timedelta
from multiprocessing import resource_sharer
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from headrace.errors import (
    DataError,
    MemoryExhaustedError,
    NotFiniteLossError,
    ShardError,
    StorageError,
    StorageFullError,
    UserCodeError,
    UserError,
    WorkerLostError,
)
from headrace.processes.children import ChildEnd, num_memory_kills
from headrace.states import FailureClass
from headrace.training.launch_records import FailureKind, NodeOutcome, RankFailure
from headrace.training.rank_failures import (
    PortTakenError,
    describe,
    script_failure,
    to_error,
    verdict,
)
from headrace.training.rendezvous import tcp_store
from headrace.training.watch_ranks import Beat, read_beat


def user_function(error: BaseException) -> None:
    raise error


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        user_function(error)
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("x"), FailureKind.USER_ERROR),
        (RuntimeError("store is closed, says my own code"), FailureKind.USER_ERROR),
        (FileNotFoundError(errno.ENOENT, "my.csv"), FailureKind.USER_ERROR),
        (NotFiniteLossError("nan"), FailureKind.USER_ERROR),
        (ShardError("bad shard"), FailureKind.DATA_ERROR),
        (MemoryError(), FailureKind.OUT_OF_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory"), FailureKind.OUT_OF_MEMORY),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
            FailureKind.OUT_OF_MEMORY,
        ),
        (OSError(errno.ENOSPC, "No space left on device"), FailureKind.NO_SPACE),
        (OSError(errno.EIO, "I/O error"), FailureKind.STORAGE),
        (StorageError("Read-only file system: '/x'"), FailureKind.STORAGE),
        (torch.distributed.DistNetworkError("EADDRINUSE"), FailureKind.PORT_TAKEN),
        (torch.distributed.DistBackendError("NCCL error"), FailureKind.PEER_LOST),
    ],
)
def test_what_a_rank_says(error, kind):
    assert describe(raised(error), 0).kind is kind


def test_errors_out_of_torch_itself_mean_a_lost_peer():
    message = "[/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:25"
    scope = {"__name__": "torch.distributed.distributed_c10d"}
    exec(f"def wait(): raise RuntimeError({message!r})", scope)
    with pytest.raises(RuntimeError) as caught:
        scope["wait"]()
    assert describe(caught.value, 1).kind is FailureKind.PEER_LOST


def in_module(name: str, code: str) -> BaseException:
    """What code raises that is called `run` in a module of that name, as `at` does in a rank."""
    scope = {"__name__": name}
    exec(code, scope)
    caught: list[BaseException] = []
    at = {"__name__": "__main__", "run": scope["run"], "caught": caught}
    exec("try: run()\nexcept BaseException as error: caught.append(error)", at)
    return caught[0]


@pytest.mark.parametrize(
    ("module", "code", "kind"),
    [
        ("headrace.training.trainer", "def run(): {}['step']", FailureKind.INTERNAL),
        ("headrace.storage.x", "import json\ndef run(): json.loads('{')", FailureKind.INTERNAL),
        ("headrace.files.x", "def run(): open('/gone/x')", FailureKind.STORAGE),
        ("headrace.files.x", "def run(): open('/proc/self/x', 'w')", FailureKind.STORAGE),
        ("my_models", "def run(): open('/gone/x')", FailureKind.USER_ERROR),
        ("headrace.data.transforms", "def run(): {}['image']", FailureKind.USER_ERROR),
        ("headrace.examples.model", "def run(): {}['image']", FailureKind.USER_ERROR),
        ("lightning.pytorch.trainer", "def run(): raise ValueError('x')", FailureKind.USER_ERROR),
        ("lightning.pytorch.trainer", "def run(): raise SystemExit(1)", FailureKind.CRASHED),
        ("my_models", "import sys\ndef run(): sys.exit(0)", FailureKind.USER_ERROR),
        ("my_models", "def run(): raise KeyboardInterrupt", FailureKind.USER_ERROR),
        ("my_models", "import json\ndef run(): json.loads('{')", FailureKind.USER_ERROR),
    ],
)
def test_a_fault_of_headrace_is_not_the_users(module, code, kind):
    """Nor is one of theirs, `sys.exit` among them, that of the machine."""
    told = describe(in_module(module, code), 0)
    assert told.kind is kind
    if kind is FailureKind.INTERNAL:
        assert to_error(told).failure_class is FailureClass.INFRASTRUCTURE
        assert "fault of headrace" in told.what
        assert "in run" in told.hint
    if kind is FailureKind.STORAGE:
        assert type(to_error(told)) is StorageError
        assert "bring it back" in told.hint


def test_a_keyboard_interrupt_that_lightning_turned_into_an_exit_is_the_users():
    left = in_module("lightning.pytorch.trainer", "def run(): raise SystemExit(1)")
    left.__context__ = in_module("my_models", "def run(): raise KeyboardInterrupt('stop')")
    told = describe(left, 0)
    assert (told.kind, told.what) == (
        FailureKind.USER_ERROR, "run raised KeyboardInterrupt: stop"
    )  # fmt: skip
    assert isinstance(to_error(told), UserCodeError)


def test_what_user_code_raised_is_told_with_its_place_and_trace():
    exited = describe(in_module("my_models", "import sys\ndef run(): sys.exit(3)"), 0)
    assert exited.what == "run raised SystemExit: 3"
    assert isinstance(to_error(exited), UserCodeError)
    told = describe(raised(ValueError("wrong")), 0)
    assert told.what.endswith("raised ValueError: wrong")
    assert "user_function" in told.trace
    of_lightning = "def run(): raise ValueError('parameters that were not used')"
    unused = describe(in_module("lightning.pytorch.trainer", of_lightning), 0)
    assert "not used" in unused.what
    assert unused.trace == ""  # no line of it is the user's; the log has all
    error = to_error(failure(K.USER_ERROR, 2, node="node-1", trace="Traceback", hint="h"))
    assert isinstance(error, UserCodeError)
    assert (error.trace, error.where, error.hint) == ("Traceback", "rank 2 on node-1", "h")


def failure(kind: FailureKind, rank: int, at: float = 0.0, **fields) -> RankFailure:
    return RankFailure(rank=rank, kind=kind, what=kind.value, at=at, **fields)


def outcome(*failures: RankFailure, beats: dict[int, int] | None = None) -> NodeOutcome:
    return NodeOutcome(node="n", stopped=True, failures=failures, beats=beats or {})


K = FailureKind


@pytest.mark.parametrize(
    ("failures", "rank", "error"),
    [
        ([failure(K.PEER_LOST, 0, 1.0), failure(K.USER_ERROR, 1, 2.0)], 1, UserError),
        ([failure(K.USER_ERROR, 1, 2.0), failure(K.USER_ERROR, 0, 1.0)], 0, UserError),
        ([failure(K.PEER_LOST, 0, 1.0), failure(K.KILLED, 3, 2.0)], 3, WorkerLostError),
        ([failure(K.SCRIPT_FAILED, 0, 1.0), failure(K.KILLED, 1, 2.0)], 1, WorkerLostError),
        ([failure(K.CRASHED, 0, 1.0), failure(K.SCRIPT_FAILED, 1, 2.0)], 1, UserError),
        ([failure(K.DATA_ERROR, 0)], 0, DataError),
        ([failure(K.OUT_OF_MEMORY, 0)], 0, MemoryExhaustedError),
        ([failure(K.NO_SPACE, 0)], 0, StorageFullError),
        ([failure(K.PEER_LOST, 1), failure(K.PORT_TAKEN, 0)], 0, PortTakenError),
        ([failure(K.CRASHED, 2)], 2, WorkerLostError),
    ],
)
def test_the_one_at_fault_stands_for_all(failures, rank, error):
    assert verdict([outcome(), outcome()]) is None
    found = verdict([outcome(*failures[:1]), outcome(*failures[1:])])
    assert type(found) is error
    assert found.what.startswith(f"Rank {rank}: ")


def test_the_rank_behind_the_others_is_the_one_that_hangs():
    """Pains 34."""
    hung = [failure(K.HUNG, rank) for rank in range(4)]
    found = verdict(
        [
            outcome(*hung[:2], beats={0: 31, 1: 31}),
            outcome(*hung[2:], beats={2: 30, 3: 31}),
        ]
    )
    assert found.what == "Rank 2: hung"
    both = verdict([outcome(*hung, beats={0: 9, 1: 8, 2: 8, 3: 9})])
    assert both.what == "Ranks 1, 2: hung"


END = ChildEnd(name="rank 0", code=1, at=0.0, stopped=False)


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("DistNetworkError: The server socket has failed ... EADDRINUSE", K.PORT_TAKEN),
        ("ValueError", K.SCRIPT_FAILED),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", K.KILLED),
    ],
)
def test_scripts_are_not_blamed_for_what_the_machine_did(log, kind):
    """Pains 33: among others, for the race for a port that they lost."""
    assert script_failure(0, END, log).kind is kind


def test_the_rank_of_a_script_that_lost_another_is_not_blamed():
    """Though it is seen first; where no rank has failed by itself, the network has."""
    log = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    lost = script_failure(0, END, f"Traceback\n{log}\n")
    assert lost.kind is K.PEER_LOST
    raised = script_failure(1, END, "ValueError: no peer of gloo").model_copy(update={"at": 1.0})
    assert isinstance(verdict([outcome(lost, raised)]), UserCodeError)
    assert isinstance(verdict([outcome(lost)]), WorkerLostError)


def test_beats_are_counted(tmp_path):
    path = tmp_path / "beat"
    assert read_beat(path) == (0, None)
    beat = Beat(path)
    assert read_beat(path) == (0, None)
    beat.tick()
    beat.tick()
    count, at_s = read_beat(path)
    assert count == 2
    assert at_s is not None


def test_a_port_that_another_process_took_is_chosen_anew():
    """Between the choice of a port and its use any process may take it."""
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(OSError, match="in use") as caught:
        tcp_store(("127.0.0.1", taken.getsockname()[1]), 0, 2, timedelta(seconds=5))
    trace = caught.value.__traceback__
    assert trace is not None
    of_rank = caught.value.with_traceback(trace.tb_next)
    assert describe(of_rank, 0).kind is FailureKind.PORT_TAKEN


@pytest.mark.parametrize(
    ("groups", "file", "text"),
    [
        ("0::/a/b\n", "a/b/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("3:memory:/job\n0::/\n", "memory/job/memory.oom_control", "under_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_for_memory_are_counted(tmp_path, groups, file, text):
    mount = tmp_path / "mount"
    (mount / file).parent.mkdir(parents=True)
    (mount / file).write_text(text)
    listed = tmp_path / "cgroup"
    listed.write_text(groups)
    assert num_memory_kills(listed, mount) == 2
    assert num_memory_kills(listed, Path("/nowhere")) == 0
    assert num_memory_kills(tmp_path / "missing", mount) == 0


def test_a_data_loader_worker_killed_by_a_signal_is_no_fault_of_the_program():
    killed = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    later = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    later.__cause__ = killed
    for error in (killed, later):
        assert describe(error, 0).kind is FailureKind.KILLED
    alone = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    assert describe(alone, 0).kind is not FailureKind.KILLED


class Killing(Dataset):
    """Its second sample kills the process that reads it."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_data_loader_worker_killed_before_it_hands_over_is_no_fault_of_the_program():
    file, other = os.pipe()
    handed = resource_sharer.DupFd(file)
    resource_sharer.stop()  # nobody hands it over now
    with pytest.raises((ConnectionError, FileNotFoundError)) as caught:
        handed.detach()
    assert describe(caught.value, 0).kind is FailureKind.KILLED
    os.close(file)
    os.close(other)


def test_as_torch_tells_of_a_worker_that_was_killed():
    with pytest.raises((RuntimeError, OSError, EOFError)) as caught:
        list(DataLoader(Killing(), num_workers=1, multiprocessing_context="fork"))
    assert describe(caught.value, 0).kind is FailureKind.KILLED


def test_a_step_that_fails_is_reported_with_its_batch():
    step = "def training_step(self, batch, index):\n x, y = batch\n"
    code = f"{step}def run(): training_step(0, {{'a': 1, 'b': 2, 'sample_id': 3}}, 0)"
    hint = describe(in_module("my_models", code), 0).hint
    assert "data.batch: [a, b]" in hint
    assert "batch['a']" in hint


ENDED = ChildEnd(name="rank 0", code=1, at=0.0, stopped=False)


@pytest.mark.parametrize(
    ("log", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'", "data/x.csv"),
        ("[rank0]: FileNotFoundError: [Errno 2] No such file or directory: '../x'", "../x"),
        ("FileNotFoundError: data/x.npy not found.", "data/x.npy"),
        ("FileNotFoundError: [Errno 2] Unable to open file (name = 'x.h5', errno = 2)", "x.h5"),
        ("python: can't open file '/runs/r/work/t.py': [Errno 2] No such file", "t.py"),
        ("bash: run.sh: No such file or directory", "run.sh"),
        ("cat: data/x: No such file or directory", "data/x"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'\nlast words", "x"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.csv'", None),
        ("FileNotFoundError", None),
        ("ValueError: 'x' is wrong", None),
        ("cat: x: No such file or directory\na\nb\nc\nKeyError: 'y'", None),
    ],
)
def test_a_relative_path_that_a_script_does_not_find_gets_a_hint(log, path):
    hint = script_failure(0, ENDED, f"Traceback …\n{log}", "/runs/r/work").hint
    assert ("/runs/r/work" in hint) == (path is not None)
    if path is not None:
        assert f"'{path}' is looked for in the script's working folder" in hint
        assert f"${{oc.env:PWD}}/{path}" in hint
    assert hint.endswith("Correct the script and run again.")
