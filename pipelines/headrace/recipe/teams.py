"""Teams, and who may use which site."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field, RootModel, ValidationError, model_validator

from headrace.errors import AccessError, HeadraceError, UserError, nearest
from headrace.recipe.base import Member, Name
from headrace.recipe.home import home
from headrace.recipe.load import available, read_once, site_now
from headrace.recipe.site import Site

VARIABLE = "HEADRACE_TEAMS"
"""Environment variable that names the file of teams."""

Sites = frozenset[str] | None
"""Names of the sites whose runs a user may see; None: all."""

_TEAM = "@"
_EXAMPLE = "Write a list of users for each team: `vision: [ada, grace]`."


class Teams(RootModel[dict[Name, Annotated[tuple[Member, ...], Field(min_length=1)]]]):
    """Users of each team."""

    @model_validator(mode="after")
    def _check(self) -> Teams:
        nested = [each for team in self.root.values() for each in team if each[0] == _TEAM]
        if nested:
            raise ValueError(f"'{nested[0]}' is a team, and teams have users only")
        return self


def teams() -> dict[str, tuple[str, ...]]:
    """Return users by team, from `$HEADRACE_TEAMS` or `teams.yaml`; raise UserError if unusable."""
    file = _file()
    try:
        return read_once(_teams_in, file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error


def _file() -> Path:
    return Path(os.environ.get(VARIABLE) or home() / "teams.yaml")


def _teams_in(file: str) -> dict[str, tuple[str, ...]]:
    from yaml import YAMLError

    from headrace.recipe.yaml_text import MAX_CHARS, parsed

    try:
        with Path(file).open(encoding="utf-8") as text:
            return Teams.model_validate(parsed(text.read(MAX_CHARS + 1))).root
    except ValidationError as error:
        from headrace.recipe.schema import explain  # what few need takes time to load

        raise UserError(explain(error, Teams, file)[0], _EXAMPLE) from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}", _EXAMPLE) from None


def teams_of(user: str) -> tuple[str, ...]:
    """Return the teams of a user."""
    return tuple(name for name, members in teams().items() if user in members)


def may_use(site: Site, user: str) -> bool:
    """Whether a user may run anything on a site; raise UserError if its teams are not known."""
    allowed = site.allowed_users
    if allowed is None or (user in allowed and not user.startswith(_TEAM)):
        return True
    named, known = [each[1:] for each in allowed if each.startswith(_TEAM)], teams()
    unknown = next((each for each in named if each not in known), None)
    if unknown is not None:
        raise UserError(
            f"`allowed_users` of site '{site.name}' has the team '{unknown}', which is not known",
            nearest(unknown, known) if known else f"Write its users into {_file()}.",
        )
    return any(user in known[each] for each in named)


def check_user(site: Site, user: str) -> None:
    """Refuse a user who is not among those that a site is for.

    Raises:
        AccessError: The user is not.
        UserError: As `may_use`.
    """
    if may_use(site, user):
        return
    usable = [name for name, each in known_sites().items() if _is_for(each, user)]
    raise AccessError(
        f"User {user} may not use site '{site.name}' (`allowed_users`)",
        f"Sites for {user}: {', '.join(sorted(usable)) or 'none'}. The author of the site file "
        "decides.",
    )


def sites_for(user: str) -> Sites:
    """Return the sites whose runs a user may see: those that the user may use; None for all.

    It is None if no site lists users. Sites whose file is unknown or damaged are hidden otherwise.
    """
    known = known_sites().values()
    if all(site.allowed_users is None for site in known):
        return None
    closed = {site.name for site in known if not _is_for(site, user)}
    return frozenset(site.name for site in known) - closed


def known_sites() -> dict[str, Site]:
    """Return the sites that can be read, by name."""
    found = {}
    for name in available("sites"):
        with suppress(HeadraceError):  # `headrace site show` reports the error
            found[name] = site_now(name)
    return found


def _is_for(site: Site, user: str) -> bool:
    try:
        return may_use(site, user)
    except UserError:
        return False
