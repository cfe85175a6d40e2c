"""Runs: made once by key, kept as a folder and a row in the ledger."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from headrace.errors import HeadraceError, StepError, UserError, removed
from headrace.files.atomic import is_there, read_record, read_text
from headrace.files.layout import LeaseFolder, RunFolder, SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.recipe.difference import Resumption
from headrace.recipe.load import site_now
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.record import Record
from headrace.runs.code_state import CodeSnapshot
from headrace.runs.on_disk import removal_of
from headrace.runs.owners import user_of
from headrace.runs.planned_steps import KINDS
from headrace.site_secrets import HERE, Asker, LeaseSecrets, secrets_for
from headrace.states import BY_HAND, StepState
from headrace.steps.step_kinds import StepOptions, step_kind

_OF_FILES = "files:"
"""Start of digests of files; earlier releases recorded a hash of the recipe's values."""


class RunRequest(Record):
    """A request for a run: a recipe on a site."""

    recipe: str
    """Name or file."""
    site: str
    """Name or file."""
    overrides: tuple[str, ...] = ()
    """`key=value` changes to the recipe."""
    key: str
    """Identity of the request; two requests with one key give one run."""
    owner: str
    """Owner of the run: `airflow:<dag_id>:<dag_run_id>` or `cli:<host>:<pid>:<started>`."""
    user: str = ""
    """The requester, if other than the account that headrace runs as."""
    kind: str = "train"
    """The main job `train`, only its packing `pack`, an evaluation of a run `evaluate`, a `suite`,
    or one step of a kind that another package adds, as `probe`."""
    of: str = ""
    """Id of the run that is evaluated; empty for the other kinds."""
    watch: bool = False
    """Whether that run's checkpoints are evaluated while it trains."""
    rehearses: bool = False
    """Whether all steps are done with few samples on one rank, before a long queue."""
    options: StepOptions | None = Field(default=None, validate_default=True)
    """Options of the step, if another package adds the kind."""
    resumed: tuple[Resumption, ...] = ()
    """Changes at each resume."""

    @field_validator("options")
    @classmethod
    def _of_the_kind(cls, options: StepOptions | None, info: ValidationInfo) -> StepOptions | None:
        kind = info.data.get("kind", KINDS[0])  # other types were refused
        if kind in KINDS:
            return None
        model = step_kind(kind, KINDS).options
        return model.model_validate(options or {}).model_dump(mode="json")

    @property
    def words(self) -> tuple[str, ...]:
        """Words after `headrace` that make the same request."""
        if self.options is not None:
            return (self.kind, "--site", self.site, *step_kind(self.kind).words(self.options))
        verb = "sweep" if self.kind == "suite" else "run"
        start = ("evaluate", self.of) if self.of else (verb, self.recipe)
        part = {
            "pack": ("--pack-only",),
            "train": ("--rehearse-only",) if self.rehearses else (),
            "evaluate": ("--watch",) if self.watch else (),
        }
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
        """The site by its file now: its users and limits.

        If the file is missing or another site's, the site as it was when the run began.
        """
        try:
            site = site_now(self.request.site)
        except HeadraceError:
            return self.site
        return site if site.name == self.site.name else self.site

    @property
    def recipe_as_asked(self) -> Recipe:
        """The recipe with the user's folders in place of their copies."""
        snapshot = CodeSnapshot.of(self.folder)
        content = snapshot.undone(self.recipe.model_dump_json(by_alias=True))
        return Recipe.model_validate_json(content) if snapshot.trees else self.recipe

    @property
    def requester(self) -> str:
        """The requester, by the account of a terminal or the name in Airflow."""
        return user_of(self.folder, self.request.owner)

    @property
    def user(self) -> str:
        """The requester, by the name of the Unix account: one name for one person."""
        return self.site.accounts.get(self.requester, self.requester)

    def secrets(self) -> LeaseSecrets:
        """Return the site's secrets for the next lease; see `secrets_for`."""
        return secrets_for(self.site, self.asker)

    def lease_folder(self, lease_id: str) -> LeaseFolder:
        """Return the folder of one of the run's leases."""
        return self.site_folder.lease(lease_id)


def open_run(run_id: str) -> Run:
    """Open a run by its id.

    Raises:
        UnknownNameError: The run does not exist.
        StepError: Its folder is gone or damaged.
    """
    return run_of_record(open_ledger().run(run_id))


def files_digest(folder: RunFolder) -> str:
    """Return digests of a run's files: its recipe with the source of trials, and its site.

    Runs of one recipe have the same digest, wherever their copies of the code are.
    """
    undone = CodeSnapshot.of(folder).undone

    def digest(*files: Path) -> str:
        content = undone("\0".join(read_text(file) or "" for file in files)).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    return f"{_OF_FILES}{digest(folder.recipe, folder.source)};{digest(folder.site)}"


def check_files(record: RunRecord) -> None:
    """Refuse a run whose recipe or site was edited; earlier releases recorded fewer digests.

    Raises:
        UserError: One was.
    """
    known, folder = record.recipe_fingerprint, RunFolder(Path(record.folder))
    if not known.startswith(_OF_FILES) or not is_there(folder.recipe):
        return
    (recipe, _, site), now = known.partition(";"), files_digest(folder).split(";")
    if recipe != now[0]:
        raise edited("recipe", record.run_id, folder)
    if site not in ("", now[1]):
        raise edited("site", record.run_id, folder)


def edited(part: Literal["recipe", "site"], name: str, folder: RunFolder) -> UserError:
    """Return the error for a run or trial whose recipe or site was edited."""
    return UserError(
        f"The {part} of {name} was changed after it began: {getattr(folder, part)}",
        "Put the file back as it was. For a run of the files as they are now: "
        f"headrace run {folder.recipe} --site {folder.site}",
    )


def packed_by(run_id: str) -> str:
    """Return the dataset of a run.

    Raises:
        StepError: The run has not packed it yet.
    """
    dataset = outputs_of(run_id).get("pack", {}).get("dataset")
    if not isinstance(dataset, str):
        what = f"Run {run_id} has no packed dataset yet"
        raise StepError(what, f"Look at it: headrace status {run_id}")
    return dataset


def outputs_of(run_id: str) -> dict[str, dict[str, Any]]:
    """Return the outputs of succeeded steps, by step; of a trial those of its suite."""
    attempts = open_ledger().attempts(run_id.partition(":")[0])
    return {each.step: each.outputs for each in attempts if each.state is StepState.SUCCEEDED}


def run_of_folder(run_id: str, folder: RunFolder) -> Run:
    """Return a run by the files of its folder; the ledger is not read."""
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
    gone = removal_of(record)
    if gone is not None and gone.by == BY_HAND:
        raise removed(record.run_id, gone)
    run = run_of_folder(record.run_id, RunFolder(Path(record.folder)))
    request = run.request.model_copy(update={"owner": record.owner})  # the ledger knows best
    return replace(run, request=request)
