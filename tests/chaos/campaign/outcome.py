"""How disturbed runs ended, and the run that they are compared with."""

from __future__ import annotations

from chaos.campaign.checks import Result
from chaos.campaign.disturbance import Hit
from chaos.campaign.trials import Trial
from headrace.record import Record


class Reference(Record):
    """The run that nobody disturbs."""

    result: Result
    """What it gave."""
    spans: dict[str, float]
    """Seconds that processes lived, by `phase/role`."""


class Outcome(Record):
    """How a disturbed run ended."""

    trial: Trial
    """What was to be done to it."""
    hit: Hit | None
    """What was done; None when it had ended before."""
    commands: tuple[str, ...]
    """Commands that its user needed, and how they ended."""
    seconds: float
    """From its start to its end, seconds."""
    wrong: tuple[str, ...] = ()
    """How its result differs from the reference."""
    hung: str = ""
    """What was waited for in vain; empty when all ended in time."""
    left: tuple[str, ...] = ()
    """What it left behind, with processes that were there when it hung."""

    @property
    def is_well(self) -> bool:
        """Whether it ended as if nothing had been done to it."""
        return not (self.wrong or self.hung or self.left)
