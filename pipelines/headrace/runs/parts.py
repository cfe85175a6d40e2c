"""Parts of a suite over several sites: for each site a run that carries out trials there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from headrace.errors import UserError
from headrace.files.atomic import is_there, read_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.recipe.site import Site
from headrace.record import Record

PART = "part"
"""Kind of these runs."""

_ID = re.compile(r"(.+-\d{8}-\d{6}-[0-9a-f]{8})-at-(.+)")


class SuiteSite(Record):
    """`sites/<name>.json` of a suite: a site that may get trials."""

    asked: str
    """Its name or file, as of `RunRequest.site`."""
    site: Site
    """The resolved site."""
    place: int
    """Its place in `suite.sites`, from 0."""


class PartStatus(Record):
    """`part.json` of a part: what its process does."""

    phase: Literal["starting", "copying", "running", "ended"] = "starting"
    why: str = ""
    """Why it ended before its trials; empty if it did not."""
    done: int = 0
    """Bytes of the dataset that are at the site."""
    total: int = 0
    """Bytes of the dataset; 0 if nothing has to be copied."""
    copied_bytes: int = 0
    """Bytes of whole shards that were copied, of all copies together."""
    copied_s: float = 0.0
    """Seconds of copying, of all copies together."""
    usd: float | None = None
    """US dollars for the copied bytes; null if the site has no price of transfer."""


def part_key(suite_id: str, site: str) -> str:
    """Return the key of a part, by the name of its site."""
    return f"{suite_id}/at/{site}"


def part_id(suite_id: str, site: str) -> str:
    """Return the id of a part, by the name of its site."""
    return f"{suite_id}-at-{site}"


def suite_of_part(run_id: str) -> str | None:
    """Return the id of a part's suite; None if the id is not a part's."""
    found = _ID.fullmatch(run_id)
    return found[1] if found else None


def part_records(suite_id: str) -> tuple[RunRecord, ...]:
    """Return the parts of a suite that exist, the newest first; none of an ordinary suite."""
    return open_ledger().parts_of(suite_id)


def part_status(folder: RunFolder) -> PartStatus:
    """Return what the process of a part does, by the part's folder."""
    return read_record(folder.part, PartStatus) or PartStatus()


def source_of_trial(suite: RunFolder, number: int) -> Path:
    """Return the file that a trial's recipe was made of: of a trial of a part not the suite's.

    In an adopted package the trial's folder has it.
    """
    trial = suite.trial(number)
    if trial.path.is_symlink():
        return RunFolder(trial.path.resolve()).whole.source
    return trial.source if is_there(trial.source) else suite.source


def sites_of(suite: RunFolder) -> dict[str, SuiteSite]:
    """Return the sites of a suite over several by name, in the order of `suite.sites`."""
    found = filter(None, (read_record(file, SuiteSite) for file in suite.sites.glob("*.json")))
    return {each.site.name: each for each in sorted(found, key=lambda each: each.place)}


def whole(run_id: str, what: str) -> str:
    """Return the id of a run, unless it is a part; raise as `check_whole`."""
    check_whole(open_ledger().run(run_id), what)
    return run_id


def check_whole(record: RunRecord, what: str) -> None:
    """Refuse a part for an act on whole suites, such as `resume`.

    Raises:
        UserError: The run is a part.
    """
    if record.kind == PART:
        suite = suite_of_part(record.run_id) or Path(record.folder).name
        raise UserError(
            f"Run {record.run_id} is the part of a suite at site '{record.site_name}'",
            f"Name the suite: headrace {what} {suite}",
        )
