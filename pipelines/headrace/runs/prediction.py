"""Forecasts of a run: its expected duration at the start, and its remaining time."""

from __future__ import annotations

import math
import time
from statistics import NormalDist

from pydantic import Field

from headrace.record import Record
from headrace.states import StepState
from headrace.steps.mailbox import StepStatus


class StepSeen(Record):
    """State of a step of a run, as far as forecasts need it; null: unknown."""

    name: str
    state: StepState | None
    """Null: not yet begun."""
    status: StepStatus | None = None
    """Its last report."""
    elapsed_s: float | None = None
    failures: int = 0
    """Failed attempts in a row that made no progress."""
    kept: float = 0.0
    """Work of ended attempts that the newest one need not repeat, in units of progress."""


BETWEEN = "between"
"""Name of the part of a run outside its steps: starting leases, collecting results."""

LEVEL = 0.8
"""Probability that a value is in its interval."""


class Forecast(Record):
    """An unknown duration: a log-normal distribution."""

    seconds: float
    """Its median."""
    spread: float = 0.0
    """Standard deviation of its logarithm: the variation of similar work."""
    shared: float = 0.0
    """The same for the error that all forecasts of a kind have in common."""
    shares: tuple[float, ...] = Field(default=(), exclude=True)
    """Shares of it after which it may be ended, equally likely; empty: it is done completely."""

    @property
    def interval(self) -> tuple[float, float]:
        """Return the bounds between which it lies with the probability `LEVEL`."""
        sigmas = NormalDist().inv_cdf((1 + LEVEL) / 2)
        wide = math.exp(sigmas * math.hypot(self.spread, self.shared))
        return self.seconds / wide, self.seconds * wide


class PredictedPart(Forecast):
    """Expected duration of a part of a run."""

    name: str
    """Name of the step, or `BETWEEN`."""
    num_known: int
    """Number of earlier runs that it is estimated from."""


class Prediction(Record):
    """`prediction.json` of a run: its expected duration at the start."""

    seconds: float | None = None
    """Seconds from the request to the end; null if a step is unknown."""
    half_s: float | None = None
    """Half of the interval in which that lies with a probability of 0.8."""
    parts: tuple[PredictedPart, ...] = ()
    unknown: tuple[str, ...]
    """Steps without data of earlier runs."""
    gpu_hours: float | None = None
    """Hours of GPUs, one for each rank; 0 on CPUs, null if unknown."""
    num_bytes: float | None = None
    """Size of the packed dataset in earlier runs; null if unknown."""
    made_at: float = Field(default_factory=time.time)


class Ahead(Record):
    """Expected duration and remaining time of a run; null if unknown."""

    predicted_s: float | None
    """Seconds that were expected at the start."""
    predicted_half_s: float | None
    """Half of the interval in which that lies with a probability of 0.8."""
    eta_s: float | None = None
    """Seconds until its end."""
    eta_half_s: float | None = None
    """Half of the interval of `eta_s` with a probability of 0.8."""

    @classmethod
    def of(cls, prediction: Prediction) -> Ahead:
        """Return the forecast of a run that has no remaining time."""
        return cls(predicted_s=prediction.seconds, predicted_half_s=prediction.half_s)


class Interval(Record):
    """A mean, and the interval around it with a probability of 0.8."""

    low: float
    mean: float
    high: float

    @property
    def half(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2


class FrontierPoint(Record):
    """Forecast of a suite over several sites for a policy and a deadline."""

    policy: str
    deadline_s: float | None = None
    """Seconds from its start; null: none."""
    makespan_s: Interval
    """Seconds from its start to its end."""
    usd: Interval
    """US dollars of all its sites."""
    usd_of: dict[str, float] = {}
    """Mean US dollars by site."""
    ends_of: dict[str, float] = {}
    """Mean seconds until the last trial of a site ends; 0: it has none."""


class ExpectedSite(Record):
    """What a suite expects of a site at its start."""

    site: str
    slots: int
    start_s: float
    """Seconds from a request for nodes until they begin a trial: queue, boot, copies."""
    speed: float
    """Speed relative to the first site."""
    usd_per_hour: float | None
    """US dollars per hour of a slot; null if it is unknown."""


class Frontier(Record):
    """`frontier.json` of a suite: what it costs to end earlier, by policies."""

    points: tuple[FrontierPoint, ...]
    """Those without a deadline, one for each policy, come first."""
    sites: tuple[ExpectedSite, ...] = ()
    source: str = ""
    """What the durations are estimated from, for the user."""
