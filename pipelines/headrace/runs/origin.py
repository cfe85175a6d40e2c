"""What a run or trial was made of, by its record alone; how two differ, and one from today."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from headrace.errors import ManifestError, StepError, removed
from headrace.files.atomic import read_bytes, read_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.ledger.trial_rows import TrialRecord
from headrace.objects.store import is_remote
from headrace.recipe.difference import essence, flattened
from headrace.recipe.recipe import Recipe
from headrace.record import Figures, Record
from headrace.runs.code_snapshot import with_code_of
from headrace.runs.code_state import UNKNOWN, CodeSnapshot, code_state
from headrace.runs.names import named
from headrace.runs.on_disk import removal_of
from headrace.runs.parts import source_of_trial
from headrace.runs.planned_steps import run_metrics
from headrace.runs.provenance import Provenance, read_provenance
from headrace.runs.runs import check_files, edited, outputs_of, run_of_record
from headrace.steps.history import facts_of_all, read_usage
from headrace.steps.mailbox import StepResult

Part = Literal["recipe", "code", "images", "packages", "machine", "data", "metrics"]

_PARTS: tuple[Part, ...] = get_args(Part)


class Origin(Figures):
    """Recipe, code and data of a run or trial, and its results."""

    name: str
    """`RUN`, or `SUITE:NUMBER` of a trial."""
    folder: str
    site: str
    """Name of the site, of a trial where it ran last."""
    recipe: Recipe
    made_with: Provenance
    uncommitted: str = UNKNOWN
    """Hash and size of uncommitted changes; `nothing` without any."""
    copied: str = UNKNOWN
    """Hashes of the run's copy of its code."""
    dataset: str = ""
    """The packed dataset; empty if nothing is packed yet."""
    fingerprint: str = ""
    """Fingerprint of the dataset's content."""
    machine: dict[str, str] = {}
    """Processors, GPUs and libraries of linear algebra of its training; empty if unknown."""
    metrics: dict[str, float] = {}
    """Last metrics of training and evaluation."""
    weights: str = ""
    """Hash of its trained weights; empty if unknown."""
    launch: dict[str, int] = {}
    """Of a trial: `train.nodes` and `train.ranks_per_node` of its last training, which may be fewer
    than in the recipe."""


class Beside(Record):
    """A difference between several runs or trials."""

    part: Part
    key: str
    values: tuple[str, ...]
    """The value of each, in their order; empty if the key is missing."""


def origin(name: str) -> Origin:
    """Return the origin of a run, or of a trial by `SUITE:NUMBER`.

    Raises:
        UnknownNameError: The run or trial does not exist, or its recipe was removed.
        UserError: Its recipe was changed by hand.
        StepError: It has not begun, or its folder is gone or damaged.
    """
    found = named(name)
    name, record, trial, folder = found.name, found.record, found.trial, found.folder
    run_id, run = record.run_id, run_of_record(record)
    check_files(record)
    recipe, suite = read_record(folder.recipe, Recipe), run.folder
    if recipe is None:
        if (gone := removal_of(record)) is not None:
            raise removed(run_id, gone)
        raise StepError(f"{name} has not begun: {folder.recipe} does not exist")
    if trial is not None:
        recipe = _checked_recipe(name, suite, trial, recipe)
    packed = outputs_of(run.request.of or run_id).get("pack", {})
    trained = _trained(suite, trial.number) if trial else outputs_of(run_id).get("train", {})
    made_with, diff = read_provenance(suite), read_bytes(suite.diff)
    is_clean = made_with.git is not None and not made_with.git.dirty
    return Origin(
        name=name,
        folder=str(folder.path),
        site=(trial.site if trial else "") or record.site_name,
        recipe=recipe,
        made_with=made_with,
        uncommitted=_hashed(diff or b"") if diff is not None or is_clean else UNKNOWN,
        copied=CodeSnapshot.of(suite).digests or UNKNOWN,
        dataset=str(packed.get("dataset") or recipe.dataset_path or ""),
        fingerprint=str(packed.get("fingerprint", "")),
        machine=facts_of_all(row.machine for rows in read_usage(folder).values() for row in rows),
        metrics=trial.metrics if trial else run_metrics(outputs_of(run_id)),
        weights=str(trained.get("weights_xxh3", "")),
        launch=_launch(trained, recipe.train.nodes or 1) if trial else {},
    )


def today(before: Origin) -> Origin:
    """Return the origin that the same recipe would have now: code, packages and dataset."""
    then = before.made_with
    folder = Path(then.code_folder) if then.code_folder else Path(then.recipe_file).parent
    now, diff = code_state(folder, then.images)
    return before.model_copy(
        update={
            "name": "today",
            "made_with": then.model_copy(update=dict(now)),
            "uncommitted": _hashed(diff or b"") if now.git else UNKNOWN,
            "fingerprint": _fingerprint(before.dataset),
        }
    )


def side_by_side(origins: Sequence[Origin]) -> tuple[Beside, ...]:
    """Return all differences of several origins; an unknown version or commit is none."""
    facts = [_facts(each) for each in origins]
    keys = dict.fromkeys(key for each in facts for key in each)
    packages = _comparable([each.made_with.packages for each in origins])
    has_machines = all(each.machine for each in origins)
    found = []
    for part, key in sorted(keys, key=lambda each: _PARTS.index(each[0])):
        values = tuple(each.get((part, key), "") for each in facts)
        is_known = has_machines or key == "site"
        is_meant = {"packages": key in packages, "machine": is_known}.get(part, True)
        if is_meant and len({*values} - {UNKNOWN}) > 1:
            found.append(Beside(part=part, key=key, values=values))
    return tuple(found)


def _checked_recipe(name: str, suite: RunFolder, row: TrialRecord, recipe: Recipe) -> Recipe:
    """Return a trial's recipe; refuse one that differs from the suite's with its values.

    That of a trial at another site has code and dataset of there: the suite's is returned.
    """
    file = source_of_trial(suite, row.number)
    source, whole = read_bytes(file), read_bytes(suite.source)
    if source is None or whole is None:
        return recipe
    from headrace.suites.points import trial_recipe  # imports Optuna

    values = with_code_of(row.values, suite, RunFolder(file.parent).whole)
    if essence(trial_recipe(json.loads(source), values)) != essence(recipe):
        raise edited("recipe", name, suite.trial(row.number))
    return recipe if file == suite.source else trial_recipe(json.loads(whole), row.values)


def _trained(suite: RunFolder, number: int) -> Mapping[str, Any]:
    """Return the outputs of a trial's newest attempt that has trained; empty without any."""
    attempts = suite.trial(number).path / "attempts"
    for attempt in sorted(attempts.glob("*"), reverse=True):
        result = read_record(StepFolder(attempt).result, StepResult)
        if result and isinstance(result.outputs.get("world_size"), int):
            return result.outputs
    return {}


def _launch(trained: Mapping[str, Any], nodes: int) -> dict[str, int]:
    """Return the launch of a training; empty without one."""
    world_size = trained.get("world_size", 0)
    return {"nodes": nodes, "ranks_per_node": max(world_size // nodes, 1)} if world_size else {}


def _fingerprint(dataset: str) -> str:
    """Return the fingerprint of a dataset now; `UNKNOWN`, or words if it cannot be read."""
    if not dataset or is_remote(dataset):
        return UNKNOWN
    from headrace.files.manifest_file import read_manifest  # it brings numpy and xxhash

    try:
        return read_manifest(Path(dataset).expanduser()).fingerprint
    except ManifestError:
        return f"none: {dataset} is gone or damaged"


def _hashed(diff: bytes) -> str:
    if not diff:
        return "nothing"
    return f"{hashlib.blake2b(diff, digest_size=6).hexdigest()} ({len(diff):,} bytes)"


def _facts(origin: Origin) -> dict[tuple[Part, str], str]:
    """Return everything that is compared, as text."""
    made_with, run = origin.made_with, RunFolder(Path(origin.folder)).whole
    undone = CodeSnapshot.of(run).undone
    parts: dict[Part, Mapping[str, str]] = {
        "recipe": {key: undone(text) for key, text in flattened(origin.recipe).items()},
        "code": {
            "commit": made_with.git.commit if made_with.git is not None else UNKNOWN,
            "uncommitted": origin.uncommitted,
            "copy": origin.copied,
            "python": made_with.python,
        },
        "images": made_with.images,
        "packages": dict(sorted(made_with.packages.items())),
        "machine": {"site": origin.site, **origin.machine},
        "data": {"fingerprint": origin.fingerprint},
        "metrics": {name: f"{value:.6g}" for name, value in origin.metrics.items()},
    }
    return {(part, key): value for part, of in parts.items() for key, value in of.items()}


def _comparable(packages: Sequence[Mapping[str, str]]) -> set[str]:
    """Return packages of all origins; of complete lists also those that only some have."""
    names = set[str]().union(*packages)
    if min(map(len, packages)) < len(names) // 2:  # one of them names only the important ones
        return names.intersection(*packages)
    return names
