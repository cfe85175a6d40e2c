"""A site on paper: runs that train on leases of many nodes, of which only files and rows exist.

The files are those that real hosts and steps write, and their heartbeats go on.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import yaml

from headrace.clusters.lease_files import write_heartbeat
from headrace.clusters.lease_records import HostRecord, LeaseInfo, LeaseSpec
from headrace.clusters.node_marks import NodeLine
from headrace.errors import StepError
from headrace.examples.digits import export_digits
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.files.lines import append_line
from headrace.files.private import make_private
from headrace.leases import run_leases
from headrace.ledger.database import Database, default_url
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord, RunRecord
from headrace.processes.identity import ProcessIdentity
from headrace.runs.lifecycle import create_run, recorded
from headrace.runs.machine_records import record_machines
from headrace.runs.runs import Run, RunRequest, run_of_folder
from headrace.states import LeaseState, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import Progress, StepStatus
from support.factories import step_spec

SITE = "paper"
_ROLE = "gpu"
_BEAT_S = 2.0
_DAY_S = 86_400.0
_HOST = ProcessIdentity(host="node-of-a-cluster", pid=1, started_s=0.0)
"""Of another machine, as with each queue."""


def make_site(home: Path, num_leases: int, nodes: int) -> None:
    """Write a site whose batch system gives gangs of so many nodes, and samples to train on."""
    gang = {"backend": "slurm", "kind": "gang", "nodes": nodes, "ranks_per_node": 1}
    priced = {**gang, "price": {"usd_per_node_hour": 1}}
    site = {
        "folder": str(home),
        "roles": {"cpu": {**gang, "kind": "pool"}, _ROLE: priced},
        "tiers": [{"name": "disk", "folder": str(home / "cache")}],
        "limits": {"max_leases": num_leases + 1},
    }
    export_digits(home / "examples" / "digits")
    (home / "sites").mkdir()
    (home / "sites" / f"{SITE}.yaml").write_text(yaml.safe_dump(site))


def asked(kind: str, *overrides: str) -> Run:
    """A run as somebody asks for it under Airflow; it has no steps yet."""
    owner = f"airflow:headrace_{kind}:paper"
    given = {"recipe": "digits", "site": SITE, "overrides": overrides, "kind": kind}
    return create_run(RunRequest.model_validate({**given, "key": owner, "owner": owner}))


def training(like: Run, number: int) -> LeaseFolder:
    """One more run that trains on a lease of its own, whose nodes are all there."""
    run = _like(like, number)
    record = run_leases.recorded(run, _ROLE, f"{run.run_id}-{_ROLE}-1")
    open_ledger().add_lease(record, max_active=run.site.limits.max_leases)
    folder = run.lease_folder(record.lease_id)
    _write_lease(folder, run)
    run_leases.note_ready(run, record.lease_id)
    record_machines(record)
    spec = step_spec(run.folder, "train")
    step = mailbox.submit(folder, spec)
    write_record(step.status, _status())
    open_ledger().add_attempt(
        AttemptRecord(
            run_id=run.run_id,
            step=spec.name,
            attempt=1,
            kind=spec.kind,
            key=spec.key,
            lease_id=record.lease_id,
            number=step.number,
            state=StepState.RUNNING,
            created_at=time.time(),
        )
    )
    return folder


def _like(like: Run, number: int) -> Run:
    folder = like.site_folder.run(f"paper-{number:06d}")
    shutil.copytree(like.folder.path, folder.path)
    owner = f"airflow:headrace_train:{number}"
    write_record(folder.request, like.request.model_copy(update={"key": owner, "owner": owner}))
    run = run_of_folder(folder.run_id, folder)
    open_ledger().add_run(recorded(run, time.time()))
    return run


def _write_lease(folder: LeaseFolder, run: Run) -> None:
    role = run.site.roles[_ROLE]
    make_private(folder.path)
    write_record(
        folder.spec,
        LeaseSpec(
            lease_id=folder.lease_id,
            key=f"{run.run_id}/{_ROLE}",
            run_id=run.run_id,
            role_name=_ROLE,
            role=role,
        ),
    )
    write_heartbeat(folder)
    write_record(folder.host, HostRecord(process=_HOST))
    for node in range(role.nodes):
        for event in ("began", "joined"):
            line = NodeLine.model_validate({"event": event, "name": f"node-{node}"})
            append_line(folder.nodes, line.model_dump_json())
    write_record(
        folder.info,
        LeaseInfo(
            lease_id=folder.lease_id,
            backend=role.backend,
            job_ids=("1",),
            host=_HOST,
            scheduler_address="tls://192.0.2.1:8786",
            dashboard_url="",
            nodes=role.nodes,
            ready_at=time.time(),
        ),
    )


def _status() -> StepStatus:
    return StepStatus(
        state=StepState.RUNNING,
        progress=Progress(done=40, total=100, unit="steps", phase="epoch 4/10"),
        rate=1.0,
        eta_s=60.0,
        elapsed_s=40.0,
        metrics={"loss": 0.5, "samples_per_s": 1000.0, "data_wait": 0.01},
    )


def enter_ended(like: Run, num_runs: int, num_days: int = 90) -> None:
    """Enter runs that have ended, of the last days, with a lease each; their folders are gone."""
    runs, ended, now = [], [], time.time()
    for number in range(num_runs):
        at = now - (number + 1) / num_runs * num_days * _DAY_S
        run_id = f"ended-{number:06d}"
        run = replace(recorded(like, at), run_id=run_id, key=run_id, folder=f"/nowhere/{run_id}")
        runs.append(replace(run, state=StepState.SUCCEEDED, finished_at=at + 1))
        lease = run_leases.recorded(like, _ROLE, f"{run_id}-{_ROLE}-1")
        lease = replace(lease, run_id=run_id, key=f"{run_id}/{_ROLE}", created_at=at)
        ended.append(replace(lease, state=LeaseState.CLOSED, ended_at=at + 1))
    database = Database(default_url())
    with database.write("runs") as session:
        database.put(session, RunRecord.__table__, [asdict(row) for row in runs])
        database.put(session, LeaseRecord.__table__, [asdict(row) for row in ended])


@contextmanager
def beating(site: SiteFolder) -> Iterator[None]:
    """Have a process write the heartbeats of a site's leases, each every two seconds."""
    program = f"from benchmarks.paper_site import beat; beat({str(site.path)!r})"
    command = [
        sys.executable,
        "-m",
        "headrace.processes",
        "--",
        sys.executable,
        "-c",
        program,
    ]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        try:
            if process.stdout is None or not process.stdout.readline():
                raise StepError("The process that writes heartbeats has ended")
            yield
        finally:
            process.terminate()


def beat(site: str) -> None:
    """Write the heartbeats of all leases of a site for ever, and tell when each has one."""
    folders = [LeaseFolder(path) for path in SiteFolder(Path(site)).leases.iterdir()]
    for beats in itertools.count():
        began = time.monotonic()
        for folder in folders:
            write_heartbeat(folder)
        if not beats:
            print("beating", flush=True)
        time.sleep(max(began + _BEAT_S - time.monotonic(), 0.0))
