"""Who may use the Airflow of `headrace up`: one user, whose password its owner alone can read."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import UserError
from headrace.storage.atomic import read_text, write_json

USER = "admin"

_PASSWORD_BYTES = 18


@dataclass(frozen=True, kw_only=True)
class Login:
    """Name and password, for the web UI and the REST API."""

    user: str
    """Name of the user."""
    password: str = field(repr=False)
    """Its password."""
    file: Path
    """The file that holds the password."""
    is_new: bool = False
    """Whether it was made just now."""


def passwords_file(folder: Path) -> Path:
    """The file that Airflow's simple auth manager reads the password from.

    Args:
        folder: Airflow's home.
    """
    return folder / "passwords.json"


def read_login(folder: Path) -> Login:
    """The login that `make_login` has made.

    Raises:
        UserError: There is none.
    """
    file = passwords_file(folder)
    text = read_text(file)
    password = json.loads(text).get(USER) if text else None
    if password is None:
        raise UserError(f"{file} holds no password of the user '{USER}'", "Run: headrace up")
    return Login(user=USER, password=password, file=file)


def make_login(folder: Path) -> Login:
    """The login, made with a random password the first time; a password that was changed stays.

    Side effects: writes the password's file, readable by its owner alone.
    """
    file = passwords_file(folder)
    if file.exists():
        file.chmod(0o600)
        return read_login(folder)
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    write_json(file, {USER: password})
    return Login(user=USER, password=password, file=file, is_new=True)


def words_for(login: Login, *, shows_password: bool) -> str:
    """How to log in, for the user.

    Args:
        login: The login.
        shows_password: Whether only its owner sees the words; a new password is then among them.
    """
    if login.is_new and shows_password:
        return f"Log in as {login.user}, password {login.password} (kept in {login.file})"
    return f"Log in as {login.user}; the password is in {login.file}"
