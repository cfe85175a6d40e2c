"""A small site, dataset and recipe, and the `headrace` command as its user meets it; bad files."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import yaml
from PIL import Image

from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import AttemptRecord, RunRecord
from support import command_line
from support.command_line import Ended
from support.leftovers import describe, started_by
from support.training import CODE, write_blobs
from support.waiting import wait_until

HEADRACE = Path(sys.executable).parent / "headrace"

USAGE = 2
"""Exit code when a request cannot be used."""

_END_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Place:
    """A headrace home with a site `here`, a recipe `blobs` and the dataset it trains on."""

    home: Path

    @property
    def dataset(self) -> Path:
        return self.home / "blobs"

    def environment(self) -> dict[str, str]:
        """That of all other tests but for headrace's own: their leases share what is imported."""
        dropped = ("HEADRACE_", "COLUMNS")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        return {**kept, "HEADRACE_HOME": str(self.home)}

    def headrace(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end; it leaves no process behind."""
        done = subprocess.run(
            [str(HEADRACE), *arguments],
            env={**self.environment(), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        self.wait_for_quiet()
        return done

    def shown(self, *arguments: str) -> Ended:
        """What a command shows that only looks; it is called in this process, which is quicker."""
        with mock.patch.dict(os.environ, self.environment(), clear=True):
            return command_line.headrace(*arguments)

    def wait_for_quiet(self) -> None:
        """Wait until no process works in this home."""
        try:
            wait_until(lambda: not self._working(), _END_TIMEOUT_S, "all processes to end")
        except AssertionError:
            raise AssertionError(f"left behind:\n{describe(self._working())}") from None

    def _working(self) -> list[Any]:
        return started_by("none", self.home)

    def run(self, recipe: str, *overrides: str) -> subprocess.CompletedProcess[str]:
        """`headrace run RECIPE --site here OVERRIDES`."""
        return self.headrace("run", recipe, "--site", "here", *overrides)

    def has_run(self) -> bool:
        """Whether the ledger has a run."""
        path = self.home / "ledger.db"
        return path.exists() and bool(Ledger.open(f"sqlite:///{path}").runs(limit=1))

    def newest(self) -> tuple[RunRecord, tuple[AttemptRecord, ...]]:
        """The newest run and its attempts, as the ledger has them."""
        ledger = Ledger.open(f"sqlite:///{self.home}/ledger.db")
        (record,) = ledger.runs(limit=1)
        return record, ledger.attempts(record.run_id)

    def write_site(self, name: str = "here", **changes: Any) -> None:
        content = {
            "folder": str(self.home),
            "roles": {
                "cpu": {"kind": "pool", "nodes": 1},
                "gpu": {"kind": "gang", "nodes": 1, "ranks_per_node": 2},
            },
            "tiers": [{"name": "disk", "folder": str(self.home / "tier"), "reserve": 0}],
            "allowed_code": [str(CODE)],
            "allowed_sources": ["/"],
        }
        self._write("sites", name, {**content, **changes})

    def write_recipe(self, name: str, **changes: Any) -> None:
        content = {
            "code": [str(CODE)],
            "pack_role": "gpu",
            "dataset": {"name": "blobs", "path": str(self.dataset)},
            "data": {"global_batch_size": 8},
            "model": {"_target_": "blob_models.BlobModel", "notes": str(self.home)},
            "trainer": {"accelerator": "cpu", "max_epochs": 1, "checkpoint_every_steps": 5},
            "evaluate": None,
        }
        self._write("recipes", name, {**content, **changes})

    def write_raw(self, name: str, source: Path, **dataset: Any) -> None:
        """A recipe that packs a source folder."""
        self.write_recipe(name, dataset={"name": name, "source": str(source), **dataset})

    def _write(self, kind: str, name: str, content: dict[str, Any]) -> None:
        folder = self.home / kind
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))


def make_place(home: Path) -> Place:
    """A new home with site, recipe and dataset."""
    place = Place(home)
    write_blobs(place.dataset)
    place.write_site()
    place.write_recipe("blobs")
    return place


def words(text: str, *expected: str) -> None:
    """Check that a text has all the words expected; the text is shown when it lacks some."""
    missing = [each for each in expected if each not in text]
    assert not missing, f"missing {missing} in:\n{text}"


def status_of(place: Place) -> dict[str, Any]:
    """What `headrace status --json` says of the newest run, its steps by name."""
    done = place.shown("status", "--json")
    assert done.exit_code == 0, done.stderr
    view: dict[str, Any] = json.loads(done.stdout)
    return {**view, "steps": {step["name"]: step for step in view["steps"]}}


def write_class_folders(
    folder: Path,
    *,
    classes: tuple[str, ...] = ("bright", "dark", "middle"),
    per_class: int = 20,
    shape: tuple[int, ...] = (8, 8),
) -> Path:
    """Write PNG files into one folder a class; classes differ in brightness, so they can be learnt.

    Args:
        folder: Made when it is not there; gets `<class>/<class>-000.png`, ….
        classes: Names of the class folders.
        per_class: Files a class.
        shape: `(height, width)` for grey or `(height, width, 3)` for colour.

    Returns:
        `folder`.
    """
    random = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        centre = 255 * (number + 0.5) / len(classes)
        for index in range(per_class):
            pixels = np.clip(random.normal(centre, 20, shape), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{name}-{index:03d}.png")
    return folder


_PARQUET = """
P(e~L6#x|!6%;HL0u=xi1{DSz7z6<T000;S0RR91762#&0RR917z6<T000pY00002000020RaF202KroEHwZa26JO*Wo=;<0ss{P
B?A}%cqJZ8tP=<k0000M0vQ|`93}u96#^M01^^it0eBSv76KM>7IG#CJQxH40000O1OWg502Tl!1OWg502l-T0000H5daw+6#x|g
6#@V}DFzuP00IC202Xo<0wxF+asVhGaA9(Bb!BudV{mXSVRCYBcOZ6Ua&u{KZXhx?E-)@J85|q{005x?002-yQZW
"""
"""One row; one bit of its schema is wrong, so that its statistics do not fit."""


def write_aborting_parquet(path: Path) -> None:
    """Write a file whose metadata makes pyarrow abort."""
    path.write_bytes(base64.b85decode("".join(_PARQUET.split())))


def write_endless_hdf5(path: Path, heap: int = -1) -> None:
    """Write 200 texts, of which one heap of HDF5, from 0 or by default the last, makes a loop."""
    with h5py.File(path, "w") as file:
        file["text"] = [f"{number:0100}" for number in range(200)]
    content = bytearray(path.read_bytes())
    heaps = [found.start() for found in re.finditer(rb"GCOL\x01", content)]
    content[heaps[heap] + 16 : heaps[heap] + 32] = bytes(16)  # the head of its first object
    path.write_bytes(content)
