"""Opening real leases in tests."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue

from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import LeaseSpec
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, SiteFolder, StepFolder
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.site import Role
from headrace.states import LeaseState
from headrace.steps import mailbox
from support.factories import step_spec
from support.waiting import wait_until

TESTS = Path(__file__).parent.parent
"""On the module path of workers, so that they can import `support.fleet_functions`."""

START_TIMEOUT_S = 180.0
"""More than a busy machine needs."""


def lease_spec(folder: LeaseFolder, role: Role, owner: ProcessIdentity | None = None) -> LeaseSpec:
    """A lease for tests: quick heartbeats, test functions importable."""
    return LeaseSpec(
        lease_id=folder.lease_id,
        key=f"demo/{folder.lease_id}",
        run_id="demo",
        role_name=role.kind,
        role=role,
        heartbeat_s=0.5,
        lost_after_s=15.0,
        owner=owner,
        code=(str(TESTS),),
    )


def start(
    site: Path, role: Role, *, lease_id: str = "demo-1", owner: ProcessIdentity | None = None
) -> LeaseFolder:
    """Start a lease, without waiting for its machines."""
    folder = SiteFolder(site).lease(lease_id)
    lease_client.start(folder, lease_spec(folder, role, owner))
    return folder


def opened(site: Path, role: Role, *, lease_id: str = "demo-1") -> LeaseFolder:
    """Start a lease and wait until it is ready."""
    folder = start(site, role, lease_id=lease_id)
    wait_for_state(folder, LeaseState.READY, START_TIMEOUT_S)
    return folder


def wait_for_state(folder: LeaseFolder, state: LeaseState, timeout_s: float) -> None:
    """Wait for a state; an end that was not waited for fails at once."""

    def seen() -> bool:
        now = LeaseFiles.read(folder).state(15.0)
        if now is not state and not now.is_active:
            raise AssertionError(
                f"Lease is {now}: {LeaseFiles.read(folder).why_ended}\n{folder.log.read_text()}"
            )
        return now is state

    wait_until(seen, timeout_s, f"the lease to be {state.value}")


def submit_look(
    lease: LeaseFolder, name: str = "look", nodes: int = 1, kind: str = "nodes", **more: JsonValue
) -> StepFolder:
    """Put a step that looks at nodes into the mailbox of a lease; `more` are further inputs."""
    run = SiteFolder(lease.path.parent.parent).run("demo")
    write_record(run.recipe, load_recipe("digits"))
    write_record(run.site, load_site("laptop"))
    inputs = {"nodes": nodes, **more}
    return mailbox.submit(lease, step_spec(run, name, kind=kind, inputs=inputs))
