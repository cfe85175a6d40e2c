"""A run's copy of its code, made at submission: later edits do not reach a run that waits.

A copy holds small files, and links to all other entries of their folders, so that paths relative to
a file of the code lead where they led before.
"""

from __future__ import annotations

import ast
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.recipe.difference import Change
from headrace.recipe.recipe import Recipe
from headrace.recipe.targets import uses_of
from headrace.record import Record
from headrace.runs.code_state import git_output
from headrace.runs.runs import Run

logger = logging.getLogger(__name__)

MAX_FILE_BYTES, MAX_BYTES, MAX_FILES = 2**20, 64 * 2**20, 2_000
"""Most bytes of one file and of all files of a copy, and most files."""

_MAX_WHOLE, _MAX_ENTRIES, _NAMED = 500, 10_000, 5
"""Files of a repository that is copied whole, not only the folders of the code; entries of folders
that are listed; files that a warning names."""

_SUFFIXES = (
    ".py", ".pyi", ".pyx", ".pxd", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".sh", ".yaml",
    ".yml", ".json", ".toml", ".cfg", ".ini", ".txt",
)  # fmt: skip
"""Files that are copied from a folder without git."""
_NO_CODE = {"__pycache__", "node_modules", "site-packages"}


class CodeTree(Record):
    """A folder of the user's code and its copy."""

    source: str
    target: str
    places: tuple[str, ...]
    """Folders in `source` that the recipe names, relative to it."""
    digest: str = ""
    """Hash of names and contents of the copied files; empty if nothing is copied."""
    not_copied: tuple[str, ...] = ()
    """Files that are linked since they are large, or the reason why nothing is copied."""


class CodeSnapshot(Record):
    """`code.json` of a run."""

    trees: tuple[CodeTree, ...]
    outside: tuple[str, ...] = ()
    """Modules of the recipe that lie elsewhere, such as packages installed as editable."""


def with_snapshot(run: Run, source: Mapping[str, Any]) -> tuple[Run, Mapping[str, Any]]:
    """Copy a run's code into its folder; return the run and its source of trials with the copy.

    An evaluation uses the copy of the evaluated run. What is not copied is named by a warning.
    """
    content = run.recipe.model_dump(mode="json", by_alias=True)
    named, tops = list[Path](), dict[Path, set[str]]()
    _mapped(content, lambda path: named.append(Path(path).expanduser().resolve()) or path)  # type: ignore[func-returns-value]
    for place in (each if each.is_dir() else each.parent for each in named if each.exists()):
        if not (run.request.of and _copy_with(place)):
            top = _top(place)
            tops.setdefault(top, set()).add(str(place.relative_to(top)))
    trees = []
    for number, (top, places) in enumerate(sorted(tops.items())):
        target = str(run.folder.code / f"{number}" / (top.name or "root"))
        trees.append(
            _copied(CodeTree(source=str(top), target=target, places=tuple(sorted(places))))
        )
    outside = tuple(_outside(run.recipe, [*tops, run.site_folder.path]))
    if not trees and not outside:
        return run, source
    _note(run.folder, CodeSnapshot(trees=tuple(trees), outside=outside))

    def copy_of(path: str) -> str:
        real = Path(path).expanduser().resolve()
        found = [Path(x.target, real.relative_to(x.source))
                 for x in trees if x.digest and real.is_relative_to(x.source)]  # fmt: skip
        return str(found[-1]) if found and found[-1].exists() else path

    recipe = Recipe.model_validate(_mapped(content, copy_of))
    allowed = (*run.site.allowed_code, str(run.folder.code)) if trees else run.site.allowed_code
    site = run.site.model_copy(update={"allowed_code": allowed})
    return replace(run, recipe=recipe, site=site), _mapped(dict(source), copy_of)


def renewed(run: RunFolder) -> Iterator[Change]:
    """Copy a run's code as it is now in place of the earlier copy; yield the changes.

    Raises:
        UserError: There is no copy, or the code cannot be copied.
    """
    known = read_record(run.code_record, CodeSnapshot) or CodeSnapshot(trees=())
    if not known.trees:
        what = f"Run {run.run_id} has no copy of its code"
        raise UserError(what, "Leave --new-code out: code is used where it lies.")
    trees = []
    for tree in known.trees:
        new = _copied(tree.model_copy(update={"target": f"{tree.target}.new"}))
        if not new.digest:
            raise UserError(f"{tree.source} is not copied: {', '.join(new.not_copied)}")
        shutil.rmtree(tree.target, ignore_errors=True)
        trees.append(new.model_copy(update={"target": str(Path(new.target).rename(tree.target))}))
        if new.digest != tree.digest:
            yield Change(key=f"code of {tree.source}", before=tree.digest, after=new.digest)
    _note(run, known.model_copy(update={"trees": tuple(trees)}))


def _note(run: RunFolder, found: CodeSnapshot) -> None:
    write_record(run.code_record, found)
    parts = [(f"in its copy of {x.source}", x.not_copied) for x in found.trees]
    for where, names in (*parts, ("copied, since they lie elsewhere", found.outside)):
        if names:
            more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
            listed = f"{', '.join(names[:_NAMED])}{more}"
            logger.warning("Edits of this code will reach the run, it is not %s: %s", where, listed)


def _mapped(value: Any, path_of: Callable[[str], str], key: str = "") -> Any:
    """Return a recipe's content with other paths of its code, also in the values of a suite."""
    if isinstance(value, Mapping):
        return {name: _mapped(each, path_of, f"{key}.{name}") for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(each, path_of, key) for each in value]
    is_program = key.endswith("train.command") and Path(str(value)).suffix in (".py", ".sh")
    is_path = key == ".code" or key.endswith("train.script") or is_program
    return path_of(value) if is_path and isinstance(value, str) and "/" in value else value


def _copy_with(place: Path) -> Path | None:
    """Return the copy of a run that holds a folder."""
    for run in map(RunFolder, place.parents):
        if place.is_relative_to(run.code) and run.code_record.exists():
            return Path(run.code, *place.relative_to(run.code).parts[:2])
    return None


def _top(place: Path) -> Path:
    """Return the folder whose copy holds a place: a repository, a run's copy, or the one above."""
    if (copy := _copy_with(place)) is not None:
        return copy
    if git_output(place, "ls-files", *_OF_USER):
        return Path(os.fsdecode(git_output(place, "rev-parse", "--show-toplevel") or b"").strip())
    try:
        return place.parent if len(os.listdir(place.parent)) < _MAX_ENTRIES else place
    except OSError:
        return place


_OF_USER = ("-z", "--cached", "--others", "--exclude-standard")


def _copied(tree: CodeTree) -> CodeTree:
    """Copy the files of a tree; return it with its hash."""
    top = Path(tree.source)
    try:
        files = _files(top, tree.places)
        large = {each for each in files if (top / each).stat().st_size > MAX_FILE_BYTES}
        kept = files - large
        num_bytes = sum((top / each).stat().st_size for each in kept)
        if len(kept) > MAX_FILES or num_bytes > MAX_BYTES:
            why = f"all {len(kept):,} files of {num_bytes / 2**20:,.0f} MiB, over the limit of "
            why += f"{MAX_FILES:,} files and {MAX_BYTES / 2**20:.0f} MiB"
            return tree.model_copy(update={"not_copied": (why,)})
        digest = _mirror(top, Path(tree.target), kept)
    except OSError as error:
        return tree.model_copy(update={"not_copied": (f"all of it: {error}",)})
    return tree.model_copy(update={"digest": digest, "not_copied": tuple(map(str, sorted(large)))})


def _files(top: Path, places: tuple[str, ...]) -> set[Path]:
    """Return the files of the user in a tree, relative to it."""
    is_copy = _copy_with(top / "any") is not None
    names = None if is_copy else git_output(top, "ls-files", *_OF_USER)
    if names:
        listed = {Path(os.fsdecode(each)) for each in names.split(b"\0") if each}
        if len(listed) > _MAX_WHOLE:
            listed = {each for each in listed if any(each.is_relative_to(x) for x in places)}
        return {each for each in listed if (top / each).is_file()}
    found, num_seen = set[Path](), 0
    for place in [""] if is_copy else places:
        for folder, folders, files in os.walk(top / place):
            num_seen += len(files) + len(folders)
            if num_seen > _MAX_ENTRIES:
                raise OSError(f"it has more than {_MAX_ENTRIES:,} entries: name a smaller folder")
            folders[:] = [
                x for x in folders if x not in _NO_CODE and x[0] != "."
                and not Path(folder, x, "pyvenv.cfg").exists()
            ]  # fmt: skip
            each = (Path(folder, name) for name in files if is_copy or name.endswith(_SUFFIXES))
            found |= {x.relative_to(top) for x in each if x.is_file() and not x.is_symlink()}
    return found


def _mirror(top: Path, target: Path, kept: set[Path]) -> str:
    """Copy files to a new folder, link what lies beside them; return a hash of the files."""
    shutil.rmtree(target, ignore_errors=True)
    content, folders = hashlib.sha256(), {folder for each in kept for folder in each.parents}
    for folder in sorted(folders):
        (target / folder).mkdir(parents=True)
        for name in sorted(os.listdir(top / folder)):
            each = folder / name
            if each in kept:
                data = (top / each).read_bytes()
                (target / each).write_bytes(data)
                if os.access(top / each, os.X_OK):
                    (target / each).chmod((target / each).stat().st_mode | 0o110)
                content.update(f"{each}\0{len(data)}\0".encode(errors="surrogateescape") + data)
            elif each not in folders and name != "__pycache__":
                (target / each).symlink_to(os.path.realpath(top / each))
    return content.hexdigest()[:12]


def _outside(recipe: Recipe, inside: list[Path]) -> Iterator[str]:
    """Yield top-level modules that are neither copied nor installed, with their places."""
    names = {use.name for use in uses_of(recipe)} | {recipe.train.module or ""}
    script = Path(recipe.train.script or "").expanduser()
    if script.is_file():
        try:
            parsed = ast.walk(ast.parse(script.read_bytes()))
        except (SyntaxError, ValueError, OSError):
            parsed = iter(())
        for node in parsed:
            names |= {x.name for x in node.names} if isinstance(node, ast.Import) else set()
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module or "")
    tops = {name.partition(".")[0] for name in names}
    for name in sorted(tops - {"", "headrace", "__main__", *sys.stdlib_module_names}):
        spec = find_spec(name)
        places = [spec.origin] if spec and spec.origin else []
        for place in map(Path, places or list((spec and spec.submodule_search_locations) or ())):
            is_installed = {"site-packages", "dist-packages"} & {*place.parts}
            if not is_installed and not any(place.resolve().is_relative_to(x) for x in inside):
                yield f"{name} ({place})"
