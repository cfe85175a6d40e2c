"""A shell or another command on a node of a run's lease, or of a lease opened for it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import LeaseSpec
from headrace.errors import LeaseError, SiteError, UserError, nearest
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.recipe.backend import backend_of
from headrace.recipe.site import Role, Site
from headrace.recipe.teams import check_user
from headrace.recipe.unix_accounts import account
from headrace.runs.runs import Run, outputs_of
from headrace.site_secrets import HERE, secrets_for
from headrace.states import LeaseState

_POLL_S = 0.2


def lease_of(run: Run) -> LeaseFolder:
    """Return the newest gang of a run that is ready.

    Raises:
        UserError: The run has no gang, or no shell can be opened on its nodes.
    """
    rows = [row for row in open_ledger().leases(run_id=run.run_id) if row.state.is_active]
    for row in rows:
        folder = run.lease_folder(row.lease_id)
        spec = lease_client.spec(folder)
        is_ready = LeaseFiles.read(folder).state(spec.lost_after_s) is LeaseState.READY
        if spec.role.kind == "gang" and is_ready:
            check(spec.role, spec.role_name)
            return folder
    raise UserError(
        f"{run.run_id} holds no nodes of a gang just now",
        "They are there from stage to evaluate; --site opens a lease of its own.",
    )


@contextmanager
def lease_on(
    site: Site, role_name: str | None, lifetime_s: float, tick: Callable[[str], None]
) -> Iterator[LeaseFolder]:
    """Hold a node of a site while the block runs.

    Args:
        site: The site.
        role_name: One of its roles; by default its first gang, else its first role.
        lifetime_s: Longest time of the lease in seconds.
        tick: Called with what the lease waits for.

    Raises:
        AccessError: The site is not for this account.
        UserError: No shell can be opened on nodes of the role, or the role does not exist.
        LeaseError: The lease ended before it was ready.
    """
    check_user(site, account())
    name = role_name or next((n for n, r in site.roles.items() if r.kind == "gang"), "")
    name = name or next(iter(site.roles))
    if name not in site.roles:
        raise SiteError(f"Site {site.name} has no role '{name}'", nearest(name, site.roles))
    check(site.roles[name], name)
    root = SiteFolder(Path(site.folder).expanduser().absolute())
    folder = root.lease(f"shell-{name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}")
    spec = LeaseSpec.of_this_process(folder, site, name, _one_node(site.roles[name], lifetime_s))
    try:
        lease_client.start(folder, spec, partial(secrets_for, site, HERE))
        while (files := LeaseFiles.read(folder)).state() is LeaseState.STARTING:
            tick(files.wait().why or "its node is starting")
            time.sleep(_POLL_S)
        if files.state() is not LeaseState.READY:
            raise LeaseError(f"There is no node: {files.why_ended}", f"See {folder.log}.")
        yield folder
    finally:
        lease_client.end(folder, reason="its shell has ended")


def check(role: Role, name: str) -> None:
    """Refuse a role on whose nodes no shell can be opened.

    Raises:
        UserError: No shell can be opened on nodes of the role.
    """
    where = "a login node" if role.batch.login else role.backend
    if not backend_of(role.backend).opens_shells or role.batch.login:
        raise UserError(
            f"headrace shell works where leases are local or slurm and commands need no login "
            f"node; role {name} is on {where}",
            "`headrace lease show LEASE` names the job: enter its node by ssh, or run headrace "
            "shell on the login node itself.",
        )


def _one_node(role: Role, lifetime_s: float) -> Role:
    """Return the role as a gang of one node that is not ended for being idle."""
    times = {"lifetime": lifetime_s, "lifetime_max": None, "idle_stop": lifetime_s}
    shape = {"kind": "gang", "nodes": 1, "host": "control", "host_options": ()}
    return role.model_copy(update={**times, **shape, "node_lifetime": None})


def command_on(folder: LeaseFolder, words: Sequence[str], *, with_terminal: bool) -> list[str]:
    """Return the local command that runs a command on the first node of a lease.

    Args:
        folder: The lease, which is ready.
        words: The command; empty for the user's shell.
        with_terminal: Whether the command gets a terminal on another machine.
    """
    asked = list(words) or [os.environ.get("SHELL") or "/bin/sh"]
    info, batch = lease_client.info(folder), lease_client.spec(folder).role.batch
    if info is None or not info.job_ids:
        return asked
    config = ["env", f"SLURM_CONF={batch.config}"] if batch.config else []
    step = ["srun", f"--jobid={info.job_ids[0]}", "--overlap", "--nodes=1", "--ntasks=1"]
    return [*config, *step, *(["--pty"] if with_terminal else []), *asked]


def variables(run: Run | None, folder: LeaseFolder) -> dict[str, str]:
    """Return the environment of a command: variables of the run's scripts that are known."""
    found = {"HEADRACE_LEASE": folder.lease_id}
    if run is None:
        return found
    found["HEADRACE_RUN_FOLDER"] = str(run.folder.path)
    found["HEADRACE_CHECKPOINTS"] = str(run.folder.checkpoints)
    packed = outputs_of(run.run_id).get("pack", {})
    dataset = packed.get("dataset", run.recipe.dataset_path)
    return found | ({"HEADRACE_DATASET": str(dataset)} if dataset else {})
