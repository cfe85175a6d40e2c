"""Metrics as cards of the report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.evaluation.report import Card
from headrace.recipe.evaluate import EvaluateSpec

_TITLES = {"f1": "F1", "auroc": "AUROC", "mae": "MAE", "rmse": "RMSE", "r2": "R²"}

_NOTES = {
    "precision": "mean of the classes",
    "recall": "mean of the classes",
    "f1": "mean of the classes",
    "auroc": "one against the rest, mean",
    "calibration_error": "lower is better",
    "mae": "lower is better",
    "rmse": "lower is better",
}


def cards(metrics: Mapping[str, float], spec: EvaluateSpec) -> tuple[Card, ...]:
    """The metrics as cards of the report."""
    return tuple(
        Card(
            name=name if name in spec.metrics or "." in name else _title(name),
            value=f"{value:.4f}",
            note=_asked_for(name, spec) or _note(name, spec),
            is_bad=value < spec.min_metrics.get(name, -np.inf)
            or value > spec.max_metrics.get(name, np.inf),
        )
        for name, value in metrics.items()
    )


def _title(name: str) -> str:
    return _TITLES.get(name, name.capitalize().replace("_", " "))


def _note(name: str, spec: EvaluateSpec) -> str:
    note = "" if name in spec.metrics else _NOTES.get(name, "")
    return "of the second class" if note and "mean" in note and spec.task == "binary" else note


def _asked_for(name: str, spec: EvaluateSpec) -> str:
    bounds = (("at least", spec.min_metrics), ("at most", spec.max_metrics))
    told = [f"{word} {bound[name]:g}" for word, bound in bounds if name in bound]
    return f"{', '.join(told)} asked for" if told else ""
