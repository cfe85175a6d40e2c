"""Running `headrace site check`, and reading what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.command_line import headrace
from support.factories import write_site

Found = tuple[str, str, str, str]
"""Part, subject, grade and words of one finding."""


def check(site: Path, *options: str) -> tuple[int, list[Found]]:
    """Exit code, and all findings."""
    ended = headrace("site", "check", "--site", str(site), "--json", *options)
    found = [
        (section["part"], each["subject"], each["grade"], f"{each['seen']} {each['advice']}")
        for section in json.loads(ended.stdout)
        for each in section["findings"]
    ]
    return ended.exit_code, found


def graded(found: list[Found], part: str, grade: str) -> dict[str, str]:
    """Words of the findings of that part and grade, by subject."""
    return {name: text for of, name, given, text in found if (of, given) == (part, grade)}


def site_file(home: Path, role: dict[str, Any]) -> Path:
    """A site whose only role is `gpu`."""
    return write_site(home, "made", folder=str(home / "site"), roles={"gpu": role})
