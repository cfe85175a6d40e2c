"""Running `headrace site check`, and reading what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from headrace.recipe.load import BUILT_IN
from support.command_line import headrace

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
    content = yaml.safe_load((BUILT_IN / "sites" / "laptop.yaml").read_text())
    file = home / "made.yaml"
    folder = home / "site"
    file.write_text(yaml.safe_dump(content | {"folder": str(folder), "roles": {"gpu": role}}))
    return file
