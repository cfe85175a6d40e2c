"""`headrace shell` on real leases: of a run on this machine, and of its own on Slurm."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, STDOUT

import psutil
import pytest
import yaml

from headrace.clusters import notebook as notebooks
from headrace.clusters.lease_files import LeaseFiles
from headrace.errors import UserError
from headrace.leases import run_leases
from headrace.states import LeaseState
from support.command_line import headrace
from support.factories import write_site
from support.leases import START_TIMEOUT_S, wait_for_state
from support.runs import make_run
from support.slurm_dev import LEAVING_S, DevSlurm
from support.terminal import HEADRACE, typed
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]


def test_a_shell_in_a_runs_lease_has_its_folders_and_leaves_it_open(
    headrace_home: Path, no_leftover_processes: None
) -> None:
    run = make_run()
    with pytest.raises(UserError, match="holds no nodes of a gang just now"):
        headrace("shell", run.run_id)
    lease_id = run_leases.acquire(run, "gpu")
    folder = run.lease_folder(lease_id)
    try:
        wait_for_state(folder, LeaseState.READY, START_TIMEOUT_S)
        words = ["sh", "-c", "echo $HEADRACE_CHECKPOINTS $HEADRACE_LEASE; read x; exit $x"]
        done = typed([HEADRACE, "shell", run.run_id, "--", *words], [(lease_id, "3")], 60)
        assert (done.exit_code, done.output.split()[:2]) == (
            3, [str(run.folder.checkpoints), lease_id],
        ), done.output  # fmt: skip
        assert LeaseFiles.read(folder).state(20) is LeaseState.READY
        with pytest.raises(UserError, match="no-such-program cannot be run: No such file"):
            headrace("shell", run.run_id, "--", "no-such-program")
    finally:
        run_leases.release(run, "gpu", "the test has ended")


def test_a_shell_on_slurm_is_a_step_of_a_job_of_its_own(
    headrace_home: Path, slurm: DevSlurm, no_leftover_processes: None
) -> None:
    write_site(headrace_home, "quick", like="slurm-dev")
    ask = "echo job=$SLURM_JOB_ID lease=$HEADRACE_LEASE; tty; read code; exit $code"
    command = [HEADRACE, "shell", "--site", "quick", "--role", "gpu", "--", "/bin/sh", "-c", ask]
    done = typed(command, [("/dev/pts/", "5")], START_TIMEOUT_S)
    assert done.exit_code == 5, done.output
    assert "lease=shell-gpu-" in done.output
    (job_id,) = re.findall(r"job=(\d+)", done.output)
    wait_until(lambda: job_id not in slurm.queue(), LEAVING_S, "the job to end", poll_s=0.5)
    state = slurm.run("sacct", "-n", "-X", "-j", job_id, "--format=state%20").strip()
    assert state.startswith(("CANCELLED", "COMPLETED")), state
    shown = headrace("lease", "list", "--site", "quick", "--all").output
    assert "its shell has ended" in shown
    assert headrace("lease", "list", "--site", "quick").output.startswith("No open leases")


@contextmanager
def notebook(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A `headrace shell --notebook` that is ready, and its address."""
    with subprocess.Popen(
        [HEADRACE, "shell", "--notebook", *words], stdout=PIPE, stderr=STDOUT, text=True
    ) as client:
        try:
            lines = [line.strip() for line in iter(client.stdout.readline, "Ctrl-C ends it.\n")]
            assert lines, client.stdout.read()
            yield client, lines[-1]
        finally:
            client.kill()


def answer(url: str) -> int:
    try:
        with urllib.request.urlopen(url.replace("/?", "/api/contents?"), timeout=30) as page:
            return int(page.status)
    except urllib.error.HTTPError as error:
        return error.code


def servers(variable: str, value: str) -> list[psutil.Process]:
    """Jupyter servers with a variable of their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_server = "jupyter_server" in process.cmdline()
            if is_server and process.environ().get(variable) == value:
                found.append(process)
    return found


@pytest.mark.parametrize("place", [("gone",), ("--site", "gone")])
def test_a_notebook_with_a_command_is_refused_before_a_lease(place: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="--notebook starts Jupyter, not 'ls'"):
        headrace("shell", "--notebook", *place, "--", "ls")


def test_a_notebook_in_a_runs_lease_ends_with_its_client_and_leaves_the_lease_open(
    headrace_home: Path, no_leftover_processes: None
) -> None:
    """Nothing but a socket of the account is opened for it, and the relays ask for the key."""
    run = make_run()
    lease_id = run_leases.acquire(run, "gpu")
    folder, of_lease = run.lease_folder(lease_id), ("HEADRACE_LEASE", lease_id)
    try:
        wait_for_state(folder, LeaseState.READY, START_TIMEOUT_S)
        with notebook(run.run_id) as (client, url):
            (server,) = servers(*of_lease)
            assert server.environ()["HEADRACE_CHECKPOINTS"] == str(run.folder.checkpoints)
            assert (answer(url), answer(url.partition("?")[0] + "?")) == (200, 403)
            assert not [each for each in server.net_connections() if each.status == "LISTEN"]
            assert url.partition("=")[2] not in " ".join(server.cmdline())
            client.send_signal(signal.SIGINT)
            assert client.wait(START_TIMEOUT_S) == 0
            wait_until(lambda: not server.is_running(), START_TIMEOUT_S, "the server to end")
        assert LeaseFiles.read(folder).state(20) is LeaseState.READY
        with notebook(run.run_id) as (client, _):
            run_leases.release(run, "gpu", "the test has ended")
            assert client.wait(START_TIMEOUT_S) != 0
            assert "has ended" in client.stdout.read()
            assert not servers(*of_lease)
    finally:
        run_leases.release(run, "gpu", "the test has ended")


def test_a_notebook_on_slurm_runs_on_a_node_of_a_job_of_its_own(
    headrace_home: Path, slurm: DevSlurm, no_leftover_processes: None
) -> None:
    write_site(headrace_home, "quick", like="slurm-dev")
    with notebook("--site", "quick", "--role", "gpu") as (client, url):
        (job_id,) = slurm.queue()
        (server,) = servers("SLURM_JOB_ID", job_id)
        assert server.environ()["HEADRACE_LEASE"].startswith("shell-gpu-")
        assert answer(url) == 200
        client.kill()  # nothing of it is left to close the lease
    wait_until(lambda: not slurm.queue(), LEAVING_S, "the job to end", poll_s=0.5)
    assert not servers("SLURM_JOB_ID", job_id)


def test_a_node_without_jupyter_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(notebooks, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=f"{sys.executable} on .* has no Jupyter") as failed:
        notebooks.serve(str(tmp_path), "127.0.0.1", str(tmp_path), {}, "topic")
    assert "pip install jupyterlab" in str(failed.value.hint)


@pytest.mark.parametrize(
    ("role", "why"),
    [
        ({"backend": "pbs"}, "role gpu is on pbs"),
        ({"backend": "slurm", "batch": {"login": {"host": "login.invalid"}}}, "is on a login node"),
    ],
)
def test_where_no_shell_can_be_opened_nothing_is_asked_for(
    headrace_home: Path, role: dict[str, object], why: str
) -> None:
    site = {
        "name": "far",
        "folder": str(headrace_home / "far"),
        "roles": {"gpu": {"kind": "gang", **role}},
        "tiers": [{"name": "disk", "folder": str(headrace_home / "tier")}],
    }
    file = headrace_home / "far.yaml"
    file.write_text(yaml.safe_dump(site))
    with pytest.raises(UserError, match=why):
        headrace("shell", "--site", str(file))
    assert not (headrace_home / "far").exists()
    with pytest.raises(UserError, match="Name a run, or a site"):
        headrace("shell")
