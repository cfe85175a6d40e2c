"""Records of a suite as JSON: trials, their attempts, and commands."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from headrace.ledger.attempt_usage import AttemptUsage
from headrace.recipe.base import MAX_COUNT, Parallel
from headrace.record import Figures, Record
from headrace.states import FailureClass, StepState
from headrace.steps.retry_policy import Attempt

Point = dict[str, JsonValue]
"""Values by dotted key of the recipe."""


FOLD = "data.fold"
"""Key of the folds of a cross-validation; only their mean is compared with other points."""

PRUNED = "pruned"
"""Counted beside the states: ended early by a pruner. The reason to stop an attempt starts with
this word, too."""

FAILED = (StepState.FAILED, StepState.TIMED_OUT, StepState.LOST, StepState.PREEMPTED)
"""States of trials that ended without success and were not cancelled."""


class Trial(Record):
    """One point of a suite."""

    number: int = Field(ge=1)
    """Number in the suite, which never changes."""
    name: str
    """Name by the suite's template, unique in the suite."""
    values: Point
    """Values that differ from the suite's recipe, with fold and seed."""
    group: int
    """Number of the first trial of the same point: trials with one group differ only by fold and
    seed, and their mean counts."""
    proposal: int | None = None
    """Number of the sampler's proposal that it comes from; null: none."""
    priority: float = 0.0
    """Trials of a higher priority start first."""


class TrialJob(Record):
    """An attempt of a trial, as it is sent to its node."""

    run_folder: str
    """Folder of the suite's run."""
    lease_folder: str
    trial: Trial
    attempt: int = Field(ge=1)
    dataset: str
    """Folder or URL of the packed dataset."""
    gpus: tuple[int, ...] = ()
    """Places of the node's GPUs that it may use; empty on nodes without."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Its share of each of them."""
    cpus: tuple[int, ...] = ()
    """CPUs that it may use; empty: as the worker."""
    time_limit_s: float | None = None
    """Time after which it is ended; null: none."""


class Added(Figures):
    """A trial was added."""

    event: Literal["added"] = "added"
    at: float = Field(default_factory=time.time)
    trial: Trial
    attempts: int = Field(default=0, ge=0)
    """Attempts of the trial at other sites: the next one has the number after them."""


class Assigned(Record):
    """A trial of a suite over several sites was assigned to one of them, or taken back."""

    event: Literal["assigned"] = "assigned"
    at: float = Field(default_factory=time.time)
    number: int
    site: str
    """Name of the site; empty: the trial waits for another assignment."""
    why: str = ""
    """Why it was taken back."""


class Withdrawn(Record):
    """A trial has left a part of a suite: the part runs it no more."""

    event: Literal["withdrawn"] = "withdrawn"
    at: float = Field(default_factory=time.time)
    number: int


class OfAttempt(Record):
    """What is known of an attempt of a trial from its start on."""

    number: int
    attempt: int
    """Number of the attempt; 0 for a trial that ended before its first."""
    asked_at: float | None = None
    """Time since which it waited, seconds since the epoch."""
    machines: tuple[str, ...] = ()
    """All of its nodes, by the names of their provider."""
    lease_id: str = ""
    """Lease of its nodes."""
    site: str = ""
    """Site of the attempt in a suite over several sites; empty: that of the run."""
    node_share: float = Field(default=1.0, gt=0, le=1)
    """Share of its node that it holds: of the GPUs if it has any, else of the CPUs."""


class Started(OfAttempt):
    """An attempt at a trial has begun."""

    event: Literal["started"] = "started"
    at: float = Field(default_factory=time.time)
    node: str
    """Its node; of several, the first."""
    gpus: float = 0.0
    """GPUs that it holds, all nodes together; a share of one where trials share it."""
    cpus: float = 0.0
    """CPUs that it holds, all nodes together."""


class Ended(OfAttempt, Figures):
    """An attempt at a trial has ended."""

    event: Literal["ended"] = "ended"
    at: float = Field(default_factory=time.time)
    state: StepState
    is_final: bool
    """Whether no further attempt follows."""
    is_counted: bool = True
    """Whether it counts against `suite.retries`, if it failed and is tried again."""
    kept: float = 0.0
    """How far the trial's checkpoints have come, if it failed."""
    error: str = ""
    """Class of the error, by name, if it failed."""
    pruned: bool = False
    """Whether a pruner ended it, which is a success."""
    started_at: float
    finished_at: float
    metrics: dict[str, float] = {}
    """Last metrics of training and evaluation, by name."""
    objectives: tuple[float, ...] = ()
    """Values of the suite's objectives; empty if one is missing or not a number."""
    failure_class: FailureClass | None = None
    message: str = ""
    environment: str = ""
    """Hardware and software that numbers may depend on, separated by `; `; empty if unknown."""
    weights: str = ""
    """XXH3 hash of the trained weights; empty if there is none."""
    usage: AttemptUsage = AttemptUsage()

    @property
    def as_failed(self) -> Attempt:
        """The attempt for the retry policy."""
        return Attempt(
            failure_class=self.failure_class,
            error=self.error,
            message=self.message,
            kept=self.kept,
            machines=",".join(self.machines),
        )


class CommandsApplied(Record):
    """Commands were read and applied."""

    event: Literal["heeded"] = "heeded"
    at: float = Field(default_factory=time.time)
    lines: int
    """Lines of `controls.jsonl` that have been read."""
    retried: tuple[int, ...] = ()
    """Ended trials that wait again."""
    cancelled: tuple[int, ...] = ()
    """Cancelled trials."""
    leaving: tuple[int, ...] = ()
    """Trials that leave this part of a suite."""
    priorities: dict[int, float] = {}
    """New priorities of trials, by number."""


Entry = Annotated[
    Added | Assigned | Withdrawn | Started | Ended | CommandsApplied, Field(discriminator="event")
]
"""A line of `trials.jsonl`."""

ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)
"""Reads a line of `trials.jsonl`."""


class Control(Figures):
    """A line of `controls.jsonl`: a command to a suite."""

    what: Literal[
        "pause", "resume", "cancel", "add", "retry", "limit", "prioritize",
        "pause-site", "resume-site", "limit-site", "leave-site",
        "assign", "withdraw", "close",
    ]  # fmt: skip
    """`pause` begins no more trials; `cancel` ends those named, or all; `add` takes further points;
    `retry` runs failed ones again; `limit` sets how many run at once; `prioritize` says how urgent
    those are that are named. Those with `-site` concern one of several sites: `leave-site` moves
    its trials elsewhere and pauses it. The last three are sent to parts by the suite's driver:
    `assign` gives trials, `withdraw` takes those named back, `close` says that no more come."""
    by: str
    """The requester."""
    at: float = Field(default_factory=time.time)
    numbers: tuple[int, ...] = ()
    """Trials of the command; empty for all."""
    points: tuple[Point, ...] = ()
    """Points to add."""
    limit: Parallel | None = None
    """Most trials at once; null: no limit."""
    priority: Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)] | None = None
    """Priority of trials, named or added; null: as `suite.priority` says."""
    site: str = ""
    """Name of the site of a command with `-site`."""
    trials: tuple[Added, ...] = ()
    """Trials of `assign`."""
    stops: bool = False
    """Whether `withdraw` also stops running trials, which keep their checkpoints."""


class RunningTrial(Figures):
    """A trial that runs, in `suite.json`."""

    number: int
    name: str
    attempt: int
    node: str
    started_at: float
    done: float = 0.0
    """Share that is done, 0 to 1."""
    waits: str = ""
    """What it waits for before its start; empty if it does not wait."""
    metrics: dict[str, float] = {}


class SiteSummary(Figures):
    """One of several sites of a suite, in `suite.json`."""

    site: str
    state: Literal["closed", "opening", "open", "paused", "unreachable", "failed"]
    """`closed`: it has no lease; `opening`: none of its nodes is there yet."""
    why: str = ""
    """Why it has that state, or why the plan does not use it; empty if there is nothing to say."""
    run_id: str = ""
    """Run of its part; empty before it was first used."""
    slots: int = 0
    """Most trials at once by its role and limits."""
    planned: int = 0
    """Trials at once by the plan."""
    limit: int | None = None
    """Most trials at once by command; null: no limit."""
    running: int = 0
    assigned: int = 0
    """Trials that wait there."""
    ended: int = 0
    """Trials that ended there."""
    is_own: bool = True
    """Whether its machines are not rented by the hour."""
    usd_per_hour: float | None = None
    """US dollars per hour of a slot; null: unknown, 0: free."""
    usd: float | None = None
    """US dollars so far; null: unknown."""
    speed: float = 1.0
    """Speed relative to the other sites: 2 takes half the time."""
    eta_s: float | None = None
    """Seconds until its last trial by the plan ends; null: unknown."""
    expected_usd: float | None = None
    """US dollars at its end by the plan; null: unknown."""


class SuiteSummary(Figures):
    """`suite.json`: state of a suite; small for any number of trials."""

    total: int
    """Trials so far; with a sampler also those that it will propose."""
    counts: dict[str, int] = {}
    """Trials by state; `pruned` is one."""
    paused: bool = False
    running: tuple[RunningTrial, ...] = ()
    """Running trials, at most the first hundred."""
    best: int | None = None
    """Number of the best trial; null without one objective, or an ended trial."""
    best_value: float | None = None
    eta_s: float | None = None
    """Seconds until the suite's end; null if unknown."""
    eta_error_s: float | None = None
    """Half of the interval in which the end lies, with a probability of 0.8."""
    slots: int | None = None
    """Trials that run at once if all nodes are there; null: unknown."""
    nodes: int | None = None
    """Nodes that are there; null: unknown."""
    sites: tuple[SiteSummary, ...] = ()
    """Sites of a suite over several; empty: there is only one."""
    updated_at: float = Field(default_factory=time.time)
