"""Each sample is counted exactly once."""

import numpy as np
import pytest

from headrace.errors import StepError
from headrace.evaluation.metrics import Predictions, merge, read_predictions, write_predictions


def part(*ids: int) -> Predictions:
    sample_id = np.array(ids, np.int64)
    scores = np.stack([sample_id, -sample_id], 1).astype(np.float32)
    return Predictions(sample_id=sample_id, label=sample_id % 3, scores=scores)


def test_sorted_by_sample_id_whatever_the_order():
    expected = np.arange(6)
    first = merge([part(0, 4), part(2, 1), part(5, 3)], expected)
    second = merge([part(5, 3), part(1), part(2), part(0, 4)], expected)
    for name in ("sample_id", "label", "scores"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    np.testing.assert_array_equal(first.sample_id, expected)
    np.testing.assert_array_equal(first.scores[:, 0], expected)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([part(0, 1, 2)], r"Of 5 samples not each .* once: 2 missing \(sample ids 3, 4\)"),
        ([part(0, 1, 2), part(2, 3, 4)], "1 counted more than once \\(sample ids 2\\)"),
        ([part(0, 1, 1, 3, 4)], "1 missing .*2.*; 1 counted more than once .*1"),
        ([part(*range(5)), part(77)], "1 not of this split \\(sample ids 77\\)"),
        ([], "5 missing \\(sample ids 0, 1, 2, 3, 4\\)"),
    ],
)
def test_missing_and_doubled_samples_are_named(parts, words):
    """Pains 49."""
    with pytest.raises(StepError, match=words):
        merge(parts, np.arange(5))


def test_many_examples_are_cut():
    with pytest.raises(StepError, match=r"95 missing .sample ids 5, 6, 7, 8, 9, …"):
        merge([part(*range(5))], np.arange(100))


def test_equal_predictions_give_equal_bytes(tmp_path):
    write_predictions(tmp_path / "a.npz", part(1, 2))
    write_predictions(tmp_path / "b.npz", part(1, 2))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    np.testing.assert_array_equal(read_predictions(tmp_path / "a.npz").scores, part(1, 2).scores)


def test_missing_part_is_named(tmp_path):
    with pytest.raises(StepError, match=r"gone\.npz are missing"):
        read_predictions(tmp_path / "gone.npz")
