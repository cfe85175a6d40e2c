"""Runs: made once by key, kept as a folder and a row in the ledger."""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from headrace.errors import HeadraceError, SiteError, StepError
from headrace.files.atomic import read_record, write_json, write_record
from headrace.files.layout import LeaseFolder, RunFolder, SiteFolder
from headrace.files.private import make_private
from headrace.files.sharing import share
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.recipe.difference import Resumption
from headrace.recipe.load import load_recipe, load_site, settled, site_now, source_of
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.teams import check_user
from headrace.recipe.unix_accounts import other_account
from headrace.record import Record
from headrace.runs.audit import START, Actor, check_access, note, noting_refusals
from headrace.runs.code_state import images_of
from headrace.runs.planned_steps import KINDS, check_evaluated, fitted, of_run
from headrace.runs.provenance import user_of, write_provenance
from headrace.runs.results import write_report
from headrace.runs.suites import is_suite
from headrace.runs.usage import note_usage
from headrace.site_secrets import HERE, Asker, LeaseSecrets, secrets_for
from headrace.states import StepState
from headrace.steps.step_kinds import StepOptions, step_kind


class RunRequest(Record):
    """What somebody asks for: a recipe on a site."""

    recipe: str
    """Name or file."""
    site: str
    """Name or file."""
    overrides: tuple[str, ...] = ()
    """`key=value` changes to the recipe."""
    key: str
    """Identity of the request; asking twice with one key gives one run."""
    owner: str
    """Who answers for the run: `airflow:<dag_id>:<dag_run_id>` or `cli:<host>:<pid>:<started>`."""
    user: str = ""
    """Who asked, where that is not the account that headrace runs as."""
    kind: str = "train"
    """The main job `train`, only its packing `pack`, an evaluation of a run `evaluate`, a `suite`,
    or one step of a kind that another package adds, as `probe`."""
    of: str = ""
    """Id of the run that is evaluated; empty for the other kinds."""
    watch: bool = False
    """Whether that run's checkpoints are evaluated as they come, while it trains."""
    options: StepOptions | None = Field(default=None, validate_default=True)
    """Of a kind that another package adds: what its step is given."""
    resumed: tuple[Resumption, ...] = ()
    """What was changed when the run went on."""

    @field_validator("options")
    @classmethod
    def _of_the_kind(cls, options: StepOptions | None, info: ValidationInfo) -> StepOptions | None:
        kind = info.data.get("kind", KINDS[0])  # one that is no text has been refused
        if kind in KINDS:
            return None
        model = step_kind(kind, KINDS).options
        return model.model_validate(options or {}).model_dump(mode="json")

    @property
    def words(self) -> tuple[str, ...]:
        """Words after `headrace` that ask for the same again."""
        if self.options is not None:
            return (self.kind, "--site", self.site, *step_kind(self.kind).words(self.options))
        verb = "sweep" if self.kind == "suite" else "run"
        start = ("evaluate", self.of) if self.of else (verb, self.recipe)
        part = {"pack": ("--pack-only",), "evaluate": ("--watch",) if self.watch else ()}
        return (*start, *self.overrides, "--site", self.site, *part.get(self.kind, ()))


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that exists: its request, folder, resolved recipe and site."""

    run_id: str
    request: RunRequest
    folder: RunFolder
    recipe: Recipe
    site: Site
    asker: Asker = HERE

    @property
    def site_folder(self) -> SiteFolder:
        """Shared folder of the site."""
        return SiteFolder(Path(self.site.folder).expanduser())

    @property
    def site_now(self) -> Site:
        """The site as its file says now: who may use it, and its limits.

        As it was when the run began where the file is not there, or is another site's.
        """
        try:
            site = site_now(self.request.site)
        except HeadraceError:
            return self.site
        return site if site.name == self.site.name else self.site

    @property
    def user(self) -> str:
        """Who asked for it."""
        return user_of(self.folder, self.request.owner)

    def secrets(self) -> LeaseSecrets:
        """What its next lease is given of the site's secrets; see `secrets_for`."""
        return secrets_for(self.site, self.asker)

    def lease_folder(self, lease_id: str) -> LeaseFolder:
        """Folder of one of the run's leases."""
        return self.site_folder.lease(lease_id)


def create_run(request: RunRequest) -> Run:
    """Make the run that is asked for, or find the one made for the same key.

    Raises:
        RecipeError: The recipe or an override cannot be used.
        SiteError: The site cannot be used, or its folder cannot be written.
        AccessError: The site is not for who asks.
        UserError: The recipe does not fit the site, see `fitted`.
    """
    existing = open_ledger().run_by_key(request.key)
    if existing is not None:
        return _reopened(existing, request)
    by, words = Actor.of(request.owner, request.user), " ".join(request.words)
    with noting_refusals(by, START, request.owner, words):
        loaded = load_recipe(request.recipe, request.overrides)
        recipe, site, source = _checked(request, loaded)
        run = _new_run(request, recipe, site)
        if _entered(run, loaded, source):
            note(by, START, run.run_id, words)
            return run
    existing = open_ledger().run_by_key(request.key)
    if existing is None:
        raise StepError(f"The run for key {request.key} vanished from the ledger")
    return _reopened(existing, request)


def _checked(request: RunRequest, loaded: Recipe) -> tuple[Recipe, Site, Mapping[str, Any]]:
    """Recipe and site as the run keeps them, and a suite's recipe as its trials change it."""
    is_from_terminal = request.owner.startswith("cli:")
    user = None if is_from_terminal else request.user
    site = load_site(request.site, user)
    check_user(site, Actor.of(request.owner, request.user).user)
    if request.of:
        folder = RunFolder(Path(open_ledger().run(request.of).folder))
        loaded = of_run(loaded, folder, watch=request.watch)
    recipe, site = fitted(loaded, site, request.kind, is_from_terminal=is_from_terminal)
    if request.of:
        check_evaluated(recipe, packed_by(request.of))
    source: dict[str, Any] = {}
    if request.kind == "suite":
        from headrace.suites.points import checked

        source = settled(source_of(request.recipe, request.overrides), loaded, recipe)
        recipe = checked(recipe, source, site)
    return recipe, site, source


def open_run(run_id: str) -> Run:
    """Open a run by its id.

    Raises:
        UnknownNameError: There is no such run.
        StepError: Its folder is gone or damaged.
    """
    return run_of_record(open_ledger().run(run_id))


def packed_by(run_id: str) -> str:
    """The dataset of a run.

    Raises:
        StepError: It has not packed it yet.
    """
    dataset = outputs_of(run_id).get("pack", {}).get("dataset")
    if not isinstance(dataset, str):
        what = f"Run {run_id} has no packed dataset yet"
        raise StepError(what, f"Look at it: headrace status {run_id}")
    return dataset


def outputs_of(run_id: str) -> dict[str, dict[str, Any]]:
    """Outputs of the steps that have succeeded, by step."""
    attempts = open_ledger().attempts(run_id)
    return {each.step: each.outputs for each in attempts if each.state is StepState.SUCCEEDED}


def finish_run(run: Run, state: StepState) -> None:
    """Record how a run ended, what its steps gave and took; a suite gets its report."""
    record = open_ledger().finish_run(run.run_id, state, time.time(), outputs_of(run.run_id))
    if is_suite(record):
        write_report(record)
    note_usage(run.run_id)
    if run.request.kind not in KINDS and state is StepState.SUCCEEDED:
        step_kind(run.request.kind).report(run.run_id)


def _reopened(record: RunRecord, request: RunRequest) -> Run:
    """The run of an earlier request with the same key; one that has ended goes on."""
    run, by = run_of_record(record), Actor.of(request.owner, request.user)
    check_access(run.site_now, by, "resume", run.run_id)
    if not record.state.is_final:
        return run
    open_ledger().reopen_run(record.run_id, request.owner)
    note(by.unnamed, "resume", run.run_id)  # not by who triggered it, but who cleared a task
    return owned_by(run, request.owner)


def owned_by(run: Run, owner: str) -> Run:
    """A run whose request names its new owner, as in the ledger."""
    request = run.request.model_copy(update={"owner": owner})
    write_record(run.folder.request, request)
    return replace(run, request=request)


def run_of_folder(run_id: str, folder: RunFolder) -> Run:
    """A run as its folder tells it; the ledger is not asked."""
    try:
        request = read_record(folder.request, RunRequest)
        recipe = read_record(folder.recipe, Recipe)
        site = read_record(folder.site, Site)
    except StepError as error:
        raise StepError(f"Run {run_id} is damaged: {error.what}", "Start a new run.") from error
    if request is None or recipe is None or site is None:
        raise StepError(
            f"The folder of run {run_id} is gone or incomplete: {folder.path}", "Start a new run."
        )
    return Run(run_id=run_id, request=request, folder=folder, recipe=recipe, site=site)


def run_of_record(record: RunRecord) -> Run:
    """Open a run by its row, as `open_run`."""
    run = run_of_folder(record.run_id, RunFolder(Path(record.folder)))
    request = run.request.model_copy(update={"owner": record.owner})  # the ledger knows best
    return replace(run, request=request)


def _new_run(request: RunRequest, recipe: Recipe, site: Site) -> Run:
    # never from the key: of two requests with one key each must have a folder of its own to remove
    unique = uuid.uuid4().hex[:8]
    name = f"{recipe.name}-evaluate" if request.of else recipe.name
    run_id = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{unique}"
    folder = SiteFolder(Path(site.folder).expanduser()).run(run_id)
    return Run(run_id=run_id, request=request, folder=folder, recipe=recipe, site=site)


def _entered(run: Run, loaded: Recipe, source: Mapping[str, Any]) -> bool:
    """Write a run's folder and its row; no folder is left when there is a row for its key."""
    entered = False
    try:
        _write_folder(run, loaded, source)
        entered = open_ledger().add_run(recorded(run, time.time()))
    finally:
        if not entered:
            shutil.rmtree(run.folder.path, ignore_errors=True)
    return entered


def _write_folder(run: Run, loaded: Recipe, source: Mapping[str, Any]) -> None:
    try:
        if other := other_account(run.site):
            share(run.site_folder.path, other)
        make_private(run.folder.path)
        write_record(run.folder.recipe, run.recipe)
        write_record(run.folder.site, run.site)
        write_record(run.folder.request, run.request)
        if source:
            write_json(run.folder.source, source)
        request = run.request
        images = images_of(run.recipe, run.site)
        write_provenance(run.folder, request.recipe, loaded, request.user, images)
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
        recipe_fingerprint=recipe_fingerprint(run.recipe),
        folder=str(run.folder.path),
        state=StepState.RUNNING,
        owner=run.request.owner,
        overrides=run.request.overrides,
        created_at=created_at,
    )


def recipe_fingerprint(recipe: Recipe) -> str:
    """Hash of the resolved recipe, 32 hexadecimal digits."""
    unused = {"suite"} if recipe.suite is None else set()
    content = recipe.model_dump_json(by_alias=True, exclude=unused).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
