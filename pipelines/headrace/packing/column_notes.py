"""What people should know of the columns of a table: records in the manifest, and their texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.files.manifest import ColumnNote, Manifest

LOOKED_AT = 256
"""Rows of each table whose values are looked at."""

_FEWEST = 20  # values that are all different, so that this is not by chance

_TEXTS = {
    "holds": "holds {detail}",
    "numbers": "{count:,} of {total:,} values are numbers",
    "thousands": "points may stand between thousands",
    "ids": "all different: ids?",
    "files": "paths of files: name the table in dataset.index to pack the files",
    "constant": "one value only",
}


def note_texts(notes: Iterable[str | ColumnNote]) -> list[str]:
    """Return notes as people read them, without those that only name a type."""
    return [
        note if isinstance(note, str) else f"column '{note.column}': {remark(note)}"
        for note in notes
        if isinstance(note, str) or is_notable(note)
    ]


def is_notable(note: ColumnNote) -> bool:
    """Return whether a note says more than a type that all values fit."""
    return note.kind != "type" or note.count < note.total


def remarks(manifest: Manifest, field: str) -> list[str]:
    """Return what people should know of the values of a field."""
    notes = [each for each in manifest.notes if isinstance(each, ColumnNote)]
    found = [remark(note) for note in notes if note.column == field]
    statistics = manifest.statistics.get(field)
    if statistics is not None and statistics.minimum == statistics.maximum:
        found.append(_TEXTS["constant"])
    if field == "label" and len(manifest.classes) == 1:
        found.append("one class only")
    missing = sum(f"{field}: it has no value" in each.reason for each in manifest.quarantined)
    return list(dict.fromkeys(found)) + ([f"{missing:,} missing"] if missing else [])


def notes_on(column: str, values: Sequence[object], folder: Path | None) -> list[ColumnNote]:
    """Return what is odd about the first values of a column, texts or numbers of one type.

    `folder` is that of the source if it is local.
    """
    texts = [value for value in values if isinstance(value, str)]
    if texts and folder is not None and all(_is_file(folder, text) for text in texts):
        return [ColumnNote(column=column, kind="files", count=len(texts))]
    num_different = len({*map(str, values)})
    if texts and len(values) >= _FEWEST and num_different == 1:
        return [ColumnNote(column=column, kind="constant", count=len(values))]
    if len(values) < _FEWEST or num_different < len(values):
        return []
    are_whole = all(isinstance(value, int) for value in values)
    if are_whole or all(text.strip("+-").isdecimal() for text in texts or ["?"]):
        return [ColumnNote(column=column, kind="ids", count=len(values))]
    return []


def remark(note: ColumnNote) -> str:
    """Return a note as people read it, without the column."""
    if note.kind != "type":
        return _TEXTS[note.kind].format_map(vars(note))
    if not note.total:
        return f"{note.detail} in the file"
    share = "all" if note.count == note.total else f"{note.count:,} of {note.total:,}"
    return f"{share} values are {note.detail}"


def _is_file(folder: Path, text: str) -> bool:
    try:
        return bool(text) and (folder / text).is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False
