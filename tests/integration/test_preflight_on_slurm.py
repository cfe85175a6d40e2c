"""Nodes of a real Slurm check themselves first; a site's mistakes are named."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.clusters import lease_client, lease_machines, preflight
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import BadNodes, LeaseSpec
from headrace.errors import JobRefusedError
from headrace.execution.execute import execute
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.recipe.site import Role, Tier
from headrace.runs.runs import Run
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.lease import bad_nodes
from headrace.status.run_details import run_details
from headrace.steps import mailbox
from headrace_probes.probe_records import ProbeRecord
from support import container_image
from support.command_line import headrace
from support.container_image import why_not
from support.factories import built_in, write_recipe, write_site
from support.leases import START_TIMEOUT_S, lease_spec, opened, submit_look, wait_for_state
from support.runs import make_run
from support.slurm_dev import LEAVING_S, DevSlurm
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

NVIDIA_SMI = """\
#!/bin/sh
echo "GPU 0: Fake (UUID: GPU-0)"
[ "$SLURMD_NODENAME" = node2 ] || echo "GPU 1: Fake (UUID: GPU-1)"
"""


def test_a_bad_node_is_named_with_the_reason(tmp_path: Path, slurm: DevSlurm):
    """pains 34: which node is said, and the next lease can avoid it."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    role = _gang(gpus_per_node=2, prologue=[f"export PATH={program.parent}:$PATH"])
    folder = SiteFolder(tmp_path).lease("bad-1")
    lease_client.start(folder, _spec(folder, role))
    wait_for_state(folder, LeaseState.FAILED, START_TIMEOUT_S)
    told = LeaseFiles.read(folder).why_ended
    assert "found 1 bad node: node2: GPUs: nvidia-smi shows 1 of 2" in told
    bad = read_record(folder.bad_nodes, BadNodes)
    assert bad.nodes == ("node2",)
    lease_client.end(folder)


@pytest.mark.parametrize("runtime", container_image.RUNTIMES)
def test_workers_run_in_the_container_and_the_host_outside(
    tmp_path: Path, slurm: DevSlurm, runtime: str, no_leftover_processes: None
):
    """pains 38: the control plane is outside, where Slurm's commands are."""
    role = _gang(container=container_image.made(tmp_path, runtime), preflight="full")
    folder = _works_inside(tmp_path, role, timeout_s=1)
    looked = [each.name for report in preflight.reports(folder) for each in report.checks]
    assert looked == ["GPUs", "tiers", "locks", "container", "all-reduce"] * 2
    _check_that_a_probe_measures_inside(folder, runtime)
    lease_client.end(folder)
    assert LeaseFiles.read(folder).state(0) is LeaseState.CLOSED


def _check_that_a_probe_measures_inside(lease: LeaseFolder, runtime: str) -> None:
    """On both nodes together, from inside the container; its start from outside."""
    options = {"only": ["network", "container"], "quick": True}
    step = submit_look(lease, nodes=2, kind="probe", options=options)
    wait_until(lambda: mailbox.outcome(step), START_TIMEOUT_S, "the probe to end")
    result = mailbox.outcome(step)
    assert result.state is StepState.SUCCEEDED, result.failure
    record = read_record(Path(str(result.outputs["probe"])), ProbeRecord)
    assert record.container.startswith(f"{runtime} ")
    assert [node["name"] for node in record.nodes] == ["node-0", "node-1"]
    found = {each.name: each for each in record.findings.measurements}
    assert found["all-reduce by gloo, 8 B"].settings == "2 ranks"
    for name in ("python -c pass", "import torch"):
        assert len(found[f"{name}, bare"].values) == len(found[f"{name}, {runtime}"].values) == 3


@pytest.mark.parametrize("runtime", container_image.RUNTIMES)
def test_nodes_of_a_pool_run_in_the_container(
    tmp_path: Path, slurm: DevSlurm, runtime: str, no_leftover_processes: None
):
    """pains 38: each looks at the container first, from outside."""
    container = container_image.made(tmp_path, runtime)
    role = _gang(nodes=1, container=container).model_copy(update={"kind": "pool"})
    folder = _works_inside(tmp_path, role, timeout_s=START_TIMEOUT_S)
    (report,) = preflight.reports(folder)
    assert [each.name for each in report.checks] == ["GPUs", "tiers", "locks", "container"]
    lease_client.end(folder)
    assert LeaseFiles.read(folder).state(0) is LeaseState.CLOSED


def _works_inside(site: Path, role: Role, timeout_s: float) -> LeaseFolder:
    """Open a lease, and see that all its workers are in the container, which this process is not.

    Args:
        site: The site's folder.
        role: Its machines.
        timeout_s: Longest wait for nodes once it is ready.
    """
    folder = SiteFolder(site).lease("contained-1")
    lease_client.start(folder, _spec(folder, role))
    wait_for_state(folder, LeaseState.READY, START_TIMEOUT_S)
    assert not Path(container_image.MARK).exists()
    with Fleet.open(folder) as fleet:
        for node in fleet.nodes(role.nodes, timeout_s):
            assert fleet.call(node, os.path.exists, container_image.MARK)
            assert fleet.call(node, os.getenv, "COLOUR") == "inside"
            assert fleet.call(node, os.getenv, "HEADRACE_LEASE_ID") == "contained-1"
    return folder


def test_a_container_that_does_not_start_is_told(tmp_path: Path, slurm: DevSlurm):
    missing = {"runtime": "charliecloud", "image": str(tmp_path / "nope"), "python": sys.executable}
    folder = SiteFolder(tmp_path).lease("missing-1")
    lease_client.start(folder, _spec(folder, _gang(nodes=1, container=missing)))
    wait_for_state(folder, LeaseState.FAILED, START_TIMEOUT_S)
    assert "container: it ended with code 1: ch-run" in LeaseFiles.read(folder).why_ended
    lease_client.end(folder)


def _gang(nodes: int = 2, **batch: Any) -> Role:
    return Role(
        backend="slurm",
        kind="gang",
        nodes=nodes,
        lifetime=600,
        batch={"interface": "lo", "poll": 0.2, **batch},
    )


def _spec(folder: LeaseFolder, role: Role) -> LeaseSpec:
    tier = Tier(name="disk", folder=str(folder.path.parent.parent / "cache"))
    return lease_spec(folder, role).model_copy(update={"tiers": (tier,)})


_GANG: dict[str, Any] = {"backend": "slurm", "kind": "gang", "lifetime": 600}
_BATCH: dict[str, Any] = {"interface": "lo", "poll": 0.2}


@pytest.fixture
def home(headrace_home: Path, slurm: DevSlurm, digits_folder: Path) -> Iterator[Path]:
    """A home with recipe `digits` of little data, which packs on a gang like it trains."""
    write_recipe(headrace_home, "small", dataset={"source": str(digits_folder)})
    yield headrace_home
    slurm.heal()


def run_on(home: Path, role: str, **batch: Any) -> Run:
    """A run on a site whose role has such a `batch`.

    Args:
        home: The site's folder.
        role: The role.
        batch: What is wrong with it.
    """
    roles = built_in("sites", "slurm-dev")["roles"]
    for each in roles.values():
        each["batch"] = {key: value for key, value in each["batch"].items() if key != "config"}
        each["batch"]["poll"] = 0.3
    roles["cpu"] |= {"kind": "gang", "nodes": 1}
    roles[role]["batch"] |= batch
    open_to_all = {"folder": str(home), "allowed_sources": ["/"]}
    write_site(home, "wrong", like="slurm-dev", roles=roles, **open_to_all)
    return make_run(recipe="small", site="wrong")


def failed_attempts(run: Run) -> tuple[AttemptRecord, ...]:
    assert execute(run, lambda: None) is not None
    return open_ledger().attempts(run.run_id)


def assert_no_node_is_blamed(run: Run) -> None:
    assert bad_nodes(run, open_ledger().leases(run_id=run.run_id)) == ()


def test_a_python_that_is_not_there_is_told_after_two_jobs(home: Path):
    run = run_on(home, "cpu", python="/nope/python")
    first, second = failed_attempts(run)
    missing = "execve(): /nope/python: No such file or directory"
    assert missing in first.message
    assert second.failure_class is FailureClass.USER_ERROR
    assert second.message.startswith(missing)
    assert "no node is at fault" in second.message
    assert run_details(run.run_id).state is StepState.FAILED
    assert_no_node_is_blamed(run)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_an_image_that_is_not_there_is_told_after_two_jobs(home: Path):
    container = {"runtime": "charliecloud", "image": "/nope/image", "python": "/usr/bin/python3"}
    run = run_on(home, "cpu", container=container)
    first, second = failed_attempts(run)
    assert first.failure_class is not FailureClass.USER_ERROR  # it may have been that node
    assert second.failure_class is FailureClass.USER_ERROR
    assert "can't stat: /nope/image: No such file or directory" in second.message
    assert_no_node_is_blamed(run)


def test_a_role_of_a_later_step_that_is_refused_is_told_before_anything_is_packed(home: Path):
    run = run_on(home, "gpu", partition="nope")
    with pytest.raises(JobRefusedError, match=r"role gpu can never start.*nope"):
        execute(run, lambda: None)
    (lease,) = open_ledger().leases(run_id=run.run_id)
    assert lease.state is LeaseState.FAILED
    assert "invalid partition specified: nope" in lease.why_ended
    assert open_ledger().attempts(run.run_id) == ()
    assert "invalid partition specified: nope" in run_details(run.run_id).why
    for command in (["status", run.run_id], ["runs"]):
        shown = headrace(*command).output
        assert "The jobs of role gpu can never start" in shown, command


def test_nodes_that_are_down_for_now_are_no_refusal(home: Path, slurm: DevSlurm):
    run = run_on(home, "gpu")
    spec = lease_spec(SiteFolder(home).lease("asked-1"), run.site.roles["gpu"])
    for node in slurm.shape.node_names:
        slurm.set_node(node, "drain")
    assert lease_machines.refusal(SiteFolder(home).lease("asked-1"), spec) == ""


def _job_id(folder: LeaseFolder) -> str:
    spec = lease_client.spec(folder)
    return lease_machines.find_job(folder, spec).split()[-1]


def test_an_option_with_spaces_reaches_slurm_whole(tmp_path: Path, slurm: DevSlurm):
    role = Role(**_GANG, batch={**_BATCH, "options": ("--comment=two words",)})
    folder = SiteFolder(tmp_path).lease("spaced-1")
    lease_client.start(folder, lease_spec(folder, role))
    job_id = _job_id(folder)
    told = slurm.run("squeue", "--noheader", f"--jobs={job_id}", "--Format=comment:50")
    assert told.strip() == "two words"
    lease_client.end(folder)


def test_who_cancelled_a_job_is_told_in_place_of_the_signal(tmp_path: Path, slurm: DevSlurm):
    folder = opened(tmp_path, Role(**_GANG, batch=_BATCH), lease_id="cancelled-1")
    slurm.run("scancel", _job_id(folder))
    wait_for_state(folder, LeaseState.CLOSED, LEAVING_S)
    cause = wait_until(lambda: lease_client.cause(folder), LEAVING_S, "the cause", poll_s=0.5)
    assert "ended: cancelled" in cause.why
    assert LeaseFiles.read(folder).why_ended == cause.why
    assert "SIGTERM" not in LeaseFiles.read(folder).why_ended
    lease_client.end(folder)
