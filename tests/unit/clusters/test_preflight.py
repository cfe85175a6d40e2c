from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from headrace.clusters import preflight
from headrace.clusters.lease_records import BadNodes, Ending, LeaseSpec
from headrace.clusters.preflight import (
    Check,
    NodeReport,
    Symptom,
    report_file,
    symptom_of,
    telling_lines,
)
from headrace.errors import LeaseError
from headrace.files.atomic import read_record, write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.files.locks import locked
from headrace.recipe.site import Role, Tier
from headrace.states import LeaseState
from support.factories import demo_lease


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    made = SiteFolder(tmp_path).lease("demo-1")
    made.path.mkdir(parents=True)
    return made


def test_a_good_node(folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("PATH", "")
    handle = locked(folder.lock)
    report = preflight.examine(folder, _spec(folder, gpus_per_node=2), 1)
    assert (report.node, report.problems) == ("node7", ())
    assert preflight.reports(folder) == (report,)
    preflight.require_good(folder, [report])
    assert not folder.bad_nodes.exists()
    assert handle


def test_what_is_wrong_with_a_node_is_told(folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch):
    """pains 25: locks that do not hold between nodes are found before they do harm."""
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (folder.path.parent.parent / "cache").write_text("a file where a folder should be")
    report = preflight.examine(folder, _spec(folder, gpus_per_node=2), 1)
    gpu, tier, lock = report.problems
    assert gpu == "GPUs: the job was given 1 of 2"
    assert tier.startswith("tiers: disk: ")
    assert lock.endswith("does not hold here")
    with pytest.raises(LeaseError, match=r"found 1 bad node: node7: GPUs: the job was given 1 of"):
        preflight.require_good(folder, preflight.reports(folder))
    bad = read_record(folder.bad_nodes, BadNodes)
    assert bad.nodes == ("node7",)


@pytest.mark.parametrize(("other", "is_bad"), [(0, True), (None, False)])
def test_a_tier_without_room_is_bad_only_when_no_other_has_any(
    folder: LeaseFolder, other: int | None, is_bad: bool
):
    tiers = tuple(
        Tier(name=f"t{budget}", folder=str(folder.path / f"t{budget}"), budget=budget, reserve=0)
        for budget in (0, other)
    )
    spec = _spec(folder).model_copy(update={"tiers": tiers})
    (problem,) = (each.problem for each in preflight.examine(folder, spec, 0).checks[1:2])
    assert problem.startswith("t0: ") == problem.endswith(" has no room") == is_bad


def test_what_was_reported_before_is_not_read_again(folder: LeaseFolder):
    """A thousand files on a slow file system; and it is listed less and less often."""
    write_record(preflight.report_file(folder, 0), _report())
    known = preflight.reports(folder)
    preflight.report_file(folder, 0).write_text("not a report")
    write_record(preflight.report_file(folder, 1), _report().model_copy(update={"index": 1}))
    assert [each.index for each in preflight.reports(folder, known)] == [0, 1]
    pauses_s = list(islice(preflight.pauses_s(), 20))
    assert pauses_s == sorted(pauses_s)
    assert (pauses_s[0], pauses_s[-1]) == (0.1, 2.0)


def test_nothing_is_looked_at_where_the_site_says_so(folder: LeaseFolder):
    report = preflight.examine(folder, _spec(folder, gpus_per_node=99, preflight="off"), 1)
    assert report.checks == ()


@pytest.mark.parametrize("has_ended", [True, False])
def test_nodes_add_up_together_when_all_of_them_are_good(
    folder: LeaseFolder, has_ended: bool, monkeypatch: pytest.MonkeyPatch
):
    """The other node never comes when it is bad: the host then closes the lease."""
    monkeypatch.setattr(preflight, "_all_reduce", lambda *_: "")
    if has_ended:
        write_text(folder.close, "")
    else:
        write_text(folder.preflight / "1.ready", "")
    spec = _spec(folder, preflight="full").model_copy()
    spec = spec.model_copy(update={"role": spec.role.model_copy(update={"nodes": 2})})
    report = preflight.examine(folder, spec, 0)
    names = ["GPUs", "tiers", "locks", "container", *([] if has_ended else ["all-reduce"])]
    assert [each.name for each in report.checks] == names
    assert (folder.preflight / "0.ready").exists()


@pytest.mark.parametrize(
    ("skew_s", "told"),
    [(0.2, ""), (7.0, "7 s behind that of"), (-65.0, "65 s ahead of that of the first node")],
)
def test_clocks(skew_s: float, told: str):
    clock = preflight.skewed(_report(), skew_s).checks[-1]
    assert clock.name == "clock"
    assert told in clock.problem
    assert bool(told) == bool(clock.problem)


def test_a_failed_all_reduce_blames_no_node(folder: LeaseFolder):
    together = Check(name="all-reduce", problem="timed out", blames_node=False, seconds=1.0)
    with pytest.raises(LeaseError, match="node1: all-reduce: timed out"):
        preflight.require_good(folder, [_report(together)])
    assert not folder.bad_nodes.exists()


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"ROCR_VISIBLE_DEVICES": "GPU-a"}, 1),
        ({}, None),
    ],
)
def test_gpus_that_the_job_was_given(environment: dict[str, str], count: int | None):
    assert preflight.given_gpus(environment) == count


def test_gpus_that_nobody_gave_and_no_device_shows(monkeypatch: pytest.MonkeyPatch):
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    assert preflight.missing_gpus(0) == ""
    assert "of 99 have a device file" in preflight.missing_gpus(99)


def test_gpus_that_nvidia_smi_lists():
    assert preflight.listed_gpus("GPU 0: A (UUID: x)\n  MIG 1g\nGPU 1: A (UUID: y)\n") == 2


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'GPU 0: A'; echo 'GPU 1: A'", ""),
        ("echo 'GPU 0: A'", "nvidia-smi shows 1 of 2"),
        ("echo broken >&2; exit 9", "nvidia-smi ended with code 9: broken"),
    ],
)
def test_gpus_that_nvidia_smi_is_asked_for(
    script: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert preflight.missing_gpus(2) == told


def _report(*checks: Check) -> NodeReport:
    return NodeReport(node="node1", index=0, checks=checks)


def _spec(folder: LeaseFolder, **batch: object) -> LeaseSpec:
    role = Role.model_validate({"backend": "slurm", "kind": "gang", "batch": batch})
    tier = Tier(name="disk", folder=str(folder.path.parent.parent / "cache"))
    return demo_lease(folder.lease_id, role=role, tiers=(tier,))


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
        (
            'Lmod has detected the following error: The following module(s) are unknown:\n"a/1"\n',
            ['The following module(s) are unknown: "a/1"'],
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


def test_a_service_that_does_not_start_is_a_symptom_at_whatever_port(lease: LeaseFolder) -> None:
    write_text(lease.host, "{}")
    what = "Service 'db' accepts no connection after 60 s"
    reason = f"{what}, at port 40123 of 127.0.0.1\n  See db.log:\nmore"
    write_record(lease.closed, Ending(state=LeaseState.FAILED, reason=reason))
    assert symptom_of(lease) == Symptom(words=what, num_nodes=1)


def test_what_is_a_nodes_own_is_no_symptom(lease: LeaseFolder) -> None:
    """Two nodes without their GPUs are two bad nodes."""
    for index in (0, 1):
        report(lease, index, "GPUs", "nvidia-smi shows 1 of 2")
    assert symptom_of(lease) is None
