"""Runs to be found by filters, and what Python finds among them."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from headrace.ledger.ledger import Ledger
from headrace.ledger.run_facts import Fact
from headrace.ledger.run_filter import RunCondition, RunFilter
from headrace.states import StepState
from support.ledger_rows import run_row

DAY_S = 86_400.0
_SIGNS = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip


class FoundRun(NamedTuple):
    """A run with its facts."""

    number: int
    changes: dict[str, Any]
    metrics: dict[str, float]

    @property
    def row(self) -> Any:
        """Its row of the ledger."""
        values = {"created_at": float(self.number), "kind": "train", "overrides": ()}
        return run_row(f"run-{self.number}", **{**values, **self.changes})

    @property
    def overrides(self) -> dict[str, str]:
        """Its overrides by key."""
        return dict(word.split("=", 1) for word in self.row.overrides)


def _at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


SOME_RUNS = [
    FoundRun(0, {"user": "ada", "overrides": ("model.lr=0.1",), "tags": ("Good",),
                 "created_at": _at("2026-10-31T23:59:59")}, {"accuracy": 0.9, "loss": 0.1}),
    FoundRun(1, {"user": "bob", "overrides": ("model.lr=1e-1", "model.name=resnet"),
                 "created_at": _at("2026-11-01T00:00:00"), "note": "wrong LABELS"},
             {"accuracy": 0.95}),
    FoundRun(2, {"user": "ada", "recipe_name": "letters", "state": StepState.FAILED,
                 "created_at": _at("2026-11-30T23:59:59"), "is_starred": True}, {"loss": math.nan}),
    FoundRun(3, {"kind": "pack", "created_at": _at("2026-12-01T00:00:00")}, {}),
    FoundRun(4, {"kind": "suite", "overrides": ("lr=0.2", "data.name=5%_x"), "tags": ("good", "b"),
                 "created_at": _at("2026-12-02T00:00:00")}, {"accuracy": 0.5, "loss": math.inf}),
]  # fmt: skip

FILTERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "none": ({}, [4, 2, 1, 0]),
    "all kinds": ({"kind": ["all"]}, [4, 3, 2, 1, 0]),
    "kind": ({"kind": ["pack", "suite"]}, [4, 3]),
    "user": ({"user": ["ada"]}, [2, 0]),
    "users and state": ({"user": ["ada", "bob"], "state": ["failed"]}, [2]),
    "recipe": ({"recipe": ["letters"]}, [2]),
    "tag": ({"tag": ["good"]}, [4, 0]),
    "both tags": ({"tag": ["good", "B"]}, [4]),
    "starred": ({"starred": True}, [2]),
    "since": ({"since": "2026-11-01"}, [4, 2, 1]),
    "until": ({"until": "2026-11-30"}, [2, 1, 0]),
    "month": ({"since": "2026-11", "until": "2026-11"}, [2, 1]),
    "number": ({"where": ["lr=0.10"]}, [1, 0]),
    "whole key": ({"where": ["model.lr=0.1"]}, [1, 0]),
    "text value": ({"where": ["name=resnet"]}, [1]),
    "other text": ({"where": ["name!=resnet"]}, [4]),
    "other number": ({"where": ["lr!=0.1"]}, [4]),
    "metric": ({"where": ["accuracy>=0.9"]}, [1, 0]),
    "infinite": ({"where": ["loss>1"]}, [4]),
    "NaN": ({"where": ["loss=nan"]}, [2]),
    "not NaN": ({"where": ["loss!=0.1"]}, [4, 2]),
    "two": ({"where": ["accuracy>0.4", "lr<0.15"]}, [1, 0]),
    "text": ({"text": "labels"}, [1]),
    "override as text": ({"text": "LR=1E-"}, [1]),
    "literal text": ({"text": "5%_"}, [4]),
    "sorted": ({"sort": "accuracy"}, [1, 0, 4, 2]),
    "sorted, NaN last": ({"sort": "loss"}, [4, 0, 2, 1]),
    "few": ({"sort": "accuracy", "limit": 1}, [1]),
}
"""Fields of filters, and the numbers of the runs that they find, greatest metric first."""


def put_runs(ledger: Ledger, runs: Iterable[FoundRun]) -> None:
    """Enter runs with their facts."""
    rows = []
    for run in runs:
        ledger.add_run(run.row)
        facts = [Fact("override", *each) for each in run.overrides.items()]
        facts += [Fact("metric", name, repr(value)) for name, value in run.metrics.items()]
        rows.append((run.row, facts))
    ledger.put_facts(rows)


def some_run(draw: random.Random, number: int) -> FoundRun:
    """Return a run at random; few values, so that filters meet."""
    keys = {
        "model.lr": ("0.1", "1e-1", "0.2", "auto"), "data.lr": ("3", "0.1"), "seed": ("1", "2"),
        "accuracy": ("0.5",),
    }  # fmt: skip
    overrides = [
        f"{key}={draw.choice(values)}" for key, values in keys.items() if draw.random() < 0.4
    ]
    values = (0.25, 0.5, 0.75, math.nan, math.inf, -math.inf)
    metrics = {name: draw.choice(values) for name in ("accuracy", "loss") if draw.random() < 0.7}
    return FoundRun(number, {
        "created_at": draw.choice((0.0, 0.5, 1.5, 2.0)) * DAY_S, "overrides": tuple(overrides),
        "user": draw.choice(("ada", "bob")), "recipe_name": draw.choice(("digits", "letters")),
        "state": draw.choice((StepState.FAILED, StepState.SUCCEEDED, StepState.RUNNING)),
        "kind": draw.choice(("train", "pack", "suite", "rehearsal")),
        "tags": tuple(draw.sample(("good", "bad", "o.k"), draw.randint(0, 2))),
        "is_starred": draw.random() < 0.5, "note": draw.choice(("", "Wrong labels")),
    }, metrics)  # fmt: skip


def some_filter(draw: random.Random) -> RunFilter:
    """Return a filter at random."""
    choices: dict[str, Sequence[Any]] = {
        "user": (("ada",), ("ada", "bob")), "recipe": (("digits",),),
        "state": (("failed",), ("failed", "running")), "kind": (("all",), ("train", "pack")),
        "tag": (("good",), ("GOOD", "bad"), ("o.k",)), "starred": (True,),
        "since": ("1970-01-02", "1970-01"), "until": ("1970-01-02", "1970-01-01"),
        "where": (("lr=0.1",), ("model.lr!=0.1",), ("accuracy>=0.5", "seed=1"), ("lr=auto",),
                  ("lr!=auto",), ("loss<0.5",), ("loss=nan",), ("loss!=0.25", "lr<=0.2")),
        "text": ("digit", "WRONG", "lr=0", "bad", "run-1"), "sort": ("accuracy", "loss"),
        "limit": (3, 7),
    }  # fmt: skip
    chosen = draw.sample(sorted(choices), draw.randint(0, 4))
    given = {"limit": 99, **{name: draw.choice(choices[name]) for name in chosen}}
    return RunFilter.model_validate(given)


def filtered(runs: Iterable[FoundRun], wanted: RunFilter, mode: str) -> list[str]:
    """Return the ids of the runs that a filter finds, in their order."""
    sign = 1 if mode == "min" else -1

    def order(run: FoundRun) -> tuple[Any, ...]:
        value = run.metrics.get(wanted.sort, math.nan)
        return (True, 0.0) if math.isnan(value) else (False, sign * value)

    found = sorted(
        (run for run in runs if _is_wanted(run, wanted)),
        key=lambda run: (run.row.created_at, run.row.run_id), reverse=True,
    )  # fmt: skip
    return [run.row.run_id for run in sorted(found, key=order)][: wanted.limit]


def _is_wanted(run: FoundRun, wanted: RunFilter) -> bool:
    row, (begin, end) = run.row, wanted.span
    kinds = wanted.kind or ("train", "suite")
    texts = (row.run_id, row.recipe_name, row.site_name, row.user, row.note, *row.tags)
    words = [each.lower() for each in (*texts, *row.overrides)]
    return (
        ("all" in kinds or row.kind in kinds)
        and (not wanted.user or row.user in wanted.user)
        and (not wanted.recipe or row.recipe_name in wanted.recipe)
        and (not wanted.state or row.state in wanted.state)
        and {tag.lower() for tag in wanted.tag} <= {*row.tags}
        and (row.is_starred or not wanted.starred)
        and begin <= row.created_at < end
        and any(wanted.text.lower() in word for word in words)
        and all(_holds(run, each) for each in wanted.conditions)
    )


def _holds(run: FoundRun, condition: RunCondition) -> bool:
    values: list[str | float] = [
        text for key, text in run.overrides.items()
        if condition.key in (key, key.rpartition(".")[2])
    ]  # fmt: skip
    values += [run.metrics[condition.key]] if condition.key in run.metrics else []
    return any(_meets(value, condition) for value in values)


def _meets(value: str | float, condition: RunCondition) -> bool:
    if condition.number is None:
        is_equal = str(value) == condition.text
        return is_equal if condition.sign == "=" else not is_equal
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if condition.sign in "!=":
        is_equal = number == condition.number
        return is_equal if condition.sign == "=" else not is_equal
    return bool(_SIGNS[condition.sign](number, condition.number))
