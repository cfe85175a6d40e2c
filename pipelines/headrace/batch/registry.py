"""Which batch system a role names."""

from __future__ import annotations

from headrace.batch.meter import Meter
from headrace.batch.system import BatchSystem
from headrace.recipe.backend import backend_of
from headrace.recipe.site import Role


def system_of(role: Role, timeout_s: float = 60.0) -> BatchSystem:
    """The batch system that a role of a site names; a command without an answer is given up.

    Its commands run on this machine, or on the login node that the role names; inside a job they
    run where they are, for that is inside the cluster.

    Raises:
        SiteError: The backend has none.
    """
    found: BatchSystem = backend_of(role.backend).connect(role, timeout_s)
    return found


def meter_of(role: Role, *, asks_all: bool = False) -> Meter | None:
    """What counts the machines of a role and prices them; None where the role tells.

    With `asks_all` it asks for prices also whom the role leaves out.
    """
    found: Meter | None = backend_of(role.backend).meter(role, asks_all=asks_all)
    return found
