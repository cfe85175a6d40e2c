"""The command what-if: durations from files, ranges and runs; scenarios as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UserError
from support.command_line import headrace


def rows(*words: str) -> list[dict[str, Any]]:
    told = headrace("what-if", *words, "--json")
    assert told.exit_code == 0, told.output
    return list(json.loads(told.output))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "trials.csv"
    path.write_text("hours\n5\n4\n3\n3\n3\n")
    return str(path)


def test_scenarios_are_compared_and_the_best_are_marked(headrace_home: Path, file: str):
    words = (file, "--nodes", "1,2,9", "--price", "2", "--order", "longest,given")
    found = rows(*words)
    spans = [(row["nodes"], row["order"], row["makespan_s"]["mean"] / 3600) for row in found]
    assert spans == [
        (1, "longest", 18.0), (1, "given", 18.0), (2, "longest", 10.0), (2, "given", 10.0),
        (9, "longest", 5.0), (9, "given", 5.0),
    ]  # fmt: skip
    assert {row["usd"]["mean"] for row in found} == {36.0}
    assert [row["is_fastest"] for row in found] == [False] * 4 + [True] * 2
    told = headrace("what-if", *words).output
    assert "5 durations of" in told
    assert "10.0 h  $36.00" in told
    assert "fastest, cheapest" in told
    assert not list(headrace_home.glob("ledger*"))  # asking makes no file


def test_spot_instances_are_cheaper_and_uncertain(headrace_home: Path, file: str):
    words = ("--spot", "0,1", "--price", "2", "--spot-price", "0.5", "--interruptions", "0.5")
    fixed, spot = rows(file, "--checkpoint", "1h", *words)
    assert fixed["interruptions"]["mean"] == 0 < spot["interruptions"]["mean"]
    assert spot["is_cheapest"]
    assert spot["makespan_s"]["low"] < spot["makespan_s"]["high"]
    assert spot["waste"]["mean"] > 0 == fixed["waste"]["mean"]


def test_nodes_beside_packing_and_time_limits(headrace_home: Path, file: str):
    (beside,) = rows(file, "--also", "1x4@1.5", "--price", "1")
    assert beside["makespan_s"]["mean"] == 5 * 3600
    assert beside["usd"]["mean"] == 5 * 1.0 + 4 * 1.5  # the box is paid as long as it works
    packed = rows(file, "--pack", "1,5", "--slow-down", "0.1")
    assert [row["makespan_s"]["mean"] for row in packed] == [64_800, pytest.approx(23_400, rel=0.1)]
    cut = rows(file, "--walltime", "4h,1d", "--boot", "1h")
    assert [row["makespan_s"]["mean"] / 3600 for row in cut] == [18 + 6, 18 + 1]


def test_a_price_that_nobody_knows_is_told(headrace_home: Path, file: str):
    (row,) = rows(file)
    assert row["usd"] is None
    assert "unknown" in headrace("what-if", file).output
    (row,) = rows(file, "--site", "laptop")
    assert (row["site"], row["nodes"], row["usd"]) == ("laptop", 1, None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "The trials' durations are missing"),
        (("digits",), "No earlier run shows how long digits takes on laptop"),
        (("FILE", "--duration", "1h"), "given twice"),
        (("FILE", "--nodes", "1,x"), "--nodes is '1,x'"),
        (("FILE", "--nodes", "0"), "--nodes is '0'"),
        (("FILE", "--order", "best"), "Valid orders: longest, given, shortest"),
        (("FILE", "--spot", "2"), "shares are from 0 to 1"),
        (("FILE", "--also", "8"), "--also is '8'"),
        (("FILE", "--trials", "7"), "has 5"),
        (("FILE", "--walltime", "1h", "--boot", "1h"), "longer than booting"),
        (("--duration", "1h:2h"), "are not a range"),
        (("FILE", "--nodes", ",".join(map(str, range(1, 300)))), "299 scenarios"),
    ],
)
def test_questions_that_cannot_be_answered(
    headrace_home: Path, file: str, words: tuple[str, ...], told: str
):
    with pytest.raises(UserError) as error:
        headrace("what-if", *(file if word == "FILE" else word for word in words))
    assert told in str(error.value)
