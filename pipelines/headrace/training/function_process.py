"""Process that calls the user's function, forked for each call from one with its module.

So the modules are loaded once, and calls cannot change them for each other. PyTorch is imported
only if the user's module does so.
"""

from __future__ import annotations

import atexit
import numbers
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.data.instantiate import Allowed, instantiate, resolve
from headrace.errors import HeadraceError, RecipeError, UserCodeError, UserError
from headrace.files.layout import RunFolder
from headrace.processes.call_server import answer_calls
from headrace.processes.identity import begin_child
from headrace.recipe.base import Target
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.targets import uses
from headrace.steps.context import resolved
from headrace.training.function import PRELOAD, Called
from headrace.training.launch_records import FailureKind
from headrace.training.rank_failures import describe, to_error, user_trace

_KEY = "train.function"
_OF_THE_MACHINE = (FailureKind.OUT_OF_MEMORY, FailureKind.NO_SPACE)


def answer(given: tuple[Recipe, Site]) -> Called:
    """Call the function of a recipe; return its metrics and usage.

    Raises:
        TargetError: The site does not allow the function, or it does not exist.
        UserCodeError: The function raised.
        UserError: It returned something else than metrics.
    """
    recipe, site = given
    target = _target(recipe)
    function = instantiate(target, Allowed.of(recipe, site), _KEY, partial=True)
    began_at, began_s = time.time(), time.monotonic()
    try:
        returned = _returned(function, target.target)
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001  of `headrace.script`, and the user's: it has ended
    metrics = metrics_of(returned, target.target)
    own, below = (resource.getrusage(who) for who in _WHO)
    return Called(
        metrics=metrics,
        began_at=began_at,
        seconds=time.monotonic() - began_s,
        cpu_s=own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime,
        memory_bytes=1024 * max(own.ru_maxrss, below.ru_maxrss),
        gpu_memory_bytes=_gpu_memory_bytes(),
    )


_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _target(recipe: Recipe) -> Target:
    if recipe.train.function is None:
        raise RecipeError("The recipe has no 'train.function'")
    return recipe.train.function


def _returned(function: Callable[[], object], name: str) -> object:
    try:
        return function()
    except HeadraceError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        failure = describe(error, 0)
        if failure.kind in _OF_THE_MACHINE:
            raise to_error(failure, where="") from error
        raise UserCodeError(
            f"{name} raised {type(error).__name__}: {error}",
            "Correct the function and run again.",
            trace=user_trace(error),
        ) from error


def metrics_of(returned: object, name: str) -> dict[str, float]:
    """Return the metrics of a function as numbers by name; numpy's and PyTorch's are numbers, too.

    Raises:
        UserError: The function returned no metrics, or other values than numbers.
    """
    hint = 'Return a mapping of names to numbers, such as {"loss": 0.1}.'
    if not isinstance(returned, Mapping) or not returned:
        raise UserError(f"{name} returned {_shown(returned)}, which holds no metrics", hint)
    found = {}
    for metric, value in returned.items():
        number = _number(value)
        if not isinstance(metric, str) or number is None:
            raise UserError(
                f"{name} returned {_shown(value)} as the metric {metric!r}, which is not a number",
                hint,
            )
        found[metric] = number
    return found


def _number(value: object) -> float | None:
    is_one = isinstance(value, numbers.Real) or getattr(value, "shape", None) == ()
    if not is_one:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _gpu_memory_bytes() -> int | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(max(map(torch.cuda.max_memory_reserved, range(torch.cuda.device_count()))))


def load() -> None:
    """Import what the function of a run needs; errors are raised again by the call.

    `line_profiler` profiles only the process that imported its `@profile`: it does so in the call.
    """
    if "LINE_PROFILER_RC" in os.environ:
        return
    with suppress(HeadraceError):
        recipe, site = resolved(RunFolder(Path(os.environ[PRELOAD].rpartition(":")[0])))
        allowed = Allowed.of(recipe, site)
        for use in uses(_KEY, _target(recipe).as_config()):
            resolve(use, allowed)


def main(arguments: list[str]) -> int:
    """Answer calls of `headrace.training.function`."""
    del arguments
    begin_child()
    answer_calls(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
