"""What the first bytes of a file say."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import UnreadableError


def encoding_by_magic(content: bytes, table: Mapping[bytes, str], what: str) -> str:
    """Encoding of a table by first bytes.

    Raises:
        UnreadableError: None of the table begins so.
    """
    for magic, encoding in table.items():
        if content.startswith(magic):
            return encoding
    if not content:
        raise UnreadableError("the file is empty")
    names = ", ".join(sorted(set(table.values())))
    raise UnreadableError(f"no {what} by its first bytes; valid: {names}")
