"""From merged predictions to what the report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.evaluation.figures import classification_figures, regression_figures
from headrace.evaluation.merge import Predictions
from headrace.evaluation.metrics import (
    ClassificationResult,
    classification_result,
    regression_metrics,
)
from headrace.evaluation.mistakes import (
    Mistake,
    classification_mistakes,
    confused_pairs,
    regression_mistakes,
)
from headrace.evaluation.report import Card, Column, Table
from headrace.evaluation.thumbnails import thumbnails
from headrace.recipe.recipe import EvaluateSpec
from headrace.shards.dataset import ShardedDataset

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


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What was found out about a model."""

    metrics: dict[str, float]
    """Metrics by name."""
    figures: dict[str, bytes]
    """PNG bytes by title."""
    tables: tuple[Table, ...]
    """Tables for the report."""


def judge(
    predictions: Predictions, dataset: ShardedDataset, ids: NDArray[np.int64], spec: EvaluateSpec
) -> Judgement:
    """Judge predictions by the task of the recipe.

    Args:
        predictions: Of the whole split, sorted by sample id.
        dataset: The split, for class names, source paths and pictures.
        ids: Ids of its samples in its order, `(num_samples,) int64`.
        spec: The recipe's `evaluate`.

    Raises:
        EvaluationError: The predictions cannot be judged.
    """
    if spec.task == "regression":
        worst = _mistakes_table(
            regression_mistakes(predictions), dataset, ids, "Largest errors", "Absolute error"
        )
        return Judgement(
            metrics=regression_metrics(predictions),
            figures=regression_figures(predictions.scores, predictions.label),
            tables=(worst,),
        )
    result = classification_result(predictions, dataset.manifest.classes)
    mistakes = classification_mistakes(predictions, result)
    return Judgement(
        metrics=result.metrics,
        figures=classification_figures(result, predictions.label),
        tables=(
            _classes_table(result),
            _pairs_table(result),
            _mistakes_table(mistakes, dataset, ids, "Mistaken with most confidence", "Confidence"),
        ),
    )


def cards(metrics: Mapping[str, float], minima: Mapping[str, float]) -> tuple[Card, ...]:
    """The metrics as cards of the report."""
    return tuple(
        Card(
            name=_TITLES.get(name, name.capitalize().replace("_", " ")),
            value=f"{value:.4f}",
            note=f"at least {minima[name]:g} asked for" if name in minima else _NOTES.get(name, ""),
            is_bad=value < minima.get(name, -np.inf),
        )
        for name, value in metrics.items()
    )


def _classes_table(result: ClassificationResult) -> Table:
    numbers = ("Samples", "Precision", "Recall", "F1", "AUROC")
    return Table(
        title="Classes",
        columns=(Column(name="Class"), *(Column(name=name, kind="number") for name in numbers)),
        rows=[
            (
                each.name,
                str(each.support),
                f"{each.precision:.4f}",
                f"{each.recall:.4f}",
                f"{each.f1:.4f}",
                "undefined" if each.auroc is None else f"{each.auroc:.4f}",
            )
            for each in result.classes
        ],
    )


def _pairs_table(result: ClassificationResult) -> Table:
    return Table(
        title="Classes confused most",
        columns=(
            Column(name="True"),
            Column(name="Taken for"),
            Column(name="Samples", kind="number"),
            Column(name="Share of the class", kind="number"),
        ),
        rows=[
            (pair.true, pair.predicted, str(pair.count), f"{pair.share:.1%}")
            for pair in confused_pairs(result)
        ],
        empty="No sample was taken for another class.",
    )


def _mistakes_table(
    mistakes: tuple[Mistake, ...],
    dataset: ShardedDataset,
    ids: NDArray[np.int64],
    title: str,
    weight: str,
) -> Table:
    order = np.argsort(ids)
    wanted = np.array([mistake.sample_id for mistake in mistakes], np.int64)
    places = order[np.searchsorted(ids, wanted, sorter=order)]
    # one by one: not many shards are held at once of those that lie elsewhere
    one_by_one = [places[at : at + 1] for at in range(len(places))]
    rows = [
        (
            thumbnails(dataset, place)[0],
            dataset.sources(place)[0],
            mistake.true,
            mistake.predicted,
            f"{mistake.weight:.4f}",
            str(mistake.sample_id),
        )
        for mistake, place in zip(mistakes, one_by_one, strict=True)
    ]
    columns = (
        Column(name="", kind="image"),
        Column(name="Source", kind="path"),
        Column(name="True"),
        Column(name="Predicted"),
        Column(name=weight, kind="number"),
        Column(name="Sample id", kind="number"),
    )
    return Table(title=title, columns=columns, rows=rows, empty="The model made no mistake.")
