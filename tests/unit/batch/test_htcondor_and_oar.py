"""HTCondor and OAR: jobs as whole texts, and answers in the formats that their manuals document.

Neither was ever run against a real one. The ads are shaped as `condor_q -json` writes them
(HTCondor manual, "Job ClassAd Attributes"), the jobs as `oarstat -J -f` does (OAR 2.5, wiki page
"oarstat vs REST API").
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.batch.htcondor import HTCondor
from headrace.batch.jobs import JobSpec, JobState
from headrace.batch.oar import Oar
from headrace.batch.system import BatchSystem
from headrace.batch.systems import system_of
from headrace.clusters.lease_jobs import NodeRequest
from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.pool_job import PoolJob
from headrace.clusters.queued import backend as batch_backend
from headrace.errors import AmbiguousSubmitError, BatchError, JobRefusedError
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from support.scripted_commands import Answer, ScriptedCommands

CONDOR = """\
#!/usr/bin/env condor_submit
universe = vanilla
batch_name = headrace-a-1
executable = /bin/bash
arguments = "-c 'ARGUMENTS'"
environment = "HEADRACE_CONDOR_ID=$(ClusterId)"
initialdir = /shared
should_transfer_files = NO
request_cpus = 8
request_memory = 4096
request_gpus = 2
accounting_group = physics
requirements = Machine != "bad1" && Machine != "bad2"
output = /shared/log.queue
error = /shared/log.queue
MY.HeadraceTimeLimit = 3600
periodic_remove = (JobStatus == 1 && NumJobStarts > 0) || \
(JobStatus == 2 && time() - JobCurrentStartDate > HeadraceTimeLimit)
request_disk = 1GB
queue
"""

OAR = """\
#!/bin/bash
#OAR -n headrace-a-1
#OAR -q besteffort
#OAR --project physics
#OAR -l /nodes=1/core=8,walltime=01:00:00
#OAR -d /shared
#OAR -O /shared/log.queue
#OAR -E /shared/log.queue
#OAR -t besteffort
export HEADRACE_JOB_STARTED=$(date +%s)
exec >> /shared/log 2>&1
set -e
cd /shared
export COLOUR='it'"'"'s blue'
export HEADRACE_NODE_INDEX=0
exec /opt/python -m work
"""


def test_a_whole_job_of_htcondor():
    wishes = {
        "gpus_per_node": 2,
        "memory_per_node": 2**32,
        "account": "physics",
        "exclude": ("bad1", "bad2"),
        "options": ("-append request_disk = 1GB",),
    }
    text = HTCondor(ScriptedCommands()).render(_job(**wishes))
    arguments = text.partition("\"-c '")[2].partition("'\"\n")[0]
    assert text.replace(arguments, "ARGUMENTS") == CONDOR
    only = HTCondor(ScriptedCommands()).render(_job(nodelist=("a", "b"), exclude=("c",)))
    assert 'requirements = (Machine == "a" || Machine == "b") && Machine != "c"\n' in only


def test_the_script_of_a_job_of_htcondor_is_what_bash_gets(tmp_path: Path):
    """One line without quotes or macros of a submit description, which bash turns back."""
    seen = tmp_path / "seen"
    job = _job(
        command=("sh", "-c", f'echo "$COLOUR \\\\ $1" >> {seen}', "sh", "two\nlines"),
        folder=str(tmp_path),
        log=str(tmp_path / "log"),
        prologue=("if true; then", f"echo $(( 6 * 7 )) >> {seen}", "fi"),
    )
    text = HTCondor(ScriptedCommands()).render(job)
    (line,) = (each for each in text.splitlines() if each.startswith("arguments"))
    assert "$(" not in line
    argument = line.partition("\"-c '")[2].removesuffix("'\"").replace("''", "'")
    subprocess.run(["/bin/bash", "-c", argument], check=True)
    assert seen.read_text() == "42\nit's blue \\ two\nlines\n"


def test_a_whole_job_of_oar():
    job = _job(partition="besteffort", account="physics", options=("-t besteffort",))
    assert Oar(ScriptedCommands()).render(job) == OAR
    text = Oar(ScriptedCommands()).render(_job(gpus_per_node=2))
    assert "#OAR -l /nodes=1/gpu=2,walltime=01:00:00\n" in text


def test_oar_gets_options_and_the_script_as_its_command():
    """The node has no file of the script: as in dask-jobqueue."""
    commands = ScriptedCommands(Answer(0, "[ADMISSION RULE] Modify\nOAR_JOB_ID=42\n", ""))
    system, job = Oar(commands), _job()
    assert system.submit(job) == "42"
    (*options, command) = commands.seen[0]
    assert options[:3] == ["oarsub", "-n", "headrace-a-1"]
    assert "/nodes=1/core=8,walltime=01:00:00" in options
    assert shlex.split(command) == ["/bin/bash", "-c", system.render(job)]


@pytest.mark.parametrize(
    ("system", "answer", "error"),
    [
        (HTCondor, Answer(1, "", "ERROR: Failed to connect to local queue manager"), True),
        (HTCondor, Answer(1, "", "ERROR: Parse error in expression: requirements = ("), False),
        (HTCondor, Answer(0, "", ""), True),
        (Oar, Answer(5, "", "Connection refused"), True),
        (Oar, Answer(6, "# Admission rule: ERROR : bad queue\n", ""), False),
    ],
)
def test_a_submit_without_an_id(system: type[BatchSystem], answer: Answer, error: bool):
    """pains 17."""
    with pytest.raises(AmbiguousSubmitError if error else JobRefusedError):
        system(ScriptedCommands(answer)).submit(_job())


def test_htcondor_tells_the_cluster_of_a_job():
    assert HTCondor(ScriptedCommands(Answer(0, "1234.0 - 1234.0\n", ""))).submit(_job()) == "1234"


@pytest.mark.parametrize(
    ("ad", "state", "reason", "never"),
    [
        ({"JobStatus": 1}, JobState.PENDING, "", False),
        ({"JobStatus": 2, "RemoteHost": "slot1_3@n1"}, JobState.RUNNING, "", False),
        ({"JobStatus": 7}, JobState.RUNNING, "", False),
        ({"JobStatus": 9}, JobState.RUNNING, "", False),
        ({"JobStatus": 5, "HoldReasonCode": 34, "HoldReason": "memory exceeded"},
         JobState.PENDING, "memory exceeded", True),
        ({"JobStatus": 5, "HoldReasonCode": 1, "HoldReason": "via condor_hold"},
         JobState.PENDING, "via condor_hold", False),
        ({"JobStatus": 4, "ExitCode": 0, "ExitBySignal": False}, JobState.COMPLETED, "", False),
        ({"JobStatus": 4, "ExitCode": 3}, JobState.FAILED, "exit code 3", False),
        ({"JobStatus": 3, "RemoveReason": "via condor_rm (by user me)"},
         JobState.CANCELLED, "via condor_rm (by user me)", False),
        ({"JobStatus": 3, "RemoveReason": "PeriodicRemove", "HeadraceTimeLimit": 60,
          "RemoteWallClockTime": 61.0}, JobState.TIMED_OUT, "PeriodicRemove", False),
        ({"JobStatus": 3, "RemoveReason": "PeriodicRemove", "HeadraceTimeLimit": 60,
          "RemoteWallClockTime": 5.0}, JobState.PREEMPTED, "PeriodicRemove", False),
    ],
)  # fmt: skip
def test_jobs_of_htcondor(ad: dict[str, Any], state: JobState, reason: str, never: bool):
    system = HTCondor(ScriptedCommands(Answer(0, json.dumps([{"ClusterId": 7, **ad}]), "")))
    seen = system.poll(["7"])["7"]
    assert (seen.state, seen.reason, seen.never_starts) == (state, reason, never)
    assert seen.nodes == (("n1",) if "RemoteHost" in ad else ())


def test_a_job_that_htcondor_has_forgotten_is_in_its_history():
    commands = ScriptedCommands(
        Answer(0, "", ""), Answer(0, '[{"ClusterId": 7, "JobStatus": 4}]', "")
    )
    system = HTCondor(commands)
    assert system.poll(["7"]) == {}
    assert system.accounting(["7"])["7"].state is JobState.FAILED
    assert [command[0] for command in commands.seen] == ["condor_q", "condor_history"]


@pytest.mark.parametrize(
    ("job", "state", "reason"),
    [
        ({"state": "Waiting", "message": "R=8,W=1:0:0"}, JobState.PENDING, "R=8,W=1:0:0"),
        ({"state": "Hold"}, JobState.PENDING, ""),
        ({"state": "Launching"}, JobState.PENDING, ""),
        ({"state": "Running"}, JobState.RUNNING, ""),
        ({"state": "Finishing"}, JobState.RUNNING, ""),
        ({"state": "Terminated", "exit_code": 0}, JobState.COMPLETED, ""),
        ({"state": "Terminated", "exit_code": 768}, JobState.FAILED, "exit code 3"),
        ({"state": "Error", "message": "no node"}, JobState.FAILED, "no node"),
        ({"state": "Error", "events": [{"type": "FRAG_JOB_REQUEST"}]}, JobState.CANCELLED, ""),
        ({"state": "Error", "events": [{"type": "WALLTIME"}, {"type": "FRAG_JOB_REQUEST"}]},
         JobState.TIMED_OUT, ""),
    ],
)  # fmt: skip
def test_jobs_of_oar(job: dict[str, Any], state: JobState, reason: str):
    host = {"assigned_network_address": ["n1"]}
    seen = Oar(ScriptedCommands(Answer(0, json.dumps({"7": {**host, **job}}), ""))).poll(["7"])["7"]
    assert (seen.state, seen.reason) == (state, reason)
    assert seen.nodes == (() if state is JobState.PENDING else ("n1",))


def test_the_expected_start_of_oar():
    job = {"7": {"state": "Waiting", "scheduledStart": 1767261600}}
    seen = Oar(ScriptedCommands(Answer(0, json.dumps(job), ""))).find("headrace-a-1")
    assert [each.starts_at for each in seen] == [1767261600.0]


@pytest.mark.parametrize("system", [HTCondor, Oar])
def test_what_cannot_be_read_is_not_the_end_of_all_jobs(system: type[BatchSystem]):
    with pytest.raises(BatchError, match="does not answer"):
        system(ScriptedCommands(Answer(0, '{"7"', ""))).poll(["7"])
    assert system(ScriptedCommands(Answer(0, "", ""))).poll(["7"]) == {}


@pytest.mark.parametrize(("backend", "kind"), [("htcondor", HTCondor), ("oar", Oar)])
def test_pools_only(backend: str, kind: type[BatchSystem]):
    role = Role.model_validate({"backend": backend, "nodes": 3, "threads_per_node": 4})
    assert isinstance(system_of(role), kind)
    lease = LeaseSpec(lease_id="a-1", key="demo/cpu", run_id="demo", role_name="cpu", role=role)
    text = batch_backend().preview(LeaseFolder(Path("/shared/leases/a-1")), lease)
    assert "headrace.clusters.worker" in text
    with pytest.raises(ValidationError, match=f"backend '{backend}' gives pools only"):
        Role.model_validate({"backend": backend, "kind": "gang", "nodes": 2})


@pytest.mark.parametrize("system", [HTCondor, Oar])
def test_dask_shows_the_job_that_is_submitted(system: type[BatchSystem]):
    script = system(ScriptedCommands()).render(_job())
    request = NodeRequest(serial=1, number=0, time_limit_s=3600.0)
    job = PoolJob("tls://127.0.0.1:1", "node-0", request=request, spec=_job(), script=script)
    assert [line for line in job.job_script().splitlines() if line] == script.splitlines()


@pytest.mark.parametrize(
    ("backend", "batch", "told"),
    [
        ("htcondor", {"partition": "long"}, "it has no queues"),
        ("htcondor", {"options": ["--disk=1GB"]}, "write it as '-append name = value'"),
        ("htcondor", {"constraint": "ib"}, "write what the cluster knows into `batch.options`"),
        ("oar", {"options": ["-n mine"]}, "headrace finds its jobs by their names"),
        ("oar", {"memory_per_node": "1GiB"}, "backend 'oar' has no `batch.memory_per_node`"),
    ],
)
def test_what_a_site_cannot_say(backend: str, batch: dict[str, Any], told: str):
    with pytest.raises(ValidationError) as caught:
        Role.model_validate({"backend": backend, "batch": batch})
    assert told in str(caught.value)


def _job(**changes: Any) -> JobSpec:
    given = {
        "name": "headrace-a-1",
        "command": ("/opt/python", "-m", "work"),
        "nodes": 1,
        "cpus_per_node": 8,
        "time_limit_s": 3600.0,
        "folder": "/shared",
        "log": "/shared/log",
        "environment": {"COLOUR": "it's blue"},
    }
    return JobSpec(**{**given, **changes})
