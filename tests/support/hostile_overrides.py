"""Hostile overrides through every door: each is accepted or refused by name, soon, in little room.

Run as a program, so that a limit of memory or time ends no other test. What it does just now is in
the file that it is given.
"""

from __future__ import annotations

import functools
import os
import resource
import signal
import sys
import time
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import yaml
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from headrace.cli.commands import build
from headrace.errors import HeadraceError
from headrace.recipe.globs import matcher
from headrace.recipe.home import home
from headrace.recipe.schema import json_schema
from headrace.runs import lifecycle
from headrace.runs.runs import RunRequest

NUM_EXAMPLES = int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", "100"))
"""Requests by each door; others in each run, so that many runs try many."""
MAX_CPU_S = 2.0
"""Twice what is promised: machines differ."""
MAX_BYTES = 200 * 2**20
MAX_MESSAGE = 20_000


class AcceptedError(Exception):
    """The request is one that a run would be made of."""


class TooLong(BaseException):
    """The time for a request is over."""


def _keys() -> list[str]:
    schema = json_schema("recipe")
    parts = schema["$defs"]
    found = list(schema["properties"])
    for key, part in (("dataset", "DatasetSpec"), ("pack", "PackSpec"), ("stage", "StageSpec"),
                      ("data", "DataSpec"), ("trainer", "TrainerSpec"), ("train", "TrainSpec"),
                      ("evaluate", "EvaluateSpec"), ("suite", "SuiteSpec")):  # fmt: skip
        found += [f"{key}.{name}" for name in parts[part]["properties"]]
    return [*found, "model.learning_rate", "model.x", "suite.search.space", "suite.search.trials"]


REAL = st.sampled_from(_keys())
LONG = st.sampled_from([40, 300, 2000, 20_000])
KEYS = st.one_of(
    REAL, REAL, REAL,
    st.builds("{}.{}".format, REAL, st.text("ab_0.[]-1", max_size=6)),
    st.builds(lambda part, times: part * times + "b", st.sampled_from(["a.", "a[0].", "é."]), LONG),
    st.builds("{}[{}]".format, REAL, st.sampled_from(["0", "-1", "99999999999", "a", "9" * 5000])),
    st.text(max_size=8),
)  # fmt: skip
_NUMBERS = """
0 -1 1.5 1e400 -1e400 .nan .inf 1e999999 99999999999 4294967296 -9223372036854775809 0o17 0b1 1_0
1:30 2001-13-45 1e-320 true null ~
"""
NUMBERS = st.one_of(
    st.sampled_from(_NUMBERS.split()),
    st.builds(
        lambda start, digit, n: start + digit * n,
        st.sampled_from(["", "0x", "-", "1:"]),
        st.sampled_from(["9", "f", "1:", "1_"]),
        LONG,
    ),
)
PATTERNS = st.builds(
    lambda part, n: f"['{part * n}b']",
    st.sampled_from(["*a", "**/", "?*", "[a-z]*", "[z-a]", "{"]),
    st.sampled_from([1, 12, 60, 3000]),
)  # fmt: skip
SWEEPS = st.builds(
    "{}({},{})".format, st.sampled_from(["range", "choice", "interval", "tag", "sort", "glob"]),
    NUMBERS, NUMBERS,
)  # fmt: skip
NESTED = st.builds(
    lambda opening, n, inner: opening * n + inner + {"[": "]", "{a: ": "}", "${": "}"}.get(
        opening, ")") * n,
    st.sampled_from(["[", "{a: ", "${", "choice(", "("]), LONG, st.sampled_from(["1", "", "seed"]),
)  # fmt: skip
LISTS = st.builds(
    lambda part, n: f"[{part * n}1]", st.sampled_from(["1,", "{a: 1},", "'x',", "[],"]), LONG
)
_WORDS = r"""
[ ] { } *a ! | > ' " ${seed} ${oc.env:HOME} ${.} ${..a} # % @ = << ~ null 1e9 &a !!set !!binary
!!python/name:os.system _target_ os.system _args_ / .. s3://a:b@c
"""
_SPACED = ["- ", ": ", "? ", "\n", "\t", "\x00", "\ud800", "\u202e", "é", "a:\n- b\n"]
PIECES = st.sampled_from([*_WORDS.split(), *_SPACED])
SOUP = st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=8).map("".join)
REPEATED = st.builds(lambda piece, n: piece * n, PIECES, LONG)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["${seed}", "${oc.env:NOT_THERE}", "/etc", "../x", "s3://b/c", "os.system"]),
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(["_target_", "_args_", "_partial_", "a"]), LEAVES),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)
WHOLE_TREES = TREES.map(
    lambda tree: yaml.safe_dump(tree, default_flow_style=True, allow_unicode=True)
).map(lambda text: text.strip().removesuffix("...").strip())
MANY = st.builds("{},{}".format, NUMBERS, NESTED)
SMALL = st.one_of(WHOLE_TREES, WHOLE_TREES, NUMBERS, NUMBERS, PATTERNS, SWEEPS)
VALUES = st.one_of(SMALL, SMALL, NESTED, LISTS, SOUP, REPEATED, MANY)
OVERRIDE = st.builds("{}{}={}".format, st.sampled_from(["", "", "", "+", "~", "++"]), KEYS, VALUES)
DOUBLED = [f"+model.a{i}=${{model.a{i - 1}}}${{model.a{i - 1}}}" for i in range(1, 30)]


def _by_form(overrides: list[str], *, is_sweep: bool) -> None:
    from headrace_airflow.dag_parts import check_overrides, check_sweep, overrides_of

    asked = overrides_of({"recipe": "digits", "site": "laptop", "overrides": overrides})
    taken = check_sweep(asked, None) if is_sweep else check_overrides(asked)
    kind = "suite" if is_sweep else "train"
    more = {"key": f"form:{time.time_ns()}", "owner": "airflow:a:b", "user": "ada"}
    lifecycle.create_run(
        RunRequest(recipe="digits", site="laptop", overrides=taken, kind=kind, **more)
    )


@functools.cache
def _command() -> Any:
    from typer.main import get_command

    return get_command(build())


def _by_terminal(overrides: list[str], *, is_sweep: bool) -> None:
    verb = "sweep" if is_sweep else "run"
    _command()(args=[verb, "digits", "--", *overrides], prog_name="headrace")


def _asked(door: Any, overrides: list[str], *, is_sweep: bool) -> None:
    """Go as far as a run; only errors with a name may end it, and short ones."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MAX_BYTES, resource.RLIM_INFINITY))
    told, began = "", time.process_time()
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    try:
        door(overrides, is_sweep=is_sweep)
    except AcceptedError as accepted:
        (recipe,) = accepted.args
        matcher(recipe.dataset.include)("a" * 60 + "/")
    except HeadraceError as error:
        told = str(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    took_s = time.process_time() - began
    assert len(told) < MAX_MESSAGE, len(told)
    assert took_s <= MAX_CPU_S, f"{took_s:.1f} s"


def _over(*_: int | FrameType | None) -> None:
    raise TooLong


def _accept(request: object, recipe: object, site: object) -> None:
    raise AcceptedError(recipe)


@settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(OVERRIDE, min_size=1, max_size=3), st.booleans())
@example(["suite.seeds=99999999999"], True)
@example([f"seed=0x{'f' * 5000}"], False)
@example([f"{'a.' * 20_000}b=1"], False)
@example([f"dataset.include=['{'*a' * 60}b']"], False)
@example(["+model.a0=xxxxxxxxxx", *DOUBLED], False)
def hold(overrides: list[str], is_sweep: bool) -> None:
    """Each door, one after the other."""
    for door in (_by_form, _by_terminal):
        Path(sys.argv[1]).write_text(f"{door.__name__} {str(overrides)[:5000]}")
        _asked(door, overrides, is_sweep=is_sweep)


def main() -> None:
    """Try them all; the exit code is 0 where all is well."""
    signal.signal(signal.SIGPROF, _over)
    (home() / "examples" / "digits").mkdir(parents=True, exist_ok=True)
    site = functools.lru_cache(lifecycle.load_site)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(lifecycle, "_new_run", _accept))
        stack.enter_context(mock.patch.object(lifecycle, "load_site", site))
        stack.enter_context(redirect_stdout(StringIO()))
        stack.enter_context(redirect_stderr(StringIO()))
        for door in (_by_form, _by_terminal):
            for is_sweep in (False, True):
                with suppress(AcceptedError):  # what is imported and read once takes its time
                    door(["seed=1,2" if is_sweep else "seed=1"], is_sweep=is_sweep)
        hold()


if __name__ == "__main__":
    main()
