"""A module that a library imports without need is loaded when somebody uses it, or never."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


class _Late(ModuleType):
    """Stands for a module until something of it is wanted that is not known."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def late(name: str, **known: object) -> Iterator[None]:
    """Inside the context, imports of a module load nothing; afterwards they do as always.

    Args:
        name: Full name of the module; one that is loaded already stays as it is.
        known: Its attributes that are looked at and not used; a look at any other one loads it.
    """
    stand_in = _Late(name)
    vars(stand_in).update(known)
    sys.modules.setdefault(name, stand_in)
    try:
        yield
    finally:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
