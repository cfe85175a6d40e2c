"""Job scripts, rendered from the templates beside this file; pure."""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from headrace.batch.jobs import JobSpec

INDEX = "HEADRACE_NODE_INDEX"
"""Environment variable of the command: place of its node in the job, from 0."""

_TEMPLATES = Path(__file__).parent / "templates"
_OPTION = re.compile(r"(--[A-Za-z][\w-]*[= ]|-(?!pe )[A-Za-z]+ )(.*)")
"""Name and value; Grid Engine's `-pe` has two values."""


def render(template: str, job: JobSpec, **more: object) -> str:
    """The script of a job."""
    return _environment().get_template(f"{template}.sh.jinja").render(job=job, **more)


def shell(name: str) -> str:
    """A shell program that is no template."""
    return (_TEMPLATES / f"{name}.sh").read_text()


def with_quotes(option: str) -> str:
    """An option as a site says it, in the words of a script's directive.

    A value with spaces is quoted. What is quoted already stays as it is, and so does what may be
    several options, or several values of one.
    """
    parts = _OPTION.fullmatch(option)
    if parts is None or not re.search(r"\s", parts[2]) or re.search(r"['\"\\]|\s-", parts[2]):
        return option
    return f"{parts[1]}{shlex.quote(parts[2])}"


def clock(seconds: float, *, days: bool = False) -> str:
    """A duration as `26:00:00`, rounded up to minutes; with days, as `1-02:00:00`."""
    minutes = math.ceil(seconds / 60)
    num_days, minutes = divmod(minutes, 24 * 60) if days else (0, minutes)
    before = f"{num_days}-" if num_days else ""
    return f"{before}{minutes // 60:02d}:{minutes % 60:02d}:00"


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{*",  # `${#hosts[@]}` is shell
        comment_end_string="*}",
    )
    filters: dict[str, Callable[..., object]] = {
        "clock": clock,
        "mebibytes": lambda num_bytes: math.ceil(num_bytes / 2**20),
        "option": with_quotes,
        "quote": shlex.quote,
        "words": shlex.join,
    }
    environment.filters |= filters
    return environment
