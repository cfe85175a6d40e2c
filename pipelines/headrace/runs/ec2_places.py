"""Where instances of this headrace home can be: the regions and accounts of its sites."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.clusters.lease_records import LeaseSpec
from headrace.errors import SiteError, StepError
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.recipe.ec2 import Ec2
from headrace.recipe.load import available, load_site
from headrace.recipe.site import Site

logger = logging.getLogger(__name__)

_LAST_LEASES = 200
"""Of so many the place is looked up: a site may be named by a path, or its region be changed."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where to look."""

    roles: dict[str, Ec2]
    """A role for each region, profile and server, by what users call that place."""
    roots: tuple[SiteFolder, ...]
    """Folders in which this home's leases lie."""


def known_places(site_name: str | None = None) -> Places:
    """All places of all sites that can be named here and of the last leases; or those of one site.

    Raises:
        SiteError: The site cannot be read, or has no role on EC2.
    """
    sites = list(_sites())
    if site_name is None:
        roles = [*_roles(sites), *_of_leases()]
    else:
        chosen = load_site(site_name)
        sites.append(chosen)
        roles = _roles([chosen])
        if not roles:
            told = "`headrace site list` names the others; leave `--site` out to look at all."
            raise SiteError(f"Site {chosen.name} has no role of backend ec2", told)
    folders = dict.fromkeys(Path(site.folder).expanduser().absolute() for site in sites)
    return Places(
        roles={_title(role): role for role in roles}, roots=tuple(map(SiteFolder, folders))
    )


def _sites() -> Iterator[Site]:
    for name in available("sites"):
        try:
            yield load_site(name)
        except SiteError as error:
            logger.warning("Site %s is passed over: %s", name, error.what)


def _roles(sites: list[Site]) -> list[Ec2]:
    return [role.ec2 for site in sites for role in site.roles.values() if role.ec2 is not None]


def _of_leases() -> Iterator[Ec2]:
    for record in open_ledger().leases(limit=_LAST_LEASES):
        if record.backend == "ec2":
            with suppress(StepError, OSError):  # of another release, or of another user
                spec = read_record(LeaseFolder(Path(record.folder)).spec, LeaseSpec)
                if spec is not None and spec.role.ec2 is not None:
                    yield spec.role.ec2


def _title(role: Ec2) -> str:
    profile = f" as {role.profile}" if role.profile else ""
    return f"{role.region}{profile}{f' at {role.endpoint_url}' if role.endpoint_url else ''}"
