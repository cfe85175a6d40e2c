"""What a look at a site found, one thing at a time."""

from __future__ import annotations

from enum import Enum

from headrace.record import Record


class Grade(str, Enum):
    """How good it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Record):
    """One thing that was looked at."""

    subject: str
    """What was looked at."""
    grade: Grade
    """How good it is."""
    seen: str
    """What was seen."""
    advice: str = ""
    """What to do about it; empty when it is fine."""


def ok(subject: str, seen: str) -> Finding:
    """A thing that is fine."""
    return Finding(subject=subject, grade=Grade.OK, seen=seen)


def warn(subject: str, seen: str, advice: str) -> Finding:
    """A thing that may do harm, or could not be looked at."""
    return Finding(subject=subject, grade=Grade.WARN, seen=seen, advice=advice)


def fail(subject: str, seen: str, advice: str) -> Finding:
    """A thing that keeps leases from working."""
    return Finding(subject=subject, grade=Grade.FAIL, seen=seen, advice=advice)
