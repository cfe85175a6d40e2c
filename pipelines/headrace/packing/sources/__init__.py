"""Finds the files of a source folder that are samples."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One raw sample."""

    path: str
    """Path relative to the source folder, with `/`."""
    num_bytes: int
    """Size of the file."""
    mtime_ns: int
    """When its content last changed, nanoseconds since the epoch."""


def open_source(source: str) -> Path:
    """The source folder as an absolute path.

    Raises:
        RecipeError: There is no such folder.
    """
    folder = Path(source).expanduser().absolute()
    if folder.is_dir():
        return folder
    problem = "is a file, not a folder" if folder.exists() else "does not exist"
    raise RecipeError(
        f"The source folder {folder} {problem}",
        "Set dataset.source to the folder of the raw samples.",
    )


def list_sources(
    folder: Path, include: Sequence[str], check: Callable[[], None] | None = None
) -> tuple[SourceFile, ...]:
    """Files below `folder` that match a pattern, sorted by path.

    Letter case does not matter for matching; names that begin with a dot are left out.

    Args:
        folder: The source folder.
        include: Glob patterns relative to it; `**/` stands for any depth.
        check: Called for every folder; may raise to stop.

    Raises:
        RecipeError: No file matches, or a link leads out of the folder.
    """
    pattern = re.compile("|".join(f"(?:{glob_regex(glob)})" for glob in include), re.IGNORECASE)
    files: list[SourceFile] = []
    num_others = 0
    for path, entry in _walk(folder, check):
        if not pattern.fullmatch(path):
            num_others += 1
            continue
        files.append(_source_file(folder, path, entry))
    if not files:
        raise _nothing_found(folder, include, num_others)
    return tuple(sorted(files, key=lambda file: file.path))


def glob_regex(glob: str) -> str:
    """Regular expression for a glob pattern over paths with `/`."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", glob)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(special.get(part) or _literal(part) for part in parts)


def _literal(part: str) -> str:
    if part.startswith("[") and part.endswith("]"):
        inner = part[1:-1].replace("\\", "\\\\")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(part)


def _walk(folder: Path, check: Callable[[], None] | None) -> Iterator[tuple[str, os.DirEntry[str]]]:
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        if check is not None:
            check()
        with os.scandir(folder / prefix) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path + "/")
                elif entry.is_symlink() and entry.is_dir():
                    _refuse_link_to_folder(folder, path)
                else:
                    yield path, entry


def _refuse_link_to_folder(folder: Path, path: str) -> None:
    raise RecipeError(
        f"{folder / path} is a link to the folder {(folder / path).resolve()}",
        "Links to folders are not followed; set dataset.source to the real folder.",
    )


def _source_file(folder: Path, path: str, entry: os.DirEntry[str]) -> SourceFile:
    _check_name(folder, path)
    if entry.is_symlink():
        _check_link(folder, path)
    status = entry.stat()
    return SourceFile(path=path, num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)


def _check_name(folder: Path, path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise RecipeError(
            f"The name of {path!r} in {folder} is not UTF-8", "Rename the file."
        ) from None


def _check_link(folder: Path, path: str) -> None:
    target = (folder / path).resolve()
    if not target.is_file():
        raise RecipeError(f"{folder / path} is a link to {target}, which is no file")
    if not target.is_relative_to(folder.resolve()):
        raise RecipeError(
            f"{folder / path} is a link that leaves the source folder, to {target}",
            "Copy the file into the source folder, or set dataset.source to the real folder.",
        )


def _nothing_found(folder: Path, include: Sequence[str], num_others: int) -> RecipeError:
    patterns = ", ".join(include)
    if num_others == 0:
        return RecipeError(f"The source folder {folder} is empty", f"Expected files: {patterns}.")
    return RecipeError(
        f"None of the {num_others:,} files in {folder} matches dataset.include: {patterns}",
        "Set dataset.include to patterns that match your samples.",
    )
