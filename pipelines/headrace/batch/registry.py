"""The batch system of a role."""

from __future__ import annotations

from headrace.batch.meter import Meter
from headrace.batch.system import BatchSystem
from headrace.recipe.backend import backend_of
from headrace.recipe.site import Role


def system_of(role: Role, timeout_s: float = 60.0) -> BatchSystem:
    """Return the batch system of a site's role; its commands time out after `timeout_s`.

    The commands run on this machine, or on the role's login node. In a job they run on the job's
    own node, which is inside the cluster.

    Raises:
        SiteError: The backend has no batch system.
    """
    found: BatchSystem = backend_of(role.backend).connect(role, timeout_s)
    return found


def meter_of(role: Role, *, asks_all: bool = False) -> Meter | None:
    """Return what counts and prices the machines of a role; None if the site gives the price.

    With `asks_all`, also ask services for prices that the role leaves out.
    """
    found: Meter | None = backend_of(role.backend).meter(role, asks_all=asks_all)
    return found
