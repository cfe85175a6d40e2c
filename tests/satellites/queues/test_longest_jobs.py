"""The longest job that PBS, Grid Engine and LSF give, out of what their commands answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.batch.commands import CommandResult
from headrace.recipe.batch import Batch
from headrace_queues.lsf import Lsf
from headrace_queues.pbs import Pbs
from headrace_queues.sge import Sge
from support.scripted_commands import ScriptedCommands

PBS_QUEUES: dict[str, dict[str, Any]] = {
    "quick": {
        "queue_type": "Execution",
        "Priority": 25,
        "from_route_only": "True",
        "resources_max": {"ngpus": 0, "walltime": "04:00:00"},
        "resources_min": {"ngpus": 1},
        "enabled": "True",
        "started": "True",
    },
    "long": {"queue_type": "Execution", "resources_max": {"walltime": "336:00:00"}},
    "free": {"queue_type": "Execution", "resources_max": {"ngpus": 0}},
    "auto": {"queue_type": "Route", "route_destinations": "quick,long"},
    "day": {
        "queue_type": "Route",
        "route_destinations": "long@desched1",
        "resources_max": {"walltime": "24:00:00"},
    },
    "circle": {"queue_type": "Route", "route_destinations": "circle,quick"},
}
"""Shaped as in `qstat -Q -f -F json` of PBS Professional 2021.1 and 2022.1 (University of
Manchester's and NCAR's queues in public repositories)."""

SGE_QUEUE = """\
qname                 {name}
hostlist              @allhosts
pe_list               make smp mpi-[48-9].mpi,[@himem=mpi-16]
s_rt                  INFINITY
h_rt                  {limit}
"""

LSF_QUEUE = """
QUEUE: {name}
  -- Any

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS
 30    0  Open:Active       -    -    -    -     0     0     0     0     0    0     0

{limits}
SCHEDULING POLICIES:  EXCLUSIVE
"""
LSF_RUN_LIMIT = "MAXIMUM LIMITS:\n RUNLIMIT\n {minutes} min of host1\n"


@pytest.mark.parametrize(
    ("partition", "of_server", "seconds"),
    [
        ("quick", {}, 4 * 3600.0),
        ("quick@desched1", {}, 4 * 3600.0),
        (None, {"default_queue": "long"}, 336 * 3600.0),
        ("free", {}, None),
        ("free", {"resources_max": {"walltime": "12:00:00"}}, 12 * 3600.0),
        ("quick", {"resources_max": {"walltime": "02:00:00"}}, 4 * 3600.0),
        ("auto", {}, 336 * 3600.0),
        ("day", {}, 24 * 3600.0),
        ("circle", {}, 4 * 3600.0),
        ("none", {}, None),
    ],
)
def test_of_pbs(partition: str | None, of_server: dict[str, Any], seconds: float | None):
    """The server's limit is for queues without one: pbs_server_attributes(7B)."""
    answers = [
        CommandResult(
            0, json.dumps({"pbs_version": "2022.1.5", "Server": {"desched1": of_server}}), ""
        ),
        CommandResult(0, json.dumps({"pbs_version": "2022.1.5", "Queue": PBS_QUEUES}), ""),
    ]
    commands = ScriptedCommands(*answers)
    assert Pbs(commands).longest_job_s(Batch(partition=partition)) == seconds
    assert len(commands.seen) == 2


@pytest.mark.parametrize(
    ("limits", "batch", "seconds"),
    [
        (["1:0:0", "48:00:00"], {"partition": "q1"}, 48 * 3600.0),
        (["1:0:0", "48:00:00"], {}, 48 * 3600.0),
        (["1:0:0", "INFINITY"], {}, None),
        (["48:00:00,[node4=INFINITY]"], {}, 48 * 3600.0),
        (["1:0:0"], {"parallel_environment": "mpi-16"}, 3600.0),
        (["1:0:0"], {"parallel_environment": "other"}, None),
        (["1:0:0", "2:0:0"], {"partition": "*@@gpu"}, 2 * 3600.0),
    ],
)
def test_of_grid_engine(limits: list[str], batch: dict[str, str], seconds: float | None):
    """A job that names no queue may run in any that has its parallel environment."""
    names = [f"q{index}" for index in range(len(limits))]
    told = {name: SGE_QUEUE.format(name=name, limit=limits[i]) for i, name in enumerate(names)}
    asked = [batch["partition"]] if batch.get("partition") in names else names
    answers = ["\n".join(names), *(told[name] for name in asked)]
    commands = ScriptedCommands(*(CommandResult(0, text, "") for text in answers))
    assert Sge(commands).longest_job_s(Batch.model_validate(batch)) == seconds
    assert [command[1:] for command in commands.seen] == [("-sql",), *(("-sq", n) for n in asked)]


@pytest.mark.parametrize(
    ("partition", "seconds"),
    [
        ("short", 3600.0),
        ("short long", 2880 * 60.0),
        ("short free", None),
        (None, 2880 * 60.0),
        ("none", None),
    ],
)
def test_of_lsf(partition: str | None, seconds: float | None):
    """Of several queues, LSF takes one that the job fits into: bsub, `-q`."""
    limits = {"short": "60.0", "long": "2880.0", "free": ""}
    told = "-----\n".join(
        LSF_QUEUE.format(name=name, limits=minutes and LSF_RUN_LIMIT.format(minutes=minutes))
        for name, minutes in limits.items()
    )
    answers = [told, "Default Queues:  short long\nMBD_SLEEP_TIME used for calculations:  10 s\n"]
    commands = ScriptedCommands(*(CommandResult(0, text, "") for text in answers))
    assert Lsf(commands).longest_job_s(Batch(partition=partition)) == seconds
