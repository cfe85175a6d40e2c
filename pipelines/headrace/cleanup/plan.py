"""What may be removed: by a rule, and never what a run still needs."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.builds import builds_folder
from headrace.cleanup import places
from headrace.files.atomic import read_bytes
from headrace.files.layout import RunFolder, SiteFolder
from headrace.files.removal import disk_bytes, left_by_removals
from headrace.ledger.ledger import open_ledger
from headrace.ledger.many_runs import Packing
from headrace.ledger.rows import RunRecord
from headrace.objects.store import is_remote
from headrace.recipe.retention import Kind, RetentionRule
from headrace.record import Record
from headrace.runs.on_disk import CODE, RECORD, mentioned, note_sizes, removal_of
from headrace.runs.planned_steps import run_metrics
from headrace.states import BY_HAND, StepState

_LOWER_IS_BETTER = ("loss", "error")


class CleanItem(Record):
    """What would be removed."""

    what: Kind
    name: str
    """A run's id, or a path or URL."""
    num_bytes: int
    """Bytes on disk; 0 in object stores."""
    why: str
    """Why it may go."""


class CleanPlan(Record):
    """All that would be removed."""

    items: tuple[CleanItem, ...]
    total: int
    """Bytes."""
    kept: dict[str, int]
    """How many ended runs stay, by the reason."""


@dataclass(kw_only=True)
class Runs:
    """All runs, and which of them stay."""

    records: Sequence[RunRecord]
    kept: dict[str, str] = field(default_factory=dict)
    """Why each of some runs stays."""

    def keep(self, run_ids: Collection[str], why: str) -> None:
        """Keep runs, unless another reason does already."""
        for run_id in run_ids:
            self.kept.setdefault(run_id, why)


def make_plan(rule: RetentionRule, site: str = "", run_ids: Collection[str] = ()) -> CleanPlan:
    """Return what a rule removes, of one site or all; nothing is removed.

    Side effects: unknown sizes of ended runs are measured and entered in the ledger.

    Args:
        rule: What goes, and what stays.
        site: Name of the site; empty for all.
        run_ids: Ended runs that go whatever their age; then nothing else does.
    """
    now = time.time()
    ledger = open_ledger()
    note_sizes(
        [row.run_id for row in ledger.run_sizes() if row.sizes is None and row.state.is_final]
    )
    runs = Runs(records=ledger.runs(places.MOST))
    of_site = [row for row in runs.records if site in ("", row.site_name)]
    going = {row.run_id: why for row in of_site if (why := _may_go(row, rule, run_ids, now))}
    _keep(runs, rule, set(going), is_named=bool(run_ids))
    items = [*_run_items(of_site, rule, going, runs.kept)]
    if not run_ids:
        whole = set(going) - runs.kept.keys() if "runs" in rule.what else set()
        items += _other_items(
            rule, [each for each in runs.records if each.run_id not in whole], site, now
        )
    items = [each for each in items if each.what in rule.what or each.why == INTERRUPTED]
    kept = Counter(runs.kept[run_id] for run_id in going if run_id in runs.kept)
    return CleanPlan(items=tuple(items), total=sum(each.num_bytes for each in items), kept=kept)


INTERRUPTED = "an earlier removal was interrupted"


def is_kept(record: RunRecord, tags: Collection[str] = ()) -> bool:
    """Whether a user keeps a run: by a star, the tag `keep`, or one of some tags."""
    own = set(getattr(record, "tags", ()))
    return bool(getattr(record, "is_starred", False) or own & {"keep", *tags})


def _may_go(row: RunRecord, rule: RetentionRule, run_ids: Collection[str], now: float) -> str:
    """Return why the rule selects a run; empty if it does not, or the run has not ended."""
    if row.finished_at is None or not row.state.is_final:
        return ""
    ended = f"ended {time.strftime('%Y-%m-%d', time.gmtime(row.finished_at))}"
    if run_ids:
        return f"{ended}, named" if row.run_id in run_ids else ""
    is_old = row.finished_at <= now - (rule.older_than or 0.0)
    return ended if rule.selects_runs and is_old else ""


def _keep(runs: Runs, rule: RetentionRule, going: set[str], *, is_named: bool) -> None:
    """Decide which of the selected runs stay, and why."""
    by_recipe = defaultdict[str, list[RunRecord]](list)
    for row in runs.records:  # the newest first; evaluations apart from what they evaluate
        by_recipe[row.run_id.rsplit("-", 3)[0]].append(row)
    runs.keep([row.run_id for row in runs.records if not row.state.is_final], "it has not ended")
    runs.keep([row.run_id for row in runs.records if is_kept(row, rule.keep_tags)], "star or tag")
    runs.keep([row.run_id for row in runs.records if not _is_own(row)], "of another user")
    for rows in () if is_named else by_recipe.values():
        newest = [row.run_id for row in rows if row.removed is None][: rule.keep_last or 0]
        runs.keep(newest, f"the newest {rule.keep_last} of its recipe")
        for metric in rule.keep_best:
            runs.keep(_best(rows, metric), f"best {metric} of its recipe")
    waiting = [row for row in runs.records if row.run_id not in going or row.run_id in runs.kept]
    folders = {row.run_id: RunFolder(Path(row.folder)) for row in runs.records}
    while waiting:  # what a run that stays refers to stays, and what that refers to
        row = waiting.pop()
        is_whole = row.removed is None or row.removed.what != "run"
        for run_id in mentioned(folders[row.run_id]) & going if is_whole else ():
            if run_id not in runs.kept:
                runs.keep([run_id], "another run refers to it")
                waiting.append(next(each for each in runs.records if each.run_id == run_id))


def _is_own(row: RunRecord) -> bool:
    try:
        return os.lstat(row.folder).st_uid == os.geteuid()
    except OSError:
        return False


def _best(rows: Sequence[RunRecord], metric: str) -> list[str]:
    name, _, mode = metric.partition(":")
    is_lower = mode == "min" or (not mode and any(each in name for each in _LOWER_IS_BETTER))
    values = {row.run_id: run_metrics(_steps(row)).get(name) for row in rows}
    found = {run_id: value for run_id, value in values.items() if value is not None}
    return [min(found, key=lambda each: found[each] * (1 if is_lower else -1))] if found else []


def _steps(row: RunRecord) -> dict[str, dict[str, object]]:
    return {step: each for step, each in row.outputs.items() if isinstance(each, dict)}


def bytes_of(sizes: Mapping[str, int], what: str) -> int:
    """Return the bytes of a run that go with a kind of removal: `run`, or parts of it."""
    parts = sizes.keys() - {RECORD, CODE} if what == "run" else sizes.keys() & set(what.split(", "))
    return sum(sizes[part] for part in parts)


def _run_items(
    records: Sequence[RunRecord],
    rule: RetentionRule,
    going: Mapping[str, str],
    kept: Mapping[str, str],
) -> Iterator[CleanItem]:
    for row in records:
        gone, sizes = removal_of(row), row.sizes or {}
        if gone is not None and gone.by != BY_HAND and (left := bytes_of(sizes, gone.what)):
            kind: Kind = "runs" if gone.what == "run" else "checkpoints"
            yield CleanItem(what=kind, name=row.run_id, num_bytes=left, why=INTERRUPTED)
        elif row.run_id in going and row.run_id not in kept:
            whole = ("runs",) if "runs" in rule.what else ("checkpoints", "logs")
            for kind in (each for each in whole if each in rule.what):
                may_resume = kind == "checkpoints" and row.state is not StepState.SUCCEEDED
                num_bytes = bytes_of(sizes, "run" if kind == "runs" else kind)
                if num_bytes and not may_resume:
                    why = going[row.run_id]
                    yield CleanItem(what=kind, name=row.run_id, num_bytes=num_bytes, why=why)


def _other_items(
    rule: RetentionRule, staying: Sequence[RunRecord], site: str, now: float
) -> Iterator[CleanItem]:
    """Yield what is not of a run; `staying` are the runs whose files stay."""
    known = places.sites()
    of_site = [row.folder for row in staying if site in ("", row.site_name)]
    named = [each for each in known if site in ("", each.name)]
    folders = places.site_folders(of_site, named)
    yield from _datasets(rule, staying, folders, now)
    for left in (path for each in folders for path in left_by_removals(each.datasets)):
        size = disk_bytes(left, set())
        yield CleanItem(what="datasets", name=str(left), num_bytes=size, why=INTERRUPTED)
    until = 0.0 if rule.older_than is None else now - rule.older_than
    for copy in places.staged(named):
        if copy.state in ("idle", "interrupted") and until and copy.last_used_at <= until:
            used = time.strftime("%Y-%m-%d", time.gmtime(copy.last_used_at))
            size = disk_bytes(copy.path, set())
            yield CleanItem(
                what="staged", name=str(copy.path), num_bytes=size, why=f"last used {used}"
            )
    running = [each for each in staying if not each.state.is_final]
    for title, paths in places.caches(folders).items():
        for path in paths if until and not running else ():
            if path != builds_folder() and path.lstat().st_mtime <= until:
                size = disk_bytes(path, set())
                yield CleanItem(
                    what="caches", name=str(path), num_bytes=size, why=f"old, of {title}"
                )


def _datasets(
    rule: RetentionRule, staying: Sequence[RunRecord], folders: Sequence[SiteFolder], now: float
) -> Iterator[CleanItem]:
    rows = {row.run_id: row for row in staying}
    texts = [_record(row) for row in staying if row.removed is None]
    may_use_any = might_pack()
    tops = {str(each.datasets) for each in folders}
    for place, packings in places.datasets(open_ledger().packings(places.MOST)).items():
        is_in_store = is_remote(place)
        if not is_in_store and str(Path(place).parent) not in tops:
            continue
        if is_in_store and "uploads" in rule.what:
            why = "unfinished uploads and old versions, older than a day"
            yield CleanItem(what="uploads", name=place, num_bytes=0, why=why)
        users = [rows[each.run_id] for each in packings if each.run_id in rows]
        if may_use_any or any(
            is_kept(row, rule.keep_tags) or not row.state.is_final for row in users
        ):
            continue
        why = _why_unused(rule, place, packings, users, texts, now)
        if why:
            size = 0 if is_in_store else disk_bytes(place, set())
            yield CleanItem(what="datasets", name=place, num_bytes=size, why=why)


def _why_unused(
    rule: RetentionRule, place: str, packings: Sequence[Packing], users: Sequence[RunRecord],
    texts: Sequence[bytes], now: float,
) -> str:  # fmt: skip
    """Return why a dataset may go; empty if a run that stays needs it."""
    if any(place.encode() in text for text in texts):
        return ""
    present = [row for row in users if row.removed is None]
    if rule.unreferenced and not present:
        return "no run refers to it"
    last = max((*(row.finished_at or now for row in users), *(x.ended_at for x in packings)))
    if rule.older_than is not None and last <= now - rule.older_than:
        return f"last used {time.strftime('%Y-%m-%d', time.gmtime(last))}"
    return ""


def _record(row: RunRecord) -> bytes:
    """Return the text that names the datasets that a run was given."""
    return read_bytes(RunFolder(Path(row.folder)).recipe) or b""


def might_pack() -> bool:
    """Whether a run is open that has not packed yet, and may find any dataset packed."""
    ledger = open_ledger()
    is_open = (StepState.QUEUED, StepState.RUNNING)
    found = [row.run_id for row in ledger.runs(places.MOST, is_open)]
    packed = ledger.attempts_of(found)
    done = {
        k
        for k, rows in packed.items()
        if any(x.kind == "pack" and x.state is StepState.SUCCEEDED for x in rows)
    }
    return any(run_id not in done for run_id in found)
