"""Makes the part of a suite at a site: a run in that site's folder, with the suite's code."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from headrace.clusters.node_calls import no_check
from headrace.errors import StepError, UnknownNameError, nearest
from headrace.files.atomic import is_there
from headrace.files.layout import SiteFolder
from headrace.files.locks import exclusive_while
from headrace.ledger.ledger import open_ledger
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.suite import SuiteSpec
from headrace.runs.code_snapshot import with_code_of, with_copy_of
from headrace.runs.lifecycle import entered, recorded, write_run
from headrace.runs.parts import PART, part_id, part_key, sites_of
from headrace.runs.runs import Run, packed_by, run_of_folder, run_of_record
from headrace.runs.suite_sites import at_site
from headrace.suites.records import Trial

_OF_WHOLE = (
    "grid", "zip", "points", "file", "search", "seeds", "folds", "skip", "priority", "trial_name",
    "stop_after_failures", "budget", "sites", "policy", "deadline",
)  # fmt: skip
"""Keys of a suite that its driver alone applies, not its parts."""


def make_part(suite: Run, site_name: str) -> Run:
    """Return the part of a suite at one of its sites; make it if it does not exist.

    Two callers get the same part. It belongs to the suite's owner until its process takes it over.

    Raises:
        UnknownNameError: The suite does not have the site, or the part was removed.
        StepError: The suite has not packed its dataset yet.
        SiteError: The site's folder cannot be written.
    """
    key = part_key(suite.run_id, site_name)
    found = open_ledger().run_by_key(key)
    if found is None:
        with exclusive_while(suite.folder.path / ".parts.lock", no_check):
            found = open_ledger().run_by_key(key)
            if found is None:
                return _made(suite, site_name)
    return run_of_record(found)


def trial_at(part: Run, suite: Run, trial: Trial) -> Trial:
    """Return a suite's trial with the part's copy of the code in its values."""
    values = with_code_of(trial.values, suite.folder, part.folder)
    return trial.model_copy(update={"values": values})


def _made(suite: Run, site_name: str) -> Run:
    sites = sites_of(suite.folder)
    if site_name not in sites:
        what = f"Suite {suite.run_id} has no site '{site_name}'"
        raise UnknownNameError(what, nearest(site_name, sites))
    site, asked = sites[site_name].site, sites[site_name].asked
    run_id = part_id(suite.run_id, site_name)
    folder = SiteFolder(Path(site.folder).expanduser()).run(run_id)
    if is_there(folder.request):  # it was made, and the ledger has lost it
        run = run_of_folder(run_id, folder)
        open_ledger().add_run(recorded(run, time.time()))
        return run
    shutil.rmtree(folder.path, ignore_errors=True)
    key = part_key(suite.run_id, site_name)
    request = suite.request.model_copy(update={"kind": PART, "site": asked, "key": key})
    recipe = _recipe(suite, site)
    run = Run(run_id=run_id, request=request, folder=folder, recipe=recipe, site=site)
    made = entered(run, partial(_fill, suite))
    if made is None:
        raise StepError(f"The run for key {key} was made by another process without a lock")
    return made


def _recipe(suite: Run, site: Site) -> Recipe:
    """Return a suite's recipe without what names trials, for its dataset, packed, at a site."""
    packed = packed_by(suite.run_id) if suite.recipe.dataset is not None else ""
    usual = {name: SuiteSpec.model_fields[name].get_default() for name in _OF_WHOLE}
    spec = (suite.recipe.suite or SuiteSpec()).model_copy(update=usual)
    return at_site(suite.recipe.model_copy(update={"suite": spec}), site, packed)


def _fill(suite: Run, run: Run) -> Run:
    source: Mapping[str, Any] = json.loads(suite.folder.source.read_bytes())
    if (dataset := run.recipe.dataset) is not None:
        source = {**source, "dataset": {"name": dataset.name, "path": dataset.path}}
    run, source = with_copy_of(suite.folder, run, source)
    for file in (suite.folder.provenance, suite.folder.lock, suite.folder.diff):
        if is_there(file):
            shutil.copyfile(file, run.folder.path / file.name)
    write_run(run, source)
    return run
