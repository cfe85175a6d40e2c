"""Accounts of a site's `{user}`, and the folder of headrace for each account."""

from __future__ import annotations

import getpass
import os
import pwd
import subprocess
from pathlib import Path

import pytest
import yaml

from headrace.batch.commands import CommandResult, SudoCommands
from headrace.errors import SiteError
from headrace.recipe.fence import opened
from headrace.recipe.home import home
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.unix_accounts import login_name, other_account

_PERSON = next((each.pw_name for each in pwd.getpwall() if 1000 <= each.pw_uid < 60000), "")


def _site(tmp_path: Path, **changes: object) -> str:
    role = {"backend": "slurm", "kind": "gang", "batch": {"account": "lab-{user}"}}
    content = {
        "folder": str(tmp_path / "{user}"),
        "accounts": {"ada@lab.org": "ada-of-another-machine", "eve": "root"},
        "roles": {"gpu": role},
        "tiers": [{"name": "shm", "folder": "/dev/shm/headrace-{user}"}],
        **changes,
    }
    (tmp_path / "group.yaml").write_text(yaml.safe_dump(content))
    return str(tmp_path / "group.yaml")


def test_in_a_terminal_it_is_the_account_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOGNAME", "grace")
    assert getpass.getuser() == "grace"
    account = pwd.getpwuid(os.getuid()).pw_name
    site = load_site(_site(tmp_path))
    assert site.folder == str(tmp_path / account)
    assert site.roles["gpu"].batch.account == f"lab-{account}"
    assert site.tiers[0].folder.endswith("{user}")  # the nodes put it in


def test_in_airflow_it_is_who_triggers(tmp_path: Path):
    site = load_site(_site(tmp_path), "ada@lab.org")
    assert site.folder == str(tmp_path / "ada-of-another-machine")
    assert site.roles["gpu"].batch.account == "lab-ada-of-another-machine"


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("root", "uid 0"),
        ("eve", "account 'root' (uid 0) is none of a person"),
        ("daemon", "none of a person"),
        ("nobody", "uid 65534"),
        ("", "needs the requester's name"),
        ("-oProxyCommand=x", "not a name of a Unix account"),
        ("a b", "not a name of a Unix account"),
        ("../x", "not a name of a Unix account"),
        ("{user}", "not a name of a Unix account"),
        ("x" * 33, "not a name of a Unix account"),
        ("ada\n", "not a name of a Unix account"),
        ("0", "not a name of a Unix account"),
    ],
)
def test_only_accounts_of_people_are_used(user: str, why: str, tmp_path: Path):
    with pytest.raises(SiteError) as caught:
        load_site(_site(tmp_path), user)
    assert why in str(caught.value)


def test_a_site_without_the_word_asks_for_no_account(tmp_path: Path):
    role = {"backend": "slurm", "kind": "gang"}
    plain = _site(tmp_path, folder=str(tmp_path), roles={"gpu": role})
    assert load_site(plain, "") == load_site(plain, "root") == load_site(plain)


_AS = {"backend": "slurm", "kind": "gang", "batch": {"submit_as": "{user}"}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"backend": "ssh"}, "there is no queue"),
        ({"kind": "pool"}, "needs `host: job`"),
        ({"batch": {"submit_as": "{user}", "login": {"host": "l1"}}}, "`login` says as whom"),
        ({"batch": {"submit_as": "-u root"}}, "submit_as"),
    ],
)
def test_roles_that_cannot_submit_as_others_are_refused(
    change: dict[str, object], why: str, tmp_path: Path
):
    with pytest.raises(SiteError) as caught:
        load_site(_site(tmp_path, roles={"gpu": _AS | change}))
    assert why in str(caught.value)


def test_who_submits_as_others_keeps_folders_apart(tmp_path: Path):
    with pytest.raises(SiteError, match=r"needs `{user}` in `folder`"):
        load_site(_site(tmp_path, roles={"gpu": _AS}, folder=str(tmp_path)))


def test_accounts_that_jobs_are_submitted_as_are_those_of_this_machine(tmp_path: Path):
    site = _site(tmp_path, roles={"gpu": _AS})
    with pytest.raises(SiteError, match="no account 'ada-of-another-machine'"):
        load_site(site, "ada@lab.org")
    assert other_account(load_site(site)) == ""
    if _PERSON:
        assert other_account(load_site(site, _PERSON)) == _PERSON


def test_what_sudo_is_asked_and_what_it_refuses(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, ...]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(tuple(command))
        return subprocess.CompletedProcess(command, 1, "", "sudo: a password is required\n")

    monkeypatch.setattr(subprocess, "run", run)
    commands = SudoCommands("ada", {"SLURM_CONF": "/etc/slurm.conf"})
    answer = commands.run(("env", "SLURM_TIME_FORMAT=standard", "sbatch", "--test-only"))
    before = ("sudo", "-n", "-u", "ada", "SLURM_CONF=/etc/slurm.conf")
    assert asked == [(*before, "SLURM_TIME_FORMAT=standard", "sbatch", "--test-only")]
    assert "a password is required; sudoers must let this account run sbatch as ada" in answer.words
    assert commands.run(("id", "-un")) == CommandResult(0, "ada\n", "")


ENTRY = pwd.struct_passwd(("ada", "x", 1000, 1000, "", "/users/of-entry", "/bin/sh"))


@pytest.fixture
def no_entry(monkeypatch):
    def absent(_uid):
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", absent)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HEADRACE_HOME": "/kept"}, "/kept"),
        ({"HEADRACE_HOME": "/kept", "HOME": "/users/ada"}, "/kept"),
        ({"HOME": "/users/ada"}, "/users/ada/.headrace"),
        ({}, "/users/of-entry/.headrace"),
        ({"HOME": "relative"}, "HERE/relative/.headrace"),
        ({"HEADRACE_HOME": "relative", "HOME": "/users/ada"}, "HERE/relative"),
        ({"HEADRACE_HOME": "~/mine", "HOME": "/users/ada"}, "/users/ada/mine"),
    ],
)
def test_one_folder(monkeypatch, tmp_path, variables, folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: ENTRY)
    for name in ("HOME", "HEADRACE_HOME", "HEADRACE_DIGITS", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    expected = Path(folder.replace("HERE", str(tmp_path)))
    site = load_site("laptop")
    assert home() == Path(site.folder) == expected
    source = load_recipe("digits").dataset.source
    assert Path(source).expanduser().absolute() == expected / "examples/digits"
    assert str(expected / "examples") in opened(site, is_from_terminal=False).allowed_sources


def test_an_account_without_a_home_is_told_what_to_set(monkeypatch, no_entry):
    for name in ("HOME", "HEADRACE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for ask in (home, lambda: load_site("laptop")):
        with pytest.raises(SiteError, match="has none") as caught:
            ask()
        assert "HEADRACE_HOME" in caught.value.hint


def test_headrace_home_is_enough_for_an_account_without_an_entry(monkeypatch, no_entry, tmp_path):
    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    site = opened(load_site("laptop"), is_from_terminal=True)
    assert site.folder == str(tmp_path)
    assert login_name().isdecimal()


def test_an_empty_folder_is_refused(monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", "")
    with pytest.raises(SiteError, match="folder: give text"):
        load_site("laptop")
