"""The part of a recipe that repeats it: which trials there are, and how they are shared out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from headrace.recipe.base import (
    Amount,
    Count,
    Parallel,
    Place,
    PositiveSeconds,
    Problems,
    Seed,
    Settings,
    Target,
    Times,
    to_json,
)

MAX_KEYS = 256
"""Most keys in which trials of a suite differ."""

MAX_TRIALS = 100_000
"""Most trials of a suite: a larger number is refused before anything is built of it."""

_Value = Annotated[JsonValue, BeforeValidator(to_json)]

Values = Annotated[tuple[_Value, ...], Field(min_length=1, max_length=MAX_TRIALS)]
"""Values of one key, each for a trial."""

ValuesByKey = Annotated[dict[str, _Value], Field(max_length=MAX_KEYS)]
"""Values of some keys, together."""


class Objective(Settings):
    """What makes one trial better than another."""

    metric: str
    """Name of a figure that training or evaluation gives, such as `val_loss` or `accuracy`. `loss`
    is the mean of training over the last 100 batches of the last epoch, on the first rank."""
    mode: Literal["min", "max"] = "min"
    """Whether it is better when it is lower or higher."""


class SearchSpec(Settings):
    """Points that Optuna proposes."""

    space: Annotated[dict[str, _Value], Field(min_length=1, max_length=MAX_KEYS)]
    """Where each key may lie: `interval(1e-5, 1e-1)`, `tag(log, interval(1e-5, 1e-1))`,
    `range(1, 9)`, `choice(a, b)` in Hydra's words, or a list of values."""
    trials: int = Field(ge=1, le=MAX_TRIALS)
    """Points to propose."""
    sampler: Literal["random", "tpe", "gp", "cmaes", "nsgaii", "qmc"] | Target = "tpe"
    """Who proposes them: a sampler of Optuna's."""
    pruner: Literal["none", "median", "asha", "hyperband"] | Target = "none"
    """Who ends trials that promise little: a pruner of Optuna's. It looks at the first objective
    after each validation."""

    @model_validator(mode="before")
    @classmethod
    def _check(cls, content: object) -> object:
        if isinstance(content, Mapping) and "trials" not in content:
            raise ValueError("'trials' is missing, the number of points to propose: --trials 50")
        return content


class SuiteSpec(Settings):
    """Trials: the product of grid, zip, points with file; or a search; for each seed and fold.

    A trial has one rank, on one GPU where there are some, unless `train.ranks_per_node` of the
    recipe says more: what the site says there is of runs that have a node for themselves.
    """

    grid: Annotated[dict[str, Values], Field(max_length=MAX_KEYS)] = {}
    """Values by dotted key of the recipe; every combination is a trial."""
    zip: Annotated[dict[str, Values], Field(max_length=MAX_KEYS)] = {}
    """Values by dotted key, all of one length: the first of each together, then the second, …"""
    points: Annotated[tuple[ValuesByKey, ...], Field(max_length=MAX_TRIALS)] = ()
    """Points one by one: values by dotted key."""
    file: Place | None = None
    """CSV file of further points: a column for each key."""
    search: SearchSpec | None = None
    """Points that a sampler proposes, by what earlier ones gave."""
    seeds: (
        Annotated[int, Field(ge=1, le=MAX_TRIALS)]
        | Annotated[tuple[Seed, ...], Field(min_length=1, max_length=MAX_TRIALS)]
        | None
    ) = None
    """Repeat each point with these seeds; a number counts from the recipe's own. Null: once."""
    folds: bool = False
    """Repeat each point with every one of `dataset.folds` to validate on; packed once for all."""
    skip: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Conditions such as `model.depth > 4 and data.global_batch_size > 256`: points for which one
    holds are left out."""
    trial_name: str = ""
    """Template of names, such as `lr{model.lr:g}-seed{seed}`; empty: what varies, in short."""
    objectives: Annotated[tuple[Objective, ...], Field(max_length=100)] = ()
    """What is sought; none: `trainer.monitor`, else the main metric of the task, such as accuracy,
    else `loss`. Of several there is no best trial but a front."""
    order: Literal["longest", "given"] = "longest"
    """Which trials begin first: those that take longest, as far as is known, or as they are."""
    priority: str = ""
    """What makes a trial urgent, in the words of `skip`: `model.depth > 4` or `10 - seed`. Those
    with the greatest number begin first, whatever `order` says; 1 and 0 are yes and no."""
    max_running: Parallel | None = None
    """Most trials at once; null: as many as the nodes have room for."""
    trials_per_gpu: Annotated[int, Field(ge=1, le=128)] | Literal["auto"] = 1
    """Small trials that share one GPU; `auto`: as many as fit by the memory that the first took."""
    trials_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Trials at once on a node that has no GPUs; null: as many as its CPUs allow."""
    retries: Times = 2
    """How often in a row, without a later checkpoint between, a trial is tried again from its last
    one, when its machine was at fault."""
    stop_after_failures: Count | None = None
    """Begin no more trials when so many have failed; null: go on whatever fails."""
    time_limit: PositiveSeconds | None = None
    """Time after which a trial is ended; null: none."""
    budget: Amount | None = None
    """Most US dollars that the suite may cost, as `limits.budget` of a site; null: no limit."""
    sites: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """Sites that share the trials, by name or file, such as `[lab, box, aws]`; the first has the
    suite's folder and packs. Empty: only the site of the run."""
    policy: Literal["own-first", "cheapest", "spread"] = "own-first"
    """Which of several sites are used: the own ones, and others only if these cannot end before
    `deadline`; those that cost least; or all at once."""
    deadline: PositiveSeconds | None = None
    """Time after the suite's start when it should have ended; null: none."""
    keep_checkpoints: Literal["all", "best", "none"] = "all"
    """Succeeded trials whose checkpoints are kept: all, the best one, or none."""

    def problems(self) -> Problems:
        """Yield keys that exclude each other."""
        lengths = {key: len(values) for key, values in self.zip.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{key} has {count}" for key, count in lengths.items())
            yield f"keys of zip must have equally many values: {counts}"
        if self.search and (self.grid or self.zip or self.points or self.file):
            yield ("search excludes grid, zip, points and file: a list of values in search.space "
                   "is a choice of the sampler's")  # fmt: skip
        if self.search and self.search.pruner != "none":
            yield from self._pruning()
        if len(self.objectives) > 1 and self.keep_checkpoints == "best":
            yield "keep_checkpoints: best goes with one objective; write all, or none"

    def _pruning(self) -> Problems:
        """Yield what leaves a pruner without one figure for each trial."""
        if len(self.objectives) > 1:
            yield ("search.pruner needs a single objective: one of several cannot decide that a "
                   "trial promises little")  # fmt: skip
        if self.folds or self.seeds not in (None, 1):
            yield ("search.pruner excludes folds and seeds: a point is compared by the mean of its "
                   "trials, when all have ended")  # fmt: skip
