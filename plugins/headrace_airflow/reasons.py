"""How the reasons begin that Airflow's side gives for ending work; they are recognised again."""

from __future__ import annotations

from headrace.control.reaper import ABANDONED

STOPPED = "A user stopped"
"""By a trigger whose task a user has ended."""

RELEASED = "released by task"
"""By the teardown that closes the lease."""


def is_for_another_try(message: str) -> bool:
    """Whether work was ended by Airflow's side on behalf of an earlier try, not by a person.

    Args:
        message: The failure's message, which holds the reason.
    """
    return any(reason in message for reason in (STOPPED, RELEASED, ABANDONED))
