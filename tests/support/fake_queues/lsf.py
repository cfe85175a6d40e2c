"""Fake commands of LSF; answers as in the reference pages of LSF 10.1."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from typing import NoReturn

from support.fake_queues import queue
from support.fake_queues.queue import fail

OPTIONS = {"-J", "-n", "-R", "-gpu", "-W", "-q", "-P", "-cwd", "-o", "-rn", "-w"}
MAX_MINUTES = 48 * 60
ABOUT = "-V"
COMMANDS = ("bsub", "bjobs", "bacct", "bkill", "blaunch", "bqueues", "bparams")
QUEUE = """\

QUEUE: {name}
  -- {about}

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS
 30    0  {status:<14}   -    -    -    -     0     0     0     0     0    0     0
Interval for a host to accept two jobs is 0 seconds

{limits}
SCHEDULING PARAMETERS
           r15s   r1m  r15m   ut      pg    io   ls    it    tmp    swp    mem
 loadSched   -     -     -     -       -     -    -     -     -      -      -
 loadStop    -     -     -     -       -     -    -     -     -      -      -

SCHEDULING POLICIES:  EXCLUSIVE
USERS: all
HOSTS:  all
"""
NORMAL_LIMITS = """\
DEFAULT LIMITS:
 RUNLIMIT
 60.0 min of fake1

MAXIMUM LIMITS:
 CPULIMIT             RUNLIMIT
 9000.0 min of fake1  2880.0 min of fake1

 TASKLIMIT
 1 4 64
"""
QUEUES = {
    "normal": {"about": "For normal jobs.  This is the default queue.", "status": "Open:Active",
               "limits": NORMAL_LIMITS},
    "gpu": {"about": "Nodes with GPUs", "status": "Open:Inact",
            "limits": " RUNLIMIT\n 240.0 min\n"},
    "old": {"about": "Not any more", "status": "Closed:Active", "limits": ""},
}  # fmt: skip


def silent(program: str) -> int:
    return fail(255, "Cannot connect to LSF. Please wait ...", "LSF is down. Please wait ...")


def about(_program: str) -> int:
    return fail(0, "IBM Spectrum LSF Standard 10.1.0.0, Apr 18 2019",
                "Copyright International Business Machines Corp. 1992, 2016.")  # fmt: skip


def bqueues(arguments: list[str]) -> int:
    assert arguments == ["-l"], arguments
    rule = "-" * 78
    print(f"{rule}\n".join(QUEUE.format(name=name, **QUEUES[name]) for name in QUEUES))
    return 0


def bparams(arguments: list[str]) -> int:
    assert arguments == [], arguments
    print("Default Queues:  normal\nMBD_SLEEP_TIME used for calculations:  10 seconds")
    return 0


def bsub(arguments: list[str]) -> int:
    assert arguments == [], arguments
    script = sys.stdin.read()
    given: dict[str, str] = {}
    for line in re.findall(r"^#BSUB (.*)$", script, re.MULTILINE):
        option, *values = shlex.split(line)
        if option not in OPTIONS:
            return fail(255, f"bsub: Illegal option -- {option[1:]}. Job not submitted.")
        given[option] = " ".join([*([given[option]] if option in given else []), *values])
    if given.get("-q", "normal") not in QUEUES:
        return fail(255, f"{given['-q']}: No such queue. Job not submitted.")
    hours, minutes = map(int, given["-W"].split(":"))
    if hours * 60 + minutes > MAX_MINUTES:
        return fail(255, "RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.")
    per_host = int(re.findall(r"span\[ptile=(\d+)\]", given["-R"])[0])
    nodes = -(-int(given["-n"]) // per_host)
    if nodes > queue.NODES:
        return fail(255, "Too many processors requested. Job not submitted.")
    job = queue.add(queue.here(), {
        "name": given["-J"], "nodes": nodes, "limit_s": hours * 3600 + minutes * 60,
        "script": script, "output": given["-o"],
        "stuck": "Dependency condition invalid or never satisfied;" if "-w" in given else "",
        "host_line": "{host}\n" * per_host, "per_host": per_host,
        "exclude": re.findall(r"hname!='(.*?)'", given["-R"]),
        "variables": {"LSB_JOBID": "{number}", "LSB_DJOB_HOSTFILE": "{host_file}"},
    })  # fmt: skip
    print(f"Job <{job['number']}> is submitted to default queue <normal>.")
    return 0


def bjobs(arguments: list[str]) -> int:
    fields = "jobid stat job_name exit_code exit_reason pend_reason exec_host"
    assert arguments[:4] == ["-a", "-json", "-o", fields], arguments
    if arguments[4] == "-J":
        found = [job for job in queue.jobs(queue.here()) if job["name"] == arguments[5]]
        if not found:
            return fail(255, f"Job <{arguments[5]}> is not found")
        records = [_record(job) for job in found]
    else:
        records = []
        for number in arguments[4:]:
            job = queue.find(queue.here(), number)
            unknown = {"JOBID": number, "ERROR": f"Job <{number}> is not found"}
            records.append(_record(job) if job else unknown)
    print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}, indent=2))
    return 255 if any("ERROR" in record for record in records) else 0


def bacct(arguments: list[str]) -> int:
    assert arguments[:2] == ["-l", "-UF"], arguments
    print("\nAccounting information about jobs that are: \n  - submitted by all users.\n")
    for number in arguments[2:]:
        job = queue.find(queue.here(), number)
        if job is None or job["state"] != "ended":
            continue
        record = _record(job)
        reason = f"; {record['EXIT_REASON']}" if record["EXIT_REASON"] else ""
        word = record["STAT"].lower()
        print("-" * 78)
        print(f"\nJob <{number}>, Job Name <{job['name']}>, User <me>, Project <default>, "
              f"Status <{record['STAT']}>, Queue <normal>, Command <#!/bin/bash>")  # fmt: skip
        print(f"{time.ctime(job['submitted_at'])}: Submitted from host <login1>, CWD <$HOME>;")
        if job["hosts"]:
            hosts = " ".join(f"<{each}>" for each in _hosts(job))
            print(f"{time.ctime(job['started_at'])}: Dispatched {len(job['hosts'])} Task(s) on "
                  f"Host(s) {hosts}, Allocated 1 Slot(s) on Host(s) {hosts}")  # fmt: skip
        print(f"{time.ctime(job['ended_at'])}: Completed <{word}>{reason}")
    return 0


def bkill(arguments: list[str]) -> int:
    code = 0
    for number in arguments:
        job = queue.find(queue.here(), number)
        if job is None:
            code = fail(255, f"Job <{number}>: No matching job found")
        elif job["state"] == "ended":
            code = fail(255, f"Job <{number}>: Job has already finished")
        else:
            queue.cancel(queue.here(), job)
            print(f"Job <{number}> is being terminated")
    return code


def blaunch(arguments: list[str]) -> NoReturn:
    """Starts the command on a host of the job, in the environment of the caller."""
    assert arguments[0] == "-n", arguments
    job = queue.find(queue.here(), os.environ["LSB_JOBID"])
    if arguments[1] not in job["hosts"]:
        sys.exit(f"blaunch: {arguments[1]} is not a host of the job")
    os.execvp(arguments[2], arguments[2:])


def _record(job: queue.Job) -> dict[str, str]:
    stat, code, reason = job["state"], "", ""
    if job["state"] == "ended":
        stat = "DONE" if (job["end"], job["code"]) == ("exit", 0) else "EXIT"
        code, reason = {
            "exit": (str(job["code"] or ""), ""),
            "cancelled": ("130" if job["hosts"] else "", "TERM_OWNER: job killed by owner."),
            "limit": ("140", "TERM_RUNLIMIT: job killed after reaching LSF run time limit."),
        }[job["end"]]
    waits = "New job is waiting for scheduling;" if job["state"] == "pending" else ""
    return {
        "JOBID": job["number"],
        "STAT": {"pending": "PEND", "running": "RUN"}.get(stat, stat),
        "JOB_NAME": job["name"],
        "EXIT_CODE": code,
        "EXIT_REASON": reason,
        "PEND_REASON": job["stuck"] or waits,
        "EXEC_HOST": ":".join(_hosts(job)),
    }


def _hosts(job: queue.Job) -> list[str]:
    many = f"{job['per_host']}*" if job["per_host"] > 1 else ""
    return [f"{many}{host}" for host in job["hosts"]]
