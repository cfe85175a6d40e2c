"""Output whose reader has left, as in `headrace run … | head -1`: dropped, and the work goes on."""

from __future__ import annotations

import io
import os
import sys


class _Outlet(io.FileIO):
    """A file descriptor that drops what nobody reads any more."""

    is_gone = False
    """Whether its reader has left."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            self.is_gone = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)  # type: ignore[arg-type]


def outlive_readers() -> None:
    """Let standard output and standard error bear that their readers leave."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            setattr(sys, name, _reopened(stream))


def output_is_gone() -> bool:
    """Whether the reader of standard output has left, as far as writing has shown."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Outlet) and raw.is_gone


def _reopened(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(_Outlet(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
