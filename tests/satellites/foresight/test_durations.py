"""Durations as somebody gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.errors import UserError
from headrace_foresight.durations import duration_of, filling, read_durations

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5h", 5400), ("1h2m", 3720), ("10d16h", 921_600), ("2 min 3s", 123)],
)
def test_words_of_people(text, seconds):
    assert duration_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "-3h", "1h2", "0s", "nan", "1e9999", "9" * 400])
def test_what_is_no_duration_is_told(text):
    with pytest.raises(UserError, match="is not a duration"):
        duration_of(text)


def test_durations_between_bounds_have_the_given_sum():
    found = filling(62 * 60, 256 * HOUR_S, 1386, 16_542 * HOUR_S)
    assert len(found) == 1386
    assert found.sum() / HOUR_S == pytest.approx(16_542)
    assert (found[0], found[-1]) == pytest.approx((256 * HOUR_S, 62 * 60))
    assert (np.diff(found) <= 0).all()
    free = filling(10.0, 1000.0, 101)
    assert np.median(free) == pytest.approx(100.0)  # the geometric mean


@pytest.mark.parametrize(
    ("low", "high", "count", "total", "told"),
    [
        (10.0, 5.0, 3, None, "are not a range"),
        (5.0, 10.0, 1, None, "are not a range"),
        (5.0, 10.0, 3, 100.0, "They take 20"),
        (5.0, 10.0, 3, 1.0, "cannot take"),
    ],
)
def test_bounds_and_sums_that_cannot_be(low, high, count, total, told):
    with pytest.raises(UserError) as error:
        filling(low, high, count, total)
    assert told in str(error.value)


def test_a_csv_file_is_read_in_its_own_unit(tmp_path: Path):
    file = tmp_path / "trials.csv"
    for text, seconds in (
        ("name,hours\na,1\nb,0.5\n", [3600, 1800]),
        ("duration\n1h2m\n", [3720]),
        ("seconds,lr\n5,1e-3\n", [5]),
    ):
        file.write_text(text)
        assert read_durations(file) == seconds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has the columns none"),
        ("hours\n", "has no durations"),
        ("time\n3\n", "has the columns time"),
        ("seconds\n3\nfast\n", "line 3: 'fast'"),
        ("seconds\n-3\n", "line 2: '-3'"),
        ("hours,seconds\nnan,\n", "'nan'"),
        ("name,hours\na\n", "line 2: ''"),
        ("duration\n1x\n", "'1x'"),
    ],
)
def test_bad_files_are_told_with_the_line(tmp_path: Path, text: str, told: str):
    file = tmp_path / "trials.csv"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        read_durations(file)
    assert told in str(error.value)
    with pytest.raises(UserError, match="cannot be read"):
        read_durations(tmp_path / "none.csv")
