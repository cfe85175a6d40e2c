"""The unit of `deploy/systemd` on a booted Debian; `make real-systemd` (some 20 minutes)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.guests import NETWORK, SSHD, USER, USER_ID, Guest, guests, missing
from support.waiting import wait_until

_PROJECT = Path(__file__).parents[2]
_UNIT = "headrace-airflow"
_PACKAGES = (
    "systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,openssh-server,iproute2,procps,"
    "python3,libstdc++6,kmod,polkitd"
)
_LONG_S = 600.0
_OWN = ("/lib/systemd", "(sd-pam)", "/usr/bin/dbus-daemon", "sshd:")
_NETWORK_UNIT = """\
[Unit]
Before=ssh.service
[Service]
Type=oneshot
ExecStart=/bin/sh -ec 'eval "$(tr " " "\\n" </proc/cmdline | grep ^headrace_)"; . /etc/network.sh'
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Guest]:
    """A Debian with systemd as its first process, and this project at its own path."""
    if problem := missing():
        pytest.fail(problem)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="hrs-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder)
        image = folder / "image"
        _make_disk(folder / "root", image)
        (made,) = stack.enter_context(guests({"machine": image}))
        wait_until(lambda: _as_user(made, "echo up", check=False), _LONG_S, "logins of users")
        yield made


def _make_disk(root: Path, image: Path) -> None:
    make = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", "bookworm"]
    subprocess.run([*make, root], check=True)
    _configure(root)
    with image.open("wb") as file:
        file.truncate(6 * 2**30)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-d", root, image], check=True)


def _configure(root: Path) -> None:
    (root / "etc/network.sh").write_text(NETWORK)
    (root / "etc/systemd/system/network-card.service").write_text(_NETWORK_UNIT)
    wanted = root / "etc/systemd/system/multi-user.target.wants"
    (wanted / "network-card.service").symlink_to("../network-card.service")
    (root / "etc/ssh/sshd_config.d/guest.conf").write_text(SSHD)
    with (root / "etc/passwd").open("a") as users:
        users.write(f"{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/bash\n")
    with (root / "etc/shadow").open("a") as passwords:
        passwords.write(f"{USER}:*:19000:0:99999:7:::\n")
    with (root / "etc/group").open("a") as groups:
        groups.write(f"{USER}:x:{USER_ID}:\n")
    (root / "home" / USER).mkdir()
    shutil.chown(root / "home" / USER, USER_ID, USER_ID)
    (root / "root").chmod(0o711)
    mounts = ["/dev/ubda / ext4 defaults 0 1"]
    for own in {str(_PROJECT), sys.base_prefix} - {"/usr"}:
        (root / own.lstrip("/")).mkdir(parents=True)
        mounts.append(f"none {own} hostfs ro,{own} 0 0")
    (root / "etc/fstab").write_text("\n".join(mounts) + "\n")


def _as_user(machine: Guest, command: str, *, check: bool = True) -> str:
    return machine.run(command, user=USER, check=check)


def _is_healthy(machine: Guest) -> bool:
    state = _as_user(machine, f"systemctl --user is-active {_UNIT}", check=False).strip()
    up = _as_user(machine, "test -e .headrace/airflow/up.json && echo up", check=False)
    return (state, up.strip()) == ("active", "up")


def _wait_healthy(machine: Guest) -> str:
    began = time.monotonic()
    try:
        wait_until(lambda: _is_healthy(machine), _LONG_S, "Airflow to be healthy", poll_s=2)
    except AssertionError:
        print(_as_user(machine, f"systemctl --user status {_UNIT}; journalctl --user -n 50; "
                       "tail -n 30 .headrace/airflow/logs/*.log", check=False))  # fmt: skip
        raise
    return f"healthy after {time.monotonic() - began:.0f} s"


def _processes(machine: Guest) -> list[str]:
    """Processes of the user, without those of systemd and of logins."""
    shown = machine.run(f"ps -u {USER} -o args=", check=False).splitlines()
    return [line for line in shown if not line.startswith(_OWN)]


def _main_process(machine: Guest) -> str:
    shown = _as_user(machine, f"systemctl --user show -P MainPID {_UNIT}")
    return shown.strip()


def test_it_starts(machine: Guest, table: list[tuple[str, str]]) -> None:
    """By the commands of docs/how-to/deploy-control-side.md."""
    unit = _PROJECT / "deploy/systemd/headrace-airflow.service"
    folder = ".config/systemd/user"
    _as_user(
        machine,
        f"mkdir -p {folder} && "
        f"sed s,%h/headrace/.venv,{_PROJECT}/.venv, {unit} >{folder}/{unit.name} && "
        f"systemctl --user enable --now {_UNIT} && loginctl enable-linger",
    )
    table.append(("`enable --now`", _wait_healthy(machine)))


def test_it_restarts_if_its_supervisor_is_killed(
    machine: Guest, table: list[tuple[str, str]]
) -> None:
    first = _main_process(machine)
    machine.run("pkill -9 -o -f headrace_airflow.supervisor")
    wait_until(lambda: _main_process(machine) not in ("0", first), _LONG_S, "a restart")
    table.append(("`kill -9` of Airflow's supervisor", _wait_healthy(machine)))


def test_it_restarts_if_its_command_is_killed(machine: Guest, table: list[tuple[str, str]]) -> None:
    first = _main_process(machine)
    machine.run(f"kill -9 {first}")
    wait_until(lambda: _main_process(machine) not in ("0", first), _LONG_S, "a restart")
    table.append(("`kill -9` of `headrace up`", _wait_healthy(machine)))


def test_a_stop_while_a_restart_waits_leaves_nothing(
    machine: Guest, table: list[tuple[str, str]]
) -> None:
    machine.run(f"kill -9 {_main_process(machine)}")
    _as_user(machine, f"systemctl --user stop {_UNIT}")
    left = _processes(machine)
    table.append(("`kill -9`, then `stop` before the restart", f"{len(left)} processes left"))
    assert not left


def test_it_starts_at_boot_without_a_login(machine: Guest, table: list[tuple[str, str]]) -> None:
    _as_user(machine, f"systemctl --user start {_UNIT}")
    machine.shut_down()
    machine.boot()
    wait_until(lambda: bool(_processes(machine)), _LONG_S, "its start without a login")
    table.append(("power off and boot, no login", _wait_healthy(machine)))


def test_a_stop_leaves_nothing(machine: Guest, table: list[tuple[str, str]]) -> None:
    _as_user(machine, f"systemctl --user stop {_UNIT}")
    left = _processes(machine)
    result = _as_user(machine, f"systemctl --user show -P Result {_UNIT}").strip()
    table.append(("`stop`", f"{len(left)} processes left, result: {result}"))
    assert (left, result) == ([], "success")
