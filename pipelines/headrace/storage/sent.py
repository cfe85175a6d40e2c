"""Bytes of an upload, counted by the threads that send them."""

from __future__ import annotations

from collections.abc import Iterator

from fsspec.callbacks import Callback

from headrace.storage.store_protocol import Tick


class Sent(Callback):  # type: ignore[misc]
    """Counts what is sent in the threads that send, and stops it there."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False
        self.position = 0
        self._told = 0

    def restart(self) -> None:
        """Begin with the first byte."""
        self.position = 0
        self.relative_update(0)

    def relative_update(self, inc: int = 1) -> None:
        """Count bytes; how fsspec tells of them."""
        if self.is_stopped:
            raise InterruptedError("the upload was stopped")
        self.position += inc

    def counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks, counted as they are taken."""
        for chunk in chunks:
            self.relative_update(len(chunk))
            yield chunk

    def tell(self, tick: Tick | None) -> None:
        """Call `tick` with the bytes since the last time; those sent again count once."""
        new = max(self.position - self._told, 0)
        self._told += new
        if tick is not None:
            tick(new)
