"""Statistics of shards, merged, equal those of the whole."""

import numpy as np
import pytest

from headrace.packing import statistics


@pytest.mark.parametrize(
    ("shape", "dtype"), [((8, 8), "uint8"), ((4, 5, 3), "uint8"), ((), "float32"), ((7,), "int16")]
)
def test_merged_parts_equal_the_whole(shape: tuple[int, ...], dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 200, (50, *shape)).astype(dtype)
    parts = [statistics.moments(part) for part in np.array_split(values, 7)]
    merged = statistics.merge(part for part in parts if part is not None)
    assert merged is not None
    found = statistics.finish(merged)
    axes = (0, 1, 2) if len(shape) == 3 else None
    wide = values.astype(np.float64)
    np.testing.assert_allclose(found.mean, np.atleast_1d(wide.mean(axis=axes)), rtol=1e-12)
    np.testing.assert_allclose(found.std, np.atleast_1d(wide.std(axis=axes)), rtol=1e-12)
    assert (found.minimum, found.maximum) == (values.min(), values.max())
    assert found.count == values.size


def test_far_from_zero() -> None:
    """The textbook formula of squares would give a standard deviation of 0 here."""
    values = 1e9 + np.arange(1000.0)
    merged = statistics.moments(values)
    assert merged is not None
    assert statistics.finish(merged).std[0] == pytest.approx(np.arange(1000.0).std())


def test_only_finite_elements_count() -> None:
    values = np.array([[1.0, np.nan], [3.0, np.inf]])
    merged = statistics.moments(values)
    assert merged is not None
    found = statistics.finish(merged)
    assert (found.count, found.mean, found.std, found.maximum) == (2, (2.0,), (1.0,), 3.0)
    assert statistics.moments(np.array([np.nan])) is None
    assert statistics.moments(np.empty((0, 3))) is None


@pytest.mark.parametrize("shape", [(1, 1, 1, 3), (7, 33, 45, 3), (400, 28, 28), (3, 5), (5,)])
@pytest.mark.parametrize("fill", [None, 255])
def test_bytes_are_summed_exactly(shape: tuple[int, ...], fill: int | None) -> None:
    values = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    if fill is not None:
        values[:] = fill
    found = statistics.moments(values)
    assert found is not None
    axes = (0, 1, 2) if values.ndim == 4 else None
    wide = values.astype(np.float64)
    np.testing.assert_allclose(found.means, np.atleast_1d(wide.mean(axis=axes)), rtol=1e-12)
    expected = np.atleast_1d(wide.var(axis=axes)) * found.counts[0]
    np.testing.assert_allclose(found.deviations, expected, rtol=1e-9, atol=1e-9)
    assert (found.minimum, found.maximum) == (wide.min(), wide.max())
