"""Which elements statistics look at: all of little, an unbiased share of much, always the same."""

import numpy as np
import pytest

from headrace.packing import looked, statistics
from headrace.packing.looked import Looked, every_of
from headrace.storage.manifest import FieldInfo


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
    field = Looked(_field(shape, dtype), every=1)
    for start in range(0, 60, 7):
        field.add([row.tobytes() for row in values[start : start + 7]], start)
    found, expected = field.moments(), statistics.moments(values)
    assert found is not None
    assert expected is not None
    np.testing.assert_allclose(found.means, expected.means, rtol=1e-9)
    np.testing.assert_allclose(found.deviations, expected.deviations, rtol=1e-6)
    assert found.counts == expected.counts


def test_a_share_comes_from_everywhere() -> None:
    """Samples differ, and so do the parts of each: both must be met in their proportion."""
    ramp = np.linspace(0, 100, 1000).astype(np.uint8)
    values = np.stack([ramp + number // 8 for number in range(800)])
    field = Looked(_field((1000,)), every=10)
    for start in range(0, 800, 4):
        field.add([row.tobytes() for row in values[start : start + 4]], start)
    found = field.moments()
    assert found is not None
    assert found.counts == (values.size // 10,)
    assert found.means[0] == pytest.approx(values.mean(), rel=0.05)


def test_windows_cross_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every window of a block is the right piece of its samples, one after the other."""
    content = np.arange(30, dtype=np.uint8)
    items = [row.tobytes() for row in content.reshape(5, 6)]
    for window in range(4):
        monkeypatch.setattr(looked, "_drawn", lambda sample_id, count, window=window: window)
        field = Looked(_field((6,)), every=4)
        field.add(items, 0)
        found = field.moments()
        assert found is not None
        piece = content[window * 8 : window * 8 + 8]
        assert (found.minimum, found.maximum, found.counts[0]) == (
            piece.min(), piece.max(), len(piece),
        )  # fmt: skip
