"""A run's copy of its code, made at submission: later edits do not reach a run that waits.

Small files are copied, and all other entries of their folders linked, so that paths relative to a
file of the code lead where they led before.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from headrace.errors import UserError, warn_once, words_of
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder
from headrace.recipe.difference import Change
from headrace.recipe.fence import opened
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.targets import FRAMEWORKS, allowed_path, uses_of
from headrace.runs.code_state import NEW_FILES, CodeSnapshot, CodeTree, git_output
from headrace.runs.runs import Run

MAX_FILE_BYTES, MAX_BYTES, MAX_FILES = 2**20, 64 * 2**20, 2_000
"""Most bytes of one file and of all files of a copy, and most files."""
_MAX_WHOLE, _MAX_ENTRIES, _NAMED = 500, 10_000, 5
"""Files of a repository that is copied whole, of larger ones only the folders of the code; entries
of folders that are listed; files that a warning names."""
_SUFFIXES = (
    ".py", ".pyi", ".pyx", ".pxd", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".sh", ".yaml",
    ".yml", ".json", ".toml", ".cfg", ".ini",
)  # fmt: skip
"""Files that are copied from a folder without git."""
_NO_CODE = ("node_modules", "__pycache__")
_MARK = '"editable":true'
"""Source: https://packaging.python.org/en/latest/specifications/direct-url/"""


def with_snapshot(run: Run, source: Mapping[str, Any]) -> tuple[Run, Mapping[str, Any]]:
    """Copy a run's code into its folder; return the run and its source of trials with the copy.

    An evaluation uses the copy of the evaluated run. A warning names what is not copied.
    """
    content = run.recipe.model_dump(mode="json", by_alias=True)
    named: list[str] = []
    _mapped(content, lambda path: named.append(path) or path)  # type: ignore[func-returns-value]
    tops: dict[Path, set[str]] = {}
    for path in (Path(each).expanduser().resolve() for each in named):
        place = path if path.is_dir() else path.parent
        if path.exists() and not (run.request.of and _copy_with(place)):
            top = _top(place)
            tops.setdefault(top, set()).add(str(place.relative_to(top)))
    modules = {use.name.partition(".")[0] for use in uses_of(run.recipe)}
    is_own = run.recipe.train.is_script or modules - {"headrace", *FRAMEWORKS}
    if editable := ", ".join(_editable()) if is_own else "":
        warn_once(f"Installed as editable, so that later edits reach the run: {editable}")
    if not tops:
        return run, source
    trees = []
    for number, (top, places) in enumerate(sorted(tops.items())):
        target = run.folder.code / str(number) / (top.name or "root")
        copies = CodeSnapshot.of(RunFolder(top.parents[2])).trees if _copy_with(top) else ()
        asked = next((each.asked for each in copies if each.target == str(top)), str(top))
        names = {"source": str(top), "asked": asked, "target": str(target)}
        tree = CodeTree(**names, places=tuple(sorted(places)))
        trees.append(_copied(tree))
    write_record(run.folder.code_record, CodeSnapshot(trees=tuple(trees)))

    def copy_of(path: str) -> str:
        real = Path(path).expanduser().resolve()
        for tree in reversed(trees):
            if real.is_relative_to(tree.source) and tree.digest:
                return str(Path(tree.target, real.relative_to(tree.source)))
        return path

    recipe = Recipe.model_validate(_mapped(content, copy_of))
    site = _allowing(run.site, run.folder)
    return replace(run, recipe=recipe, site=site), _mapped(source, copy_of)


def with_copy_of(
    other: RunFolder, run: Run, source: Mapping[str, Any]
) -> tuple[Run, Mapping[str, Any]]:
    """Copy another run's copy of its code into a run's folder; return as `with_snapshot`."""
    trees = CodeSnapshot.of(other).trees
    if not trees:
        return run, source
    if other.code.is_dir():
        try:
            shutil.copytree(other.code, run.folder.code, symlinks=True)
        except shutil.Error as error:  # it lists all files
            raise OSError(error.args[0][0][-1].partition(": ")[0]) from error
    target = partial(_moved, other, run.folder)
    copies = (each.model_copy(update={"target": target(each.target)}) for each in trees)
    write_record(run.folder.code_record, CodeSnapshot(trees=tuple(copies)))
    content = run.recipe.model_dump(mode="json", by_alias=True)
    recipe = Recipe.model_validate(with_code_of(content, other, run.folder))
    run = replace(run, recipe=recipe, site=_allowing(run.site, run.folder))
    return run, with_code_of(source, other, run.folder)


def with_code_of(content: Any, old: RunFolder, new: RunFolder) -> Any:
    """Return a recipe's content, or values by key, with the copies of code of another run."""
    return _mapped(content, partial(_moved, old, new))


def _moved(old: RunFolder, new: RunFolder, path: str) -> str:
    is_copy = Path(path).is_relative_to(old.code)
    return str(new.code / Path(path).relative_to(old.code)) if is_copy else path


def allowing_copy(site: Site, run: RunFolder, *, is_from_terminal: bool) -> Site:
    """Return the site, opened for who asks, with a run's copy among its folders of code.

    Raises:
        TargetError: The site does not allow the code that was copied.
    """
    site = opened(site, is_from_terminal=is_from_terminal)
    for tree in CodeSnapshot.of(run).trees:
        for place in tree.places:
            allowed_path(str(Path(tree.asked, place)), site)
    return _allowing(site, run)


def _allowing(site: Site, run: RunFolder) -> Site:
    return site.model_copy(update={"allowed_code": (*site.allowed_code, str(run.code))})


def _editable() -> list[str]:
    """Return the packages, other than headrace, that are installed as editable."""
    known = ((each, each.read_text("direct_url.json") or "") for each in distributions())
    return sorted({x.name for x, url in known if _MARK in url.replace(" ", "")} - {"headrace"})


def copied_anew(run: RunFolder) -> tuple[CodeTree, ...]:
    """Copy a run's code as it is now, beside the earlier copies; see `put_in_place`.

    Raises:
        UserError: The run has no copy, or the code cannot be copied.
    """
    trees = [each for each in CodeSnapshot.of(run).trees if each.digest]
    if not trees:
        what = f"Run {run.run_id} has no copy of its code"
        raise UserError(what, "Leave --new-code out: its code is used where it lies.")
    found = tuple(_copied(x.model_copy(update={"target": f"{x.target}.new"})) for x in trees)
    for each in found:
        if not each.digest:
            raise UserError(f"{each.source} is not copied: {', '.join(each.not_copied)}")
    return found


def put_in_place(run: RunFolder, found: Iterable[CodeTree]) -> Iterator[Change]:
    """Replace a run's copies of its code, remove what came of them; yield the changes."""
    trees = {tree.source: tree for tree in CodeSnapshot.of(run).trees}
    for new in found:
        old = trees[new.source]
        shutil.rmtree(old.target, ignore_errors=True)
        trees[new.source] = new.model_copy(update={"target": old.target})
        Path(new.target).rename(old.target)
        if new.digest != old.digest:
            yield Change(key=f"code of {new.source}", before=old.digest, after=new.digest)
    write_record(run.code_record, CodeSnapshot(trees=tuple(trees.values())))
    shutil.rmtree(run.predicted, ignore_errors=True)


def _mapped(value: Any, path_of: Callable[[str], str], key: str = "") -> Any:
    """Return a recipe's content with other paths of its code, also in the values of a suite."""
    if isinstance(value, Mapping):
        return {name: _mapped(each, path_of, f"{key}.{name}") for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(each, path_of, key) for each in value]
    is_program = key.endswith("train.command") and str(value).endswith((".py", ".sh"))
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
    if git_output(place, *NEW_FILES, "--cached"):
        return Path(os.fsdecode(git_output(place, "rev-parse", "--show-toplevel") or b"").strip())
    try:
        return place.parent if len(os.listdir(place.parent)) < _MAX_ENTRIES else place
    except OSError:
        return place


def _copied(tree: CodeTree) -> CodeTree:
    """Copy the files of a tree; return it with its hash. A warning names what is not copied."""
    top, digest = Path(tree.source), ""
    try:
        homes = {x for x in Path(tree.target).resolve().parents[3:5] if not top.is_relative_to(x)}
        files = _files(top, tree.places, homes)
        sizes = {each: (top / each).stat().st_size for each in files if (top / each).is_file()}
        kept = {each: size for each, size in sizes.items() if size <= MAX_FILE_BYTES}
        not_copied = tuple(sorted(words_of(str(each)) for each in files - kept.keys()))
        num_bytes = sum(kept.values())
        if len(kept) > MAX_FILES or num_bytes > MAX_BYTES:
            most = f"more than {MAX_FILES:,} files or {MAX_BYTES / 2**20:.0f} MiB"
            not_copied = (f"all {len(kept):,} files, {num_bytes / 2**20:,.0f} MiB, {most}",)
        else:
            digest = _mirror(top, Path(tree.target), kept)
    except OSError as error:
        not_copied = (f"all of it: {error}",)
        shutil.rmtree(tree.target, ignore_errors=True)
    if not_copied:
        more = f" and {len(not_copied) - _NAMED} more" if not_copied[_NAMED:] else ""
        listed = f"{', '.join(not_copied[:_NAMED])}{more}"
        warn_once(f"Not in the run's copy of {top}, later edits reach the run: {listed}")
    return tree.model_copy(update={"digest": digest, "not_copied": not_copied})


def _files(top: Path, places: tuple[str, ...], homes: set[Path]) -> set[Path]:
    """Return the user's files and inner repositories in a tree, relative to it; none of `homes`."""
    is_copy = _copy_with(top / "any") is not None
    if not is_copy and (names := git_output(top, *NEW_FILES, "--cached")):
        listed = {Path(os.fsdecode(each)) for each in names.split(b"\0") if each}
        listed = {x for x in listed if (top / x).exists() and homes.isdisjoint((top / x).parents)}
        if len(listed) > _MAX_WHOLE:
            listed = {each for each in listed if any(each.is_relative_to(x) for x in places)}
        return {x for x in listed if not ((top / x).is_symlink() and (top / x).is_dir())}
    found, num_seen = set[Path](), 0
    for place in ("",) if is_copy else places:
        for at, folders, files in os.walk(top / place):
            num_seen += len(files) + len(folders)
            if num_seen > _MAX_ENTRIES:
                raise OSError(f"it has more than {_MAX_ENTRIES:,} entries: name a smaller folder")
            code = (x for x in folders if x[0] != "." and x not in _NO_CODE)
            code = (x for x in code if not Path(at, x, "pyvenv.cfg").exists())
            folders[:] = [x for x in code if Path(at, x) not in homes]
            each = (Path(at, name) for name in files if is_copy or name.endswith(_SUFFIXES))
            found |= {x.relative_to(top) for x in each if x.is_file() and not x.is_symlink()}
    return found


def _mirror(top: Path, target: Path, kept: Mapping[Path, int]) -> str:
    """Copy files to a new folder, link what lies beside them; return a hash of the files."""
    shutil.rmtree(target, ignore_errors=True)
    content, folders = hashlib.sha256(), {folder for each in kept for folder in each.parents}
    for folder in sorted(folders):
        (target / folder).mkdir(parents=True)
        for name in sorted(os.listdir(top / folder)):
            each = folder / name
            new = target / each
            if each in kept:
                data = (top / each).read_bytes()
                new.write_bytes(data)
                if os.access(top / each, os.X_OK):
                    new.chmod(new.stat().st_mode | 0o110)
                content.update(f"{each}\0{len(data)}\0".encode(errors="surrogateescape") + data)
            elif each not in folders and name != "__pycache__":
                real = Path(os.path.realpath(top / each))
                inner = real.relative_to(top) if real.is_relative_to(top) else each
                is_copied = inner in folders or inner in kept
                new.symlink_to(os.path.relpath(inner, folder) if is_copied else real)
    return content.hexdigest()[:12]
