"""`late`: a module that is imported but not used is not loaded."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from headrace.steps.late_module import late

OUTER, INNER = "late_outer", "late_outer.inner"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package with a module that counts its loads."""
    folder = tmp_path / OUTER
    folder.mkdir()
    (folder / "__init__.py").write_text("loads = 0\n")
    (folder / "inner.py").write_text(f"import {OUTER}\n{OUTER}.loads += 1\nvalue = 'real'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(OUTER)
    for name in (OUTER, INNER):
        sys.modules.pop(name, None)


def test_what_is_only_looked_at_is_not_loaded_and_can_be_used_later(package):
    with late(INNER, known=None):
        assert hasattr(importlib.import_module(INNER), "known")
    assert INNER not in sys.modules
    assert package.loads == 0
    assert importlib.import_module(INNER).value == "real"
    assert not hasattr(importlib.import_module(INNER), "known")


def test_what_is_used_after_all_is_loaded_once(package):
    with late(INNER, known=None):
        module = importlib.import_module(INNER)
        assert (module.value, module.value) == ("real", "real")
        assert importlib.import_module(INNER).value == "real"
    assert package.loads == 1
    assert sys.modules[INNER].value == "real"
    assert not hasattr(module, "nothing")


def test_what_is_loaded_already_stays(package):
    loaded = importlib.import_module(INNER)
    with late(INNER, value="other"):
        assert importlib.import_module(INNER) is loaded
    assert sys.modules[INNER] is loaded
    assert loaded.value == "real"
    assert package.loads == 1
