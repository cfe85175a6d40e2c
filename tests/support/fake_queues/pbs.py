"""Fake commands of OpenPBS; answers as in the manual pages of section 1B."""

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

SERVER = "fakepbs"
VERSION = "23.06.06"
MAX_S = 48 * 3600
CPUS = 16
QUEUES: dict[str, dict[str, object]] = {
    "workq": {
        "queue_type": "Execution",
        "total_jobs": 0,
        "state_count": "Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Begun:0 ",
        "resources_max": {"ncpus": 256, "nodect": queue.NODES, "walltime": "48:00:00"},
        "enabled": "True",
        "started": "True",
    },
    "gpu": {
        "queue_type": "Execution",
        "total_jobs": 0,
        "state_count": "Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Begun:0 ",
        "resources_max": {"walltime": "04:00:00"},
        "resources_min": {"nodect": 2},
        "hasnodes": "True",
        "enabled": "True",
        "started": "False",
    },
    "old": {"queue_type": "Execution", "enabled": "False", "started": "False"},
}
OPTIONS = {"-N", "-l", "-q", "-A", "-j", "-o", "-r", "-S"}
ABOUT = "--version"
COMMANDS = ("qsub", "qstat", "qselect", "qdel", "pbsdsh")


def silent(program: str) -> int:
    return fail(
        255,
        "Connection refused",
        f"{program}: cannot connect to server {SERVER} (errno=111)",
    )


def about(_program: str) -> int:
    print(f"pbs_version = {VERSION}")
    return 0


def qsub(arguments: list[str]) -> int:
    script = sys.stdin.read()
    given: dict[str, str] = {}
    resources: dict[str, str] = {}
    for line in re.findall(r"^#PBS (.*)$", script, re.MULTILINE):
        option, *values = shlex.split(line)
        value = " ".join(values)
        if option not in OPTIONS:
            return fail(2, f"qsub: invalid option -- '{option[1:]}'")
        if option == "-l":
            key, _, what = value.partition("=")
            resources[key] = what
        given[option] = value
    if given.get("-q", "workq") not in QUEUES:
        return fail(170, "qsub: Unknown queue")
    hours, minutes, seconds = map(int, resources["walltime"].split(":"))
    limit_s = hours * 3600 + minutes * 60 + seconds
    if limit_s > MAX_S:
        return fail(188, "qsub: Job violates queue and/or server resource limits")
    chunks, _, chunk = resources["select"].partition(":")
    per_chunk = dict(part.split("=") for part in chunk.split(":"))
    nodes = int(chunks)
    cpus = int(per_chunk["ncpus"])
    lacks = f"(R: {cpus} A: {CPUS} T: {CPUS})"
    too_many = f"Can Never Run: Insufficient amount of resource: ncpus {lacks}"
    fits = nodes <= queue.NODES and cpus <= CPUS and resources["place"] == "scatter"
    stuck = "" if fits else too_many
    job = queue.add(queue.here(), {
        "name": given["-N"], "nodes": nodes, "limit_s": limit_s, "script": script,
        "output": given["-o"], "stuck": stuck, "select": resources["select"], "cpus": cpus,
        "host_line": "{host}\n" * int(per_chunk.get("mpiprocs", "1")),
        "variables": {"PBS_JOBID": "{number}." + SERVER, "PBS_NODEFILE": "{host_file}"},
    })  # fmt: skip
    print(f"{job['number']}.{SERVER}")
    return 0


def qstat(arguments: list[str]) -> int:
    prolog = {"timestamp": int(time.time()), "pbs_version": VERSION, "pbs_server": SERVER}
    if arguments == ["-Q", "-f", "-F", "json"]:
        print(json.dumps({**prolog, "Queue": QUEUES}, indent=4))
        return 0
    if arguments == ["-B", "-f", "-F", "json"]:
        server = {"server_state": "Active", "default_queue": "workq", "pbs_version": VERSION,
                  "job_history_enable": "True", "job_history_duration": "336:00:00"}  # fmt: skip
        print(json.dumps({**prolog, "Server": {SERVER: server}}, indent=4))
        return 0
    assert arguments[:4] == ["-x", "-f", "-F", "json"], arguments
    found, code = {}, 0
    for job_id in arguments[4:]:
        job = queue.find(queue.here(), job_id.partition(".")[0])
        if job is None:
            code = fail(153, f"qstat: Unknown Job Id {job_id}.{SERVER}")
        else:
            found[f"{job['number']}.{SERVER}"] = _attributes(job)
    print(json.dumps({**prolog, **({"Jobs": found} if found else {})}, indent=4))
    return code


def qselect(arguments: list[str]) -> int:
    assert arguments[:2] == ["-x", "-N"], arguments
    for job in queue.jobs(queue.here()):
        if job["name"] == arguments[2]:
            print(f"{job['number']}.{SERVER}")
    return 0


def qdel(arguments: list[str]) -> int:
    code = 0
    for job_id in arguments:
        job = queue.find(queue.here(), job_id.partition(".")[0])
        if job is None:
            code = fail(153, f"qdel: Unknown Job Id {job_id}")
        elif job["state"] == "ended":
            code = fail(35, f"qdel: Job has finished {job_id}")
        else:
            queue.cancel(queue.here(), job)
    return code


def pbsdsh(arguments: list[str]) -> NoReturn:
    """Starts the program as the daemon of that node would: not in the script's environment."""
    assert (arguments[0], arguments[2]) == ("-n", "--"), arguments
    job = queue.find(queue.here(), os.environ["PBS_JOBID"].partition(".")[0])
    if int(arguments[1]) >= job["nodes"]:
        sys.exit("pbsdsh: invalid node index")
    os.chdir(os.environ.get("HOME", "/"))
    os.execvpe(arguments[3], arguments[3:], queue.bare_environment(job))


def _attributes(job: queue.Job) -> dict[str, object]:
    shared = {
        "Job_Name": job["name"],
        "Job_Owner": f"{os.environ.get('USER', 'me')}@login1",
        "job_state": {"pending": "Q", "running": "R", "ended": "F"}[job["state"]],
        "queue": "workq",
        "server": SERVER,
        "ctime": time.ctime(job["submitted_at"]),
        "Resource_List": {"nodect": job["nodes"], "select": job["select"]},
    }
    if job["state"] == "pending":
        waits = "Not Running: Insufficient amount of resource: ncpus"
        return {**shared, "comment": job["stuck"] or waits}
    where = f"Job run at {time.strftime('%a %b %d at %H:%M')} on ({'+'.join(job['hosts'])})"
    shared |= {
        "exec_host": "+".join(f"{host}/0*{job['cpus']}" for host in job["hosts"]),
        "exec_vnode": "+".join(f"({host}:ncpus={job['cpus']})" for host in job["hosts"]),
    }
    if job["state"] == "running":
        return {**shared, "comment": where}
    if job["end"] == "cancelled" and not job["hosts"]:
        return {**shared, "substate": 91, "comment": "Not Running and terminated"}
    code, substate, word = {
        "exit": (job["code"], 92 if job["code"] == 0 else 93, "finished"),
        "cancelled": (271, 91, "terminated"),
        "limit": (-29, 93, "failed"),
    }[job["end"]]
    ended = {"Exit_status": code, "substate": substate, "comment": f"{where} and {word}"}
    return {**shared, **ended}
