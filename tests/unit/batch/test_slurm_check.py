from __future__ import annotations

from typing import Any

import pytest

from headrace.batch.commands import CommandResult
from headrace.batch.findings import Finding
from headrace.batch.job_records import JobSpec
from headrace.batch.slurm import Slurm, is_lasting
from headrace.batch.slurm_queues import (
    Association,
    judge_account,
    judge_partition,
    of_partition,
    parse_association,
    parse_gpus,
    parse_limit,
    parse_nodes,
)
from headrace.errors import BatchError

NODES = [
    parse_nodes("cpu*|up|1-00:00:00|8|idle|64|257000|(null)|c[1-8]"),
    parse_nodes("gpu|up|2:00:00|3|mix|32|512000|gpu:a100:4(S:0-1)|g[1-3]"),
    parse_nodes("gpu|up|2:00:00|1|drain*|32|512000|gpu:a100:4|g4"),
    parse_nodes("gpu|up|2:00:00|1|down|32+|128000|gpu:v100:2|g5"),
    parse_nodes("old|down|infinite|1|idle|8|16000|(null)|o1"),
]
BOOKS = [parse_association("physics||normal,long"), parse_association("school|cpu|normal")]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2-00:00:00", 172800.0), ("2:00:00", 7200.0), ("30:00", 1800.0), ("infinite", None)],
)
def test_time_limits(text: str, seconds: float | None):
    assert parse_limit(text) == seconds


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("(null)", {}),
        ("gpu:2", {"": 2}),
        ("gpu:a100:4(S:0-1),nvme:1", {"a100": 4}),
        ("gpu:a100:4,gpu:v100:2", {"a100": 4, "v100": 2}),
    ],
)
def test_accelerators(text: str, gpus: dict[str, int]):
    assert parse_gpus(text) == gpus


@pytest.mark.parametrize(
    ("asked", "grade", "told"),
    [
        ({"partition": "cpu"}, "ok", "8 can give 4 CPUs"),
        ({"nodes": 9}, "fail", "8 of 9 with 4 CPUs"),
        ({"cpus_per_node": 128}, "fail", "others have 64 CPUs (c[1-8])"),
        ({"memory_per_node": 2**40}, "fail", "others have 251 GiB (c[1-8])"),
        ({"partition": "gpu", "gpus_per_node": 4}, "ok", "3 can give 4 CPUs, 4 GPUs"),
        ({"partition": "gpu", "gpus_per_node": 4, "nodes": 4}, "warn", "can be used: g4 drain*"),
        ({"partition": "gpu", "gpus_per_node": 8}, "fail", "others have 2 GPUs (g5) / 4 GPUs"),
        ({"partition": "gpu", "gpus_per_node": 1, "gpu_type": "h100"}, "fail", "0 h100 GPUs"),
    ],
)
def test_nodes(asked: dict[str, Any], grade: str, told: str):
    finding = _found(asked)["nodes"]
    assert finding.grade.value == grade
    assert told in finding.seen
    assert bool(finding.advice) == (grade != "ok")


def test_partitions():
    assert _found({})["partition"].seen == "cpu, 8 nodes"
    assert _found({"partition": "old"})["partition"].grade.value == "fail"
    missing = of_partition(NODES, "gpus")
    assert isinstance(missing, Finding)
    assert missing.advice == "Did you mean 'gpu'? Valid: cpu, gpu, old."
    nowhere = of_partition(NODES[1:], None)
    assert isinstance(nowhere, Finding)
    assert nowhere.seen == "there is no default partition"


def test_times():
    assert _found({"time_limit_s": 7200.0, "partition": "gpu"})["time"].seen == "2 h of 2 h"
    too_long = _found({"time_limit_s": 7260.0, "partition": "gpu"})["time"]
    assert "Lower `lifetime`" in too_long.advice
    assert _found({"time_limit_s": 9e9, "partition": "old"})["time"].grade.value == "ok"


@pytest.mark.parametrize(
    ("books", "asked", "grades", "told"),
    [
        ([], {"account": "any"}, "ok", "Slurm keeps no associations for you"),
        (BOOKS, {}, "ok ok", "your default one, of physics, school"),
        (BOOKS, {"account": "physic"}, "fail", "no association with 'physic'"),
        (BOOKS, {"account": "physics", "qos": "long"}, "ok ok", "long"),
        (BOOKS, {"account": "school", "qos": "long"}, "ok fail", "'long' is not allowed to you"),
        (BOOKS, {"account": "school", "partition": "gpu"}, "fail", "not for partition 'gpu'"),
    ],
)
def test_accounts(books: list[Association], asked: dict[str, Any], grades: str, told: str):
    found = list(judge_account(books, _job(asked)))
    assert " ".join(each.grade.value for each in found) == grades
    assert told in " ".join(each.seen for each in found)


def test_a_slurm_that_is_not_there_or_does_not_answer():
    class Nothing:
        def run(self, command: tuple[str, ...], text: str = "") -> CommandResult:
            raise BatchError(f"{command[0]} cannot be run: No such file or directory")

    class Silent:
        def run(self, command: tuple[str, ...], text: str = "") -> CommandResult:
            if "--version" in command:
                return CommandResult(0, "slurm 23.02.1\n", "")
            return CommandResult(
                1, "", "slurm_load_partitions: Unable to contact slurm controller\n"
            )

    missing = list(Slurm(Nothing()).check(_job({})))
    assert {each.grade.value for each in missing} == {"fail"}
    assert "sbatch cannot be run" in missing[0].seen
    looked = Slurm(Silent()).check(_job({}))
    assert next(looked).seen.endswith("slurm 23.02.1")
    with pytest.raises(BatchError, match=r"does not answer sinfo: Unable to contact"):
        next(looked)


@pytest.mark.parametrize(
    ("code", "words", "has_nodes_out", "is_refused"),
    [
        (0, "invalid partition", False, False),
        (None, "sbatch gave no answer", False, False),
        (1, "QOSMaxSubmitJobPerUserLimit, more than", False, False),
        (1, "invalid partition specified: nope", False, True),
        (1, "Unable to contact slurm controller", False, False),
        (1, "Requested node configuration is not available", False, True),
        (1, "Requested node configuration is not available", True, False),
    ],
)
def test_what_waiting_does_not_change(
    code: int | None, words: str, has_nodes_out: bool, is_refused: bool
):
    answer = CommandResult(code, "", f"sbatch: error: {words}")
    assert is_lasting(answer, lambda: has_nodes_out) is is_refused


@pytest.mark.parametrize(
    ("states", "is_refused"),
    [("idle~ idle# mixed", True), ("idle~ down~", False), ("idle%", True), ("idle*", False)],
)
def test_nodes_that_are_switched_off_to_save_power_are_not_out(states: str, is_refused: bool):
    class Cloud:
        def run(self, command: tuple[str, ...], text: str = "") -> CommandResult:
            if command[0] == "sinfo":
                return CommandResult(0, states.replace(" ", "\n"), "")
            return CommandResult(
                1, "", "sbatch: error: Requested node configuration is not available"
            )

    assert bool(Slurm(Cloud()).refusal(_job({}))) is is_refused


@pytest.mark.parametrize(
    ("failing", "grades"),
    [
        ("", "ok ok ok ok ok ok ok ok"),
        ("sacct", "ok warn ok ok ok ok ok ok"),
        ("sacctmgr", "ok ok ok ok ok warn ok"),
        ("env", "ok ok ok ok ok ok ok fail"),
    ],
)
def test_what_each_command_of_slurm_tells(failing: str, grades: str):
    class Answering:
        def run(self, command: tuple[str, ...], text: str = "") -> CommandResult:
            if command[0] == failing:
                return CommandResult(1, "", f"{failing}: error: no")
            told = {
                "sinfo": "cpu*|up|1-00:00:00|8|idle|64|257000|(null)|c[1-8]\n",
                "sacctmgr": "physics||normal\n",
            }
            return CommandResult(0, told.get(command[0], "x\n"), "")

    found = list(Slurm(Answering()).check(_job({})))
    assert " ".join(each.grade.value for each in found) == grades
    told = next((each for each in found if each.grade.value != "ok"), None)
    assert told is None or (told.seen.endswith("no") and told.advice)


def _found(asked: dict[str, Any]) -> dict[str, Finding]:
    nodes = of_partition(NODES, asked.get("partition"))
    assert isinstance(nodes, list)
    return {each.subject: each for each in judge_partition(nodes, _job(asked))}


def _job(asked: dict[str, Any]) -> JobSpec:
    given = {"name": "x", "command": ("true",), "nodes": 1, "cpus_per_node": 4}
    place = {"time_limit_s": 60.0, "folder": "/", "log": "/log"}
    return JobSpec(**{**given, **place, **asked})
