"""Whether those for whom a site is are known, and its secrets can be had, as seen from here."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.batch.findings import Finding, fail, ok, warn
from headrace.errors import SecretError, UserError
from headrace.recipe.site import Site
from headrace.recipe.teams import may_use
from headrace.site_secrets import HERE, secrets_for

_NOBODY = ""
_OF_AIRFLOW = "airflow:"


def users(site: Site) -> Iterator[Finding]:
    """Whether the teams of `allowed_users` are known."""
    if site.allowed_users is None:
        return
    try:
        may_use(site, _NOBODY)
    except UserError as error:
        yield fail("users", error.what, error.hint)
    else:
        yield ok("users", ", ".join(site.allowed_users))


def secrets(site: Site) -> Iterator[Finding]:
    """Whether the secrets can be had here; Airflow's connections are asked by its tasks alone."""
    here = {
        name: source for name, source in site.secrets.items() if not source.startswith(_OF_AIRFLOW)
    }
    if of_airflow := sorted(site.secrets.keys() - here.keys()):
        yield ok("secrets", f"not looked at, as Airflow's: {', '.join(of_airflow)}")
    try:
        secrets_for(site.model_copy(update={"secrets": here}), HERE)
    except SecretError as error:
        yield warn("secrets", error.what, error.hint or "Leases from here do not start so.")
    else:
        if here:
            yield ok("secrets", f"can be had here: {', '.join(sorted(here))}")
