"""A copy of a checkpoint in host memory, which nothing that training does changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class HostCopy:
    """Copies what a checkpoint is to hold into memory that it keeps for the next.

    Fresh memory costs several times the copy: the kernel clears each page first.
    """

    def __init__(self) -> None:
        self._content: Any = None

    def take(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """A copy of plain containers and tensors, in place of the copy before, which is gone.

        Tensors that share all of their memory share it in the copy, too.
        """
        self._content = _copied(content, self._content, {})
        return self._content  # type: ignore[no-any-return]


def _copied(value: Any, old: Any, seen: dict[tuple[object, ...], Tensor]) -> Any:
    """A copy of a value, tensors into those at the same place of an `old` copy where they fit."""
    if type(value) is Tensor and value.layout is torch.strided and not value.is_quantized:
        return _tensor(value.detach(), old, seen)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        made = copy.copy(value)  # with its class and attributes
        for name, part in value.items():
            made[name] = _copied(part, before.get(name), seen)
        return made
    if type(value) in (list, tuple):
        parts = (
            old if isinstance(old, list | tuple) and len(old) == len(value) else [None] * len(value)
        )
        return type(value)(
            _copied(part, each, seen) for part, each in zip(value, parts, strict=True)
        )
    return copy.deepcopy(value)


def _tensor(value: Tensor, old: Any, seen: dict[tuple[object, ...], Tensor]) -> Tensor:
    place = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
    if value.numel() and place in seen:
        return seen[place]
    fits = isinstance(old, Tensor) and (old.dtype, old.shape, old.stride()) == (
        value.dtype,
        value.shape,
        value.stride(),
    )
    room: Tensor = old if fits else torch.empty_like(value, device="cpu")
    seen[place] = room.copy_(value)
    return room
