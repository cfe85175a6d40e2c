"""Three people of one Slurm: jobs as who asked, and nothing of theirs for the others.

The service account runs headrace as Airflow does, with the name of who triggered.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from support.people import People, people

__all__ = ["people"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm")]

_TRIGGERED = """
import json, sys
from headrace.errors import HeadraceError
from headrace.ledger.ledger import open_ledger
from headrace.execution.execute import execute
from headrace.runs.lifecycle import create_run
from headrace.runs.runs import RunRequest
from headrace.states import LeaseState

held = []

def hold():
    rows = open_ledger().leases(run_id=run.run_id)
    ready = [row for row in rows if (run.lease_folder(row.lease_id).info).exists()]
    if ready and not held:
        held.append(ready[0].lease_id)
        print(json.dumps([run.run_id, str(run.folder.path), ready[0].folder]), flush=True)
        sys.stdin.readline()

try:
    owner = "airflow:headrace_train:" + sys.argv[1]
    run = create_run(RunRequest(recipe="digits", site="group", user=sys.argv[1], key=owner,
                                owner=owner, overrides=("trainer.max_epochs=1",)))
    failed = execute(run, hold)
    sys.exit(0 if failed is None else str(failed.failure))
except HeadraceError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
"""What Airflow's tasks do for who triggers; waits for a line once the first lease is ready."""

_LISTED = "import os, sys; print([p for p, _, _ in os.walk(sys.argv[1])])"

_WRITES = """
import os, sys
for act in (lambda: open(sys.argv[1], "a"), lambda: os.unlink(sys.argv[1]),
            lambda: os.rename(os.path.dirname(sys.argv[1]), "/tmp/taken")):
    try:
        act()
        sys.exit("done")
    except PermissionError:
        pass
"""


_KNOCKS = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as plain:
    context.wrap_socket(plain).recv(1)
"""


@pytest.fixture(scope="module")
def group(people: People, digits_folder: Path) -> Iterator[People]:
    """The people, with site `group`: submits as who asks, folders apart."""
    site = people.folder / "site"
    site.mkdir(mode=0o711)
    svc = pwd.getpwnam(people.account("svc"))
    os.chown(site, svc.pw_uid, svc.pw_gid)
    site.chmod(0o711)
    shutil.copytree(digits_folder, people.folder / "digits")
    batch = {"interface": "lo", "poll": 0.5, "submit_as": "{user}"}
    role: dict[str, Any] = {"backend": "slurm", "lifetime": 600, "batch": batch}
    tier = {"name": "shm", "folder": f"/dev/shm/headrace-{people.mark}-{{user}}", "reserve": 0}
    content = {
        "folder": f"{site}/{{user}}",
        "accounts": {"ada@lab.org": people.account("ada"), "grace": people.account("grace"),
                     "mallory": people.account("mallory")},
        "roles": {"cpu": role | {"kind": "pool", "host": "job", "threads_per_node": 2},
                  "gpu": role | {"kind": "gang"}},
        "tiers": [tier],
        "secrets": {"TOKEN_OF_TEST": "env:TOKEN"},
        "allowed_sources": [str(people.folder / "digits")],
    }  # fmt: skip
    (people.folder / "group.yaml").write_text(yaml.safe_dump(content))
    yield people
    for folder in Path("/dev/shm").glob(f"headrace-{people.mark}-*"):
        shutil.rmtree(folder)


@contextmanager
def _triggered(people: People, user: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A run that the service account does for a user, at its first lease; what it told of that."""
    command = people.python("svc", _TRIGGERED, user)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            yield process, json.loads(line)
        finally:
            process.kill()


def test_jobs_run_as_who_triggered_and_nobody_else_reaches_them(
    group: People, no_leftover_processes: None
):
    """Ada by the service account; meanwhile grace packs in a terminal of hers; mallory tries."""
    ada, grace, svc = (group.account(name) for name in ("ada", "grace", "svc"))
    checked = group.headrace("svc", "site", "check", "--site", "group", "--user", "grace")
    assert checked.returncode == 0, checked
    assert f"shared with account {grace}" in checked.stdout
    own = subprocess.Popen(
        group.python(
            "grace",
            "import sys; from headrace.cli.app import main; sys.exit(main())",
            *("run", "digits", "--pack-only", "--site", "group"),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with own, _triggered(group, "ada@lab.org") as (process, (run_id, run_folder, lease)):
        queue = group.slurm.run("squeue", "--noheader", "--format=%i %u %j")
        jobs = [line.split() for line in queue.splitlines()]
        assert {user for _, user, _ in jobs} <= {ada, grace}
        of_ada = [job for job, user, name in jobs if user == ada and run_id in name]
        assert of_ada
        assert _owners_of(lease) == {ada}
        _nobody_else_reaches(group, run_folder, lease, of_ada[0])
        _ada_takes_nothing_of_the_service_account(group, run_folder, lease)
        _out, told = process.communicate("go on\n", timeout=300)
        assert process.returncode == 0, told
        output, _ = own.communicate(timeout=300)
    assert own.returncode == 0, output
    tier = Path(f"/dev/shm/headrace-{group.mark}-{grace}")
    assert (tier.owner(), tier.stat().st_mode & 0o077) == (grace, 0)
    unread = group.run(
        group.command("svc", "find", run_folder, lease, "-not", "-readable", "-not", "-name", ".*")
    )
    assert (unread.stdout, unread.stderr) == ("", "")
    assert list(Path(lease).glob("tls/*")) == []  # its key and secrets, of two accounts
    final = Path(run_folder) / "checkpoints" / "final.ckpt"
    assert final.owner() == ada
    books = group.slurm.run("sacct", "--noheader", "-X", "-P", "-a", f"-u{ada},{svc}", "-ouser")
    assert set(books.split()) == {ada}


def test_who_may_not_is_told_by_name(group: People):
    """Names that are no people, and one for whom sudo may do nothing."""
    refused = {
        "root": "account 'root' (uid 0) is none of a person",
        "mallory": f"sudoers must let this account run sbatch as {group.account('mallory')}",
    }
    for user, why in refused.items():
        ended = group.run(group.python("svc", _TRIGGERED, user))
        assert ended.returncode == 1
        assert why in ended.stderr
        assert "Traceback" not in ended.stderr
    assert group.slurm.queue() == []


def test_a_tier_that_somebody_else_has_made_is_not_used(group: People):
    planted = f"/dev/shm/headrace-{group.mark}-planted"
    group.run(group.command("mallory", "mkdir", "-m", "777", planted))
    look = "import pathlib, headrace.files.tiers as t; print(t.prepare(pathlib.Path({!r})))"
    found = group.run(group.python("grace", look.format(planted)))
    assert "belongs to another user" in found.stdout


def _owners_of(lease: str) -> set[str]:
    """Accounts of the processes of a lease, but for who looks after it."""
    found = set()
    for process in psutil.process_iter(["username", "environ", "cmdline"]):
        environment = process.info["environ"] or {}
        if lease in environment.values() and process.info["cmdline"]:
            found.add(process.info["username"])
    return found


def _nobody_else_reaches(group: People, run_folder: str, lease: str, job: str) -> None:
    for name in ("grace", "mallory"):
        for folder in (run_folder, lease, str(Path(run_folder).parent.parent)):
            listed = group.run(group.python(name, _LISTED, folder))
            assert listed.stdout.strip() == "[]"
        cancelled = group.run(group.command(name, "scancel", job))
        assert "denied" in cancelled.stderr
    run = ("cancel", Path(run_folder).name)
    for act in (run, ("resume", run[1]), ("lease", "close", Path(lease).name, "--site", "group")):
        told = group.headrace("mallory", *act)
        assert told.returncode, told
        assert "Traceback" not in told.stderr
        assert "There is no " in told.stderr, told
    address = json.loads((Path(lease) / "lease.json").read_text())["scheduler_address"]
    knocked = group.run(group.python("mallory", _KNOCKS, *address.rpartition("/")[2].split(":")))
    assert "CERTIFICATE_REQUIRED" in knocked.stderr


def _ada_takes_nothing_of_the_service_account(group: People, run_folder: str, lease: str) -> None:
    """What it submits and cancels by, she may read, and neither change nor replace."""
    for file in (f"{run_folder}/site.json", f"{lease}/spec.json"):
        tried = group.run(group.python("ada", _WRITES, file))
        assert (tried.returncode, tried.stderr) == (0, "")
    secret = f"/home/{group.account('svc')}/secret.jsonl"
    group.run(group.command("svc", "sh", "-c", f"echo password > {secret}; chmod 600 {secret}"))
    group.run(group.command("ada", "ln", "-s", secret, f"{run_folder}/eta.json"))
    told = group.headrace("svc", "status", Path(run_folder).name)
    assert "password" not in told.stdout + told.stderr
    assert "Traceback" not in told.stderr
    group.run(group.command("ada", "rm", f"{run_folder}/eta.json"))
