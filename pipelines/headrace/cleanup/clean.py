"""Plan a removal, and carry it out; interrupted at any point and begun again, it has the same end.

A run that goes is entered in the ledger first, from when on nothing can resume or use it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path

from headrace.cleanup.items import KINDS, MOST, Item, measured_runs, others
from headrace.errors import HeadraceError
from headrace.files.atomic import read_record, read_text
from headrace.files.layout import RunFolder
from headrace.files.locks import at_once
from headrace.files.machine import storage_error
from headrace.files.removal import check_removable, remove
from headrace.ledger.ledger import open_ledger
from headrace.ledger.many_runs import Packing
from headrace.ledger.rows import RunRecord
from headrace.ledger.run_filter import RunFilter
from headrace.objects.store import is_remote
from headrace.packing.target import DatasetFolder, PackTarget
from headrace.recipe.site import RetentionRule, Site, StoreOptions
from headrace.recipe.teams import known_sites
from headrace.runs.audit import Actor, note
from headrace.runs.on_disk import RECORD, mentioned, note_sizes, removable, removal_of
from headrace.runs.parts import PART, part_records, suite_of_part
from headrace.staging.cache import evict
from headrace.staging.staged_folder import StagedFolder
from headrace.states import BY_HAND, Removal, StepState
from headrace.status.run_list import best_first, metrics_of

_INTERRUPTED = "an earlier removal was interrupted"
_REFERRED_TO = "another run refers to it"
_FORGET = "it was removed; now lists leave it out"


def retention_plan() -> list[Item]:
    """Return what the `retention` of all sites removes; nothing is removed."""
    rules = [(each.retention, each.name) for each in known_sites().values() if each.retention]
    items = (item for rule in rules for item in make_plan(*rule))
    return [*{item.name: item for item in items}.values()]  # sites share caches


def make_plan(rule: RetentionRule, site: str = "", named: Collection[str] = ()) -> list[Item]:
    """Return what a rule selects; runs that stay nevertheless have `stays`. Nothing is removed.

    Side effects: unknown sizes of ended runs are measured and entered in the ledger.

    Args:
        rule: What goes, and what stays.
        site: Name of the site; empty for all.
        named: Runs that go whatever their age and end; removed ones are forgotten.
    """
    every = measured_runs()
    parts, rows = _apart(every)
    gone = {row.run_id: removal_of(row) for row in rows}
    present = {row.run_id: row for row in rows if not gone[row.run_id]}
    kept = {} if named else _newest_and_best([*present.values()], rule)
    plan = dict[str, Item]()
    for row in rows:
        name, is_named = row.run_id, row.run_id in named
        size, why, stays = _size(row), "", ""
        if removal := gone[name]:
            is_left = size and removal.by != BY_HAND
            why = _FORGET if is_named else _INTERRUPTED if is_left else ""
        elif is_named or (size and not named and _is_old(row, rule, site)):
            why = f"ended {_day(row.finished_at or time.time())}"
            whole = (row, *parts.get(name, ()))
            whys = (_why_kept(each, rule, is_named=is_named or each is not row) for each in whole)
            stays = next(filter(None, whys), "") or kept.get(name, "")
        if why:
            plan[name] = Item(kind="run", name=name, num_bytes=size, why=why, stays=stays)
    names = {run_id: _names(row, *parts.get(run_id, ())) for run_id, row in present.items()}
    going = {item.name for item in plan.values() if not item.stays and item.name in present}
    while more := {
        each: run_id for run_id in names.keys() - going for each in names[run_id] & going
    }:
        going -= more.keys()
        for each, run_id in more.items():
            plan[each] = plan[each].model_copy(update={"stays": f"{run_id} refers to it"})
    staying = {run_id: names[run_id] for run_id in names.keys() - going}
    plan |= _with_suites(plan, parts, gone)
    return [*plan.values(), *(() if named else _others(rule, others(every, site), staying))]


def _apart(rows: Iterable[RunRecord]) -> tuple[dict[str, list[RunRecord]], list[RunRecord]]:
    """Return parts by the ids of their suites, and all other runs, in their order."""
    parts, others = defaultdict[str, list[RunRecord]](list), list[RunRecord]()
    for row in rows:
        suite_id = suite_of_part(row.run_id) if row.kind == PART else None
        (others if suite_id is None else parts[suite_id]).append(row)
    return dict(parts), others


def _with_suites(
    plan: Mapping[str, Item],
    parts: Mapping[str, Sequence[RunRecord]],
    gone: Mapping[str, Removal | None],
) -> Iterator[tuple[str, Item]]:
    """Yield what becomes of parts, by id: the same as of their suite, but after it."""
    for suite_id, rows in parts.items():
        item, removal = plan.get(suite_id), gone.get(suite_id)
        if item is None and (suite_id not in gone or (removal and removal.by != BY_HAND)):
            why = _INTERRUPTED if suite_id in gone else _FORGET
            item = Item(kind="run", name=suite_id, num_bytes=0, why=why)
        for row in rows:
            if item is None:
                break
            size = _size(row)
            if size or item.why == _FORGET or not removal_of(row):
                yield row.run_id, item.model_copy(update={"name": row.run_id, "num_bytes": size})


def _size(row: RunRecord) -> int:
    """Return the bytes on disk that go if a run is removed."""
    return sum(each for part, each in (row.sizes or {}).items() if part != RECORD)


def _is_old(row: RunRecord, rule: RetentionRule, site: str) -> bool:
    is_old = (row.finished_at or time.time()) <= time.time() - (rule.older_than or 0.0)
    selects_runs = bool(rule.model_dump(exclude={"unreferenced"}, exclude_defaults=True))
    return is_old and selects_runs and site in ("", row.site_name)


def _why_kept(row: RunRecord, rule: RetentionRule, *, is_named: bool) -> str:
    """Return why a run stays whatever is selected; empty if it may go."""
    if not row.state.is_final:
        return "it has not ended"
    if is_kept(row, rule.keep_tags):
        return "star or tag"
    if not os.path.isdir(row.folder) or os.stat(row.folder).st_uid != os.geteuid():
        return "of another user, or not on this machine"
    can_resume = row.state is not StepState.SUCCEEDED and not is_named
    return "`headrace resume` can continue it" if can_resume else ""


def is_kept(record: RunRecord, tags: Collection[str] = ()) -> bool:
    """Whether a user keeps a run: by a star, the tag `keep`, or one of some tags."""
    return record.is_starred or not {"keep", *tags}.isdisjoint(record.tags)


def _newest_and_best(rows: Sequence[RunRecord], rule: RetentionRule) -> dict[str, str]:
    """Return the newest and best runs of each recipe, and why they stay; `rows` begin with them."""
    kept, num_newer, metrics = dict[str, str](), Counter[str](), metrics_of(rows)
    for row in rows:
        num_newer[_recipe(row.run_id)] += 1
        if num_newer[_recipe(row.run_id)] <= (rule.keep_last or 0):
            kept[row.run_id] = f"the newest {rule.keep_last} of its recipe"
    for metric in rule.keep_best if any(metrics.values()) else ():
        values = best_first(RunFilter(sort=metric), metrics).items()
        best = {_recipe(run_id): run_id for run_id, value in reversed(values) if isfinite(value)}
        kept |= dict.fromkeys(best.values(), f"best {metric} of its recipe")
    return kept


def _recipe(run_id: str) -> str:
    """Return the name that a run's id begins with; evaluations have others than trainings."""
    return run_id.rsplit("-", 3)[0]


def _names(*rows: RunRecord) -> set[str]:
    """Return the names of runs and datasets that a run needs, or a suite with its parts."""
    found = set[str]().union(*map(_names_of, rows))
    return found - {row.run_id for row in rows}


def _names_of(row: RunRecord) -> set[str]:
    """Return the names of runs and datasets that a run needs.

    If it has not ended, it may find its own dataset packed: then `NAME-`, whatever its content, or
    an empty name for every dataset if the run is another user's.
    """
    folder = RunFolder(Path(row.folder))
    if row.state.is_final:
        return mentioned(folder)
    if not os.access(folder.path, os.X_OK):
        return {""}
    dataset = json.loads(read_text(folder.recipe) or "{}").get("dataset") or {}
    return {*mentioned(folder), f"{dataset.get('name')}-"}


def _others(
    rule: RetentionRule, found: Iterable[Item], staying: dict[str, set[str]]
) -> Iterator[Item]:
    """Yield what goes that is not of a run; `staying` are runs, and the names that they need."""
    packed, is_idle = _packings(), not _open_runs()
    until = -1.0 if rule.older_than is None else time.time() - rule.older_than
    for item in found:
        goes, used_at, packings = KINDS[item.kind].goes, item.used_at, packed.get(item.name, ())
        may_go = goes == "old" or (goes == "idle" and is_idle)
        if packings:
            used_at = packings[0].ended_at
            may_go = not any(each.run_id in staying for each in packings)
            may_go &= not any(_is_used(item.name, names) for names in staying.values())
        why = f"last used {_day(used_at)}" if may_go and used_at <= until else ""
        if may_go and packings and rule.unreferenced:
            why = "no run refers to it"
        if goes != "never" and item.used_at == 0.0:
            why = _INTERRUPTED
        if why:
            yield item.model_copy(update={"why": why})


def _is_used(place: str, names: Collection[str]) -> bool:
    name = Path(place).name
    return not {"", name, f"{name.rpartition('-')[0]}-"}.isdisjoint(names)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def _open_runs() -> tuple[RunRecord, ...]:
    return open_ledger().runs(MOST, [state for state in StepState if not state.is_final])


def _packings() -> dict[str, list[Packing]]:
    """Return the packings of each dataset by its folder or URL, the newest first."""
    found = defaultdict[str, list[Packing]](list)
    for each in open_ledger().packings(MOST):
        found[str(each.outputs.get("dataset")).rstrip("/")].append(each)
    return dict(found)


def carry_out(plan: Sequence[Item], by: Actor) -> Iterator[Item]:
    """Remove what a plan lists, and yield each of its items, with `stays` if it is still there.

    What has been used, resumed or kept since the plan was made stays, and what it refers to. A
    failure of one item keeps no other from its removal.
    """
    # what runs need that stay against the plan; the plan has the newest first
    needed, packed = set[str](), _packings()
    for item in plan:
        if item.stays:
            continue
        try:
            packings = {each.run_id for each in packed.get(item.name, ())}
            is_needed = item.kind in ("run", "dataset") and _is_used(item.name, needed)
            stays = _REFERRED_TO if is_needed or packings & needed else _remove(item, by)
        except (HeadraceError, OSError) as error:
            stays = str(storage_error(error, Path()) or error)
        if stays and item.kind == "run":
            parts = part_records(item.name)
            needed |= {item.name, *_names(open_ledger().run(item.name), *parts)}
            needed |= {each.run_id for each in parts}
        if not stays:
            run_id = item.name if item.kind == "run" else ""
            note(by, "clean", run_id, f"{item.kind} {item.name}")
        yield item.model_copy(update={"stays": stays})


def _remove(item: Item, by: Actor) -> str:
    """Remove one item; return why it stays, or an empty string."""
    path = Path(item.name)
    if item.kind == "run":
        return _remove_run(item, by)
    if item.kind == "dataset" and item.why != _INTERRUPTED:
        return _remove_dataset(item.name)
    if item.kind == "staged copy" and item.why != _INTERRUPTED:
        return "" if evict(StagedFolder(path, "")) else "it is in use"
    if KINDS[item.kind].goes == "idle" and _open_runs():
        return "a run has begun that may use it"
    check_removable(path, path.parent)
    remove(path)
    return ""


def _remove_run(item: Item, by: Actor) -> str:
    ledger = open_ledger()
    record = ledger.run(item.name)
    folder, site = RunFolder(Path(record.folder)), Path(record.folder).parents[1]
    is_forgotten = item.why == _FORGET
    paths = [folder.path] if is_forgotten and folder.path.exists() else removable(folder)
    leases = [Path(each.folder) for each in ledger.leases(run_id=item.name)]
    paths += [each for each in leases if each.parent == site / "leases" and each.exists()]
    check_removable(folder.path if folder.path.exists() else site / "runs", site)
    for path in paths:
        if not path.is_symlink():  # the link goes, nothing behind it
            check_removable(path, site)
    if is_kept(record) and record.removed is None:
        return "star or tag"
    removal = record.removed or Removal(at=time.time(), by=by.user)
    if not ledger.set_removed(item.name, removal, is_forgotten=is_forgotten):
        return "it has begun again"
    # a run that begins now is refused; one that began before is in the ledger
    if any(item.name in mentioned(RunFolder(Path(row.folder))) for row in _open_runs()):
        ledger.set_removed(item.name, record.removed)
        return "another run refers to it now"
    for path in paths:
        remove(path)
    note_sizes(item.name)
    return ""


def _remove_dataset(place: str) -> str:
    target = PackTarget(folder=DatasetFolder(Path(place)), url=None, s3=StoreOptions())
    if is_remote(place) and not place.startswith("s3://"):
        return "headrace removes datasets of object stores from S3 only"
    if is_remote(place):
        files = (RunFolder(Path(each.folder)).site for each in _packings()[place])
        site = next(filter(None, (read_record(file, Site) for file in files)), None)
        if site is None:
            return "no record of a run says how its store is reached"
        parent, _, name = place.rpartition("/")
        target = PackTarget.of(site, parent, name)
    folder = target.folder.path
    check_removable(folder, folder.parent)
    with at_once(target.lock_file) as is_free:
        if not is_free or any(_is_used(place, _names(row)) for row in _open_runs()):
            return "a run uses it"
        if target.url:
            from headrace.objects.s3 import S3Store  # imports s3fs

            S3Store(target.url, target.s3).purge()
        remove(folder)
    return ""
