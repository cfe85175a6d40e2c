"""Runs to be found by filters, and which of them each filter finds."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

from headrace.ledger.ledger import Ledger
from headrace.states import StepState
from support.ledger_rows import run_row


def _at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


def _trained(**metrics: float) -> dict[str, Any]:
    return {"train": {"metrics": metrics}}


_RUNS: list[dict[str, Any]] = [
    {"user": "ada", "overrides": ("model.lr=0.1",), "tags": ("Good",), "seed": 3,
     "created_at": _at("2026-10-31T23:59:59"), "outputs": _trained(accuracy=0.9, loss=0.1, lr=7.0)},
    {"user": "bob", "overrides": ("model.lr=1e-1", "model.name=resnet"), "note": "wrong LABELS",
     "created_at": _at("2026-11-01T00:00:00"), "outputs": _trained(accuracy=0.95)},
    {"user": "ada", "recipe_name": "letters", "state": StepState.FAILED, "is_starred": True,
     "created_at": _at("2026-11-30T23:59:59"), "outputs": _trained(loss=math.nan)},
    {"kind": "pack", "created_at": _at("2026-12-01T00:00:00")},
    {"overrides": ("+lr=0.2", "data.name=5%_é", "~trainer.logger"), "tags": ("good", "b"),
     "dataset": "flowers", "created_at": _at("2026-12-02T00:00:00"),
     "outputs": {**_trained(accuracy=0.4, loss=math.inf),
                 "evaluate": {"metrics": {"accuracy": 0.5}}}},
]  # fmt: skip

FILTERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "none": ({}, [4, 2, 1, 0]),
    "newest": ({"limit": 2}, [4, 2]),
    "all kinds": ({"kind": ["all"]}, [4, 3, 2, 1, 0]),
    "kind": ({"kind": ["pack", "suite"]}, [3]),
    "user": ({"user": ["ada"]}, [2, 0]),
    "users and state": ({"user": ["ada", "bob"], "state": ["failed"]}, [2]),
    "recipe": ({"recipe": ["letters"]}, [2]),
    "tag": ({"tag": ["good"]}, [4, 0]),
    "both tags": ({"tag": ["good", "B"]}, [4]),
    "starred": ({"starred": True}, [2]),
    "since": ({"since": "2026-11-01"}, [4, 2, 1]),
    "until": ({"until": "2026-11-30"}, [2, 1, 0]),
    "month": ({"since": "2026-11", "until": "2026-11"}, [2, 1]),
    "text": ({"text": "labels"}, [1]),
    "override as text": ({"text": "LR=1E-"}, [1]),
    "literal text": ({"text": "5%_é"}, [4]),
    "no match": ({"user": ["bob"], "state": ["failed"]}, []),
}
"""Fields of filters of columns, and the numbers of the runs that they find, in their order."""

CONDITIONS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "number": ({"where": ["lr=0.10"]}, [1, 0]),
    "whole key": ({"where": ["model.lr=0.1"]}, [1, 0]),
    "metric of the same name": ({"where": ["lr=7"]}, [0]),
    "text value": ({"where": ["name=resnet"]}, [1]),
    "other text": ({"where": ["name!=resnet"]}, [4]),
    "other number": ({"where": ["lr!=0.1"]}, [4, 0]),
    "seed": ({"where": ["seed!=4"]}, [0]),
    "dataset": ({"where": ["dataset=flowers"]}, [4]),
    "metric": ({"where": ["accuracy>=0.5"]}, [4, 1, 0]),
    "infinite": ({"where": ["loss>1"]}, [4]),
    "NaN": ({"where": ["loss=nan"]}, [2]),
    "not NaN": ({"where": ["loss!=0.1"]}, [4, 2]),
    "two": ({"where": ["accuracy>0.4", "lr<0.15"]}, [1, 0]),
    "two of which no run has both": ({"where": ["name=resnet", "seed=3"]}, []),
    "sorted": ({"sort": "accuracy"}, [1, 0, 4, 2]),
    "sorted, NaN last": ({"sort": "loss"}, [0, 4, 2, 1]),
    "direction": ({"sort": "loss:max"}, [4, 0, 2, 1]),
    "the best": ({"sort": "accuracy", "limit": 1, "where": ["lr<1"]}, [1]),
    "none to sort": ({"sort": "accuracy", "user": ["bob"], "starred": True}, []),
}
"""As `FILTERS`, of conditions and orders."""


def put_runs(ledger: Ledger) -> None:
    """Enter the runs; the number of each is the end of its id."""
    for number, changes in enumerate(_RUNS):
        given = {"kind": "train", "state": StepState.SUCCEEDED, "overrides": (), **changes}
        ledger.add_run(run_row(f"run-{number}", **given))
