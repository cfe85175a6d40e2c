"""What kept nodes from coming is told in words that do not differ from node to node."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.clusters.preflight import (
    Check,
    NodeReport,
    Symptom,
    report_file,
    symptom_of,
    telling_lines,
)
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder

_SLURM = """\
slurmstepd-node2: error: execve(): /nope/bin/python: No such file or directory
slurmstepd-node1: error: execve(): /nope/bin/python: No such file or directory
srun: error: node2: task 1: Exited with exit code 2
slurmstepd-node1: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-11-22T06:39:00 ***
/tmp/spool/node1/job00001/slurm_script: line 19: kill: (15096) - No such process
"""


@pytest.fixture
def lease(tmp_path: Path) -> LeaseFolder:
    folder = SiteFolder(tmp_path).lease("demo-gpu-1")
    folder.path.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (_SLURM, ["execve(): /nope/bin/python: No such file or directory"] * 2),
        (
            "/var/spool/pbs/7.SC: line 12: /nope/python: No such file or directory\n",
            ["/nope/python: No such file or directory"],
        ),
        (
            "/nope/python: Error: No module named headrace\n",
            ["/nope/python: Error: No module named headrace"],
        ),
        (
            "2026 ERROR headrace Pre-flight of node 3, node1: container: it ended with code 1: "
            "ch-run[17378]: error: can't stat: /nope/image: No such file or directory (x.c:255 2)",
            ["can't stat: /nope/image: No such file or directory (x.c:255 2)"],
        ),
        ("srun: error: node2: task 1: Exited with exit code 2\n", []),
        ("", []),
    ],
)
def test_lines_of_a_log_that_tell_what_is_missing(log: str, expected: list[str]) -> None:
    assert telling_lines(log) == expected


def test_a_job_whose_command_is_missing_tells_so_on_each_node(lease: LeaseFolder) -> None:
    lease.log.write_text(_SLURM)
    words = "execve(): /nope/bin/python: No such file or directory"
    assert symptom_of(lease) == Symptom(words=words, num_nodes=2)


@pytest.mark.parametrize("name", ["host", "info"])
def test_what_a_host_has_logged_is_no_symptom(lease: LeaseFolder, name: str) -> None:
    lease.log.write_text(_SLURM)
    write_text(getattr(lease, name), "{}")
    assert symptom_of(lease) is None


def report(lease: LeaseFolder, index: int, check: str, problem: str) -> None:
    seen = Check(name=check, problem=problem, seconds=0.1)
    write_record(
        report_file(lease, index), NodeReport(node=f"node{index}", index=index, checks=(seen,))
    )


def test_the_same_image_missing_on_two_nodes_is_one_symptom(lease: LeaseFolder) -> None:
    write_text(lease.host, "{}")
    for index in (0, 1):
        report(lease, index, "container", f"it ended with code 1: ch-run[{index}7]: no image")
    words = "container: it ended with code 1: ch-run: no image"
    assert symptom_of(lease) == Symptom(words=words, num_nodes=2)


def test_what_is_a_nodes_own_is_no_symptom(lease: LeaseFolder) -> None:
    """Two nodes without their GPUs are two bad nodes."""
    for index in (0, 1):
        report(lease, index, "GPUs", "nvidia-smi shows 1 of 2")
    assert symptom_of(lease) is None
