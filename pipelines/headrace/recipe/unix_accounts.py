"""Whose a site's `{user}` is: the Unix account of who asks, put into the site's folder and jobs."""

from __future__ import annotations

import getpass
import os
import pwd
import re
from typing import TypeVar

from headrace.errors import SiteError
from headrace.recipe.base import Settings
from headrace.recipe.site import Site

Part = TypeVar("Part", bound=Settings)

_USER = "{user}"
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_FIRST_UID, _NOBODY_UID = 1000, 65534
"""People's accounts begin with the first; login.defs(5)."""


def account() -> str:
    """Name of the account that this process runs as, whatever the environment says; else its id."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container
        return str(os.getuid())


def login_name() -> str:
    """Name of the user: as the environment says, else as `account`."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return account()


def for_user(site: Site, user: str | None = None) -> Site:
    """Return the site with the requester in place of `{user}`.

    `user` is the name in Airflow, empty if unknown; None for this process's account. Raises
    SiteError if the site names `{user}`, and this user has no personal account.
    """
    if _with_name(site, "") == site:
        return site
    return _with_name(site, account() if user is None else _account_of(user, site))


def other_account(site: Site) -> str:
    """As whom but this process the jobs of a site `for_user` are submitted; empty for none."""
    asked = (role.batch.submit_as for role in site.roles.values())
    return next((each for each in asked if each and each != account()), "")


def _account_of(user: str, site: Site) -> str:
    if not user:
        raise SiteError(
            f"Site '{site.name}' needs the requester's name, which is unknown",
            "Trigger the DAG yourself: a schedule has no account. Or name another site.",
        )
    name = site.accounts.get(user, user)
    asked = f"User {user!r} cannot use site '{site.name}'"
    if not _NAME.fullmatch(name):
        raise SiteError(
            f"{asked}: {name!r} is not a name of a Unix account",
            "Say in `accounts` of the site which account it is.",
        )
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        if any(role.batch.submit_as for role in site.roles.values()):
            raise SiteError(
                f"{asked}: this machine has no account '{name}'",
                "Have it made, or say in `accounts` of the site which account it is.",
            ) from None
        return name  # of the login node, not of this machine
    if uid < _FIRST_UID or uid == _NOBODY_UID:
        raise SiteError(
            f"{asked}: account '{name}' (uid {uid}) is none of a person",
            f"Accounts from uid {_FIRST_UID} on may be used, and never root.",
        )
    return name


def _with_name(site: Site, name: str) -> Site:
    def filled(part: Part, *keys: str) -> Part:
        texts = {key: text.replace(_USER, name) for key in keys if (text := getattr(part, key))}
        return part.model_copy(update=texts)

    roles = {}
    for key, role in site.roles.items():
        batch = filled(role.batch, "account", "submit_as")
        login = batch.login and filled(batch.login, "host", "identity")
        batch = batch.model_copy(update={"login": login})
        roles[key] = role.model_copy(update={"batch": batch})
    return filled(site, "folder").model_copy(update={"roles": roles})
