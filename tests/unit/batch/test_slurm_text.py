from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.batch.commands import CommandResult
from headrace.batch.job_records import (
    JobSpec,
    JobState,
    JobStatus,
    failure_class,
    put_back,
    put_back_view,
    view_of,
    with_log,
)
from headrace.batch.slurm import Slurm, node_names, parse_sacct, parse_squeue
from headrace.batch.system import with_quotes
from headrace.clusters.lease_machines import job_spec
from headrace.clusters.lease_records import job_name
from headrace.errors import AmbiguousSubmitError, BatchError, JobRefusedError
from headrace.files.layout import LeaseFolder
from headrace.recipe.batch import Batch
from headrace.recipe.site import Role
from headrace.states import FailureClass
from support.factories import demo_lease
from support.job_scripts import MODULE
from support.scripted_commands import ScriptedCommands

FULL = """\
#!/bin/bash
#SBATCH --job-name=headrace-demo-gpu-1-4df3c6b8
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:4
#SBATCH --mem=65536M
#SBATCH --time=1-02:00:00
#SBATCH --partition=a100
#SBATCH --account=physics
#SBATCH --qos=long
#SBATCH --chdir=/shared/leases/demo-gpu-1
#SBATCH --output=/shared/leases/demo-gpu-1/host.log
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --constraint=ib
set -e
export HEADRACE_JOB_STARTED=$(date +%s)
export HEADRACE_LEASE_ID=demo-gpu-1
export HEADRACE_LEASE_FOLDER=/shared/leases/demo-gpu-1
export SPT_NOENV=1
export PYTHONPATH=/lib
MODULE
module load cuda
exec srun --ntasks=2 --ntasks-per-node=1 --cpus-per-task=8 --kill-on-bad-exit=1 --wait=30 \
--export=ALL /opt/python -m headrace.clusters.member /shared/leases/demo-gpu-1
"""


def test_the_whole_script_of_a_gang(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/lib")
    role = Role(
        backend="slurm",
        kind="gang",
        nodes=2,
        ranks_per_node=4,
        threads_per_rank=2,
        lifetime=26 * 3600.0,
        batch=Batch(
            partition="a100",
            account="physics",
            qos="long",
            gpus_per_node=4,
            memory_per_node="64GiB",
            options=("--constraint=ib",),
            prologue=("module load cuda",),
            python="/opt/python",
        ),
    )
    folder = LeaseFolder(Path("/shared/leases/demo-gpu-1"))
    spec = demo_lease(role=role, code=("/my code",))
    text = _script(job_spec(folder, spec))
    assert text.replace(job_name(folder), "headrace-demo-gpu-1-4df3c6b8") == FULL.replace(
        "MODULE\n", MODULE
    )


def test_what_is_not_asked_for_is_not_written():
    text = _script(_job())
    for option in ("partition", "account", "qos", "gres", "mem"):
        assert f"--{option}=" not in text
    assert "--time=00:01:00" in text


WISHES = """\
#SBATCH --gres=gpu:a100:2
#SBATCH --time=00:01:00
#SBATCH --constraint='ib&nvme'
#SBATCH --reservation=school
#SBATCH --nodelist='node[1-4]'
#SBATCH --exclude=node3,node9
#SBATCH --chdir=/shared
#SBATCH --output=/shared/log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --no-requeue
set -e
export HEADRACE_JOB_STARTED=$(date +%s)
MODULE
module load gcc/13 cuda/12.4
code=0
srun --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 --kill-on-bad-exit=1 --wait=30 \
--export=ALL --mpi=none true || code=$?
rm -rf /local/me
exit $code
"""


def test_everything_a_site_may_wish_for():
    wishes = {
        "gpus_per_node": 2,
        "gpu_type": "a100",
        "constraint": "ib&nvme",
        "reservation": "school",
        "nodelist": ("node[1-4]",),
        "exclude": ("node3", "node9"),
        "exclusive": True,
        "srun_options": ("--mpi=none",),
        "modules": ("gcc/13", "cuda/12.4"),
        "epilogue": ("rm -rf /local/me",),
    }
    wanted = WISHES.replace("MODULE\n", MODULE)
    assert _script(_job(**wishes)).partition("--cpus-per-task=1\n")[2] == wanted
    role = Role(backend="slurm", kind="gang", batch=wishes | {"python": "/opt/python"})
    folder = LeaseFolder(Path("/shared/leases/demo-gpu-1"))
    spec = demo_lease(role=role)
    job = job_spec(folder, spec)
    assert {name: getattr(job, name) for name in wishes} == wishes
    assert job.command[0] == "/opt/python"


def test_jobs_of_different_folders_have_different_names():
    """pains 17: a job is looked up by a name that nobody else uses."""
    names = {job_name(LeaseFolder(Path(root) / "leases" / "a-1")) for root in ("/one", "/two")}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("line", "state", "reason", "never"),
    [
        ("7|PENDING|N/A||Resources|x", JobState.PENDING, "Resources", False),
        ("7|PENDING|N/A||Priority|x", JobState.PENDING, "Priority", False),
        ("7|PENDING|N/A||PartitionTimeLimit|x", JobState.PENDING, "PartitionTimeLimit", True),
        ("7|PENDING|N/A||PartitionNodeLimit|x", JobState.PENDING, "PartitionNodeLimit", True),
        ("7|PENDING|N/A||BadConstraints|x", JobState.PENDING, "BadConstraints", True),
        ("7|PENDING|N/A||QOSMaxCpuPerJobLimit|x", JobState.PENDING, "QOSMaxCpuPerJobLimit", True),
        ("7|PENDING|N/A||AssocGrpCpuLimit|x", JobState.PENDING, "AssocGrpCpuLimit", False),
        ("7|PENDING|N/A||AssocMaxJobsLimit|x", JobState.PENDING, "AssocMaxJobsLimit", False),
        ("7|RUNNING|2026-01-01T10:00:00|gpu[1-2]|None|a|b", JobState.RUNNING, "", False),
        ("7|COMPLETING|2026-01-01T10:00:00||None|x", JobState.RUNNING, "", False),
        ("7|OF_A_LATER_SLURM|N/A||None|x", JobState.RUNNING, "", False),
        ("7|NODE_FAIL|N/A||None|x", JobState.NODE_FAILED, "", False),
    ],
)
def test_lines_of_squeue(line: str, state: JobState, reason: str, never: bool):
    seen = parse_squeue(line)
    assert (seen.job_id, seen.state, seen.reason, seen.never_starts) == ("7", state, reason, never)


def test_expected_start():
    assert parse_squeue("7|PENDING|2026-01-01T10:00:00||Resources|x").starts_at is not None
    assert parse_squeue("7|PENDING|1767261600||Resources|x").starts_at == 1767261600
    assert parse_squeue("7|PENDING|N/A||Resources|x").starts_at is None


@pytest.mark.parametrize(
    ("zone", "at", "told"),
    [
        ("UTC", 1767276300.0, "expected 14:05 UTC"),
        ("CET-1", 1767276300.0, "expected 15:05 CET"),
        ("UTC", 1767362700.0, "expected Fri 2 Jan 14:05 UTC"),
        ("UTC", None, "Slurm gives no expected start"),
    ],
)
def test_the_expected_start_is_told_in_the_readers_time_zone(
    zone: str, at: float | None, told: str, monkeypatch: pytest.MonkeyPatch
):
    """Never a guess: when Slurm does not know, that is said."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    status = JobStatus(
        job_id="7",
        state=JobState.PENDING,
        reason="Resources",
        starts_at=at,
        seen_at=1767261600.0,  # 1 January 2026, 10:00 UTC
    )
    try:
        view = view_of(status, "Slurm")
        assert view.why == f"Slurm job 7 is pending: Resources, {told}"
        assert view.starts_at == at
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("7|PREEMPTED|None|None|n", FailureClass.PREEMPTED),
        ("7|TIMEOUT|None|None|n", FailureClass.TIMED_OUT),
        ("7|DEADLINE|None|None|n", FailureClass.TIMED_OUT),
        ("7|NODE_FAIL|None|None|n", FailureClass.INFRASTRUCTURE),
        ("7|BOOT_FAIL|None|None|n", FailureClass.INFRASTRUCTURE),
        ("7|OUT_OF_MEMORY|None|None|n", FailureClass.OUT_OF_MEMORY),
        ("7|CANCELLED by 1000|None|None|n", FailureClass.LOST),
        ("7|FAILED|None|NonZeroExitCode|n", FailureClass.LOST),
    ],
)
def test_what_an_end_in_the_books_means(line: str, expected: FailureClass):
    """pains 31: decided by the books, not by signals."""
    seen = parse_sacct(line)
    assert seen.state.is_final
    assert failure_class(seen) is expected
    assert expected.is_retried


def test_a_job_that_slurm_has_started_again():
    """pains 32; numbers of jobs may be used again, names are not."""
    lines = ["7|PREEMPTED|node1|None|a", "7|PENDING|None assigned|None|a",
             "8|FAILED|node1|None|of last year", "8|RUNNING|node2|None|b"]  # fmt: skip
    told = Slurm(ScriptedCommands(CommandResult(0, "\n".join(lines), ""))).accounting(["7", "8"])
    assert (told["7"].state, told["7"].earlier) == (JobState.PENDING, JobState.PREEMPTED)
    assert (told["8"].state, told["8"].earlier) == (JobState.RUNNING, None)
    assert put_back(told["7"], has_started=False)
    assert not put_back(told["8"], has_started=True)
    seen = put_back_view(told["7"], "Slurm")
    assert seen.failure_class is FailureClass.PREEMPTED
    assert "was preempted, and Slurm put it back into the queue" in seen.why


def test_which_nodes_have_failed():
    books = CommandResult(0, "7|NODE_FAIL|node[1-3]|None|a\n", "")
    nodes = CommandResult(0, "node1 drained\nnode2 down*\nnode3 drained*\n", "")
    told = Slurm(ScriptedCommands(books, nodes)).accounting(["7"])["7"]
    assert told.failed_nodes == ("node2", "node3")
    assert view_of(told, "Slurm").why == "Slurm job 7 ended: node failed (on node2, node3)"
    assert view_of(told, "Slurm").bad_nodes == ("node2", "node3")


def test_words_for_users():
    cancelled = view_of(parse_sacct("7|CANCELLED by 1000|None|None|n"), "Slurm")
    assert cancelled.why == "Slurm job 7 ended: cancelled: by user 1000"
    waiting = JobStatus(job_id="7", state=JobState.PENDING, reason="Resources", starts_at=0.0)
    assert view_of(waiting, "Slurm").why.startswith("Slurm job 7 is pending: Resources, expected ")
    never = JobStatus(job_id="7", state=JobState.PENDING, reason="BadX", never_starts=True)
    assert view_of(never, "Slurm").why == "Slurm job 7 can never start: BadX"
    assert view_of(never, "Slurm").failure_class is FailureClass.USER_ERROR


def test_a_refusal_tells_slurms_own_words():
    error = (
        "sbatch: error: invalid partition specified: nope\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    )
    with pytest.raises(JobRefusedError, match=r"nope; Batch job.*\n.*sinfo"):
        Slurm(ScriptedCommands(CommandResult(1, "", error))).submit(_job())


@pytest.mark.parametrize(
    "answer",
    [
        CommandResult(None, "", "sbatch gave no answer within 60 s"),
        CommandResult(
            1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv"
        ),
        CommandResult(1, "", "sbatch: error: Unable to contact slurm controller (connect failure)"),
        CommandResult(1, "", "sbatch: error: Resource temporarily unavailable"),
        CommandResult(0, "", ""),
        CommandResult(0, "12\nthe disk is full\n", ""),
    ],
)
def test_an_unclear_answer_is_no_refusal(answer: CommandResult):
    """pains 17."""
    with pytest.raises(AmbiguousSubmitError):
        Slurm(ScriptedCommands(answer)).submit(_job())


def test_an_answer_of_a_federation_names_the_job():
    assert (
        Slurm(ScriptedCommands(CommandResult(0, "warning\n12;cluster\n", ""))).submit(_job())
        == "12"
    )


def test_a_queue_that_does_not_answer_is_an_error():
    with pytest.raises(BatchError, match="squeue: Unable to contact"):
        Slurm(
            ScriptedCommands(CommandResult(1, "", "slurm_load_jobs error: Unable to contact"))
        ).poll(["1"])


def _script(job: JobSpec) -> str:
    return Slurm(ScriptedCommands()).render(job)


def _job(**changes: Any) -> JobSpec:
    return JobSpec(
        name="headrace-x", command=("true",), nodes=1, cpus_per_node=1, time_limit_s=59.0,
        folder="/shared", log="/shared/log", **changes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--comment=two words", "--comment='two words'"),
        ("--comment two words", "--comment 'two words'"),
        ("--comment='two words'", "--comment='two words'"),
        ('--comment="two words"', '--comment="two words"'),
        ("--comment=one", "--comment=one"),
        ("-A my account", "-A 'my account'"),
        ("-l select=1 -q long", "-l select=1 -q long"),
        ("-pe smp 4", "-pe smp 4"),
        ("--exclusive", "--exclusive"),
    ],
)
def test_values_of_options_that_have_spaces_are_quoted(option: str, line: str) -> None:
    assert with_quotes(option) == line


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("None assigned", []),
        ("(null)", []),
        ("login", ["login"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("a1,gpu[01-03,7],b", ["a1", "gpu01", "gpu02", "gpu03", "gpu7", "b"]),
        ("rack[1-2]-ib", ["rack1-ib", "rack2-ib"]),
        ("c[08-10]", ["c08", "c09", "c10"]),
    ],
)
def test_short_forms(text: str, names: list[str]):
    assert node_names(text) == names


@pytest.mark.parametrize(
    ("line", "is_memory"),
    [
        ("slurmstepd-node1: error: StepId=3.batch exceeded memory limit (2 > 1), killed", True),
        ("slurmstepd-node1: error: Exceeded job memory limit", True),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=3.0 cgroup.", True),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=3.0.", True),
        ("srun: error: node1: task 0: Out Of Memory", True),
        ("srun: error: node1: task 0: Killed", False),
        ("2026-01-01 INFO user code says: out of memory", False),
    ],
)
def test_lack_of_memory(line: str, is_memory: bool):
    """peers 41: told apart also where the books say no more than FAILED."""
    failed = JobStatus(job_id="3", state=JobState.FAILED, reason="JobLaunchFailure")
    told = with_log(failed, f"2026-01-01 INFO before\n{line}\nsrun: forcing job termination\n")
    assert (told.state is JobState.OUT_OF_MEMORY) == is_memory
    assert told.reason == (line if is_memory else "JobLaunchFailure")


def test_other_ends_stay_what_they_are():
    ended = JobStatus(job_id="3", state=JobState.PREEMPTED)
    assert with_log(ended, "slurmstepd: error: Exceeded job memory limit\n") is ended


PROFILES = {
    "defines_it": ('module() { echo "$* by $0"; }', 0, "load gcc/13"),
    "sets_path": ("PATH=/usr/bin; module() { command -v headrace-own; }", 0, "/headrace-own"),
    "fails": ("false; module() { false; }", 1, ""),
    "has_none": ("false", 127, "module: command not found, nor defined by /etc/profile"),
}


@pytest.mark.parametrize("profile", PROFILES)
def test_modules_are_loaded_in_a_shell_that_is_no_login_shell(tmp_path: Path, profile: str) -> None:
    """What a node's /etc/profile defines, PATH as it was, or how to correct it."""
    text, code, shown = PROFILES[profile]
    (tmp_path / "profile").write_text(text)
    (tmp_path / "headrace-own").write_text("")
    (tmp_path / "headrace-own").chmod(0o700)
    script = _script(_job(prologue=("module load gcc/13", "echo loaded"))).partition("set -e\n")[2]
    job = "set -e\n" + script.replace("/etc/profile |", f"{tmp_path}/profile |")
    ended = subprocess.run(
        ["/bin/bash", "-c", job.partition("exec ")[0]], capture_output=True, text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert (ended.returncode, "loaded\n" in ended.stdout) == (code, code == 0), ended
    assert shown in ended.stdout
