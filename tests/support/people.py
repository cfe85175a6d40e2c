"""Unix accounts that a test makes: people of a group, a stranger, and who runs headrace for them.

They get an interpreter of their own: that of the tests may lie in a folder closed to others.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import headrace
from headrace.processes.identity import end_processes
from support.slurm_dev import DevSlurm

_PROGRAMS = ("sbatch", "squeue", "scancel", "sinfo", "sacct", "sacctmgr", "scontrol")
_NEEDED = ("sudo", "useradd", "userdel", "runuser")
_SYSTEM_PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class People:
    """Accounts with a folder that all of them may pass through."""

    folder: Path
    """Place of what they use; belongs to root, and all may pass through it."""
    mark: str
    """Part of the names of the accounts."""
    slurm: DevSlurm
    """Where they may have jobs."""

    def account(self, name: str) -> str:
        """The Unix account of one of them."""
        return f"{name}-{self.mark}"

    def command(self, name: str, *words: str) -> list[str]:
        """A command as one of them would run it, in a fresh environment."""
        account = self.account(name)
        variables = {
            "PATH": "/usr/bin:/bin",
            "HOME": f"/home/{account}",
            "HEADRACE_HOME": f"/home/{account}/headrace",
            "HEADRACE_SITES_PATH": str(self.folder),
            "HEADRACE_DIGITS": str(self.folder / "digits"),
            "SLURM_CONF": str(self.slurm.config),
            "TOKEN": "of the site",
        }
        settings = [f"{key}={value}" for key, value in variables.items()]
        return ["runuser", "-u", account, "--", "env", "-i", "-C", "/", *settings, *words]

    def python(self, name: str, code: str, *arguments: str) -> list[str]:
        """Python with headrace, as one of them."""
        return self.command(name, str(self.folder / "venv/bin/python"), "-c", code, *arguments)

    def headrace(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """`headrace` in a terminal of one of them."""
        code = "import sys; from headrace.cli.app import main; sys.exit(main())"
        return self.run(self.python(name, code, *words))

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def people(dev_slurm: DevSlurm) -> Iterator[People]:
    """Ada and grace of a group, mallory outside, and `svc`, who may run Slurm as the group."""
    if os.getuid() != 0:
        pytest.skip("accounts are made by root")
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"install {', '.join(missing)}: accounts and sudo are needed")
    folder = Path(tempfile.mkdtemp(prefix="headrace-people-", dir="/tmp"))
    folder.chmod(0o755)
    made = People(folder, uuid.uuid4().hex[:8], dev_slurm)
    accounts = [made.account(name) for name in ("svc", "ada", "grace", "mallory")]
    group, sudoers = made.account("lab"), Path("/etc/sudoers.d") / f"headrace-{made.mark}"
    try:
        _make_python(folder / "venv")
        _run("groupadd", group)
        for each in accounts:
            _run("useradd", "--create-home", each)
            dev_slurm.run("sacctmgr", "-i", "add", "account", each)
            dev_slurm.run("sacctmgr", "-i", "add", "user", each, f"account={each}")
        for each in ("ada", "grace"):
            _run("usermod", "--append", "--groups", group, made.account(each))
        programs = ", ".join(f"/usr/bin/{each}" for each in _PROGRAMS)
        sudoers.touch(mode=0o440)
        sudoers.write_text(f"{accounts[0]} ALL=(%{group}) NOPASSWD: SETENV: {programs}\n")
        yield made
    finally:
        sudoers.unlink(missing_ok=True)
        # what a failed test leaves keeps its account from being removed
        end_processes([each for each in psutil.process_iter() if _owner(each) in accounts])
        for each in accounts:
            subprocess.run(["userdel", "--remove", each], check=False, capture_output=True)
            dev_slurm.commands.run(("sacctmgr", "-i", "delete", "account", each))
        subprocess.run(["groupdel", group], check=False, capture_output=True)
        shutil.rmtree(folder)


def _owner(process: psutil.Process) -> str:
    try:
        return process.username()
    except psutil.NoSuchProcess:
        return ""


def _make_python(folder: Path) -> None:
    """An environment like that of the tests, by an interpreter that others may start."""
    own = Path(sys.executable).resolve()
    base = str(own) if _is_open(own) else _SYSTEM_PYTHON
    if not os.access(base, os.X_OK):
        pytest.skip(f"{own} is closed to other accounts, and there is no {base}")
    _run(base, "-m", "venv", "--without-pip", str(folder))
    (packages,) = folder.glob("lib/python3*/site-packages")
    code = _opened(Path(headrace.__file__).parents[1], folder / "code")
    installed = [each for each in map(Path, site.getsitepackages()) if each.is_dir()]
    places = [_opened(each, folder / "packages") for each in installed]
    lines = [f"import sys; sys.path.insert(0, {str(code)!r})"]
    lines += [f"import site; site.addsitedir({str(each)!r})" for each in places]
    (packages / "of_the_tests.pth").write_text("\n".join(lines))


def _is_open(path: Path) -> bool:
    """Whether other accounts may pass through a path to its end."""
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


def _opened(place: Path, copy: Path) -> Path:
    """A folder if others may enter it, else a copy that they may enter, of links where possible."""
    if _is_open(place):
        return place
    linked = subprocess.run(["cp", "-a", "--link", str(place), str(copy)], check=False)
    if linked.returncode != 0:  # another file system
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy, symlinks=True)
    return copy


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
