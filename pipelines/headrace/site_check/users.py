"""Whether the users of a site are known, and its secrets available, on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.batch.findings import Finding, fail, ok, warn
from headrace.errors import SecretError, UserError
from headrace.recipe.site import Site
from headrace.recipe.teams import may_use
from headrace.site_secrets import HERE, secrets_for

_NO_USER = ""
_OF_AIRFLOW = "airflow:"


def users(site: Site) -> Iterator[Finding]:
    """Check that the teams of `allowed_users` are known."""
    if site.allowed_users is None:
        return
    try:
        may_use(site, _NO_USER)
    except UserError as error:
        yield fail("users", error.what, error.hint)
    else:
        yield ok("users", ", ".join(site.allowed_users))


def secrets(site: Site) -> Iterator[Finding]:
    """Check that the secrets are available here; only Airflow's tasks can read its connections."""
    here = {
        name: source for name, source in site.secrets.items() if not source.startswith(_OF_AIRFLOW)
    }
    if of_airflow := sorted(site.secrets.keys() - here.keys()):
        yield ok("secrets", f"not checked, since only Airflow has them: {', '.join(of_airflow)}")
    try:
        secrets_for(site.model_copy(update={"secrets": here}), HERE)
    except SecretError as error:
        yield warn("secrets", error.what, error.hint or "Leases cannot start from here.")
    else:
        if here:
            yield ok("secrets", f"can be had here: {', '.join(sorted(here))}")
