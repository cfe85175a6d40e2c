"""Each sample is counted exactly once."""

import numpy as np
import pytest
import torch
from pyarrow import parquet

from headrace.errors import StepError
from headrace.evaluation.merge import (
    ScoredSamples,
    joined,
    merge,
    read_part,
    results_of,
    write_part,
    write_results,
)


def part(*ids: int) -> ScoredSamples:
    sample_id = torch.tensor(ids, dtype=torch.int64)
    scores = torch.stack([sample_id, -sample_id], 1).float()
    texts = [f"text {number}" for number in ids]
    columns = {"preds": scores, "label": sample_id % 3, "text": texts}
    return ScoredSamples(sample_id.numpy(), columns, {"m": {"": (1, {"total": sample_id.sum()})}})


def test_sorted_by_sample_id_whatever_the_order():
    expected = np.arange(6)
    first = merge([part(0, 4), part(2, 1), part(5, 3)], expected)
    second = merge([part(5, 3), part(1), part(2), part(0, 4)], expected)
    for found in (first, second):
        np.testing.assert_array_equal(found.sample_id, expected)
        np.testing.assert_array_equal(found.predictions.scores[:, 0], expected)
        np.testing.assert_array_equal(found.predictions.label, expected % 3)
        assert found.columns["text"] == [f"text {number}" for number in range(6)]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([part(0, 1, 2)], r"Not all of 5 samples .* once: 2 missing \(sample ids 3, 4\)"),
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


def test_results_that_only_some_samples_have_are_named():
    with pytest.raises(StepError, match="results preds, label, text, others preds"):
        merge([part(0), ScoredSamples(np.array([1]), {"preds": torch.zeros(1)})], np.arange(2))


def test_a_part_comes_back_as_it_was_written(tmp_path):
    write_part(tmp_path / "a.pt", part(1, 2))
    found = read_part(tmp_path / "a.pt")
    np.testing.assert_array_equal(found.sample_id, [1, 2])
    torch.testing.assert_close(found.columns["preds"], part(1, 2).columns["preds"])
    assert found.columns["text"] == ["text 1", "text 2"]
    assert found.states == {"m": {"": (1, {"total": torch.tensor(3)})}}
    with pytest.raises(StepError, match=r"gone\.pt are missing"):
        read_part(tmp_path / "gone.pt")


def test_results_of_samples_are_rows_of_parquet(tmp_path):
    whole = merge([part(1, 0), part(2)], np.arange(3))
    whole.columns["boxes"] = joined([torch.ones(1, 2), torch.zeros(2, 3)])
    for name in ("a", "b"):
        write_results(tmp_path / name, results_of(whole, ["x.png", "y.png", "z.png"], "test"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found = parquet.read_table(tmp_path / "a").to_pylist()
    assert found[1] == {
        "sample_id": 1,
        "source": "y.png",
        "split": "test",
        "preds": [1.0, -1.0],
        "label": 1,
        "text": "text 1",
        "boxes": [0.0, 0.0, 0.0],
    }
