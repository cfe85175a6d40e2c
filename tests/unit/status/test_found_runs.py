"""Conditions on overrides and metrics, the order of a list by a metric, and days."""

from __future__ import annotations

import math
import re
import time

import pytest

from headrace.errors import UnknownNameError, UserError
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import RunFilter, condition, first_day, span_of
from headrace.status.run_list import found_runs
from support.found_runs import CONDITIONS, FILTERS, put_runs

pytestmark = pytest.mark.usefixtures("headrace_home")


@pytest.mark.parametrize("given", [*FILTERS, *CONDITIONS], ids=str)
def test_the_list_has_the_runs_of_a_filter_in_its_order(given: str):
    put_runs(open_ledger())
    filters, numbers = {**FILTERS, **CONDITIONS}[given]
    found = found_runs(RunFilter.model_validate({"limit": 99, **filters}))
    assert [int(row.run_id.removeprefix("run-")) for row in found] == numbers
    name = filters.get("sort", "").partition(":")[0]
    assert not name or {row.metric.name for row in found if row.metric} <= {name}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sort": "acuracy"}, "metric 'acuracy'.*Did you mean 'accuracy'.*accuracy, loss"),
        ({"where": ("lrr=1",)}, "override or metric 'lrr'.*model.lr"),
        ({"where": ("lr=1", "lrr=1")}, "override or metric 'lrr'"),
        ({"sort": "lr"}, "Whether lower or higher values of 'lr' are better is unknown.*lr:min"),
        ({"user": ("adda",)}, "user 'adda'.*Did you mean 'ada'"),
        ({"recipe": ("leters",), "where": ("lr=1",)}, "recipe 'leters'.*letters"),
        ({"kind": ("packs",), "sort": "loss"}, "kind 'packs'.*pack"),
        ({"where": ("lr",)}, "'lr' is not a condition"),
        ({"where": ("=1",)}, "'=1' is not a condition"),
        ({"where": ("lr<fast",)}, "'lr<fast' is not a condition"),
        ({"since": "2026-02-30"}, "'2026-02-30' is not a day.*thirty days"),
        ({"until": "-3d"}, "'-3d' is not a day"),
    ],
)
def test_what_cannot_be_looked_for_is_named(given: dict, words: str):
    put_runs(open_ledger())
    with pytest.raises((UserError, UnknownNameError), match=re.compile(words, re.DOTALL)):
        found_runs(RunFilter.model_validate(given))


def test_signs_compare_numbers_as_numbers_and_texts_as_texts():
    for word, value, expected in (
        ("a=0.10", "1e-1", True), ("a=1", "one", False), ("a!=1", "one", True),
        ("a<1", "one", False), ("a<=1", 1.0, True), ("a>=2", math.inf, True),
        ("a<1", math.nan, False), ("a!=1", math.nan, True), ("a=x=y", "x=y", True),
        (" a = x", "x", True),
    ):  # fmt: skip
        key, is_met = condition(word)
        assert (key, is_met(value)) == ("a", expected), (word, value)


def test_days_and_months_are_those_of_utc():
    day = 86_400.0
    assert span_of("1970-01-02") == (day, 2 * day)
    assert span_of("1970-12") == (334 * day, 365 * day)
    assert span_of("2024-02")[1] - span_of("2024-02")[0] == 29 * day
    assert span_of("") == (0.0, math.inf)
    begin, end = span_of("1d")
    assert begin < time.time() - day < end + 1
    assert first_day("1970-12") == "1970-12-01"
