"""Finds out of which shape and dtype the samples are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.errors import DataError
from headrace.packing.decode import UnreadableError
from headrace.packing.merge import describe
from headrace.packing.read_samples import decode, read_file
from headrace.packing.sources import SourceFile
from headrace.recipe.dataset import PackSpec
from headrace.storage.manifest import FieldInfo, Quarantined

_NUM_TRIED = 100


def input_field(
    source: Path, files: Sequence[SourceFile], kind: str, pack: PackSpec
) -> tuple[FieldInfo, str]:
    """The input field, its shape taken from the first file that can be read.

    Args:
        source: The source folder.
        files: The samples.
        kind: `image` or `array`.
        pack: Whether samples are decoded.

    Returns:
        The field and the file that gave the shape, empty when the field is ragged.

    Raises:
        DataError: None of the first files can be read.
    """
    if pack.images == "encoded":
        return FieldInfo(name=kind, dtype="uint8", layout="ragged"), ""
    bad: list[Quarantined] = []
    for file in files[:_NUM_TRIED]:
        try:
            values = decode(kind, read_file(source, file))
        except UnreadableError as error:
            bad.append(Quarantined(path=file.path, reason=str(error)))
            continue
        info = FieldInfo(name=kind, dtype=values.dtype.name, shape=values.shape, layout="fixed")
        return info, file.path
    raise DataError(
        f"None of the first {len(bad)} files in {source} can be read: {describe(bad)}",
        "Repair or remove these files, or narrow dataset.include.",
    )
