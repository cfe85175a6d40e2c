"""Job scripts of PBS, Grid Engine and LSF as whole texts, and answers of their commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.batch.commands import CommandResult
from headrace.batch.job_records import JobSpec, JobState, JobStatus
from headrace.batch.system import BatchSystem
from headrace.clusters import lease_machines
from headrace.clusters.lease_machines import job_spec
from headrace.clusters.lease_records import LeaseSpec, job_name
from headrace.errors import AmbiguousSubmitError, BatchError, SubmitLimitError
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from headrace_queues import lsf, pbs, sge
from support.factories import demo_lease
from support.job_scripts import MODULE
from support.scripted_commands import ScriptedCommands

BODY = """\
export HEADRACE_JOB_STARTED=$(date +%s)
exec >> /shared/leases/a-1/host.log 2>&1
set -e
file=/shared/leases/a-1/NAME.sh
cat > "$file" << 'END_OF_NODE_SCRIPT'
#!/bin/bash
exec >> /shared/leases/a-1/host.log 2>&1
set -e
cd /shared/leases/a-1
export HEADRACE_LEASE_ID=a-1
export HEADRACE_LEASE_FOLDER=/shared/leases/a-1
export SPT_NOENV=1
export PYTHONPATH=/lib
export HEADRACE_NODE_INDEX=$1
MODULE
module load cuda/12
ulimit -n 65536
exec /opt/python -m headrace.clusters.member /shared/leases/a-1
END_OF_NODE_SCRIPT
hosts=($(awk '!seen[$1]++ {print $1}' HOSTS))
if [ ${#hosts[@]} -ne 2 ]; then
    echo "2 hosts were asked for; the job has ${#hosts[@]}: ${hosts[*]}"
    exit 1
fi
/bin/bash "$file" 0 &
for ((i = 1; i < 2; i++)); do
    host="${hosts[i]}"
    LAUNCH &
done
wait -n || exit
sleep 30 & patience=$!
for ((left = 1; left < 2; left++)); do
    wait -n || exit
    kill -0 $patience 2> /dev/null || exit 0
done
kill $patience
"""

PBS = """\
#!/bin/bash
#PBS -N NAME
#PBS -l select=2:ncpus=8:mpiprocs=1:ngpus=4:mem=65536mb
#PBS -l place=scatter:excl
#PBS -l walltime=26:00:00
#PBS -q gpu
#PBS -A physics
#PBS -j oe
#PBS -o /shared/leases/a-1/host.log.queue
#PBS -r n
#PBS -S /bin/bash
#PBS -l system=polaris
"""

SGE = """\
#!/bin/bash
#$ -N NAME
#$ -S /bin/bash
#$ -wd /shared/leases/a-1
#$ -pe mpi8 16
#$ -l h_rt=26:00:00
#$ -l gpu=4
#$ -q gpu
#$ -P physics
#$ -ar 7
#$ -l h=!(bad1|bad2)
#$ -j y
#$ -o /shared/leases/a-1/host.log.queue
#$ -r n
#$ -w e
#$ -l h_vmem=8G
"""

LSF = """\
#!/bin/bash
#BSUB -J NAME
#BSUB -n 16
#BSUB -R "span[ptile=8]"
#BSUB -R "rusage[mem=65536MB/host]"
#BSUB -gpu "num=4:gmodel=NVIDIAA100"
#BSUB -R "select[hname!='bad1' && hname!='bad2']"
#BSUB -x
#BSUB -W 26:00
#BSUB -q gpu
#BSUB -P physics
#BSUB -cwd /shared/leases/a-1
#BSUB -o /shared/leases/a-1/host.log.queue
#BSUB -rn
#BSUB -app training
"""


@pytest.mark.parametrize(
    ("backend", "system", "batch", "expected", "hosts", "launch"),
    [
        (
            "pbs",
            pbs.Pbs,
            {"memory_per_node": "64GiB", "exclusive": True, "options": ["-l system=polaris"]},
            PBS,
            '"$PBS_NODEFILE"',
            'pbsdsh -n $i -- /bin/bash "$file" $i',
        ),
        (
            "sge",
            sge.Sge,
            {
                "parallel_environment": "mpi8",
                "reservation": "7",
                "exclude": ["bad1", "bad2"],
                "options": ["-l h_vmem=8G"],
            },
            SGE,
            '"$PE_HOSTFILE"',
            'PATH="$PATH:$SGE_BINARY_PATH" qrsh -inherit -nostdin "$host" '
            '/bin/bash "$(printf %q "$file")" $i',
        ),
        (
            "lsf",
            lsf.Lsf,
            {
                "memory_per_node": "64GiB",
                "gpu_type": "NVIDIAA100",
                "exclude": ["bad1", "bad2"],
                "exclusive": True,
                "options": ["-app training"],
            },
            LSF,
            '"$LSB_DJOB_HOSTFILE"',
            'blaunch -n "$host" /bin/bash "$file" $i',
        ),
    ],
)
def test_the_whole_script_of_a_gang(
    backend: str,
    system: type[BatchSystem],
    batch: dict[str, Any],
    expected: str,
    hosts: str,
    launch: str,
):
    shared = {
        "partition": "gpu",
        "account": "physics",
        "gpus_per_node": 4,
        "modules": ["cuda/12"],
        "prologue": ["ulimit -n 65536"],
    }
    text = system(ScriptedCommands()).render(_spec(_role(backend, {**shared, **batch})))
    wanted = expected + BODY.replace("MODULE\n", MODULE).replace("HOSTS", hosts).replace(
        "LAUNCH", launch
    )
    assert text.replace(job_name(_FOLDER), "NAME") == wanted


def test_a_single_node_needs_no_launcher():
    role = _role("pbs", {"epilogue": ["echo bye"]}, nodes=1)
    body = pbs.Pbs(ScriptedCommands()).render(_spec(role)).partition("set -e\n")[2].splitlines()
    assert body[-5:] == [
        "export HEADRACE_NODE_INDEX=0",
        "code=0",
        "/opt/python -m headrace.clusters.member /shared/leases/a-1 || code=$?",
        "echo bye",
        "exit $code",
    ]


@pytest.mark.parametrize(
    ("backend", "batch", "of_node"),
    [
        ("pbs", {}, "#PBS -l select=1:ncpus=4:mpiprocs=1"),
        ("sge", {"parallel_environment": "smp"}, "#$ -pe smp 4"),
        ("lsf", {}, "#BSUB -n 4"),
    ],
)
def test_a_pool_is_shown_as_its_host_and_a_node(backend: str, batch: dict[str, Any], of_node: str):
    """What `headrace plan --dry-run` shows: each a job of one node, the host with one CPU."""
    given = {"kind": "pool", "host": "job", "threads_per_node": 4, "node_lifetime": 3600.0}
    role = Role.model_validate({"backend": backend, "nodes": 3, "batch": batch, **given})
    host, node = _scripts(role)
    assert "headrace.clusters.host /shared/leases/a-1" in host
    assert "headrace.clusters.worker /shared/leases/a-1 0" in node
    assert (of_node in node, of_node in host, "-pe" in host) == (True, False, False)
    assert "exec >> /shared/leases/a-1/jobs/000001.log" in node
    assert ("01:00" in node, "04:00" in host) == (True, True)
    alone = role.model_copy(update={"host": "control"})
    assert _scripts(alone) == [node]


def test_a_node_of_a_pool_of_single_slots_needs_no_parallel_environment():
    Role(backend="sge", nodes=8)
    with pytest.raises(ValidationError, match="4 slots need"):
        Role(backend="sge", nodes=8, threads_per_node=4)


@pytest.mark.parametrize(
    ("backend", "batch", "told"),
    [
        ("pbs", {"qos": "long"}, "backend 'pbs' has no `batch.qos`"),
        ("pbs", {"exclude": ["a"]}, "`batch.exclude`: write the cluster's own option"),
        ("pbs", {"options": ["-N mine"]}, "headrace finds its jobs by their names"),
        ("sge", {"memory_per_node": "1GiB"}, "such as `-l h_vmem=4G`"),
        ("sge", {}, "need `batch.parallel_environment`"),
        ("sge", {"options": ["-pe mpi 4"]}, "write `batch.parallel_environment`"),
        ("lsf", {"srun_options": ["--mpi=none"]}, "there is no `srun`"),
        ("lsf", {"parallel_environment": "mpi"}, "that is Grid Engine's"),
        ("slurm", {"parallel_environment": "mpi"}, "that is Grid Engine's"),
    ],
)
def test_a_key_that_a_system_cannot_fulfil_is_refused(
    backend: str, batch: dict[str, Any], told: str
):
    with pytest.raises(ValidationError) as caught:
        _role(backend, batch)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("job", "state", "reason"),
    [
        ('"job_state":"Q","comment":"Not Running: x"', JobState.PENDING, "Not Running: x"),
        ('"job_state":"H"', JobState.PENDING, ""),
        ('"job_state":"S"', JobState.RUNNING, ""),
        ('"job_state":"M"', JobState.RUNNING, ""),
        ('"job_state":"F","Exit_status":0,"substate":92', JobState.COMPLETED, ""),
        ('"job_state":"F","Exit_status":1,"substate":93', JobState.FAILED, ""),
        ('"job_state":"F","Exit_status":271,"substate":91', JobState.CANCELLED, ""),
        ('"job_state":"F","Exit_status":-27,"substate":93', JobState.OUT_OF_MEMORY, ""),
        ('"job_state":"F","Exit_status":-29,"substate":93', JobState.TIMED_OUT, ""),
        ('"job_state":"F","Exit_status":-20,"substate":93', JobState.NODE_FAILED, ""),
    ],
)
def test_jobs_of_pbs(job: str, state: JobState, reason: str):
    seen = _of_pbs('{"timestamp":1,"Jobs":{"7.server":{' + job + "}}}")
    assert (seen.job_id, seen.state, seen.reason) == ("7.server", state, reason)


@pytest.mark.parametrize(
    ("exec_host", "nodes"),
    [
        ("khas024/4", ("khas024",)),
        ("node1299/0*48", ("node1299",)),
        ("nodeA/0+nodeA/1+nodeB/0*2", ("nodeA", "nodeB")),
        ("x3001c0s1b1n0/0+x3001c0s25b0n0/0", ("x3001c0s1b1n0", "x3001c0s25b0n0")),
    ],
)
def test_nodes_of_pbs(exec_host: str, nodes: tuple[str, ...]):
    """Shapes of `qstat -f -F json` of several clusters, in public repositories."""
    job = f'"job_state":"R","exec_host":"{exec_host}"'
    seen = _of_pbs('{"Jobs":{"7.server":{' + job + "}}}")
    assert (seen.nodes, seen.failed_nodes) == (nodes, ())
    lost = job.replace('"R"', '"F","Exit_status":-20,"substate":93')
    seen = _of_pbs('{"Jobs":{"7.server":{' + lost + "}}}")
    assert (seen.nodes, seen.failed_nodes) == (nodes, nodes[:1])


def test_the_first_node_of_a_job_of_grid_engine():
    seen = dict(
        zip(["7", "13", "16", "15"], (each for _, each in sge.parse_qstat(QSTAT)), strict=True)
    )
    assert [each.nodes for each in seen.values()] == [("node4",), (), (), ()]
    (lost,) = sge.parse_qacct(_booked("19  : before writing exit_status", "0", "0s"))
    (late,) = sge.parse_qacct(_booked(_LIMIT, "137                  (Killed)", "61s"))
    assert (lost.nodes, lost.failed_nodes) == (("node4",), ("node4",))
    assert (late.nodes, late.failed_nodes) == (("node4",), ())


def test_nodes_to_take_and_to_leave_are_said_at_once_in_grid_engine():
    """Of two requests for one resource, Grid Engine takes the later one."""
    batch = {"parallel_environment": "mpi8", "nodelist": ["a", "b"], "exclude": ["c"]}
    assert "#$ -l h=(a|b)&!(c)\n" in sge.Sge(ScriptedCommands()).render(_spec(_role("sge", batch)))


@pytest.mark.parametrize(
    ("hosts", "nodes"),
    [
        ("tbi-cn020", ("tbi-cn020",)),
        ("tbi-cn019:tbi-cn019", ("tbi-cn019",)),
        ("16*a5n01:16*a5n02", ("a5n01", "a5n02")),
        ("", ()),
    ],
)
def test_nodes_of_lsf(hosts: str, nodes: tuple[str, ...]):
    """Shapes of `bjobs -o -json`, in public repositories."""
    record = f'{{"JOBID":"7","STAT":"RUN","EXEC_HOST":"{hosts}"}}'
    (seen,) = lsf.parse_bjobs('{"RECORDS":[' + record + "]}")
    (lost,) = lsf.parse_bjobs('{"RECORDS":[' + record.replace("RUN", "ZOMBI") + "]}")
    assert (seen.nodes, seen.failed_nodes) == (nodes, ())
    assert (lost.nodes, lost.failed_nodes) == (nodes, nodes[:1])


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("Wed Nov 21 15:04:07: Dispatched to <n061>;", ("n061",)),
        ("Tue Dec 24 13:12:00: [1] dispatched to 8 Hosts/Processors <8*vr-1>;", ("vr-1",)),
        (
            "Fri Nov 16 07:58:23: Dispatched 2 Task(s) on Host(s) <32*n055> <32*n082>, "
            "Allocated 64 Slot(s) on Host(s) <32*n055> <32*n082>, Effective RES_REQ <select[x]>;",
            ("n055", "n082"),
        ),
        ("Fri Nov 16 07:58:23: Submitted from host <login1>;", ()),
    ],
)  # fmt: skip
def test_nodes_in_the_books_of_lsf(line: str, nodes: tuple[str, ...]):
    text = (
        "------\n\nJob <7>, User <me>, Status <EXIT>, Queue <normal>, Command <x>\n"
        f"{line}\nFri Nov 16 08:58:23: Completed <exit>; TERM_REMOVE_HUNG_JOB: job removed.\n"
    )
    (seen,) = lsf.parse_bacct(text)
    assert (seen.state, seen.nodes) == (JobState.NODE_FAILED, nodes)
    assert seen.failed_nodes == nodes[:1]


def test_expected_start_in_pbs():
    job = '"job_state":"Q","estimated":{"start_time":"Sat Nov 21 14:23:01 2026"}'
    seen = _of_pbs('{"Jobs":{"7.server":{' + job + "}}}")
    assert seen.starts_at is not None


QSTAT = """\
<?xml version='1.0'?>
<job_info  xmlns:xsd="http://arc.liv.ac.uk/repos/darcs/sge/source/dist/util/resources/schemas/qstat/qstat.xsd">
  <queue_info>
    <job_list state="running">
      <JB_job_number>7</JB_job_number>
      <JAT_prio>0.58352</JAT_prio>
      <JB_name>gang</JB_name>
      <JB_owner>root</JB_owner>
      <state>r</state>
      <JAT_start_time>2026-11-29T01:45:37</JAT_start_time>
      <queue_name>all.q@node4</queue_name>
      <slots>3</slots>
    </job_list>
  </queue_info>
  <job_info>
    <job_list state="pending">
      <JB_job_number>13</JB_job_number>
      <JAT_prio>0.75000</JAT_prio>
      <JB_name>STDIN</JB_name>
      <JB_owner>root</JB_owner>
      <state>qw</state>
      <JB_submission_time>2026-11-29T01:45:39</JB_submission_time>
      <queue_name></queue_name>
      <slots>4</slots>
    </job_list>
    <job_list state="pending">
      <JB_job_number>16</JB_job_number>
      <JAT_prio>0.25005</JAT_prio>
      <JB_name>STDIN</JB_name>
      <JB_owner>root</JB_owner>
      <state>Eqw</state>
      <JB_submission_time>2026-11-29T01:45:40</JB_submission_time>
      <queue_name></queue_name>
      <slots>1</slots>
    </job_list>
    <job_list state="pending">
      <JB_job_number>15</JB_job_number>
      <JAT_prio>0.25000</JAT_prio>
      <JB_name>STDIN</JB_name>
      <JB_owner>root</JB_owner>
      <state>Rq</state>
      <JB_submission_time>2026-11-29T01:45:45</JB_submission_time>
      <queue_name></queue_name>
      <slots>1</slots>
    </job_list>
  </job_info>
</job_info>
"""
"""Recorded from Son of Grid Engine 8.1.9, as are the other texts of it."""


@pytest.mark.parametrize(
    ("letters", "state", "reason"),
    [
        ("qw", JobState.PENDING, ""),
        ("hqw", JobState.PENDING, "held"),
        ("Eqw", JobState.PENDING, "in error state Eqw"),
        ("Rq", JobState.PENDING, ""),
        ("r", JobState.RUNNING, ""),
        ("dr", JobState.RUNNING, "being deleted"),
        ("dt", JobState.RUNNING, "being deleted"),
        ("t", JobState.RUNNING, ""),
        ("Rr", JobState.RUNNING, ""),
        ("S", JobState.RUNNING, ""),
    ],
)
def test_jobs_of_grid_engine(letters: str, state: JobState, reason: str):
    ((name, seen), *_) = sge.parse_qstat(QSTAT.replace("<state>r<", f"<state>{letters}<"))
    assert (name, seen.job_id, seen.state, seen.reason) == ("gang", "7", state, reason)
    assert seen.never_starts is (letters == "Eqw")


_LIMIT = "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit"
_AFTER = "100 : assumedly after job"


@pytest.mark.parametrize(
    ("failed", "exit_status", "wallclock", "state", "reason"),
    [
        ("0    ", "0                   ", "2s", JobState.COMPLETED, ""),
        ("0    ", "3                   ", "1s", JobState.FAILED, "exit status 3"),
        (_AFTER, "137                  (Killed)", "9s", JobState.CANCELLED, "Killed"),
        (_AFTER, "138                  (User defined signal 1)", "4s", JobState.TIMED_OUT,
         "User defined signal 1"),
        (_AFTER, "139                  (Segmentation fault)", "1s", JobState.FAILED,
         "Segmentation fault"),
        (_LIMIT, "137                  (Killed)", "61s", JobState.TIMED_OUT,
         "qmaster enforced h_rt, h_cpu, or h_vmem limit"),
        (_LIMIT, "137                  (Killed)", "9s", JobState.OUT_OF_MEMORY,
         "qmaster enforced h_rt, h_cpu, or h_vmem limit; it used 370.852MB"),
        ("19  : before writing exit_status", "0                   ", "0s", JobState.NODE_FAILED,
         "before writing exit_status"),
        ("28  : changing into working directory", "0                   ", "0s",
         JobState.NODE_FAILED, "changing into working directory"),
    ],
)  # fmt: skip
def test_books_of_grid_engine(
    failed: str, exit_status: str, wallclock: str, state: JobState, reason: str
):
    block = _booked(failed, exit_status, wallclock)
    task = block.replace("taskid       undefined", "taskid       undefined\npe_taskid    1.node2")
    (seen,) = sge.parse_qacct(block + task)
    assert (seen.job_id, seen.state, seen.reason) == ("7", state, reason)


def _booked(failed: str, exit_status: str, wallclock: str) -> str:
    """Answer of `qacct -j` without the lines of usage that headrace does not read."""
    return f"""\
==============================================================
qname        all.q
hostname     node4
owner        root
jobname      gang
jobnumber    7
taskid       undefined
qsub_time    Sun Nov 29 01:45:36 2026
granted_pe   mpi
slots        3
failed       {failed}
exit_status  {exit_status}
ru_wallclock {wallclock}
maxvmem      370.852MB
category     -l h_rt=60,h_vmem=250M -pe mpi 3
"""


@pytest.mark.parametrize(
    ("stat", "reason", "state"),
    [
        ("PEND", "", JobState.PENDING),
        ("UNKWN", "", JobState.RUNNING),
        ("ZOMBI", "", JobState.NODE_FAILED),
        ("DONE", "", JobState.COMPLETED),
        ("EXIT", "", JobState.FAILED),
        ("EXIT", "TERM_OWNER: job killed by owner.", JobState.CANCELLED),
        ("EXIT", "TERM_PREEMPT: job killed after preemption.", JobState.PREEMPTED),
        ("EXIT", "TERM_MEMLIMIT: job killed after reaching LSF memory.", JobState.OUT_OF_MEMORY),
        ("EXIT", "TERM_RUNLIMIT: job killed after reaching the limit.", JobState.TIMED_OUT),
    ],
)
def test_jobs_of_lsf(stat: str, reason: str, state: JobState):
    record = f'{{"JOBID":"7","STAT":"{stat}","EXIT_REASON":"{reason}"}}'
    (seen,) = lsf.parse_bjobs(
        'Cannot connect to LSF. Please wait ...\n{"RECORDS":[' + record + "]}"
    )
    assert (seen.job_id, seen.state) == ("7", state)


@pytest.mark.parametrize("system", [pbs.Pbs, sge.Sge, lsf.Lsf])
@pytest.mark.parametrize("output", ["", "\n", "12.pbs\nYour job was taken, maybe\n"])
def test_a_submit_without_an_id_is_no_refusal(system: type[BatchSystem], output: str):
    """pains 17: the job may be there; it is looked up by its name."""
    job = _spec(_role("pbs", {}))
    with pytest.raises(AmbiguousSubmitError, match="no clear answer"):
        system(ScriptedCommands(CommandResult(0, output, ""))).submit(job)


@pytest.mark.parametrize("whose", ["user (current job count: 1)", "cluster"])
def test_a_full_queue_of_grid_engine_is_no_refusal(whose: str):
    text = f"Unable to run job: job rejected: only 1 jobs are allowed per {whose}\nExiting.\n"
    with pytest.raises(SubmitLimitError, match="only 1 jobs are allowed per"):
        sge.Sge(ScriptedCommands(CommandResult(25, "", text))).submit(_spec(_role("pbs", {})))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (CommandResult(1, "see qsub(1)", "qsub: no such queue\nqsub: no such queue\n"),
         "no such queue; see qsub(1)"),
        (CommandResult(3, "\n", ""), "exit code 3"),
    ],
)  # fmt: skip
def test_the_words_of_a_refusal(answer: CommandResult, words: str):
    assert answer.words == words


def test_an_answer_that_is_no_json_or_xml_is_an_error():
    """What cannot be read must not look like the end of all jobs."""
    for system, garbled in ((pbs.Pbs, '{"Jobs":{'), (sge.Sge, "<job_info>"), (lsf.Lsf, '{"REC')):
        with pytest.raises(BatchError, match="does not answer"):
            system(ScriptedCommands(CommandResult(0, garbled, ""))).poll(["1"])


def _of_pbs(answer: str) -> JobStatus:
    (seen,) = pbs.Pbs(ScriptedCommands(CommandResult(0, answer, ""))).poll(["7.server"]).values()
    return seen


_FOLDER = LeaseFolder(Path("/shared/leases/a-1"))


def _role(backend: str, batch: dict[str, Any], nodes: int = 2) -> Role:
    return Role(
        backend=backend,
        kind="gang",
        nodes=nodes,
        ranks_per_node=4,
        threads_per_rank=2,
        lifetime=26 * 3600.0,
        batch=batch,
    )


def _spec(role: Role) -> JobSpec:
    job = job_spec(_FOLDER, _lease(role))
    environment = job.environment | {"PYTHONPATH": "/lib"}
    command = ("/opt/python", *job.command[1:])
    return job.model_copy(update={"command": command, "environment": environment})


def _lease(role: Role) -> LeaseSpec:
    return demo_lease("a-1", role=role)


def _scripts(role: Role) -> list[str]:
    text = lease_machines.preview(_FOLDER, _lease(role))
    return [f"#!/bin/bash{each}" for each in text.split("#!/bin/bash")[1:]]
