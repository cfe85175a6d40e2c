"""What PBS, Grid Engine and LSF tell of their queues, and what that means for a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.batch.commands import CommandResult
from headrace.batch.findings import Finding, QueueFacts, clock_s, judge_queue
from headrace.batch.job_records import JobSpec
from headrace.errors import BatchError
from headrace.recipe.batch import Batch
from headrace_queues.lsf import Lsf, parse_queues
from headrace_queues.pbs import Pbs
from headrace_queues.pbs import queue_facts as pbs_queue
from headrace_queues.sge import judge_environment, parse_fields
from headrace_queues.sge import queue_facts as sge_queue
from support.factories import job_spec
from support.scripted_commands import ScriptedCommands

LSF_STATUS = """\
QUEUE: {name}
  -- Anything

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS
 30    0  Open:Active       -    -    -    -     0     0     0     0     0    0     0

"""


@pytest.mark.parametrize(
    ("text", "seconds"), [("48:00:00", 172800.0), ("30:00", 1800.0), ("3600", 3600.0)]
)
def test_times(text: str, seconds: float):
    assert clock_s(text) == seconds


def test_a_queue_of_pbs():
    told = {
        "queue_type": "Execution",
        "resources_max": {"ngpus": 0, "ncpus": 144, "nodect": "4", "walltime": "01:00:00"},
        "resources_min": {"nodect": 2},
        "enabled": "True",
        "started": "False",
    }
    assert pbs_queue("qexp", {"qexp": told}, {}) == QueueFacts(
        name="qexp",
        holds="it is not started",
        limit_s=3600.0,
        most_cpus=144,
        most_nodes=4,
        least_nodes=2,
    )


@pytest.mark.parametrize(
    ("soft", "limit", "seconds"),
    [
        ("INFINITY", "INFINITY", None),
        ("INFINITY", "48:00:00", 172800.0),
        ("INFINITY", "24:00:00,[node4=INFINITY]", 86400.0),
        ("01:00:00", "48:00:00", 3600.0),
    ],
)
def test_a_queue_of_grid_engine(soft: str, limit: str, seconds: float | None):
    text = (
        "qname                 all.q\nhostlist              a b \\\n    c\n"
        f"s_rt                  {soft}\nh_rt                  {limit}\n"
    )
    fields = parse_fields(text)
    assert fields["hostlist"] == "a b c"
    assert sge_queue("all.q", fields) == QueueFacts(name="all.q", limit_s=seconds)


@pytest.mark.parametrize(
    ("limits", "seconds", "cpus"),
    [
        ("", None, None),
        (" RUNLIMIT\n 2880.0 min of host1\n", 172800.0, None),
        ("DEFAULT LIMITS:\n RUNLIMIT\n 60.0 min\n", None, None),
        ("DEFAULT LIMITS:\n RUNLIMIT\n 6 min\nMAXIMUM LIMITS:\n RUNLIMIT\n 90 min\n", 5400.0, None),
        ("MAXIMUM LIMITS:\n CPULIMIT   RUNLIMIT\n 9 min of a   120.0 min of a\n", 7200.0, None),
        (" PROCLIMIT\n 1 4 16\n", None, 16),
        (" TASKLIMIT\n 64\n", None, 64),
    ],
)  # fmt: skip
def test_limits_of_a_queue_of_lsf(limits: str, seconds: float | None, cpus: int | None):
    """A default is no limit: every job of headrace says its time."""
    other = LSF_STATUS.format(name="other").replace("Open:Active", "Closed:Inact")
    queues = parse_queues(f"{LSF_STATUS.format(name='normal')}{limits}\n{'-' * 78}\n\n{other}")
    first, second = queues["normal"], queues["other"]
    assert first == QueueFacts(name="normal", limit_s=seconds, most_cpus=cpus)
    assert (second.name, second.refuses, second.holds) == ("other", "it is Closed", "it is Inact")


@pytest.mark.parametrize(
    ("changes", "job", "grade", "told"),
    [
        ({}, {}, "ok", "mpi: 8"),
        ({"allocation_rule": "$pe_slots"}, {"nodes": 1}, "ok", "$pe_slots"),
        ({"allocation_rule": "$pe_slots"}, {}, "fail", "the job needs 8 a node"),
        ({"allocation_rule": "$fill_up"}, {}, "warn", "Name one with `allocation_rule 8`"),
        ({"allocation_rule": "4"}, {}, "fail", "`allocation_rule 4`"),
        ({"control_slaves": "FALSE"}, {}, "fail", "nothing can be started"),
        ({"control_slaves": "FALSE"}, {"nodes": 1}, "ok", "mpi"),
        ({"slots": "15"}, {}, "fail", "mpi has 15 slots, the job asks for 16"),
    ],
)
def test_parallel_environments(changes: dict[str, str], job: dict[str, Any], grade: str, told: str):
    pe = {"slots": "99", "allocation_rule": "8", "control_slaves": "TRUE"}
    found = judge_environment("mpi", pe | changes, _job(**job), ["make", "mpi"])
    assert found.grade == grade
    assert told in _words(found)


def test_a_queue_for_large_jobs_is_not_for_small_ones():
    found = list(judge_queue("prod", {"prod": QueueFacts(name="prod", least_nodes=10)}, _job()))
    assert [each.grade for each in found] == ["ok", "ok", "fail"]
    assert "prod is for 10 nodes and more" in found[2].seen


def test_torque_is_told_apart():
    """It has `qsub --version` and no JSON."""
    commands = ScriptedCommands(
        *[CommandResult(0, "", "Version: 6.1.1")] * 4,
        CommandResult(2, "", "qstat: invalid option -- 'F'"),
    )
    looked = Pbs(commands).check(_job())
    assert "Version: 6.1.1" in next(looked).seen
    with pytest.raises(Exception, match=r"(?s)invalid option.*Torque.*is not supported"):
        next(looked)


def test_a_pbs_whose_answer_cannot_be_read_is_told():
    torn = ScriptedCommands(CommandResult(0, '{"Queue": {', ""))
    with pytest.raises(BatchError, match="PBS does not answer qstat in JSON: "):
        Pbs(torn).longest_job_s(Batch(partition="long"))


@pytest.mark.parametrize(
    ("server", "partition", "grades"),
    [
        ({"default_queue": "long", "job_history_enable": "True"}, None, "ok ok ok ok"),
        ({"default_queue": "long"}, None, "warn ok ok ok"),
        ({"default_queue": "gone"}, "long", "warn ok ok ok"),
        ({"default_queue": "gone"}, None, "warn fail"),
        ({}, None, "warn fail"),
    ],
)
def test_the_queue_of_pbs_that_a_job_goes_to(server: Any, partition: str | None, grades: str):
    queues = {"long": {"queue_type": "Execution", "enabled": "True", "started": "True"}}
    commands = ScriptedCommands(
        *[CommandResult(0, "pbs_version = 20.0.1", "")] * 4,
        CommandResult(0, json.dumps({"Server": {"front": server}}), ""),
        CommandResult(0, json.dumps({"Queue": queues}), ""),
    )
    _, *found = Pbs(commands).check(_job(partition=partition, nodes=1))
    assert [each.grade.value for each in found] == grades.split()
    if not (server or partition):
        assert "there is no default queue" in _words(found[-1])


@pytest.mark.parametrize(
    ("partition", "default", "told"),
    [
        (None, "Default Queues:  normal", ["normal takes no jobs: it is Closed"]),
        ("gone normal", "", ["there is no queue 'gone'", "normal takes no jobs"]),
        (None, "", ["there is no default queue Write `partition` under `batch`. Valid: normal."]),
    ],
)
def test_the_queues_of_lsf_that_a_job_may_go_to(
    partition: str | None, default: str, told: list[str]
):
    queues = LSF_STATUS.format(name="normal").replace("Open:Active", "Closed:Active")
    answers = [*["10.1"] * 5, queues, default]
    commands = ScriptedCommands(*(CommandResult(0, text, "") for text in answers))
    found = Lsf(commands).check(_job(partition=partition))
    failed = [_words(each) for each in found if each.grade == "fail"]
    assert len(failed) == len(told)
    assert all(words in seen for words, seen in zip(told, failed, strict=True))


def _job(**changes: Any) -> JobSpec:
    return job_spec(**{"nodes": 2, "cpus_per_node": 8, "time_limit_s": 3600.0, **changes})


def _words(found: Finding) -> str:
    return f"{found.seen} {found.advice}"
