"""Headrace's folder and that of the built-in sites are one, whatever the environment lacks."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from headrace.errors import SiteError
from headrace.recipe.fit import opened
from headrace.recipe.home import home
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.unix_accounts import login_name

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
    assert opened(site, is_from_terminal=True).allowed_sources


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
