"""What must not stand in any file: paths of somebody's machine, unfinished work, vague names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.files.layout import LeaseFolder, StepFolder
from support.sources import product_modules, relative, texts

EXAMPLE_USERS = ("me", "you", "user", "runner")

FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.~}-])/(?:work|root|Users)/\w",
    "somebody's home folder": rf"(?<![\w.~}}-])/home/(?!(?:{'|'.join(EXAMPLE_USERS)})\b)\w+/",
    "a package index of somebody's own": r"(?i)https?://[^\s\"'<>)]*(?:artifactory|nexus|devpi)",
    "an address in a private network": r"\b(?:192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d+\.\d+\b",
    "unfinished work": r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
}

VAGUE_NAMES = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py"}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str):
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts()
        if path != relative(Path(__file__))
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_no_file_has_a_vague_name():
    assert [path for path, _ in texts() if path.name in VAGUE_NAMES] == []


def test_files_of_leases_and_steps_are_looked_for_as_others_make_them():
    """`Path.exists` misses for half a minute what another client of NFS has made (see 0044)."""
    names = "|".join({*vars(LeaseFolder), *vars(StepFolder)} - {"log", "logs", "number", "step"})
    pattern = re.compile(rf"\.(?:{names})\.(?:exists|is_file)\(\)")
    found = [
        f"{relative(path)}: {match[0]}"
        for path in product_modules()
        for match in pattern.finditer(path.read_text())
    ]
    assert found == []
