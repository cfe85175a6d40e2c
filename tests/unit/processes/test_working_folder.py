"""What the working folder may give: files that no other account can change, and no modules."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.processes import working_folder
from headrace.processes.working_folder import CODE, SAFE, problem_of, python_module
from support.poisoned import Poisoned

STRANGER, OTHER = 4242, 4243
_BUILT = os.pathsep.join(map(str, Path.home().glob(".pyenv/versions/3.*/bin")))
_FOUND = {
    version: shutil.which(f"python{version}", path=f"{_BUILT}{os.pathsep}{os.environ['PATH']}")
    for version in ("3.10", "3.11", "3.12", "3.13")
}
PYTHONS = {version: program for version, program in _FOUND.items() if program is not None}

as_root = pytest.mark.skipif(os.getuid() != 0, reason="gives files to other accounts")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a recipe of this account."""
    folder = tmp_path / "work"
    (folder / "recipes").mkdir(parents=True)
    (folder / "recipes" / "a.yaml").write_text("seed: 1\n")
    for each in (folder, folder / "recipes", folder / "recipes" / "a.yaml"):
        each.chmod(0o755)
    monkeypatch.chdir(folder)
    return folder


def _own(_: Path) -> None:
    """Nothing is changed."""


def _linked_to(owner: int):
    def link(file: Path) -> None:
        other = file.parents[2] / "b.yaml"
        file.rename(other)
        os.chown(other, owner, owner)
        file.symlink_to(other)

    return link


def _link_of(owner: int):
    def link(file: Path) -> None:
        _linked_to(0)(file)
        os.lchown(file, owner, owner)

    return link


def _in_linked_folder(file: Path) -> None:
    folder = file.parents[2] / "of-others"
    file.parent.rename(folder)
    file.parent.symlink_to(folder)
    folder.chmod(0o777)


def _owned(level: int, uid: int):
    return lambda file: os.chown([file, *file.parents][level], uid, uid)


def _mode(level: int, mode: int, gid: int = 0):
    def change(file: Path) -> None:
        path = [file, *file.parents][level]
        os.chown(path, 0, gid)
        path.chmod(mode)

    return change


def _linked_to_itself(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


@as_root
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(_own, "", id="own"),
        pytest.param(_linked_to(0), "", id="link to own"),
        pytest.param(_owned(0, STRANGER), "a.yaml belongs to another account", id="other's file"),
        pytest.param(_owned(1, STRANGER), "recipes belongs to another", id="other's folder"),
        pytest.param(_owned(2, STRANGER), "work belongs to another", id="other's working folder"),
        pytest.param(_linked_to(STRANGER), "a.yaml belongs to another", id="link to other's"),
        pytest.param(_link_of(STRANGER), "a.yaml belongs to another", id="other's link"),
        pytest.param(_in_linked_folder, "may write to", id="link to a folder for all"),
        pytest.param(_linked_to_itself, "cannot be read", id="link to itself"),
        pytest.param(_mode(0, 0o666), "may write to .*a.yaml", id="file for all"),
        pytest.param(_mode(1, 0o777), "may write to .*recipes", id="folder for all"),
        pytest.param(_mode(2, 0o777), "may write to .*work", id="working folder for all"),
        pytest.param(_mode(1, 0o1777), "", id="sticky folder"),
        pytest.param(_mode(2, 0o1777), "", id="sticky working folder, as /tmp"),
        pytest.param(_mode(0, 0o664), "", id="file for the private group"),
        pytest.param(_mode(1, 0o775), "", id="folder for the private group"),
        pytest.param(_mode(0, 0o664, 1), "may write to .*a.yaml", id="file for a group"),
        pytest.param(_mode(1, 0o775, 1), "may write to .*recipes", id="folder for a group"),
        pytest.param(_mode(2, 0o2775, 1), "may write to .*work", id="working folder for a group"),
        pytest.param(_mode(2, 0o775, OTHER), "may write to .*work", id="for an unknown group"),
    ],
)
def test_what_another_account_could_change_is_not_used(here: Path, change, problem: str) -> None:
    file = here / "recipes" / "a.yaml"
    change(file)
    for each in (file, Path("recipes/a.yaml")):
        found = problem_of(each)
        assert re.search(problem, found) if problem else not found


@as_root
def test_a_folder_that_is_sticky_holds_what_others_have_made(here: Path) -> None:
    """Each of its files is judged on its own, but not what is found in it by a name."""
    here.chmod(0o1777)
    assert "may write to" in problem_of(here)
    assert problem_of(here / "recipes") == ""


@as_root
def test_another_account_uses_what_is_roots(here: Path) -> None:
    file = here / "recipes" / "a.yaml"
    for each in file.parents:
        each.chmod(each.stat().st_mode | 0o055)
        if each == Path(each.anchor):
            break
    told = f"import os; os.setuid({STRANGER}); "
    told += f"os.chdir({str(here)!r}); print(problem_of(Path({str(file)!r})))"
    code = "from pathlib import Path; from headrace.processes.working_folder import problem_of; "
    done = subprocess.run(
        [sys.executable, "-c", code + told], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


@pytest.mark.parametrize(
    ("group", "members", "fits"),
    [("anna", [], True), ("anna", ["anna"], True), ("anna", ["bob"], False), ("lab", [], False)],
)
def test_a_group_is_private_by_its_name_and_members(
    here: Path, monkeypatch: pytest.MonkeyPatch, group: str, members: list[str], fits: bool
) -> None:
    file = here / "recipes" / "a.yaml"
    file.chmod(0o664)
    account = pwd.struct_passwd(("anna", "x", os.getuid(), file.stat().st_gid, "", "/", "/bin/sh"))
    given = working_folder.grp.struct_group((group, "x", file.stat().st_gid, members))
    monkeypatch.setattr(working_folder.pwd, "getpwuid", lambda _: account)
    monkeypatch.setattr(working_folder.grp, "getgrgid", lambda _: given)
    assert (problem_of(file) == "") is fits


_TELL = (
    "import json, multiprocessing.resource_tracker, queue, signal, statistics, sys\n"
    "if __name__ == '__main__':\n"
    "    if sys.version_info >= (3, 11):  # before, it has no flag to inherit\n"
    "        multiprocessing.resource_tracker.ensure_running()\n"
    "    print(__name__, sys.argv[1:], '' in sys.path)\n"
)


@pytest.mark.parametrize("python", PYTHONS)
def test_modules_are_started_without_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    """By each Python as it is there, which need not have any package."""
    poisoned = Poisoned(tmp_path / "work")
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "telling.py").write_text(_TELL)
    start = ("-P", "-m") if python != "3.10" else ("-c", SAFE + working_folder._RUN)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.chdir(poisoned.folder)
    command = [PYTHONS[python], "-u", *start, "telling", "a", "-m"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("__main__ ['a', '-m'] False\n", "")
    assert poisoned.imported == set()


def test_the_command_of_a_module_is_that_of_this_python() -> None:
    wanted = ("-P", "-m") if sys.version_info >= (3, 11) else ("-c",)
    command = python_module("json.tool", "--help")
    assert command[:2] == (sys.executable, "-u")
    assert command[2 : 2 + len(wanted)] == wanted
    assert command[4:] == ("json.tool", "--help")


def test_code_for_python_looks_not_there_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned = Poisoned(tmp_path / "work")
    monkeypatch.chdir(poisoned.folder)
    code = f"{SAFE}import dask, json, signal"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert poisoned.imported == set()


def test_a_script_alone_sees_the_recipes_code(tmp_path: Path) -> None:
    """Not the process that starts it."""
    (code := tmp_path / "code").mkdir()
    script = tmp_path / "script.py"
    script.write_text("import os, mine\nprint(mine.VALUE, os.environ['PYTHONPATH'])\n")
    (code / "mine.py").write_text("VALUE = 3\n")
    (code / "signal.py").write_text("raise ImportError('a module of the recipe')\n")
    done = subprocess.run(
        python_module("headrace.processes", "--", sys.executable, str(script)),
        env={**os.environ, CODE: str(code), "PYTHONPATH": "/own"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"3 {code}:/own\n", done.stderr
