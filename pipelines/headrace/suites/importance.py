"""What matters in a suite: how much of its outcome comes from each key."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import JsonValue

from headrace.ledger.trial_rows import TrialRecord
from headrace.record import Figures
from headrace.suites.analysis import finished, varying
from headrace.suites.names import written
from headrace.suites.records import FOLD

LEAST_FOR_IMPORTANCE = 10
"""Trials below which nothing is said of the importance of keys."""

_MOST_FOR_FANOVA = 500
_MOST = 2000
_LOG_FROM = 100.0


class Importance(Figures):
    """How much of the first objective's variance comes from each key."""

    shares: dict[str, float] = {}
    """By key, the most important first; 1 in all."""
    why_not: str = ""
    """Why nobody can say."""


def importance_of(rows: Iterable[TrialRecord], mode: str = "min") -> Importance:
    """What matters, by the trials that have ended.

    By fANOVA of Optuna (Hutter et al. 2014), of many trials by PED-ANOVA (Watanabe et al. 2023), of
    more than 2,000 by so many of them, drawn by chance, the same ones each time.
    """
    ended = finished(rows)
    if len(ended) > _MOST:
        ended = random.Random(0).sample(ended, _MOST)
    keys = [
        key for key in varying(ended) if key != FOLD and all(key in row.values for row in ended)
    ]
    if len(ended) < LEAST_FOR_IMPORTANCE:
        return Importance(why_not=f"it needs {LEAST_FOR_IMPORTANCE} ended trials, not {len(ended)}")
    if len(keys) < 2:
        return Importance(why_not="it needs two keys that vary")
    if len({(row.objective or 0.0) for row in ended}) == 1:
        return Importance(why_not="all trials gave the same")
    import optuna
    from optuna.importance import (
        FanovaImportanceEvaluator,
        PedAnovaImportanceEvaluator,
        get_param_importances,
    )

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {key: _distribution([row.values[key] for row in ended]) for key in keys}
    study = optuna.create_study(direction="minimize" if mode == "min" else "maximize")
    study.add_trials(
        optuna.trial.create_trial(
            params={key: _param(row.values[key], kinds[key]) for key in keys},
            distributions=kinds,
            value=(row.objective or 0.0),
        )
        for row in ended
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        is_small = len(ended) <= _MOST_FOR_FANOVA
        judge = FanovaImportanceEvaluator(seed=0) if is_small else PedAnovaImportanceEvaluator()
        return Importance(shares=dict(get_param_importances(study, evaluator=judge)))


def _distribution(values: Sequence[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        low, high = float(min(values)), float(max(values))
        return FloatDistribution(low, high, log=low > 0 and high / low >= _LOG_FROM)
    return CategoricalDistribution(sorted({written(value) for value in values}))


def _param(value: JsonValue, kind: Any) -> Any:
    from optuna.distributions import FloatDistribution

    return float(value) if isinstance(kind, FloatDistribution) else written(value)  # type: ignore[arg-type]
