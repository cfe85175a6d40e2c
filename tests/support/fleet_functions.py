"""Functions that tests run on the nodes of a lease."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from urllib.request import urlopen

from distributed import get_worker

from headrace.clusters.cancellable_call import wanted


def double(number: int) -> int:
    return 2 * number


def refuse(number: int) -> int:
    raise ValueError(f"{number} is refused")


def refuse_three(number: int) -> int:
    if number == 3:
        raise KeyError("three")
    return number


def die(_argument: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(marker: str) -> str:
    """Kills its worker the first time, and leaves its process id."""
    try:
        with Path(marker).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return "alive"
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def die_and_the_others_soon(folder: str) -> int:
    """The first call kills its worker, and 0.3 s later those whose process ids are in `pids`."""
    try:
        Path(folder, "began").touch(exist_ok=False)
    except FileExistsError:
        time.sleep(0.6)
        return os.getpid()
    others = [pid for pid in Path(folder, "pids").read_text().split() if int(pid) != os.getpid()]
    command = f"sleep 0.3; kill -9 {' '.join(others)}"
    subprocess.Popen(["sh", "-c", command], start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def die_the_second_time(folder: str) -> int:
    """Gives its process id, also in a file for each call; the second call kills its worker."""
    calls = len(list(Path(folder).iterdir()))
    Path(folder, str(calls)).write_text(str(os.getpid()))
    if calls == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def pid_of_slot(_argument: object) -> int:
    time.sleep(0.05)
    return os.getpid()


def node_of_slot(seconds: float) -> str:
    """Work for a while; which node of Slurm that was."""
    time.sleep(seconds)
    return os.environ["SLURMD_NODENAME"]


def work_for(seconds: float) -> None:
    time.sleep(seconds)


def node_when_free(hold: str) -> str:
    """Wait as long as a file is there; which node of Slurm that was."""
    while Path(hold).exists() and wanted():
        time.sleep(0.1)
    return os.environ["SLURMD_NODENAME"]


def hold_until_unwanted(started: str, ended: str) -> None:
    """Behaves: looks whether it is wanted."""
    Path(started).write_text(str(os.getpid()))
    while wanted():
        time.sleep(0.05)
    Path(ended).touch()


def hold_for_ever(started: str) -> None:
    """Does not behave."""
    Path(started).write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)


def hold_gil_for(seconds: int) -> None:
    """One call of C that keeps the GIL, so that no other thread of the worker runs meanwhile."""
    ctypes.PyDLL(None).sleep(seconds)


def is_profiled() -> bool:
    """Whether Dask looks a hundred times a second at what the threads of this worker do."""
    return "profile" in get_worker().periodic_callbacks


def leave_orphan(seconds: float) -> int:
    """Starts a process that cares for nobody."""
    return subprocess.Popen(["sleep", str(seconds)], start_new_session=True).pid


def start_pool_of_processes(numbers: list[int]) -> list[int]:
    """What a DataLoader does: children of a worker, by multiprocessing."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(double, numbers)


def time_out() -> None:
    raise TimeoutError("mine")


def page(address: str) -> bytes:
    """What a web server answers."""
    with urlopen(f"http://{address}/", timeout=30) as answer:
        content: bytes = answer.read()
    return content
