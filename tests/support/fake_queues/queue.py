"""A queue in a folder that really runs its jobs' scripts: what the fake batch systems share.

`python queue.py FOLDER JOB_ID` is the runner of one job: it waits for nodes, runs the script in a
session of its own and a bare environment, and kills it at its time limit or when it is cancelled.
Only the standard library is used, so that the fake commands start quickly.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FOLDER = "FAKE_QUEUE"
"""Environment variable of the fake commands: the queue's folder."""

SILENT = "FAKE_QUEUE_SILENT"
"""Environment variable of the fake commands: they answer as when the server is down."""

NODES = 4
POLL_S = 0.02
KILL_AFTER_S = 5.0

Job = dict[str, Any]


def fail(code: int, *words: str) -> int:
    """Print words for the user, and return the exit code."""
    print("\n".join(words), file=sys.stderr)
    return code


def here() -> Path:
    """The queue that the environment names."""
    return Path(os.environ[FOLDER])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else changes the queue meanwhile."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def jobs(folder: Path) -> list[Job]:
    """All jobs ever, in order."""
    files = sorted(folder.glob("job-*.json"), key=lambda each: int(each.stem[4:]))
    return [json.loads(each.read_text()) for each in files]


def find(folder: Path, number: str) -> Job | None:
    """The job of that number."""
    file = folder / f"job-{number}.json"
    return json.loads(file.read_text()) if file.exists() else None


def change(folder: Path, job: Job, **changes: Any) -> Job:
    """Write a job down; the lock is held."""
    new = {**job, **changes}
    file = folder / f"job-{new['number']}.json"
    file.with_suffix(".new").write_text(json.dumps(new))
    file.with_suffix(".new").replace(file)
    return new


def add(folder: Path, job: Job) -> Job:
    """Take a job into the queue.

    It tells `name`, `nodes`, `limit_s`, `script`, `output`, `host_line` (line of the host file,
    `{host}` in it), `variables` (environment, `{number}`, `{host_file}` in it), `stuck` when
    it cannot start, and `exclude`, nodes that it must not get.
    """
    with locked(folder):
        number = str(len(jobs(folder)) + 1)
        if (folder / "limit").exists():
            job["limit_s"] = float((folder / "limit").read_text())
        job = {
            "state": "pending",
            "end": "",
            "code": None,
            "hosts": [],
            "stuck": "",
            "exclude": [],
            **job,
        }
        host_file = str(folder / f"hosts-{number}")
        variables = {
            key: value.format(number=number, host_file=host_file)
            for key, value in job["variables"].items()
        }
        job |= {"number": number, "variables": variables, "host_file": host_file}
        job = change(folder, job, submitted_at=time.time())
    command = [sys.executable, "-S", __file__, str(folder), number]
    runner = subprocess.Popen(
        command,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (folder / f"runner-{number}").write_text(str(runner.pid))
    return job


def cancel(folder: Path, job: Job) -> None:
    """End a job: its processes are killed by its runner."""
    with locked(folder):
        now = find(folder, job["number"]) or job
        if now["state"] == "pending":
            change(folder, now, state="ended", end="cancelled", ended_at=time.time())
        elif now["state"] == "running":
            change(folder, now, end="cancelled")


def bare_environment(job: Job) -> dict[str, str]:
    """What a batch system gives to a process of a job: nothing of who submitted it."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "USER", FOLDER) if key in os.environ}
    return {**kept, **job["variables"]}


def run(folder: Path, number: str) -> None:
    """Run one job to its end."""
    job = _wait_for_nodes(folder, number)
    if job is None:
        return
    script = folder / f"script-{number}"
    script.write_text(job["script"])
    lines = [job["host_line"].format(host=host) for host in job["hosts"]]
    Path(job["host_file"]).write_text("".join(lines))
    with Path(job["output"]).open("ab") as output:
        process = subprocess.Popen(
            ["/bin/bash", str(script)],
            cwd=os.environ.get("HOME", "/"),
            env=bare_environment(job),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        end = _watch(folder, job, process)
    _kill(process)  # all of the job ends with its script
    with locked(folder):
        job = find(folder, number) or job
        code = process.returncode
        change(folder, job, state="ended", end=end, code=code, ended_at=time.time())


def _wait_for_nodes(folder: Path, number: str) -> Job | None:
    while True:
        with locked(folder):
            everything = jobs(folder)
            job = next(each for each in everything if each["number"] == number)
            if job["state"] != "pending":
                return None
            taken = {host for each in everything if each["state"] == "running"
                     for host in each["hosts"]}  # fmt: skip
            taken.update(job["exclude"])
            free = [f"fake{i}" for i in range(1, NODES + 1) if f"fake{i}" not in taken]
            if not job["stuck"] and len(free) >= job["nodes"]:
                hosts = free[: job["nodes"]]
                return change(folder, job, state="running", hosts=hosts, started_at=time.time())
        if not folder.exists():
            return None
        time.sleep(POLL_S)


def _watch(folder: Path, job: Job, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + job["limit_s"]
    while process.poll() is None:
        now = find(folder, job["number"]) or job
        if now["end"] == "cancelled" or time.monotonic() > deadline:
            _kill(process)
            return now["end"] or "limit"
        time.sleep(POLL_S)
    return "exit"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End all processes of the job's session, in the way of `kill_delay` and its like.

    What is left when the script has ended gets no time.
    """
    for sig, patience_s in ((signal.SIGTERM, KILL_AFTER_S), (signal.SIGKILL, 0.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sig)
        deadline = time.monotonic() + patience_s
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
    process.wait()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
