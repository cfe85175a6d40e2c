"""Change the engine at random places, one at a time, and print the changes that no test notices.

Run by `make mutants`. cosmic-ray makes the changes, in clones of the last commit.
"""

from __future__ import annotations

import argparse
import compileall
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from difflib import unified_diff
from importlib import import_module
from itertools import chain, islice, zip_longest
from multiprocessing import Queue, get_context
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import NamedTuple

import pytest
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.modules import find_modules
from cosmic_ray.mutating import mutate_code, use_mutation
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_item import MutationSpec

PACKAGES = ("batch", "clusters", "data", "recipe", "runs", "shards", "steps")
"""Where to look: the packages whose mistakes cost data or hours."""

LEFT_OUT = re.compile(r"BitOr|_(Eq|NotEq|Lt|LtE|Gt|GtE)_Is(Not)?$|_Is_Eq$|_IsNot_NotEq$")
"""Operators that change annotations (`X | None`), or that compare numbers by identity."""

NO_CODE = re.compile(r"@dataclass\(|_?[A-Z][A-Z0-9_]* =")
"""Beginnings of lines that are left out: how a record is declared, and a constant's tuned value."""

SLOW_LIBRARIES = ("distributed", "h5py", "lightning", "sqlalchemy", "torchmetrics")

CHECKED_HASH = PycInvalidationMode.CHECKED_HASH

_HEADS = ("---", "+++")

TEST_LIMIT_S = 120
"""A test that takes longer hangs, and so has noticed the change."""

LIMIT_S = 1800.0
"""Tests that have not ended after this time hang where no test's own limit reaches them."""


Rounds = Callable[[Path], Iterator[list[str]]]


class Outcome(NamedTuple):
    """What became of one mutant: `killed`, `timeout` or `survived`."""

    mutant: MutationSpec
    word: str
    seconds: float
    diff: str
    test: str

    def __str__(self) -> str:
        """One line for a person."""
        place = "{}:{}:{}".format(self.mutant.module_path, *self.mutant.start_pos)
        operator = self.mutant.operator_name.removeprefix("core/")
        return f"{self.word:9}{self.seconds:6.1f} s  {place} {operator}  {self.test}"


def mutants_of(module: Path) -> list[list[MutationSpec]]:
    """All mutants of a module, those of one place together."""
    nodes = list(ast_nodes(get_ast_from_path(module)))
    lines = module.read_text().splitlines()
    places: dict[tuple[int, int], list[MutationSpec]] = {}
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments() or LEFT_OUT.search(name):
            continue
        found = chain.from_iterable(map(operator().mutation_positions, nodes))
        for number, (start, end) in enumerate(found):
            line = lines[start[0] - 1]
            # cosmic-ray fails at dotted names of exceptions
            fails = name.endswith("ExceptionReplacer") and "." in line[start[1] : end[1]]
            if not fails and not NO_CODE.match(line):
                places.setdefault(start, []).append(MutationSpec(module, name, number, start, end))
    return list(places.values())


def sample(number: int, seed: int) -> list[MutationSpec]:
    """As many mutants as asked, evenly over the files; at most one at a place."""
    rng = random.Random(seed)
    modules = sorted(find_modules([Path("pipelines/headrace", each) for each in PACKAGES]))
    chosen = [[rng.choice(place) for place in mutants_of(module)] for module in modules]
    for each in (*chosen, chosen):
        rng.shuffle(each)
    turns = chain.from_iterable(zip_longest(*chosen))
    return list(islice((each for each in turns if each is not None and can_be_made(each)), number))


def can_be_made(mutant: MutationSpec) -> bool:
    """Whether cosmic-ray can; it stumbles over some forms of `except (a.B, *C)`."""
    operator = get_operator(mutant.operator_name)()
    try:
        mutate_code(mutant.module_path.read_text(), operator, mutant.occurrence)
    except AttributeError:
        return False
    return True


def naming(modules: list[str], where: str) -> list[str]:
    """Files below a folder that name one of the modules."""
    words = list(chain.from_iterable(("-e", each) for each in modules))
    command = ["git", "grep", "-lwF", *words, "--", f"{where}*.py"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


def dotted(path: str | Path) -> str:
    """Name of a module of the engine."""
    return ".".join(Path(path).with_suffix("").parts[1:])


def near(module: Path) -> Iterator[list[str]]:
    """The unit tests to run for a changed module, the quickest to notice first."""
    name, stem = dotted(module), module.stem
    users = [dotted(each) for each in naming([name], "pipelines/")]
    naming_it = naming([name], "tests/unit/")
    own = f"tests/unit/{module.parts[2]}"
    yield sorted(naming_it, key=lambda file: stem not in file)
    yield [own]
    if users:
        others = set(naming(users, "tests/unit/")) - set(naming_it)
        yield sorted(each for each in others if not each.startswith(own))


def far(module: Path) -> Iterator[list[str]]:
    """The tests of minutes, for changes that no unit test notices."""
    name = dotted(module)
    users = [dotted(each) for each in naming([name], "pipelines/")]
    package = f"headrace.{module.parts[2]}"  # parts of it run in processes that tests only start
    yield [each for each in naming([package, *users], "tests/contract/") if "/test_" in each]
    yield [each for each in naming([name], "tests/integration/") if "/airflow/" not in each]


def run_tests(tests: list[str], log: Path) -> None:
    """In a child: its own code, and a log in place of the terminal."""
    os.setsid()
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT_S}"]
    sys.exit(pytest.main([*options, *tests]))


def noticed(tests: list[str]) -> tuple[str, str]:
    """What becomes of the mutant, and which test notices it, if any."""
    log = Path(f"{Path.cwd()}.log")
    child = get_context("fork").Process(target=run_tests, args=(tests, log))
    child.start()
    child.join(LIMIT_S)
    if child.is_alive() and child.pid:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
        return "timeout", ""
    said = log.read_text(errors="replace")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", said, re.MULTILINE)
    if not child.exitcode:
        return "survived", ""
    word = "timeout" if re.search(r"^E +Failed: Timeout", said, re.MULTILINE) else "killed"
    return word, failed[1] if failed else f"pytest ended with code {child.exitcode}"


def result(tests: list[str]) -> tuple[str, str]:
    """What becomes of a mutant; a test that passes when it is run again has noticed nothing."""
    word, test = noticed(tests)
    while test.startswith("tests/") and noticed([test])[0] == "survived":
        tests = [*tests, f"--deselect={test}"]
        word, test = noticed(tests)
    return word, test


def try_mutant(mutant: MutationSpec, rounds: Rounds) -> Outcome:
    """Run round after round until a test notices."""
    begun = time.monotonic()
    word, test = "survived", ""
    operator = get_operator(mutant.operator_name)()
    with use_mutation(mutant.module_path, operator, mutant.occurrence) as (before, after):
        for tests in filter(None, rounds(mutant.module_path)):
            word, test = result(tests)
            if word != "survived":
                break
    lines = (each.splitlines() for each in (before, after))
    diff = [each for each in unified_diff(*lines, n=0, lineterm="") if each[:3] not in _HEADS]
    return Outcome(mutant, word, time.monotonic() - begun, "\n".join(diff), test)


def enter_clone(clones: Queue[str]) -> None:
    """Each process works in its own clone, whose code is found before the installed one.

    Libraries that take seconds to load are loaded once, the engine anew for each mutant.
    """
    os.chdir(clones.get())
    code = [str(Path(each).absolute()) for each in ("pipelines", "plugins")]
    os.environ["PYTHONPATH"] = os.pathsep.join(code)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.path[:0] = code
    sys.dont_write_bytecode = True
    for library in SLOW_LIBRARIES:
        import_module(library)
    word, test = noticed(["tests/unit/recipe"])
    if word != "survived":
        raise RuntimeError(f"tests fail without a mutant, too: {test}")


def outcomes(mutants: list[MutationSpec], rounds: Rounds, processes: int) -> Iterator[Outcome]:
    """Try the mutants in as many clones as there are processes."""
    clones: Queue[str] = Queue()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(processes):
            clone = Path(folder, str(number))
            subprocess.run(["git", "clone", "--quiet", ".", clone], check=True)
            # so that a mutant is never taken for the code that was compiled before
            compileall.compile_dir(
                clone, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH
            )
            (clone / ".venv").symlink_to(Path(".venv").absolute())
            clones.put(str(clone))
        with ProcessPoolExecutor(processes, initializer=enter_clone, initargs=(clones,)) as pool:
            tried = [pool.submit(try_mutant, mutant, rounds) for mutant in mutants]
            try:
                yield from (each.result() for each in as_completed(tried))
            finally:  # an error is raised at once, not after all other mutants
                pool.shutdown(cancel_futures=True)


def main() -> None:
    """Try a sample by unit tests, and what survives by contract tests; print each outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=300, help="mutants to try")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--processes", type=int, default=2, help="tests run at once")
    asked = parser.parse_args()
    done = []
    mutants = sample(asked.number, asked.seed)
    for rounds in (near, far):
        for outcome in outcomes(mutants, rounds, asked.processes):
            shown = f"\n{outcome.diff}" if outcome.word == "survived" else ""
            sys.stdout.write(f"{outcome}{shown}\n")
            sys.stdout.flush()
            done.append(outcome)
        sys.stdout.write(f"\n{len(done)} mutants: {dict(Counter(each.word for each in done))}\n")
        mutants = [each.mutant for each in done if each.word == "survived"]
        done = [each for each in done if each.word != "survived"]


if __name__ == "__main__":
    main()
