"""Damaged files for which libraries end the process, or do not return."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import h5py

_PARQUET = """
P(e~L6#x|!6%;HL0u=xi1{DSz7z6<T000;S0RR91762#&0RR917z6<T000pY00002000020RaF202KroEHwZa26JO*Wo=;<0ss{P
B?A}%cqJZ8tP=<k0000M0vQ|`93}u96#^M01^^it0eBSv76KM>7IG#CJQxH40000O1OWg502Tl!1OWg502l-T0000H5daw+6#x|g
6#@V}DFzuP00IC202Xo<0wxF+asVhGaA9(Bb!BudV{mXSVRCYBcOZ6Ua&u{KZXhx?E-)@J85|q{005x?002-yQZW
"""
"""One row; one bit of its schema is wrong, so that its statistics do not fit."""


def write_aborting_parquet(path: Path) -> None:
    """Write a file whose metadata makes pyarrow abort."""
    path.write_bytes(base64.b85decode("".join(_PARQUET.split())))


def write_endless_hdf5(path: Path, heap: int = -1) -> None:
    """Write 200 texts, of which one heap of HDF5, from 0 or by default the last, makes a loop."""
    with h5py.File(path, "w") as file:
        file["text"] = [f"{number:0100}" for number in range(200)]
    content = bytearray(path.read_bytes())
    heaps = [found.start() for found in re.finditer(rb"GCOL\x01", content)]
    content[heaps[heap] + 16 : heaps[heap] + 32] = bytes(16)  # the head of its first object
    path.write_bytes(content)
