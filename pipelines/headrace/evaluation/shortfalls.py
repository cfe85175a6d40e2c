"""What a model misses of what was asked for; pure."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import EvaluationError


def shortfalls(metrics: Mapping[str, float], minima: Mapping[str, float]) -> tuple[str, ...]:
    """One sentence for each metric that is below what was asked for."""
    told = []
    for name, least in sorted(minima.items()):
        value = metrics.get(name)
        if value is None:
            told.append(f"{name} is undefined on this split, at least {least:g} was asked for")
        elif value < least:
            told.append(f"{name} is {value:.6g}, at least {least:g} was asked for")
    return tuple(told)


def require(metrics: Mapping[str, float], minima: Mapping[str, float], report: str) -> None:
    """Raise when there are any.

    Args:
        metrics: Of the model.
        minima: `evaluate.min_metrics`.
        report: Path of the report.

    Raises:
        EvaluationError: Names them.
    """
    missed = shortfalls(metrics, minima)
    if missed:
        raise EvaluationError(
            f"The model is not as good as asked for: {'; '.join(missed)}",
            f"The report is {report}; lower `evaluate.min_metrics`, or train longer or better.",
        )
