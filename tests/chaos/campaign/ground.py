"""What the runs of a campaign have in common: samples, recipe, site; and a home for each run."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from chaos.campaign.processes import HOME
from headrace.examples.digits import export_digits
from headrace.recipe.load import BUILT_IN

LOST_AFTER_S = 8.0
"""Silence after which leases of the site count as lost."""

_FOREIGN = ("HEADRACE_LEDGER", "HEADRACE_DIGITS", "HEADRACE_RECIPES_PATH", "HEADRACE_SITES_PATH")
_TRAINER = {"max_epochs": 5, "checkpoint_every_steps": 5}
_FOLDER = "${oc.env:HEADRACE_HOME}"
_LIFE = {"backend": "local", "idle_stop": 60, "lifetime": 900}


@dataclass(frozen=True)
class Ground:
    """Folder of a campaign."""

    folder: Path

    @property
    def recipe(self) -> Path:
        """The digits: 5 epochs of 20 steps on two ranks, a checkpoint every 5 steps."""
        return self.folder / "chaos-digits.yaml"

    @property
    def site(self) -> Path:
        """This machine, with everything below a run's home."""
        return self.folder / "chaos-site.yaml"

    def prepare(self) -> None:
        """Write what the runs share; a second time changes nothing."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        export_digits(self._samples)
        built_in = yaml.safe_load((BUILT_IN / "recipes" / "digits.yaml").read_text())
        built_in["dataset"]["source"] = f"{_FOLDER}/samples"
        built_in["trainer"] |= _TRAINER
        self.recipe.write_text(yaml.safe_dump(built_in | {"name": "chaos"}))
        self.site.write_text(yaml.safe_dump(_site()))

    def home(self, name: str) -> Path:
        """A new home for one run, with the samples in it."""
        home = self.folder / name
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(mode=0o700)
        shutil.copytree(self._samples, home / "samples", copy_function=os.link)
        return home

    @property
    def _samples(self) -> Path:
        return self.folder / "samples"


def environment(home: Path) -> dict[str, str]:
    """Environment variables of the commands of a run."""
    kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    return kept | {HOME: str(home), "COLUMNS": "400"}


def _site() -> dict[str, Any]:
    return {
        "name": "chaos",
        "folder": _FOLDER,
        "roles": {
            "cpu": {"kind": "pool", "nodes": 1} | _LIFE,
            "gpu": {"kind": "gang", "nodes": 1, "ranks_per_node": 2} | _LIFE,
        },
        "tiers": [{"name": "disk", "folder": f"{_FOLDER}/tier", "budget": "1GiB"}],
        "limits": {"max_leases": 2, "heartbeat": 1, "lost_after": LOST_AFTER_S},
    }
