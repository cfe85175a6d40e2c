"""Going on with a run, also elsewhere or on more or fewer nodes: where and how wide, not what."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.errors import RecipeError, SiteError, StepError, UserError
from headrace.execution.reap import end_steps
from headrace.files.atomic import is_there, write_json, write_record
from headrace.ledger.ledger import open_ledger
from headrace.recipe.difference import CHANGEABLE, Change, Resumption, differences
from headrace.recipe.load import load_recipe, load_site, with_kept
from headrace.recipe.overrides import check_size
from headrace.recipe.site import Site
from headrace.runs.audit import Actor, check_access, note
from headrace.runs.code_snapshot import allowing_copy, copied_anew, put_in_place
from headrace.runs.lifecycle import owned_by
from headrace.runs.names import there
from headrace.runs.owners import owner_process
from headrace.runs.parts import check_whole, sites_of
from headrace.runs.resolve import resolve
from headrace.runs.runs import Run, check_files, files_digest, open_run, run_of_record


def take_over_run(run_id: str, owner: str, changes: str = "") -> Run:
    """Open a run under a new owner, to go on with it, perhaps with changes.

    Raises:
        AccessError: Its site is not for this account.
        StepError: Its owner still works on it, or another process takes it over just now.
    """
    record = there(run_id).record
    check_whole(record, "resume")
    run = run_of_record(record)
    by = Actor.here()
    check_access(run.site_now, by, "resume", run_id, changes)
    check_files(record)
    if not record.state.is_final:
        _check_left(run)
    taken = open_ledger().reopen_run(run_id, owner, previous=record.owner)
    if taken.owner != owner:
        raise StepError(
            f"Run {run_id} was taken over by {taken.owner} at the same moment",
            f"Watch it: headrace status {run_id} --watch",
        )
    note(by, "resume", run_id, changes)
    return owned_by(run, owner)


def take_over_changed(
    run_id: str, owner: str, overrides: Sequence[str], site: str, *, new_code: bool = False
) -> Run:
    """Open a run under a new owner, to go on with it on other machines.

    What still runs of it ends first: it has the old numbers. Steps that have succeeded stay.
    `overrides` are `key=value` for `CHANGEABLE` keys. `site` has the same folder; empty for its
    own, as it was. With `new_code` the run gets its code as it is now.

    Raises:
        RecipeError: An override changes the run's outcome, or cannot be used.
        SiteError: The site has another folder, or cannot be used. Others: as `take_over_run`.
    """
    before = open_run(run_id)
    if sites_of(before.folder):
        raise UserError(
            f"Suite {run_id} runs on several sites, and its parts keep their sites, code and size",
            f"Go on without changes: headrace resume {run_id}. Or begin another suite.",
        )
    changed, resumption = _changed(before, overrides, site)
    code = copied_anew(changed.folder) if new_code else ()
    old = take_over_run(run_id, owner, resumption.words + " --new-code" * new_code)
    end_steps(old, f"the run goes on with changes: {resumption.words}")
    if code:
        changes = (*resumption.changes, *put_in_place(old.folder, code))
        resumption = resumption.model_copy(update={"changes": changes})
    request = old.request.model_copy(
        update={
            "site": site or old.request.site,
            "overrides": (*old.request.overrides, *overrides),
            "resumed": (*old.request.resumed, resumption),
        }
    )
    run = replace(changed, request=request)
    open_ledger().change_run(run_id, recipe_fingerprint="")  # until all files are written
    if is_there(run.folder.source):  # recipes of a suite's trials are made of it
        source = json.loads(run.folder.source.read_bytes())
        write_json(run.folder.source, with_kept(source, old.recipe, run.recipe))
    write_record(run.folder.recipe, run.recipe)
    write_record(run.folder.site, run.site)
    write_record(run.folder.request, run.request)
    open_ledger().change_run(
        run_id,
        site_name=run.site.name,
        recipe_fingerprint=files_digest(run.folder),
        overrides=request.overrides,
    )
    return run


def _check_left(run: Run) -> None:
    """Raise if the run's owner still works on it."""
    process = owner_process(run.request.owner)
    if process is None:
        raise StepError(
            f"Run {run.run_id} has not ended and belongs to {run.request.owner}",
            "Clear its failed task in Airflow, or stop the DAG run there first.",
        )
    if process.is_here and process.is_alive:
        raise StepError(
            f"Run {run.run_id} is being worked on by process {process.pid} of this machine",
            f"Watch it: headrace status {run.run_id} --watch",
        )


def _changed(run: Run, overrides: Sequence[str], site: str) -> tuple[Run, Resumption]:
    """Return the run with its changes; nothing is written yet."""
    check_size(overrides)
    recipe = load_recipe(str(run.folder.recipe), overrides)
    changes = differences(run.recipe, recipe)
    _check_keys(run, [each.key for each in changes])
    # the recipe of a run from Airflow is still its user's: it stays fenced
    other, is_from_terminal = run.site, not run.site.is_fenced
    if site:
        other = _with_same_folder(run, load_site(site))
        check_access(other, Actor.here(), "resume", run.run_id, f"on {other.name}")
        names = (json.dumps(each.name) for each in (run.site, other))
        changes = (*changes, Change(key="site", before=next(names), after=next(names)))
        other = allowing_copy(other, run.folder, is_from_terminal=is_from_terminal)
    kind = run.request.kind
    recipe, other = resolve(recipe, other, kind, is_from_terminal=is_from_terminal)
    return replace(run, recipe=recipe, site=other), Resumption(at=time.time(), changes=changes)


def _check_keys(run: Run, keys: Sequence[str]) -> None:
    refused = [key for key in keys if key not in CHANGEABLE]
    if refused:
        raise RecipeError(
            f"Run {run.run_id} has begun, and {', '.join(refused)} would change what comes of it",
            f"May be changed: {', '.join(CHANGEABLE)}, and --site. For the rest begin a run with "
            f"its weights: headrace run {run.request.recipe} KEY=VALUE "
            f"train.init_from={run.run_id}:last",
        )


def _with_same_folder(run: Run, site: Site) -> Site:
    folder = Path(site.folder).expanduser()
    if folder.resolve() == run.site_folder.path.resolve():
        return site
    raise SiteError(
        f"Site '{site.name}' has the folder {folder}, but run {run.run_id} lies in "
        f"{run.site_folder.path}",
        "Only a site with the same folder can go on with it. Elsewhere begin a run with its "
        f"weights: train.init_from={run.folder.checkpoints}/final.ckpt or another checkpoint.",
    )
