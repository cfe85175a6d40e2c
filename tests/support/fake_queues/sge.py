"""Fake commands of Grid Engine; answers as those of Son of Grid Engine 8.1.9."""

from __future__ import annotations

import getpass
import html
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import NoReturn

from support.fake_queues import queue
from support.fake_queues.queue import fail

OPTIONS = {"-N", "-S", "-wd", "-pe", "-l", "-q", "-P", "-j", "-o", "-r", "-w"}
SLOTS_PER_HOST = {"mpi": 1, "mpi4": 4}
MAX_S = 48 * 3600
ABOUT = "-help"
COMMANDS = ("qsub", "qstat", "qacct", "qdel", "qrsh", "qconf")
QUEUE = """\
qname                 {name}
hostlist              @allhosts
seq_no                0
load_thresholds       np_load_avg=1.75
qtype                 BATCH INTERACTIVE
ckpt_list             NONE
pe_list               {environments}
rerun                 FALSE
slots                 4
tmpdir                /tmp
shell                 /bin/bash
prolog                NONE
epilog                NONE
shell_start_mode      posix_compliant
s_rt                  INFINITY
h_rt                  {limit}
h_vmem                INFINITY"""
QUEUES = {
    "all.q": {"environments": "make mpi mpi4", "limit": "48:00:00,[fake4=INFINITY]"},
    "gpu.q": {"environments": "make", "limit": "INFINITY"},
}
ENVIRONMENT = """\
pe_name            {name}
slots              {slots}
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    {rule}
control_slaves     {control}
job_is_first_task  TRUE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE"""
ENVIRONMENTS = {
    "make": {"slots": 999, "rule": "$round_robin", "control": "FALSE"},
    "mpi": {"slots": 4, "rule": "1", "control": "TRUE"},
    "mpi4": {"slots": 16, "rule": "4", "control": "TRUE"},
}


def silent(program: str) -> int:
    return fail(
        1,
        "error: commlib error: got select error (Connection refused)",
        'error: unable to send message to qmaster using port 6444 on host "master": got send error',
    )


def refused(why: str) -> int:
    return fail(1, f"Unable to run job: {why}", "Exiting.")


def about(program: str) -> int:
    print(f"SGE 8.1.9\nusage: {program} [options]")
    return 0


def qsub(arguments: list[str]) -> int:
    only_verify = arguments == ["-w", "v"]
    assert only_verify or arguments == ["-terse"], arguments
    script = sys.stdin.read()
    given: dict[str, str] = {}
    for line in re.findall(r"^#\$ (.*)$", script, re.MULTILINE):
        option, *values = shlex.split(line)
        value = " ".join(values)
        if option not in OPTIONS:
            return fail(1, f'qsub: Unknown option "{option}"')
        key, _, amount = value.partition("=")
        given[key if option == "-l" else option] = amount if option == "-l" else value
    if given.get("-q", "all.q") not in QUEUES:
        return refused(f'Job was rejected because job requests unknown queue "{given["-q"]}"')
    environment, slots = given.get("-pe", "mpi 1").split()
    if environment not in SLOTS_PER_HOST:
        why = f'the requested parallel environment "{environment}" does not exist'
        return refused(f"job rejected: {why}")
    per_host = SLOTS_PER_HOST[environment]
    nodes = -(-int(slots) // per_host)
    hours, minutes, seconds = map(int, given["h_rt"].split(":"))
    limit_s = hours * 3600 + minutes * 60 + seconds
    if nodes > queue.NODES or limit_s > MAX_S:
        why = f'Job 7 (-l h_rt={limit_s}) cannot run in queue "all.q" because of cluster queue'
        verified = f"{why}\nverification: no suitable queues"
        return refused(verified if only_verify else "error: no suitable queues")
    if only_verify:
        print("verification: found suitable queue(s)")
        return 0
    missing = not Path(given["-wd"]).is_dir()
    job = queue.add(queue.here(), {
        "name": given["-N"], "nodes": nodes, "limit_s": limit_s,
        "script": script, "output": given["-o"], "slots": int(slots),
        "exclude": re.findall(r"!\((.*)\)", given.get("h", "!()"))[0].split("|"),
        "stuck": f"can't chdir to {given['-wd']}: No such file or directory" if missing else "",
        "host_line": f"{{host}} {per_host} all.q@{{host}} UNDEFINED\n",
        "variables": {"JOB_ID": "{number}", "PE_HOSTFILE": "{host_file}"},
    })  # fmt: skip
    print(job["number"])
    return 0


def qconf(arguments: list[str]) -> int:
    option, *name = arguments
    if option in ("-sql", "-spl"):
        print("\n".join({"-sql": QUEUES, "-spl": ENVIRONMENTS}[option]))
    elif option == "-sq" and name[0] in QUEUES:
        print(QUEUE.format(name=name[0], **QUEUES[name[0]]))
    elif option == "-sq":
        return fail(1, f'No cluster queue or queue instance matches the phrase "{name[0]}"')
    elif name[0] in ENVIRONMENTS:
        print(ENVIRONMENT.format(name=name[0], **ENVIRONMENTS[name[0]]))
    else:
        return fail(1, f"{name[0]} is not a parallel environment")
    return 0


def qstat(arguments: list[str]) -> int:
    if arguments[0] == "-j":
        job = queue.find(queue.here(), arguments[1])
        if job is None or job["state"] == "ended":
            return fail(1, "Following jobs do not exist or permissions are not sufficient: ",
                        arguments[1])  # fmt: skip
        print("=" * 62, f"job_number:                 {job['number']}", sep="\n")
        if job["stuck"]:
            print(f"error reason          1:      11/21/2026 14:00:00 [0:1]: error: {job['stuck']}")
        return 0
    assert arguments == ["-u", getpass.getuser(), "-xml"], arguments
    print("<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"http://example.org/qstat.xsd\">")
    everything = queue.jobs(queue.here())
    print("  <queue_info>")
    print("".join(_listed(each) for each in everything if each["state"] == "running"), end="")
    print("  </queue_info>\n  <job_info>")
    print("".join(_listed(each) for each in everything if each["state"] == "pending"), end="")
    print("  </job_info>\n</job_info>")
    return 0


def qacct(arguments: list[str]) -> int:
    ended = [job for job in queue.jobs(queue.here()) if job["state"] == "ended" and job["hosts"]]
    if arguments[0] == "-j":
        ended = [job for job in ended if job["name"] == arguments[1]]
        if not ended:
            return fail(1, f"error: job name {arguments[1]} not found")
    elif arguments != ["-d", "1"]:
        assert arguments[:5] == ["-o", getpass.getuser(), "-d", "30", "-j"], arguments
        wanted = arguments[5:]
        ended = [job for job in ended if not wanted or job["number"] in wanted]
        if wanted and not ended:
            return fail(1, f"error: job id {wanted[0]} not found")
    for job in ended:
        print(_in_books(job))
    if not ended:
        fail(1, "/var/lib/gridengine/default/common/accounting: No such file or directory")
        print("no jobs running since startup")
    return 0 if ended else 1


def qdel(arguments: list[str]) -> int:
    code = 0
    for number in arguments:
        job = queue.find(queue.here(), number)
        if job is None or job["state"] == "ended":
            print(f'denied: job "{number}" does not exist')
            code = 1
            continue
        queue.cancel(queue.here(), job)
        done = "has deleted job" if job["state"] == "pending" else "has registered the job"
        print(f"{getpass.getuser()} {done} {number}" + (" for deletion" if job["hosts"] else ""))
    return code


def qrsh(arguments: list[str]) -> NoReturn:
    """Starts the command as the daemon of that host would: by a shell, in a bare environment."""
    assert arguments[:2] == ["-inherit", "-nostdin"], arguments
    job = queue.find(queue.here(), os.environ["JOB_ID"])
    if arguments[2] not in job["hosts"]:
        sys.exit(f"error: executing task of job {job['number']} failed: no such host")
    os.chdir(os.environ.get("HOME", "/"))
    command = ["sh", "-c", " ".join(arguments[3:])]
    os.execvpe("sh", command, queue.bare_environment(job))


def _listed(job: queue.Job) -> str:
    letters = {"pending": "Eqw" if job["stuck"] else "qw", "running": "r"}[job["state"]]
    if job["state"] == "running" and job["end"] == "cancelled":
        letters = "dr"
    return (
        f'    <job_list state="{job["state"]}">\n'
        f"      <JB_job_number>{job['number']}</JB_job_number>\n"
        "      <JAT_prio>0.55500</JAT_prio>\n"
        f"      <JB_name>{html.escape(job['name'])}</JB_name>\n"
        f"      <JB_owner>{getpass.getuser()}</JB_owner>\n"
        f"      <state>{letters}</state>\n"
        f"      <JB_submission_time>{_iso(job['submitted_at'])}</JB_submission_time>\n"
        f"      <queue_name>{'all.q@' + job['hosts'][0] if job['hosts'] else ''}</queue_name>\n"
        f"      <slots>{job['slots']}</slots>\n"
        "    </job_list>\n"
    )


def _in_books(job: queue.Job) -> str:
    failed, status = {
        "exit": ("0   ", job["code"]),
        "cancelled": ("100 : assumedly after job", 137),
        "limit": ("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", 137),
    }[job["end"]]
    fields = {
        "qname": "all.q", "hostname": job["hosts"][0], "owner": getpass.getuser(),
        "jobname": job["name"], "jobnumber": job["number"], "taskid": "undefined",
        "pe_taskid": "NONE", "qsub_time": time.ctime(job["submitted_at"]),
        "end_time": time.ctime(job["ended_at"]), "slots": job["slots"], "failed": failed,
        "exit_status": f"{status}                  ",
    }  # fmt: skip
    return "\n".join(["=" * 62, *(f"{key:<12} {value}" for key, value in fields.items())])


def _iso(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))
