"""What a run was expected to take when it began, and what is still to come of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.record import Record

if TYPE_CHECKING:  # lists of runs do without it
    from headrace.states import StepState
    from headrace.steps.mailbox import StepStatus


class StepSeen(Protocol):
    """How a step of a run stands, as far as its end depends on that; see `StepView`."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def state(self) -> StepState | None: ...  # noqa: D102

    @property
    def status(self) -> StepStatus | None: ...  # noqa: D102

    @property
    def elapsed_s(self) -> float | None: ...  # noqa: D102

    @property
    def failures(self) -> int: ...  # noqa: D102

    @property
    def kept(self) -> float: ...  # noqa: D102


BETWEEN = "between"
"""Name of the part of a run that is no step: leases that start, results that are collected."""


class PredictedPart(Record):
    """What one part of a run is expected to take; see `headrace_foresight.forecast.Forecast`."""

    name: str
    """Name of the step, or `BETWEEN`."""
    seconds: float
    spread: float
    shared: float
    num_known: int
    """Earlier runs that tell it."""


class Prediction(Record):
    """`prediction.json` of a run: what it was expected to take when it began."""

    seconds: float | None
    """From asking for it to its end; null where nothing tells of one of its steps."""
    half_s: float | None
    """Half of the interval in which that lies with a probability of 0.8."""
    parts: tuple[PredictedPart, ...]
    unknown: tuple[str, ...]
    """Steps of which no earlier run tells."""
    gpu_hours: float | None
    """Hours of GPUs, of which each rank has one; 0 on CPUs, null where nothing tells."""
    num_bytes: float | None
    """Size of the packed dataset, as it was in earlier runs; null where none tells."""
    made_at: float


class Ahead(Record):
    """What a run was expected to take, and what is still to come of it; null: nothing tells."""

    predicted_s: float | None
    """Seconds that it was expected to take when it began."""
    predicted_half_s: float | None
    """Half of the interval in which that lies with a probability of 0.8."""
    eta_s: float | None = None
    """Seconds until its end."""
    eta_half_s: float | None = None
    """The same half of that."""

    @classmethod
    def of(cls, prediction: Prediction) -> Ahead:
        """What was expected, of a run of which nothing is still to come."""
        return cls(predicted_s=prediction.seconds, predicted_half_s=prediction.half_s)
