"""Lock of a run: its packages as a requirements file, and the environment that has them again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import cache_from_source
from pathlib import Path

from filelock import FileLock

from headrace.errors import UserError
from headrace.files.atomic import read_text, write_text
from headrace.files.layout import RunFolder
from headrace.recipe.home import home
from headrace.record import Record
from headrace.runs.code_state import dist_infos, git_output

_CONTENT, _LOCAL = "  # content ", "# local: "
_START = (
    "import sys; sys.path[:] = filter(None, sys.path); from headrace.cli.app import main; main()"
)


class Package(Record):
    """An installed package, as a line of a lock."""

    name: str
    requirement: str
    """For uv: `name==version`, or `name @ URL`; of a local folder its name and address."""
    content: str
    """Hash of the hashes of its files, as installed; of an editable one also of its code."""
    is_local: bool = False
    """Whether no index has it: it was installed from a folder."""

    @classmethod
    def of(cls, name: str, info: Path) -> Package:
        """Return that of a `.dist-info` folder.

        The hash of a wheel is not kept by installers, those of its files are:
        https://packaging.python.org/en/latest/specifications/recording-installed-packages/
        """
        version = info.name.removesuffix(".dist-info").partition("-")[2]
        lines = (info / "RECORD").read_bytes().splitlines() if (info / "RECORD").exists() else []
        own = (x for x in lines if b".dist-info/" not in x and not x.startswith(b"../"))
        parts = sorted(line for line in own if b".pyc," not in line)
        origin = json.loads(read_text(info / "direct_url.json") or "{}")
        url, requirement = origin.get("url", ""), f"{name}=={version}"
        is_local = "dir_info" in origin
        if is_local:
            requirement += f" from {url}"
            parts += (
                _code_of(Path(url.removeprefix("file://"))) if "editable" in str(origin) else ()
            )
        elif vcs := origin.get("vcs_info"):
            requirement = f"{name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
        elif url:
            hashes = origin.get("archive_info", {}).get("hashes", {})
            fragment = "".join(f"#{kind}={value}" for kind, value in sorted(hashes.items())[:1])
            requirement = f"{name} @ {url}{fragment}"
        content = hashlib.blake2b(b"\n".join(parts), digest_size=12).hexdigest()
        return cls(name=name, requirement=requirement, content=content, is_local=is_local)

    @classmethod
    def parse(cls, line: str) -> Package:
        """Return the package of a line."""
        requirement, _, content = line.removeprefix(_LOCAL).partition(_CONTENT)
        name, is_local = requirement.partition(" ")[0].partition("==")[0], line.startswith(_LOCAL)
        return cls(name=name, requirement=requirement, content=content, is_local=is_local)

    @property
    def line(self) -> str:
        """Its line in a requirements file; a comment if no index has it."""
        return f"{_LOCAL if self.is_local else ''}{self.requirement}{_CONTENT}{self.content}"


def write_lock(run: RunFolder) -> None:
    """Write the lock of a run from this process's packages; no network is asked."""
    head = f"# Python {sys.version.split()[0]}; `content` is the hash of the installed files\n"
    lines = (each.line for each in packages_in(sys.path).values())
    write_text(run.lock, head + "".join(f"{line}\n" for line in lines))


def read_lock(run: RunFolder) -> dict[str, Package]:
    """Return the packages of a run's lock, by name.

    Raises:
        UserError: The run has none: an earlier release began it.
    """
    text = read_text(run.lock)
    if text is None:
        hint = "Repeat it with the packages of today: leave --frozen out."
        raise UserError(f"Run {run.run_id} has no lock of its packages", hint)
    lines = (x for x in text.splitlines() if _CONTENT in x)
    return {each.name: each for each in map(Package.parse, lines)}


def packages_in(folders: Iterable[str]) -> dict[str, Package]:
    """Return the packages in folders of a module path, by name."""
    return {name: Package.of(name, info) for name, info in dist_infos(folders).items()}


def hashed(run: RunFolder) -> str:
    """Return the lock of a run with the hashes of all its wheels, as the index gives them.

    Raises:
        UserError: The index lacks a package, or uv is missing.
    """
    compile_ = ("pip", "compile", "--quiet", "--generate-hashes", "--no-deps", "--no-header")
    return _uv(*compile_, "--no-annotate", str(run.lock))


def frozen_python(run: RunFolder, python: str, *, inexact: bool) -> Path:
    """Return the Python of an environment with the packages of a run's lock.

    It is kept in headrace's home, by the lock's hash. Packages that are installed here with the
    same content are linked, all others are installed by uv, which honours its own variables.

    Args:
        run: The run with the lock.
        python: Version of its Python.
        inexact: Whether packages of other content and other patches of Python are allowed.

    Raises:
        UserError: Names each part that cannot be had; no environment is left behind.
    """
    lock = read_lock(run)
    text = f"{python} {inexact}\n" + "".join(f"{each.line}\n" for each in lock.values())
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    folder = home() / "environments" / key
    found, complete = folder / "bin" / "python", folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not complete.exists():
            try:
                _make(folder, lock, python, inexact=inexact)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            complete.touch()
    return found


def begin_in(python: Path, words: Iterable[str]) -> None:
    """Replace this process by `headrace` of an environment; its module path is the only one."""
    left_out = ("PYTHONPATH", "PYTHONHOME")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    path = f"{python.parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    environment = {**kept, "PATH": path, "VIRTUAL_ENV": str(python.parent.parent)}
    os.execve(python, [str(python), "-c", _START, *words], environment)


def _make(folder: Path, lock: Mapping[str, Package], python: str, *, inexact: bool) -> None:
    version = python.rpartition(".")[0] if inexact else python
    is_here = sys.version.split()[0] == python
    chosen = getattr(sys, "_base_executable", sys.executable) if is_here else version
    _uv("venv", "--quiet", "--clear", "--python", chosen, str(folder))
    (site,) = folder.glob("lib/python3*/site-packages")
    here = {name: info for name, info in dist_infos(sys.path).items() if name in lock}
    same = {name for name, info in here.items() if is_here and Package.of(name, info) == lock[name]}
    lost = [lock[name].requirement for name in lock.keys() - same if lock[name].is_local]
    if lost and not inexact:
        what = f"Changed since, and in no index: {', '.join(sorted(lost))}"
        raise UserError(f"package: {what}", "Put the code back, or allow it: --allow packages.")
    # of local packages only this version can be had
    linked = same | {name for name in here if inexact and lock[name].is_local}
    asked = [x.requirement for x in lock.values() if x.name not in linked and not x.is_local]
    if asked:
        wanted = folder / "requirements.txt"
        write_text(wanted, "\n".join(asked))
        install = ("pip", "install", "--quiet", "--no-deps", "--python", str(folder))
        _uv(*install, "-r", str(wanted))
    made = packages_in([str(site)])
    other = [
        lock[name].requirement for name in lock.keys() - linked if made.get(name) != lock[name]
    ]
    if other and not inexact:
        what = f"package: installed with other files than then: {', '.join(sorted(other))}"
        raise UserError(what, "Name the index of then (UV_INDEX), or allow it: --allow packages.")
    for name in linked:  # last: it takes longest
        _link(here[name], site)


def _link(info: Path, site: Path) -> None:
    """Link a package's files into an environment; its programs are copied for that Python."""
    top, target = info.parent, Path(os.path.normpath(site.parents[2]))
    names = (line.rpartition(",")[0].rpartition(",")[0] for line in _lines(info / "RECORD"))
    for name in (each.strip('"') for each in names):
        new = Path(os.path.normpath(site / name))
        if name.endswith(".pyc") or not new.is_relative_to(target) or not (top / name).is_file():
            continue
        for old, to in _with_cache(top / name, new):
            to.parent.mkdir(parents=True, exist_ok=True)
            if name.startswith("../"):
                program, python = old.read_bytes(), str(target / "bin" / "python").encode()
                to.write_bytes(program.replace(os.fsencode(Path(sys.prefix, "bin/python")), python))
                to.chmod(old.stat().st_mode)
                continue
            try:
                os.link(old, to)
            except OSError:  # another file system
                shutil.copy2(old, to)


def _with_cache(old: Path, new: Path) -> Iterator[tuple[Path, Path]]:
    yield old, new
    if old.suffix == ".py" and Path(cache := cache_from_source(str(old))).exists():
        yield Path(cache), Path(cache_from_source(str(new)))


def _lines(file: Path) -> list[str]:
    return (read_text(file) or "").splitlines()


def _code_of(folder: Path) -> list[bytes]:
    """Return the commit and the hash of uncommitted changes; of a folder without git neither."""
    commit, diff = git_output(folder, "rev-parse", "HEAD"), git_output(folder, "diff", "HEAD")
    return [commit or b"", hashlib.sha256(diff or b"").digest()]


def _uv(*arguments: str) -> str:
    beside = Path(sys.executable).parent / "uv"
    uv = shutil.which("uv") or (str(beside) if beside.exists() else "")
    if not uv:
        raise UserError(
            "uv is not installed; it makes the environment", "Install it: pip install uv"
        )
    done = subprocess.run([uv, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip()
        raise UserError(
            f"{'python' if arguments[0] == 'venv' else 'package'}: uv failed: {why}",
            "Name another index (UV_INDEX, UV_FIND_LINKS), or repeat it with today's packages: "
            "leave --frozen out.",
        )
    return done.stdout
