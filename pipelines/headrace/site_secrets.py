"""A site's secrets: read when a lease starts, passed to it in a file, removed at its end.

Only the owner can read the file, which lies beside the Dask cluster's key. Where values come from
is written in the site file: see `headrace.recipe.secret_sources`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import LeaseError, SecretError
from headrace.files.atomic import read_bytes, write_json
from headrace.files.layout import LeaseFolder
from headrace.files.private import make_private
from headrace.processes.forking import APART
from headrace.recipe.site import Site
from headrace.recipe.unix_accounts import account

_HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")
_USER = "{user}"
_OF_AIRFLOW = ("AIRFLOW", "_AIRFLOW", "HEADRACE_AIRFLOW")


@dataclass(frozen=True, kw_only=True)
class LeaseSecrets:
    """Secrets of one lease, for its processes only; never shown, saved only in the lease's file."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables of its drivers, workers and ranks."""
    hidden: Collection[str] = ()
    """Variables of this process that its child processes do not inherit."""


@dataclass(frozen=True, kw_only=True)
class Asker:
    """The user for whom secrets are read."""

    user: str | None = None
    """Who triggered an Airflow DAG run, empty if unknown; null for this account."""
    connection: Callable[[str, str], str] | None = None
    """Return a connection's field in Airflow, by the names of both; None outside of Airflow."""


HERE = Asker()
"""This account, without Airflow."""


def secrets_for(site: Site, asker: Asker) -> LeaseSecrets:
    """Return the current values of a site's secrets.

    Raises:
        SecretError: One of them is not available.
    """
    values = {name: _value(name, site, asker) for name in site.secrets}
    named = [source.removeprefix("env:") for source in site.secrets.values()]
    return LeaseSecrets(values=values, hidden=(*values, *named))


def _value(name: str, site: Site, asker: Asker) -> str:
    what = f"Secret {name} of site {site.name}"
    kind, _, where = site.secrets[name].partition(":")
    where = where.replace(_USER, _user(what, asker)) if _USER in where else where
    value = _SOURCES[kind](what, name, where, asker)
    if not value or "\0" in value:
        raise SecretError(f"{what} is empty, or not a text: {kind}:{where}")
    return value


def _user(what: str, asker: Asker) -> str:
    user = account() if asker.user is None else asker.user
    if not _HARMLESS.fullmatch(user):
        why = f"user name is not valid: '{user}'" if user else "run has no user"
        raise SecretError(
            f"{what} depends on the user, and this {why}",
            f"{_USER} stands for a user name of letters, digits and . _ @ + -",
        )
    return user


def _of_airflow(what: str, name: str, where: str, asker: Asker) -> str:
    connection, _, field = where.rpartition(".")
    if asker.connection is not None:
        return asker.connection(connection, field)
    if name not in os.environ:
        raise SecretError(
            f"{what} is in Airflow's connection '{connection}', which only DAG runs can read",
            f"In a terminal, set {name} in the environment.",
        )
    return os.environ[name]


def _of_environment(what: str, name: str, where: str, asker: Asker) -> str:
    del name, asker
    if where not in os.environ:
        raise SecretError(
            f"{what} is not set: the environment has no variable {where}",
            "Set it where headrace, or Airflow's workers, are started.",
        )
    return os.environ[where]


def _of_file(what: str, name: str, where: str, asker: Asker) -> str:
    del name, asker
    file = Path(where).expanduser()
    try:
        return file.read_text().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SecretError(f"{what} is not a text: {file}") from None
    except OSError as error:
        raise SecretError(f"{what} cannot be read: {file}: {error.strerror}") from None


_SOURCES = {"airflow": _of_airflow, "env": _of_environment, "file": _of_file}


@contextmanager
def handed_over(folder: LeaseFolder, secrets: LeaseSecrets) -> Iterator[None]:
    """Write the file from which the processes of a lease read its secrets.

    The block starts processes and submits jobs without the secrets and without Airflow's variables:
    batch systems keep a job's environment, user code must not know the address of Airflow's
    database, and `headrace down` finds Airflow's processes by a variable. If the block fails, the
    file is removed.
    """
    hidden = {each for each in os.environ if each.startswith(_OF_AIRFLOW)} | {*secrets.hidden}
    kept = {name: os.environ.pop(name) for name in hidden & os.environ.keys()}
    try:
        if secrets.values:
            make_private(folder.tls, keeps=False)
            write_json(folder.secrets, dict(secrets.values))
        yield
    except BaseException:
        forget(folder)
        raise
    finally:
        os.environ.update(kept)


def secrets_of(folder: LeaseFolder) -> dict[str, str]:
    """Return a lease's secrets as environment variables, with their names; empty after its end.

    Raises:
        LeaseError: Their file is damaged.
    """
    try:
        found: dict[str, str] = json.loads(read_bytes(folder.secrets) or b"{}")
    except ValueError:  # its text may quote the file
        raise LeaseError(f"{folder.secrets} is damaged", "Start another lease.") from None
    return {**found, APART: " ".join(found)} if found else {}


def forget(folder: LeaseFolder) -> None:
    """Remove the file of a lease's secrets."""
    folder.secrets.unlink(missing_ok=True)
