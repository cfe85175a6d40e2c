"""Runs: made once by key, kept as a folder and a row in the ledger."""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from headrace.control.books import ledger
from headrace.control.owners import owner_process
from headrace.control.provenance import provenance
from headrace.errors import SiteError, StepError, nearest
from headrace.ledger.records import RunRecord
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.states import StepState
from headrace.storage.atomic import read_record, write_json, write_record
from headrace.storage.layout import LeaseFolder, RunFolder, SiteFolder

RunKind = Literal["train", "pack"]


class RunRequest(BaseModel):
    """What somebody asks for: a recipe on a site."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    recipe: str
    """Name or file of the recipe."""
    site: str
    """Name or file of the site."""
    overrides: tuple[str, ...] = ()
    """`key=value` changes to the recipe."""
    key: str
    """Identity of the request; asking twice with one key gives one run."""
    owner: str
    """Who answers for the run: `airflow:<dag_id>:<dag_run_id>` or `cli:<host>:<pid>:<started>`."""
    kind: RunKind = "train"
    """The whole main job, or only its packing."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that exists: its request, folder, resolved recipe and site."""

    run_id: str
    request: RunRequest
    folder: RunFolder
    recipe: Recipe
    site: Site

    @property
    def site_folder(self) -> SiteFolder:
        """Shared folder of the site."""
        return SiteFolder(Path(self.site.folder).expanduser())

    def lease_folder(self, lease_id: str) -> LeaseFolder:
        """Folder of one of the run's leases."""
        return self.site_folder.lease(lease_id)


def create_run(request: RunRequest) -> Run:
    """Make the run that is asked for, or find the one made for the same key.

    Raises:
        RecipeError: The recipe or an override cannot be used.
        SiteError: The site cannot be used, or lacks a role that the recipe needs.
    """
    existing = ledger().run_by_key(request.key)
    if existing is not None:
        return _reopened(existing)
    recipe = load_recipe(request.recipe, request.overrides)
    site = load_site(request.site)
    check_roles(recipe, site)
    run = _new_run(request, recipe, site)
    _write_folder(run)
    if not ledger().add_run(_record(run)):
        shutil.rmtree(run.folder.path)
        existing = ledger().run_by_key(request.key)
        if existing is None:
            raise StepError(f"The run for key {request.key} vanished from the ledger")
        return _reopened(existing)
    return run


def open_run(run_id: str) -> Run:
    """Open a run by its id.

    Raises:
        UnknownNameError: There is no such run.
        StepError: Its folder is gone or damaged.
    """
    return _from_record(ledger().run(run_id))


def take_over_run(run_id: str, owner: str) -> Run:
    """Open a run under a new owner, to go on with it.

    Raises:
        UnknownNameError: There is no such run.
        StepError: Its owner is a process that still works on it.
    """
    run = open_run(run_id)
    process = owner_process(run.request.owner)
    if process is not None and process.is_here and process.is_alive:
        raise StepError(
            f"Run {run_id} is being worked on by process {process.pid} of this machine",
            f"Watch it: headrace status {run_id} --watch",
        )
    request = run.request.model_copy(update={"owner": owner})
    write_record(run.folder.request, request)
    ledger().reopen_run(run_id, owner)
    return replace(run, request=request)


def finish_run(run: Run, state: StepState) -> None:
    """Record the final state of a run and what its steps gave."""
    outputs: dict[str, JsonValue] = {
        attempt.step: dict(attempt.outputs)
        for attempt in ledger().attempts(run.run_id)
        if attempt.state is StepState.SUCCEEDED
    }
    ledger().finish_run(run.run_id, state, time.time(), outputs)


def check_roles(recipe: Recipe, site: Site) -> None:
    """Check that the site has the roles which the recipe asks for.

    Raises:
        SiteError: A role is missing.
    """
    for key, role in (("pack_role", recipe.pack_role), ("train.role", recipe.train.role)):
        if role not in site.roles:
            raise SiteError(
                f"Recipe '{recipe.name}' asks by {key} for the role '{role}', "
                f"which site '{site.name}' does not have",
                nearest(role, site.roles),
            )


def _reopened(record: RunRecord) -> Run:
    if record.state.is_final:
        ledger().reopen_run(record.run_id, record.owner)
    return _from_record(record)


def _from_record(record: RunRecord) -> Run:
    folder = RunFolder(Path(record.folder))
    request = read_record(folder.request, RunRequest)
    recipe = read_record(folder.recipe, Recipe)
    site = read_record(folder.site, Site)
    if request is None or recipe is None or site is None:
        raise StepError(
            f"The folder of run {record.run_id} is gone or incomplete: {folder.path}",
            "Start a new run.",
        )
    return Run(run_id=record.run_id, request=request, folder=folder, recipe=recipe, site=site)


def _new_run(request: RunRequest, recipe: Recipe, site: Site) -> Run:
    digest = hashlib.blake2b(request.key.encode(), digest_size=4).hexdigest()
    run_id = f"{recipe.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{digest}"
    folder = SiteFolder(Path(site.folder).expanduser()).run(run_id)
    return Run(run_id=run_id, request=request, folder=folder, recipe=recipe, site=site)


def _write_folder(run: Run) -> None:
    run.folder.path.mkdir(parents=True, mode=0o700, exist_ok=True)
    write_record(run.folder.recipe, run.recipe)
    write_record(run.folder.site, run.site)
    write_record(run.folder.request, run.request)
    write_json(run.folder.provenance, provenance(run.request.recipe))


def _record(run: Run) -> RunRecord:
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
        created_at=time.time(),
        finished_at=None,
        outputs={},
    )


def recipe_fingerprint(recipe: Recipe) -> str:
    """Hash of the resolved recipe, 32 hexadecimal digits."""
    content = recipe.model_dump_json(by_alias=True).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
