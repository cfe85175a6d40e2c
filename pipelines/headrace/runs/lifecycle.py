"""The life of a run: made once by key, as a folder and a row in the ledger, until it has ended."""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.clusters.images import pull
from headrace.errors import SiteError, StepError
from headrace.files.atomic import write_json, write_record
from headrace.files.layout import RunFolder, SiteFolder
from headrace.files.private import make_private
from headrace.files.sharing import share
from headrace.informing import AFTERWARDS_S, inform
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.recipe.base import to_json
from headrace.recipe.load import load_recipe, load_site, source_of, with_kept
from headrace.recipe.recipe import Recipe
from headrace.recipe.shortened import rehearsal
from headrace.recipe.site import Site
from headrace.recipe.teams import check_user
from headrace.recipe.unix_accounts import other_account
from headrace.runs.audit import START, Actor, check_access, note, noting_refusals
from headrace.runs.code_snapshot import allowing_copy, with_snapshot
from headrace.runs.code_state import containers_of
from headrace.runs.names import there
from headrace.runs.on_disk import mentioned, note_sizes
from headrace.runs.parts import SuiteSite
from headrace.runs.planned_steps import KINDS
from headrace.runs.provenance import write_provenance
from headrace.runs.resolve import check_evaluated, of_run, resolve, within_reach
from headrace.runs.results import write_report
from headrace.runs.runs import (
    Run,
    RunRequest,
    check_files,
    files_digest,
    outputs_of,
    packed_by,
    run_of_record,
)
from headrace.runs.suites import is_suite
from headrace.runs.trials import note_trials
from headrace.runs.usage import note_usage
from headrace.states import StepState
from headrace.steps.step_kinds import step_kind

logger = logging.getLogger(__name__)


def create_run(request: RunRequest) -> Run:
    """Make the run that is asked for, or find the one made for the same key.

    Raises:
        RecipeError: The recipe or an override cannot be used.
        SiteError: The site cannot be used, its folder cannot be written, or an image cannot be
            pulled.
        AccessError: The site is not for who asks.
        UserError: The recipe does not fit the site, see `resolve`.
    """
    existing = open_ledger().run_by_key(request.key)
    if existing is not None:
        return reopened(existing, request)
    by, words = Actor.of(request.owner, request.user), " ".join(request.words)
    with noting_refusals(by, START, request.owner, words):
        loaded = load_recipe(request.recipe, request.overrides)
        recipe, site, source, sites = _checked(request, loaded)
        run = entered(_new_run(request, recipe, site), partial(_fill, loaded, source, sites))
        if run is not None:
            note(by, START, run.run_id, words)
            return run
    existing = open_ledger().run_by_key(request.key)
    if existing is None:
        raise StepError(f"The run for key {request.key} vanished from the ledger")
    return reopened(existing, request)


def _checked(
    request: RunRequest, loaded: Recipe
) -> tuple[Recipe, Site, Mapping[str, Any], Mapping[str, SuiteSite]]:
    """Recipe and site as the run keeps them; of a suite its source of trials, and its sites."""
    is_from_terminal = request.owner.startswith("cli:")
    user = None if is_from_terminal else request.user
    site = load_site(request.site, user)
    by = Actor.of(request.owner, request.user).user
    check_user(site, by)
    if request.of:
        evaluated = within_reach(there(request.of), loaded, site)
        check_files(evaluated.record)
        folder = RunFolder(Path(evaluated.record.folder))
        site = allowing_copy(site, folder, is_from_terminal=is_from_terminal)
        loaded = of_run(loaded, evaluated.folder, watch=request.watch)
    if request.rehearses:
        loaded, site = rehearsal(loaded, site)
    recipe, site = resolve(loaded, site, request.kind, is_from_terminal=is_from_terminal)
    if request.of:
        check_evaluated(recipe, packed_by(evaluated.record.run_id))
    source: dict[str, Any] = {}
    sites: dict[str, SuiteSite] = {}
    if request.kind == "suite":
        from headrace.runs.suite_sites import over_sites, suite_sites
        from headrace.suites.points import checked

        source = with_kept(source_of(request.recipe, request.overrides), loaded, recipe)
        recipe = checked(recipe, source, site)
        sites = suite_sites(loaded, user, by, is_from_terminal=is_from_terminal)
        if sites:
            recipe, site = over_sites(recipe, site, sites)
    return recipe, site, source, sites if len(sites) > 1 else {}


def finish_run(run: Run, state: StepState) -> None:
    """Record how a run ended, what its steps gave and took; a suite gets its report."""
    record = open_ledger().finish_run(run.run_id, state, time.time(), outputs_of(run.run_id))
    if state is StepState.SUCCEEDED:
        shutil.rmtree(run.folder.rehearsed, ignore_errors=True)
    tell = partial(inform, run.folder, within_s=AFTERWARDS_S)
    if is_suite(record):
        tell("report of the suite", partial(write_report, record))
    elif record.part_of:
        tell("trials of the part", partial(note_trials, run.folder))
    tell("accounting", partial(note_usage, run.run_id))
    tell("size on disk", partial(note_sizes, run.run_id))
    if run.request.kind not in KINDS and state is StepState.SUCCEEDED:
        tell("report of the step", partial(step_kind(run.request.kind).report, run.run_id))


def reopened(record: RunRecord, request: RunRequest) -> Run:
    """The run of an earlier request with the same key; one that has ended goes on."""
    run, by = run_of_record(record), Actor.of(request.owner, request.user)
    check_access(run.site_now, by, "resume", run.run_id)
    if not record.state.is_final:
        return run
    check_files(record)
    open_ledger().reopen_run(record.run_id, request.owner)
    note(by.unnamed, "resume", run.run_id)  # not by who triggered it, but who cleared a task
    return owned_by(run, request.owner)


def owned_by(run: Run, owner: str) -> Run:
    """A run whose request names its new owner, as in the ledger."""
    request = run.request.model_copy(update={"owner": owner})
    write_record(run.folder.request, request)
    return replace(run, request=request)


def _new_run(request: RunRequest, recipe: Recipe, site: Site) -> Run:
    # never from the key: of two requests with one key each must have a folder of its own to remove
    unique = uuid.uuid4().hex[:8]
    name = f"{recipe.name}-evaluate" if request.of else recipe.name
    run_id = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{unique}"
    folder = SiteFolder(Path(site.folder).expanduser()).run(run_id)
    if request.rehearses:
        pack = recipe.pack.model_copy(update={"target": str(folder.rehearsed)})
        recipe = recipe.model_copy(update={"pack": pack})
    return Run(run_id=run_id, request=request, folder=folder, recipe=recipe, site=site)


def entered(run: Run, fill: Callable[[Run], Run]) -> Run | None:
    """Write a run's folder and its row, and return it; leave no folder if its key has a row.

    `fill` writes the files into the folder, which exists, and returns the run as it is then.

    Raises:
        SiteError: The folder cannot be written.
    """
    is_entered = False
    try:
        run = _filled(run, fill)
        is_entered = open_ledger().add_run(recorded(run, time.time()), mentioned(run.folder))
    finally:
        if not is_entered:
            shutil.rmtree(run.folder.path, ignore_errors=True)
    return run if is_entered else None


def write_run(run: Run, source: Mapping[str, Any]) -> None:
    """Write the record of a run; `source` is that of a suite's trials, else empty."""
    write_record(run.folder.recipe, run.recipe)
    write_record(run.folder.site, run.site)
    if source:
        write_json(run.folder.source, to_json(source))
    write_record(run.folder.request, run.request)


def _fill(
    loaded: Recipe, source: Mapping[str, Any], sites: Mapping[str, SuiteSite], run: Run
) -> Run:
    run, source = with_snapshot(run, source)
    for name, each in sites.items():
        write_record(run.folder.sites / f"{name}.json", each)
        from headrace.runs.suite_sites import why_no_folder

        asked = partial(why_no_folder, each.site)
        if why := inform(run.folder, f"check of the folder of site {name}", asked, str):
            logger.warning("site %s: %s; its trials wait", name, why)
    write_run(run, source)
    request = run.request
    containers = containers_of(run.recipe, run.site)
    images = [pull(each, run.site_folder.path) for each in containers]
    write_provenance(run.folder, request.recipe, loaded, request.user, images)
    return run


def _filled(run: Run, fill: Callable[[Run], Run]) -> Run:
    try:
        if other := other_account(run.site):
            share(run.site_folder.path, other)
        make_private(run.folder.path)
        return fill(run)
    except OSError as error:
        raise SiteError(
            f"The folder {run.site_folder.path} of site '{run.site.name}' cannot be written: "
            f"{error.strerror or error}",
            "Set 'folder' of the site (for built-in sites: HEADRACE_HOME) to a folder that you may "
            "write and that has room.",
        ) from error


def recorded(run: Run, created_at: float) -> RunRecord:
    """The row of a run that goes on, asked for at a time in seconds since the epoch."""
    return RunRecord(
        run_id=run.run_id,
        key=run.request.key,
        recipe_name=run.recipe.name,
        site_name=run.site.name,
        recipe_fingerprint=files_digest(run.folder),
        folder=str(run.folder.path),
        state=StepState.RUNNING,
        owner=run.request.owner,
        overrides=run.request.overrides,
        kind="rehearsal" if run.request.rehearses else run.request.kind,
        user=run.user,
        dataset=run.recipe.dataset.name if run.recipe.dataset else "",
        seed=None if run.request.kind in ("suite", "part") else run.recipe.seed,  # of its trials
        created_at=created_at,
    )
