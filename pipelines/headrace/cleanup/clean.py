"""Plan a removal, and carry it out; interrupted at any point and begun again, it has the same end.

A run that goes is entered in the ledger first, from when on nothing can resume or use it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from headrace.cleanup.disk_use import (
    CACHE,
    KINDS,
    MOST,
    Item,
    Places,
    items,
    loaded_sites,
    measured_runs,
)
from headrace.errors import HeadraceError, UserError
from headrace.files.atomic import read_record, read_text
from headrace.files.layout import RunFolder
from headrace.files.locks import at_once
from headrace.files.machine import storage_error
from headrace.files.removal import check_removable, remove
from headrace.ledger.ledger import open_ledger
from headrace.ledger.many_runs import Packing
from headrace.ledger.rows import RunRecord
from headrace.objects.store import is_remote, open_store
from headrace.packing.target import DatasetFolder, PackTarget
from headrace.recipe.retention import RetentionRule
from headrace.recipe.site import Site, StoreOptions
from headrace.record import Record
from headrace.runs.audit import Actor, note
from headrace.runs.on_disk import (
    RECORD,
    dataset_removal,
    mentioned,
    note_sizes,
    removable,
    removal_of,
)
from headrace.runs.planned_steps import run_metrics
from headrace.staging.cache import evict
from headrace.staging.staged_folder import StagedFolder
from headrace.states import BY_HAND, Removal, StepState

INTERRUPTED = "an earlier removal was interrupted"
_LOWER_IS_BETTER = ("loss", "error")


class CleanPlan(Record):
    """All that would be removed."""

    items: tuple[Item, ...]
    kept: dict[str, int]
    """How many selected runs stay, by the reason."""


def retention_plan() -> CleanPlan:
    """Return what the `retention` of all sites removes; nothing is removed."""
    plans = [make_plan(each.retention, each.name) for each in loaded_sites() if each.retention]
    found = {each.name: each for plan in plans for each in plan.items}  # sites share caches
    kept = sum((Counter(plan.kept) for plan in plans), Counter[str]())
    return CleanPlan(items=tuple(found.values()), kept=kept)


def make_plan(rule: RetentionRule, site: str = "", named: Collection[str] = ()) -> CleanPlan:
    """Return what a rule removes, of one site or all; nothing is removed.

    Side effects: unknown sizes of ended runs are measured and entered in the ledger.

    Args:
        rule: What goes, and what stays.
        site: Name of the site; empty for all.
        named: Runs that go whatever their age and end; then nothing else does.
    """
    rows, now = measured_runs(), time.time()
    until = now - (rule.older_than or 0.0)
    present = {row.run_id: row for row in rows if removal_of(row) is None}
    going = {
        row.run_id: row
        for row in present.values()
        if site in ("", row.site_name)
        and (row.run_id in named if named else _is_selected(row, rule, until, now))
    }
    kept = {each: why for each, row in going.items() if (why := _why_kept(row, rule, named))}
    if not named:
        kept = {**_chosen(present.values(), rule), **kept}
    names = {run_id: _names(row) for run_id, row in present.items()}
    staying = (names.keys() - going.keys()) | kept.keys()
    while more := {each for run_id in staying for each in names[run_id]} & going.keys() - staying:
        staying |= more
        kept |= dict.fromkeys(more, "another run refers to it")
    found = [*_of_runs(rows, going.keys() - staying)]
    if not named:
        used = {name for run_id in staying for name in names[run_id]}
        found += _others(rule, Places.of(rows, site), used, staying)
    return CleanPlan(items=tuple(found), kept=Counter(kept[each] for each in kept.keys() & going))


def _is_selected(row: RunRecord, rule: RetentionRule, until: float, now: float) -> bool:
    return rule.selects_runs and (row.finished_at or now) <= until


def _why_kept(row: RunRecord, rule: RetentionRule, named: Collection[str]) -> str:
    """Return why a run stays whatever is selected; empty if it may go."""
    if not row.state.is_final:
        return "it has not ended"
    if is_kept(row, rule.keep_tags):
        return "star or tag"
    if os.lstat(row.folder).st_uid != os.geteuid():
        return "of another user"
    can_resume = row.state is not StepState.SUCCEEDED and not named
    return "`headrace resume` can continue it" if can_resume else ""


def is_kept(record: RunRecord, tags: Collection[str] = ()) -> bool:
    """Whether a user keeps a run: by a star, the tag `keep`, or one of some tags."""
    own = set(getattr(record, "tags", ()))
    return bool(getattr(record, "is_starred", False) or own & {"keep", *tags})


def _chosen(rows: Iterable[RunRecord], rule: RetentionRule) -> dict[str, str]:
    """Return the newest and best runs of each recipe, and why they stay."""
    kept, by_recipe = dict[str, str](), defaultdict[str, list[RunRecord]](list)
    for row in rows:  # the newest first; evaluations apart from what they evaluate
        by_recipe[row.run_id.rsplit("-", 3)[0]].append(row)
    for of_recipe in by_recipe.values():
        newest = [row.run_id for row in of_recipe[: rule.keep_last or 0]]
        kept |= dict.fromkeys(newest, f"the newest {rule.keep_last} of its recipe")
        for metric in rule.keep_best:
            kept |= dict.fromkeys(_best(of_recipe, metric), f"best {metric} of its recipe")
    return kept


def _best(rows: Sequence[RunRecord], metric: str) -> list[str]:
    name, _, mode = metric.partition(":")
    is_lower = mode == "min" or (not mode and any(each in name for each in _LOWER_IS_BETTER))
    values = {row.run_id: run_metrics(row.outputs).get(name) for row in rows}
    found = {run_id: value for run_id, value in values.items() if value is not None}
    return [min(found, key=lambda each: found[each] * (1 if is_lower else -1))] if found else []


def _names(row: RunRecord) -> set[str]:
    """Return the names of runs and datasets that a run needs.

    If it has not ended, it may find its own dataset packed: then `NAME-`, whatever its content.
    """
    folder = RunFolder(Path(row.folder))
    if row.state.is_final:
        return mentioned(folder)
    dataset = json.loads(read_text(folder.recipe) or "{}").get("dataset") or {}
    return {*mentioned(folder), f"{dataset.get('name')}-"}


def _of_runs(rows: Iterable[RunRecord], going: Collection[str]) -> Iterator[Item]:
    for row in rows:
        num_bytes = sum(size for part, size in (row.sizes or {}).items() if part != RECORD)
        is_begun = row.removed is not None and row.removed.by != BY_HAND
        if num_bytes and (is_begun or row.run_id in going):
            why = INTERRUPTED if is_begun else f"ended {_day(row.finished_at or 0.0)}"
            yield Item(kind="run", name=row.run_id, num_bytes=num_bytes, why=why)


def _others(
    rule: RetentionRule, places: Places, used: Collection[str], staying: Set[str]
) -> Iterator[Item]:
    """Yield what is not of a run; `used` are the names that runs need that stay."""
    packed, is_idle = _packings(), not _open_runs()
    until = -1.0 if rule.older_than is None else time.time() - rule.older_than
    for item in items(places):
        goes, used_at, packings = KINDS[item.kind].goes, item.used_at, packed.get(item.name, ())
        may_go = goes == "old" or (goes == CACHE and is_idle)
        if packings:
            used_at = packings[0].ended_at
            may_go = not _is_used(item.name, used) and staying.isdisjoint(
                each.run_id for each in packings
            )
        why = f"last used {_day(used_at)}" if may_go and used_at <= until else ""
        if may_go and packings and rule.unreferenced:
            why = "no run refers to it"
        if goes != "never" and item.used_at == 0.0:
            why = INTERRUPTED
        if why:
            yield item.model_copy(update={"why": why})


def _is_used(place: str, names: Collection[str]) -> bool:
    name = Path(place).name
    return name in names or f"{name.rpartition('-')[0]}-" in names


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def _open_runs() -> tuple[RunRecord, ...]:
    return open_ledger().runs(MOST, (StepState.QUEUED, StepState.RUNNING))


def _packings() -> Mapping[str, Sequence[Packing]]:
    """Return the packings of each dataset by its folder or URL, the newest first."""
    found = defaultdict[str, list[Packing]](list)
    for each in open_ledger().packings(MOST):
        found[str(each.outputs.get("dataset")).rstrip("/")].append(each)
    return found


def carry_out(plan: CleanPlan, by: Actor) -> Iterator[Item]:
    """Remove what a plan lists, and yield each item, with `stays` if it is still there.

    What has been used, resumed or kept since the plan was made stays. A failure of one item keeps
    no other from its removal.
    """
    for item in plan.items:
        try:
            stays = _remove(item, by)
        except (HeadraceError, OSError) as error:
            stays = str(storage_error(error, Path()) or error)
        if not stays:
            run_id = item.name if item.kind == "run" else ""
            note(by, "clean", run_id, f"{item.kind} {item.name}")
        yield item.model_copy(update={"stays": stays})


def _remove(item: Item, by: Actor) -> str:
    """Remove one item; return why it stays, or an empty string."""
    path = Path(item.name)
    if item.kind == "run":
        return _remove_run(item.name, by)
    if item.kind == "dataset" and item.why != INTERRUPTED:
        return _remove_dataset(item.name, by)
    if item.kind == "staged copy":
        return "" if evict(StagedFolder(path, "")) else "it is in use"
    if KINDS[item.kind].goes == CACHE and _open_runs():
        return "a run has begun that may use it"
    check_removable(path, path.parent)
    remove(path)
    return ""


def _remove_run(run_id: str, by: Actor) -> str:
    ledger = open_ledger()
    record = ledger.run(run_id)
    site = Path(record.folder).parents[1]
    leases = [Path(each.folder) for each in ledger.leases(run_id=run_id)]
    paths = removable(RunFolder(Path(record.folder)))
    paths += [each for each in leases if each.parent == site / "leases" and each.exists()]
    for path in paths:
        check_removable(path, site)
    if is_kept(record):
        return "star or tag"
    removal = record.removed or Removal(at=time.time(), by=by.user, what="run")
    if not ledger.set_removed(run_id, removal):
        return "it has begun again"
    # a run that begins now is refused; one that began before is in the ledger
    if any(run_id in mentioned(RunFolder(Path(row.folder))) for row in _open_runs()):
        ledger.set_removed(run_id, None)
        return "another run refers to it now"
    for path in paths:
        remove(path)
    note_sizes(run_id)
    return ""


def _remove_dataset(place: str, by: Actor) -> str:
    target = PackTarget(folder=DatasetFolder(Path(place)), url=None, s3=StoreOptions())
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
        open_store(target.location, target.s3).purge()
        remove(folder)  # records of a dataset in an object store
    dataset_removal(place, Removal(at=time.time(), by=by.user, what="dataset"))
    return ""


def forget(run_id: str, by: Actor) -> None:
    """Leave a removed run out of lists, and remove its record and copy of the code.

    Its rows in the ledger stay: money and metrics still count.

    Raises:
        UserError: Its files are there.
    """
    record = open_ledger().run(run_id)
    gone = removal_of(record)
    if gone is None:
        raise UserError(
            f"Run {run_id} still has its files: {record.folder}",
            f"Remove them first: headrace clean {run_id}",
        )
    folder = Path(record.folder)
    if folder.exists():
        check_removable(folder, folder.parents[1])
        remove(folder)
    open_ledger().set_removed(run_id, gone, is_forgotten=True)
    note_sizes(run_id)
    note(by, "forget", run_id)
