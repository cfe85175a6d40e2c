"""Each hint of packing, followed to the letter, works."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.errors import HeadraceError, RecipeError, TargetFullError
from headrace.files import machine
from headrace.packing.pack_step import pack
from headrace.packing.recipe_check import check_recipe
from headrace.packing.sources.open import open_source
from headrace.recipe.dataset import DatasetSpec
from headrace.recipe.recipe import Recipe
from headrace_bench.pack_headrace import pack_context
from support.hints import Mistake, State, hints_of, stale, uncovered
from support.mistakes import files, rows, sources
from support.mistakes.files import RUN

MISTAKES = (*files.MISTAKES, *sources.MISTAKES, *rows.MISTAKES)

INFORMATIONAL = {
    "… needs the package …, which is not installed": "tests have all packages",
    "… is a file, not a folder": "test_a_compressed_file_in_a_store_is_no_folder follows it",
    "Pack again.": "only who deletes the folder of a pack while it runs comes to it",
    "See whether it may be read, and list again when nothing writes to the folder.": "tests run as "
    "root, who may read all",
    "Free some space there, or name another place in pack.target, and run again: shards that are "
    "whole are kept.": "test_a_full_disk_is_left follows it",
}
"""Hints that no mistake of the tables comes to, and why."""

_KEYS = ("dataset.", "pack.")
_NUMBERS = count()


class Folder:
    """The source, the recipe and the site of one mistake."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self.keys: dict[str, Any] = {"dataset.splits": {"test": 1.0}}
        self._names = {"AT": str(at), "MODULE": f"readers_{next(_NUMBERS)}"}
        self._num_packs = 0
        (at / "source").mkdir(parents=True)

    def change(self, state: State) -> None:
        for name, value in state.items():
            if callable(value):
                self.change(value(self.at) or {})
            elif name.startswith(_KEYS):
                self.keys[name] = self._told(value)
            elif name != RUN:
                _write(self.at / "source" / self._told(name), value)

    def _told(self, value: Any) -> Any:
        """A value with the names of this folder."""
        if isinstance(value, Mapping):
            return {key: self._told(each) for key, each in value.items()}
        for short, name in self._names.items() if isinstance(value, str) else ():
            value = value.replace(short, name)
        return value

    def run(self, hint: str) -> None:
        """The command that a hint holds, as its reader would."""
        (command,) = re.findall("`(.+?)`", hint)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(command, shell=True, check=True, env={**os.environ, "PATH": path})

    def pack(self, open_fleet: Any) -> dict[str, Any]:
        self._num_packs += 1
        step = self.at / "steps" / f"{self._num_packs}"
        context = pack_context(step, self._recipe(), self._site(), "r")
        early = self._refused_early(context.recipe)
        if not early:
            return pack(context, open_fleet)
        with pytest.raises(HeadraceError) as caught:
            pack(context, open_fleet)
        assert caught.value.what == early
        raise caught.value

    def _refused_early(self, recipe: Recipe) -> str:
        """What is wrong by the recipe alone; empty for nothing."""
        try:
            check_recipe(recipe.named_dataset, recipe.pack)
        except RecipeError as error:
            return error.what
        return ""

    def _recipe(self) -> dict[str, Any]:
        recipe: dict[str, Any] = {
            "name": "tiny",
            "code": [str(self.at / "code")],
            "dataset": {"name": "tiny", "source": str(self.at / "source")},
            "pack": {"shard_samples": 8, "fields": {}},
            "model": {"_target_": "torch.nn.Identity"},
        }
        for key, value in self.keys.items():
            *parts, last = key.split(".")
            into = recipe
            for part in parts:
                into = into[part]
            into.pop(last, None)
            if value is not None:
                into[last] = value
        return recipe

    def _site(self) -> dict[str, Any]:
        return {
            "name": "here",
            "folder": str(self.at / "site"),
            "roles": {"cpu": {}},
            "tiers": [{"name": "disk", "folder": str(self.at / "cache")}],
            "allowed_code": [str(self.at / "code")],
        }


def _write(path: Path, value: object) -> None:
    """A file: bytes or text, a table or tar file of a mapping or pairs; None for no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if value is None:
        path.unlink(missing_ok=True)
    elif path.suffix == ".parquet" and isinstance(value, Mapping):
        parquet.write_table(pa.table(value), path)
    elif path.suffix == ".tar":
        _write_tar(path, list(value.items() if isinstance(value, Mapping) else value))  # type: ignore[call-overload]
    else:
        path.write_bytes(value.encode() if isinstance(value, str) else value)  # type: ignore[arg-type]


def _write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if content == rows.LINK:
                info.type, info.linkname, info.size = tarfile.SYMTYPE, "1.png", 0
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_hint_followed_to_the_letter_works(
    mistake: Mistake, tmp_path: Path, in_process: Any
) -> None:
    pieces = [re.escape(piece).replace("…", ".*") for piece in (mistake.what, mistake.hint)]
    for number, followed in enumerate(mistake.followed):
        folder = Folder(tmp_path / str(number))
        if mistake.before is not None:
            folder.change(mistake.before)
            folder.pack(in_process)
        folder.change(mistake.given)
        with pytest.raises(HeadraceError) as caught:
            folder.pack(in_process)
        assert re.search(pieces[0], caught.value.what, re.DOTALL)
        assert re.search(pieces[1], caught.value.hint)
        if RUN in followed:
            folder.run(caught.value.hint)
        folder.change(followed)
        assert folder.pack(in_process)["num_samples"]


def test_a_full_disk_is_left(
    tmp_path: Path, in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = machine.free_bytes
    folder = Folder(tmp_path / "0")
    folder.change(files.CATS)
    with monkeypatch.context() as full:
        full.setattr(machine, "free_bytes", lambda at: 0 if "site" in str(at) else free(at))
        with pytest.raises(TargetFullError, match=r"or name another place in pack\.target"):
            folder.pack(in_process)
        folder.change({"pack.target": "AT/other"})
        assert folder.pack(in_process)["num_samples"] == 3
    folder.change({"pack.target": None})
    assert folder.pack(in_process)["num_samples"] == 3


@pytest.mark.parametrize(
    ("name", "tool"),
    [("rows.tar.gz", "gunzip"), ("rows.csv.gz", "gunzip"), ("rows.jsonl.zst", "unzstd")],
)
def test_a_compressed_file_in_a_store_is_no_folder(name: str, tool: str) -> None:
    spec = DatasetSpec(name="x", source=f"s3://bucket/{name}")
    with pytest.raises(RecipeError, match=rf"{name} is a file.*(?s:.*)`{tool} {name}`"):
        open_source(spec)


def test_every_hint_is_followed() -> None:
    hints = hints_of("packing")
    assert not uncovered(hints, MISTAKES, INFORMATIONAL)
    assert not stale(hints, MISTAKES, INFORMATIONAL)
