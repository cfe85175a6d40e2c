"""Fake commands of TQ, the batch system that docs/how-to/extend.md adds."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from typing import NoReturn

from support.fake_queues import queue
from support.fake_queues.queue import fail

MAX_S = 48 * 3600
OPTIONS = {"--name", "--nodes", "--seconds", "--log", "--queue", "--not-on"}
ABOUT = ""  # no such question
COMMANDS = ("tq-submit", "tq-list", "tq-cancel", "tq-limits", "tq-start")


def silent(program: str) -> int:
    return fail(1, f"{program}: no answer")


def tq_submit(arguments: list[str]) -> int:
    del arguments
    script = sys.stdin.read()
    lines = re.findall(r"^#TQ (.*)$", script, re.MULTILINE)
    given = dict(word.split("=", 1) for line in lines for word in shlex.split(line))
    if unknown := given.keys() - OPTIONS:
        return fail(1, f"tq-submit: unknown option {min(unknown)}")
    if given.get("--queue", "main") != "main":
        return fail(1, f"tq-submit: no queue {given['--queue']}")
    nodes = int(given["--nodes"])
    job = queue.add(queue.here(), {
        "name": given["--name"], "nodes": nodes, "limit_s": float(given["--seconds"]),
        "script": script, "output": given["--log"], "host_line": "{host}\n",
        "stuck": "" if nodes <= queue.NODES else f"there are {queue.NODES} nodes",
        "exclude": given["--not-on"].split(",") if "--not-on" in given else [],
        "variables": {"TQ_JOB": "{number}", "TQ_HOSTS": "{host_file}"},
    })  # fmt: skip
    print(job["number"])
    return 0


def tq_list(arguments: list[str]) -> int:
    by_name = arguments[:1] == ["--name"]
    key, wanted = ("name", arguments[1:]) if by_name else ("number", arguments)
    found = [job for job in queue.jobs(queue.here()) if job[key] in wanted]
    print(json.dumps([_told(job) for job in found]))
    return 0


def tq_cancel(arguments: list[str]) -> int:
    for number in arguments:
        job = queue.find(queue.here(), number)
        if job is None or job["state"] == "ended":
            return fail(1, f"tq-cancel: {number}: {'has ended' if job else 'no such job'}")
        queue.cancel(queue.here(), job)
    return 0


def tq_limits(arguments: list[str]) -> int:
    del arguments
    print(json.dumps({"seconds": MAX_S}))
    return 0


def tq_start(arguments: list[str]) -> NoReturn:
    """Starts a program on a node of the job, in no environment of the script's."""
    job = queue.find(queue.here(), os.environ["TQ_JOB"])
    assert int(arguments[0]) < job["nodes"]
    os.chdir(os.environ.get("HOME", "/"))
    os.execvpe(arguments[1], arguments[1:], queue.bare_environment(job))


def _told(job: queue.Job) -> dict[str, object]:
    ended = {
        "cancelled": "cancelled",
        "limit": "limit",
        "exit": "failed" if job["code"] else "done",
    }
    state = {"pending": "waits", "running": "runs"}.get(job["state"]) or ended[job["end"]]
    why = job["stuck"] or (f"exit code {job['code']}" if state in ("failed", "limit") else "")
    return {
        "id": job["number"], "name": job["name"], "state": state, "why": why,
        "hosts": job["hosts"], "never": bool(job["stuck"]),
    }  # fmt: skip
