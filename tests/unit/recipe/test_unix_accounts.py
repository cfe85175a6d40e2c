"""Whose a site's `{user}` is: people's accounts, and nobody's choice."""

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
from headrace.recipe.load import load_site
from headrace.recipe.unix_accounts import other_account

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
