"""The code of a run: commit, uncommitted changes, packages, and images of its containers."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import words_of
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.record import Record

if TYPE_CHECKING:
    from headrace.recipe.batch import Container
    from headrace.recipe.recipe import Recipe
    from headrace.recipe.site import Site

UNKNOWN = "not known"
"""Text for values that were not recorded or cannot be read."""

MAX_DIFF_BYTES = 4 * 2**20
"""Most bytes of uncommitted changes that are kept; of further files only the names."""

NEW_FILES = ("ls-files", "--others", "--exclude-standard", "-z")
"""Arguments of git that list files which are neither committed nor ignored."""

_MAX_NEW_BYTES = 256 * 2**10
_TIMEOUT_S = 20
_FILE = b"\ndiff --git "
_PARTS, _PART_BYTES = 64, 2**16


class CodeTree(Record):
    """A folder of the user's code and its copy."""

    source: str
    asked: str
    """The user's folder: `source`, unless that is another run's copy of it."""
    target: str
    places: tuple[str, ...]
    """Folders in `source` that the recipe names, relative to it."""
    digest: str = ""
    """Hash of names and contents of the copied files; empty if nothing is copied."""
    not_copied: tuple[str, ...] = ()
    """Large files and inner repositories, or the reason why nothing is copied."""


class CodeSnapshot(Record):
    """`code.json` of a run."""

    trees: tuple[CodeTree, ...] = ()

    @classmethod
    def of(cls, run: RunFolder) -> CodeSnapshot:
        """Return that of a run; without trees if it has none."""
        return read_record(run.code_record, cls) or cls()

    @property
    def digests(self) -> str:
        """Hashes of all trees; empty if nothing is copied."""
        return " ".join(tree.digest for tree in self.trees)

    def undone(self, text: str) -> str:
        """Return a text of the run's files with the user's folders in place of their copies."""
        for tree in self.trees:
            text = text.replace(tree.target, tree.asked)
        return text


class Commit(Record):
    """The commit of a working tree."""

    commit: str
    dirty: bool
    """Whether there were uncommitted changes."""


class CodeState(Record):
    """The code of a run, besides its recipe and data."""

    code_folder: str = ""
    """Folder of the code, in the repository of the commit."""
    git: Commit | None = None
    left_out: tuple[str, ...] = ()
    """Uncommitted files that were too large to be kept."""
    python: str = UNKNOWN
    packages: dict[str, str] = {}
    """Versions by name; of older runs only the most important."""
    images: dict[str, str] = {}
    """Digests of the images of its containers, by path."""


def code_state(
    folder: Path, images: Iterable[str], max_bytes: int = MAX_DIFF_BYTES
) -> tuple[CodeState, bytes | None]:
    """Return the state of the code in a folder and of images now, and its uncommitted changes.

    The changes are a diff for `git apply`, new files included; None without changes. Files that git
    ignores are left out. Outside a repository or without git there is neither commit nor diff.
    """
    state = CodeState(
        code_folder=str(folder),
        python=platform.python_version(),
        packages=_installed(),
        images=digests(images),
    )
    asked = ("rev-parse", "--show-toplevel", "--git-path", "index", "--revs-only", "HEAD")
    lines = (git_output(folder, *asked) or b"").decode().splitlines()
    if len(lines) < 2:
        return state, None
    top, index, *commit = lines
    new = os.fsdecode(git_output(Path(top), *NEW_FILES) or b"")
    names = [name for name in new.split("\0") if name and not name.endswith("/")]
    small = [name for name in names if _size(Path(top, name)) <= _MAX_NEW_BYTES]
    with _index_with(Path(top), folder / index, small) as environment:
        whole = git_output(Path(top), "diff", "--binary", "HEAD", environment=environment)
    left_out, diff = sorted(set(names) - set(small)), whole or b""
    if whole is None:
        left_out = ["all of it: git failed"]
    else:
        diff, cut = _cut(whole, max_bytes)
        left_out += cut
    git = Commit(commit=commit[0], dirty=bool(new) or whole != b"") if commit else None
    state = state.model_copy(update={"git": git, "left_out": tuple(map(words_of, left_out))})
    return state, diff if whole or left_out else None


def _installed() -> dict[str, str]:
    """Return the versions of all installed packages by name."""
    infos = dist_infos(sys.path).items()
    return {name: info.name.removesuffix(".dist-info").partition("-")[2] for name, info in infos}


def dist_infos(folders: Iterable[str]) -> dict[str, Path]:
    """Return the `.dist-info` folders of a module path by package; the first of a name counts."""
    found: dict[str, Path] = {}
    for folder in filter(None, folders):
        for info in Path(folder).glob("*.dist-info"):
            found.setdefault(info.name.partition("-")[0].lower().replace("_", "-"), info)
    return dict(sorted(found.items()))


@contextmanager
def _index_with(top: Path, index: Path, names: list[str]) -> Iterator[dict[str, str]]:
    """Yield an environment with a copy of the repository's index that has new files."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "index"
        if index.is_file():
            shutil.copyfile(index, copy)
        environment = {**os.environ, "GIT_INDEX_FILE": str(copy)}
        for start in range(0, len(names), 500):
            chosen = names[start : start + 500]
            git_output(top, "add", "--intent-to-add", "--", *chosen, environment=environment)
        yield environment


def _cut(diff: bytes, max_bytes: int) -> tuple[bytes, list[str]]:
    """Return the first whole files of a diff that fit, and the names of the others."""
    kept = b""
    left_out: list[str] = []
    for index, part in enumerate(diff.split(_FILE)):
        text = part if index == 0 else _FILE + part
        if left_out or len(kept) + len(text) + 1 > max_bytes:
            left_out.append(_name(part))
        else:
            kept += text
    return (kept + b"\n" if left_out and kept else kept), left_out


def _name(part: bytes) -> str:
    line = part.removeprefix(_FILE[1:]).split(b"\n", 1)[0].decode(errors="replace")
    return line.rpartition(" b/")[2] or line


def _size(path: Path) -> int:
    return path.lstat().st_size if os.path.lexists(path) else 0


def git_output(
    folder: Path, *arguments: str, environment: dict[str, str] | None = None
) -> bytes | None:
    """Return the output of git in a folder; None if it fails, or without git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=environment,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def containers_of(recipe: Recipe, site: Site) -> list[Container]:
    """Return the containers of a run."""
    roles = (site.roles.get(name) for name in (recipe.packing_role, recipe.train.role))
    return [each for role in roles if role is not None for each in role.containers]


def digests(images: Iterable[str]) -> dict[str, str]:
    """Return the digests of images now, by path."""
    return {image: _digest(Path(image).expanduser()) for image in dict.fromkeys(images)}


def _digest(image: Path) -> str:
    """Return a digest of a file's size and parts, or of names, sizes and times of a folder's files.

    Images in one file are compressed and start with their time, so another build differs in all
    parts.
    """
    found = hashlib.blake2b(digest_size=16)
    try:
        for each in _of_folder(image) if image.is_dir() else _of_file(image):
            found.update(each)
    except OSError:
        return UNKNOWN
    return found.hexdigest()


def _of_file(image: Path) -> Iterator[bytes]:
    with image.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        yield str(size).encode()
        for number in range(_PARTS):
            file.seek(number * max(size - _PART_BYTES, 0) // (_PARTS - 1))
            yield file.read(_PART_BYTES)


def _of_folder(image: Path) -> Iterator[bytes]:
    for folder, folders, files in os.walk(image):
        folders.sort()
        for name in sorted((*files, *folders)):
            path = Path(folder, name)
            stat = path.lstat()
            is_file = not path.is_dir() or path.is_symlink()
            what = (stat.st_size, stat.st_mtime_ns) if is_file else ()
            yield f"{path.relative_to(image)} {what}\n".encode(errors="surrogateescape")
