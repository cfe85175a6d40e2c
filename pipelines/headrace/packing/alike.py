"""Files of arrays that differ in their values only: one is looked at for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.packing.convert import Column, Converter
from headrace.packing.decode import plain_header
from headrace.packing.samples import Content, FileBlock, Unreadable
from headrace.packing.slots import Slots
from headrace.shards.placing import Buffer

_BEGINNING_BYTES = 4096  # headers are smaller
_MAX_SLOT_BYTES = 64 * 2**20
_VIEWED_BYTES = 16 * 2**10  # copying less is as fast as making a view


class Alike:
    """Takes whole files as arrays that are all as one that was looked at.

    Args:
        converter: How the field is kept.
    """

    def __init__(self, converter: Converter) -> None:
        self._converter = converter
        self._header: bytes | None = None
        self._num_bytes = 0
        self._shapes: list[tuple[int, ...]] = []
        self._slots: Slots | None = None
        self._fills = True  # until a block turns out not to be alike

    def filled(self, files: FileBlock) -> Column | None:
        """The bytes of the arrays of `.npy` files that are all alike, in memory of its own.

        Args:
            files: The files.

        Returns:
            None when they are to be read one by one.
        """
        num_files = len(files.sizes)
        if not self._fills or files.sizes.count(files.sizes[0]) < num_files:
            return None
        self._fills = self._may_fill(files) and files.fill(self._room(num_files))
        if not self._fills or self._slots is None:
            return None
        return Column(
            items=[*self._slots.bodies(num_files)],
            shapes=self._shapes * num_files,
            joined=self._slots.joined(num_files),
        )

    def column(self, contents: Sequence[Content]) -> Column | None:
        """The bytes of the arrays of `.npy` files, when equal headers say that all are alike.

        Args:
            contents: The files.

        Returns:
            None when each must be looked at.
        """
        first = contents[0]
        if isinstance(first, Unreadable):
            return None
        if not self._is_known(first) and not self._look(first, len(first)):
            return None
        header, size = self._header or b"", self._num_bytes
        start = len(header)
        rest: Callable[[bytes], Buffer] = _view if size > _VIEWED_BYTES else bytes
        items = [
            rest(content)[start:]
            for content in contents
            if isinstance(content, bytes) and len(content) == size and content.startswith(header)
        ]
        if len(items) < len(contents):
            return None
        self._fills = True
        return Column(items=items, shapes=self._shapes * len(items))

    def _may_fill(self, files: FileBlock) -> bool:
        """Whether the header of these files is known, or was learnt from the first."""
        if self._header is None or self._num_bytes != files.sizes[0]:
            beginning = files.beginning(_BEGINNING_BYTES)
            if beginning is None or not self._look(beginning, files.sizes[0]):
                return False
        return len(self._header or b"") < self._num_bytes <= _MAX_SLOT_BYTES

    def _room(self, num_files: int) -> Slots:
        header = self._header or b""
        if self._slots is None or self._slots.num_files < num_files:
            self._slots = Slots(header, self._num_bytes - len(header), num_files)
        return self._slots

    def _is_known(self, content: bytes) -> bool:
        header = self._header
        return header is not None and len(content) == self._num_bytes and content.startswith(header)

    def _look(self, content: bytes, num_bytes: int) -> bool:
        """Learn the header of a file, or its beginning; whether it may speak for others."""
        self._header, self._slots, rule = None, None, self._converter.rule
        plain = plain_header(content, num_bytes) if rule.kind == "array" else None
        if plain is None or not self._converter.fits(plain[1]):
            return False
        self._header, self._num_bytes = plain[0], num_bytes
        self._shapes = [plain[1].shape] if rule.info.ndim is not None else []
        return True


def _view(content: bytes) -> Buffer:
    return memoryview(content)
