"""Statistics of shards, merged, equal those of the whole."""

import numpy as np
import pytest

from headrace.files.manifest import FieldInfo
from headrace.packing import statistics
from headrace.packing.statistics import SampledMoments, every_of


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


def _field(shape: tuple[int, ...], dtype: str = "uint8") -> FieldInfo:
    return FieldInfo(name="image", dtype=dtype, shape=shape, layout="fixed")


def test_all_of_a_small_field_and_a_share_of_a_large_one() -> None:
    info = _field((64, 64, 3))
    assert every_of(info, 682) == 1  # MAX_ELEMENTS but for 8,192
    assert every_of(info, 683) == 2
    assert every_of(info, 6_826) == 10
    ragged = FieldInfo(name="text", dtype="uint8", layout="ragged")
    assert every_of(ragged, 10**9) == 1


@pytest.mark.parametrize("shape", [(40, 30, 3), (7,), (), (9, 9)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_all_elements_are_those_of_the_samples(shape: tuple[int, ...], dtype: str) -> None:
    values = np.random.default_rng(2).integers(0, 256, (60, *shape)).astype(dtype)
    field = SampledMoments(_field(shape, dtype), every=1)
    for start in range(0, 60, 7):
        field.add([row.tobytes() for row in values[start : start + 7]], start)
    found, expected = field.moments(), statistics.moments(values)
    np.testing.assert_allclose(found.means, expected.means, rtol=1e-9)
    np.testing.assert_allclose(found.deviations, expected.deviations, rtol=1e-6)
    assert found.counts == expected.counts


def test_a_share_comes_from_everywhere() -> None:
    """Samples differ, and so do the parts of each: both must be met in their proportion."""
    ramp = np.linspace(0, 100, 1000).astype(np.uint8)
    values = np.stack([ramp + number // 8 for number in range(800)])
    field = SampledMoments(_field((1000,)), every=10)
    for start in range(0, 800, 4):
        field.add([row.tobytes() for row in values[start : start + 4]], start)
    found = field.moments()
    assert found.counts == (values.size // 10,)
    assert found.means[0] == pytest.approx(values.mean(), rel=0.05)


def test_windows_cross_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every window of a block is the right piece of its samples, one after the other."""
    content = np.arange(30, dtype=np.uint8)
    items = [row.tobytes() for row in content.reshape(5, 6)]
    for window in range(4):
        monkeypatch.setattr(statistics, "_drawn", lambda sample_id, count, window=window: window)
        field = SampledMoments(_field((6,)), every=4)
        field.add(items, 0)
        found = field.moments()
        assert found is not None
        piece = content[window * 8 : window * 8 + 8]
        assert (found.minimum, found.maximum, found.counts[0]) == (
            piece.min(), piece.max(), len(piece),
        )  # fmt: skip
