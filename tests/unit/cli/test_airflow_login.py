"""The one user of `headrace up`, and its password."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import airflow_server
from headrace.cli.airflow import words_for
from headrace.cli.airflow_server import USER, login, make_login, passwords_file, read_login
from headrace.errors import UserError
from support.command_line import headrace, refusal


def test_the_first_login_has_a_password_that_its_owner_alone_can_read(tmp_path: Path):
    made = make_login(tmp_path)
    assert made.is_new
    assert len(made.password) >= 24
    assert made.password not in repr(made)
    assert passwords_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert read_login(tmp_path).password == made.password


def test_a_password_that_was_chosen_stays_and_becomes_private(tmp_path: Path):
    passwords_file(tmp_path).write_text(json.dumps({USER: "mine"}))
    passwords_file(tmp_path).chmod(0o644)
    made = make_login(tmp_path)
    assert (made.password, made.is_new) == ("mine", False)
    assert passwords_file(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [None, "", '{"somebody": "else"}'])
def test_without_a_password_nobody_logs_in(tmp_path: Path, content: str | None):
    if content is not None:
        passwords_file(tmp_path).write_text(content)
    with pytest.raises(UserError, match="has no password of the user 'admin'"):
        read_login(tmp_path)


def test_the_password_is_shown_once_and_only_to_its_owner(tmp_path: Path):
    first, later = make_login(tmp_path), make_login(tmp_path)
    assert first.password in words_for(first, shows_password=True)
    for words in (words_for(first, shows_password=False), words_for(later, shows_password=True)):
        assert first.password not in words
        assert "headrace password" in words
        assert str(first.file) in words
        assert USER in words


def test_the_command_prints_the_password_and_nothing_else(headrace_home, monkeypatch):
    assert "Run: headrace up" in str(refusal("password"))
    made = login()
    assert headrace("password").stdout == f"{made.password}\n"

    def denied(file: Path) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(airflow_server, "read_text", denied)
    assert "is readable by its owner only" in str(refusal("password"))
