"""Lock of a run: its packages as a requirements file, and the environment that has them again."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution
from importlib.util import cache_from_source
from pathlib import Path

from filelock import FileLock

from headrace.errors import UserError, warn_once
from headrace.files.atomic import read_bytes, read_text, write_text
from headrace.files.layout import RunFolder
from headrace.files.private import make_private
from headrace.recipe.home import home
from headrace.runs.code_state import dist_infos, git_output

logger = logging.getLogger(__name__)

_CONTENT, _LOCAL = "  # content ", "# local: "


def write_lock(run: RunFolder) -> None:
    """Write the lock of a run from this process's packages, without a network."""
    head = f"# Python {platform.python_version()}; `content` is the hash of the installed files\n"
    write_text(run.lock, head + "".join(f"{x}\n" for x in packages_in(sys.path).values()))


def packages_in(folders: Iterable[str]) -> dict[str, str]:
    """Return the lines of the packages in folders of a module path, by name.

    A package that was installed from a folder is a comment: no index has it.
    """
    return {name: _line(name, info) for name, info in dist_infos(folders).items()}


def frozen_environment(run: RunFolder, python: str) -> Path:
    """Return the environment with a version of Python and the packages of a run's lock.

    Packages that are installed here with the same content are linked, all others are installed by
    uv, which honours its own variables. Packages from folders are those of today; a warning names
    the changed ones. The environment is kept in headrace's home for the next call.

    Raises:
        UserError: Names the part that is not available.
    """
    lock, today = _read_lock(run), packages_in(sys.path)
    local = {x: today.get(x, line) for x, line in lock.items() if line.startswith(_LOCAL)}
    if changed := ", ".join(name for name, line in local.items() if line != lock[name]):
        warn_once(f"No index has these packages, so that they are those of today: {changed}")
    lock |= local
    text = "\n".join((python, *lock.values()))
    folder = home() / "environments" / hashlib.sha256(text.encode()).hexdigest()[:16]
    make_private(folder.parent)
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            logger.warning("Making an environment with the packages of %s: %s", run.run_id, folder)
            _make(folder, lock, today, python)
            (folder / "complete").touch()
    return folder


def begin_in(environment: Path) -> None:
    """Begin this command without `--frozen` in an environment, with its module path only."""
    programs, words = environment / "bin", [each for each in sys.argv[1:] if each != "--frozen"]
    kept = {x: y for x, y in os.environ.items() if x not in ("PYTHONPATH", "PYTHONHOME")}
    path = f"{programs}{os.pathsep}{kept.get('PATH', os.defpath)}"
    kept |= {"PATH": path, "VIRTUAL_ENV": str(environment)}
    os.execve(programs / "headrace", ["headrace", *words], kept)


def _read_lock(run: RunFolder) -> dict[str, str]:
    """Return the lines of a run's lock, by package."""
    text = read_text(run.lock)
    if text is None:
        hint = "Repeat it with the packages of today: leave --frozen out."
        raise UserError(f"Run {run.run_id} has no lock of its packages", hint)
    lines = (x for x in text.splitlines() if _CONTENT in x)
    return {re.split("[ =]", x.removeprefix(_LOCAL), maxsplit=1)[0]: x for x in lines}


def _line(name: str, info: Path) -> str:
    """Return the line of a `.dist-info` folder.

    Installers keep no hash of a wheel. They keep the hashes of its files:
    https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    """
    lines = (read_bytes(info / "RECORD") or b"").splitlines()
    own = (x for x in lines if b".dist-info/" not in x and not x.startswith(b"../"))
    parts = sorted(x for x in own if b".pyc," not in x)
    origin = json.loads(read_text(info / "direct_url.json") or "{}")
    requirement = f"{name}=={info.name.removesuffix('.dist-info').partition('-')[2]}"
    url = origin.get("url", "")
    if "dir_info" in origin:
        requirement = f"{_LOCAL}{requirement} from {url}"
        if origin["dir_info"].get("editable"):
            at = Path(url.removeprefix("file://"))
            parts += [git_output(at, verb, "HEAD") or b"" for verb in ("rev-parse", "diff")]
    elif vcs := origin.get("vcs_info"):
        requirement = f"{name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
    elif url:
        requirement = f"{name} @ {url}"
    return f"{requirement}{_CONTENT}{hashlib.sha256(b'|'.join(parts)).hexdigest()[:24]}"


def _make(folder: Path, lock: Mapping[str, str], today: Mapping[str, str], python: str) -> None:
    is_here = python == platform.python_version()
    chosen = getattr(sys, "_base_executable", sys.executable) if is_here else python
    _uv("python", "venv", "--clear", "--python", chosen, str(folder))
    (site,) = folder.glob("lib/python3*/site-packages")
    here = {x: y for x, y in dist_infos(sys.path).items() if (y / "RECORD").exists()}
    if site.parent.name != f"python3.{sys.version_info.minor}":  # other binaries
        here = {x: y for x, y in here.items() if lock.get(x, "").startswith(_LOCAL)}
    linked = {name for name in here if name in lock and today[name] == lock[name]}
    if asked := sorted(lock.keys() - linked):
        wanted = folder / "requirements.txt"
        write_text(wanted, "\n".join(lock[name] for name in asked))
        install = ("pip", "install", "--no-deps", "--python", str(folder))
        _uv("package", *install, "-r", str(wanted))
    made = packages_in([str(site)])
    if other := ", ".join(lock[x].split(_CONTENT)[0] for x in asked if made.get(x) != lock[x]):
        what = f"package: not available with the files of then: {other}"
        raise UserError(what, "Name the index of then (UV_INDEX), or leave --frozen out.")
    for name in linked:  # last: it takes longest
        _link(here[name], site)


def _link(info: Path, site: Path) -> None:
    """Link a package's files into an environment; its programs are copied for that Python."""
    old_python, python = Path(sys.prefix, "bin/python"), site.parents[2] / "bin/python"
    names = [str(each) for each in Distribution.at(info).files or ()]
    compiled = [cache_from_source(each) for each in names if each.endswith(".py")]
    for name in dict.fromkeys((*names, *compiled)):
        old, new = info.parent / name, Path(os.path.normpath(site / name))
        if not new.is_relative_to(site.parents[2]) or not old.is_file():
            continue
        new.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("../"):
            new.write_bytes(old.read_bytes().replace(os.fsencode(old_python), os.fsencode(python)))
            shutil.copymode(old, new)
            continue
        try:
            os.link(old, new)
        except OSError:  # another file system
            shutil.copy2(old, new)


def _uv(part: str, *arguments: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    uv = shutil.which("uv", path=path)
    if uv is None:
        raise UserError("uv is missing; it makes the environment", "Install it: pip install uv")
    done = subprocess.run([uv, "--quiet", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        hint = "Install it, name its index (UV_INDEX, UV_FIND_LINKS), or leave --frozen out."
        raise UserError(f"{part}: uv failed: {done.stderr.strip()}", hint)
