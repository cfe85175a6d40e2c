"""A rank's side of `headrace profile`: records some steps when it is asked to, between two."""

from __future__ import annotations

import inspect
import io
import logging
import sys
import time
import uuid
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from headrace.errors import HeadraceError, UserError
from headrace.files.atomic import read_record, write_if_room
from headrace.files.layout import RunFolder, StepFolder
from headrace.steps.profile import LOOK_S, Operator, ProfileRequest, RankProfile
from headrace.training.records import NodeLaunch

logger = logging.getLogger(__name__)

_MOST_OPERATORS = 30


class Profiling:
    """Records steps of a rank; a look at a file each second while nobody asks.

    Args:
        launch: Its node's.
        rank: Its number.
    """

    def __init__(self, launch: NodeLaunch, rank: int) -> None:
        self._file = StepFolder(Path(launch.step_folder)).profile
        self._run = RunFolder(Path(launch.run_folder))
        self._node, self._rank = launch.node_name, rank
        self._looked_at_s = 0.0
        self._request: ProfileRequest | None = None
        self._recording: _Recording | None = None
        self._step = 0

    def after_batch(self, step: int) -> None:
        """Begin a profile that is asked for, go on with it or end it.

        Args:
            step: Optimizer steps done.
        """
        if self._recording is None:
            self._look()
            if self._request is not None and step >= self._request.first_step:
                self._begin(self._request, step)
        elif step != self._step and self._recording.step():
            self.end()
        self._step = step

    def end(self) -> None:
        """Write what has been recorded; called when there are no more steps, too."""
        recording, request, self._recording, self._request = (
            self._recording, self._request, None, None
        )  # fmt: skip
        if recording is None or request is None:
            return
        trace = request.trace(self._run, self._rank)
        try:
            self._tell(request, recording.told(trace))
        except (OSError, RuntimeError) as error:
            self._tell(request, recording.base.model_copy(update={"error": str(error)}))

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_at_s < LOOK_S:
            return
        self._looked_at_s = now_s
        found = read_record(self._file, ProfileRequest)
        is_for_me = found is not None and self._rank in found.ranks
        if found is None or not is_for_me or found.answer(self._run, self._rank).exists():
            found = None
        self._request = found

    def _begin(self, request: ProfileRequest, step: int) -> None:
        base = RankProfile(rank=self._rank, node=self._node, step=step)
        try:
            self._recording = _Recording(request, base)
        except (HeadraceError, RuntimeError) as error:
            self._tell(request, base.model_copy(update={"error": str(error)}))
            self._request = None

    def _tell(self, request: ProfileRequest, told: RankProfile) -> None:
        file = request.answer(self._run, self._rank)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_if_room(file, told)


class _Recording:
    """Records by torch.profiler, and lines by line_profiler: one step to warm up, then all."""

    def __init__(self, request: ProfileRequest, base: RankProfile) -> None:
        self.base = base
        self._num_steps = request.num_steps
        self._lines = _line_profiler(request.lines) if request.lines else None
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=request.num_steps, repeat=1),
            profile_memory=request.memory,
        )
        self._done = -1
        self._began_s = self._ended_s = 0.0
        self._profile.start()

    def step(self) -> bool:
        """Another step is done; whether it was the last."""
        self._profile.step()
        self._done += 1
        self._ended_s = time.perf_counter()
        if self._done == 0:
            self._began_s = self._ended_s
            if self._lines is not None:
                self._lines.enable_by_count()
        return self._done == self._num_steps

    def told(self, trace: Path) -> RankProfile:
        """End, and write the trace."""
        if self._lines is not None and self._done >= 0:
            self._lines.disable_by_count()
        self._profile.stop()
        if self._done < 1:
            return self.base.model_copy(update={"error": "Training ended before a whole step"})
        self._write(trace)
        found = {
            "num_steps": self._done,
            "seconds": self._ended_s - self._began_s,
            "trace": str(trace),
            "operators": operators(self._profile.key_averages()),
            "lines": "" if self._lines is None else _text(self._lines),
        }
        return self.base.model_copy(update=found)

    def _write(self, trace: Path) -> None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        prepared = trace.with_name(f".{uuid.uuid4().hex[:12]}.json.gz")  # compressed by its name
        try:
            self._profile.export_chrome_trace(str(prepared))
            prepared.replace(trace)
        finally:
            prepared.unlink(missing_ok=True)


def operators(averages: Sequence[Any]) -> tuple[Operator, ...]:
    """Those of `torch.profiler` that took the most time by themselves, the longest first."""
    found = [
        Operator(
            name=each.key,
            calls=each.count,
            cpu_s=each.self_cpu_time_total / 1e6,
            device_s=each.self_device_time_total / 1e6,
            num_bytes=each.self_cpu_memory_usage + each.self_device_memory_usage,
        )
        for each in averages
        if not each.key.startswith("ProfilerStep")
    ]
    found.sort(key=lambda each: (-each.device_s, -each.cpu_s))
    return tuple(found[:_MOST_OPERATORS])


def _line_profiler(names: Sequence[str]) -> Any:
    functions = [_function(name) for name in names]
    try:
        lines = import_module("line_profiler").LineProfiler()
    except ImportError as error:
        raise UserError(
            f"--lines needs line_profiler, which a rank cannot import ({error})",
            "Install it where the ranks run: pip install line_profiler",
        ) from error
    for function in functions:
        lines.add_function(function)
    return lines


def _function(name: str) -> FunctionType:
    """The function of a module that is loaded already: none is imported for a profile."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    found = inspect.unwrap(found) if callable(found) else found
    if not isinstance(found, FunctionType):
        raise UserError(
            f"The training has loaded no function '{name}'",
            "Name it as module:function or module:Class.method, with the module as it is imported.",
        )
    return found


def _text(lines: Any) -> str:
    stream = io.StringIO()
    lines.print_stats(stream=stream)
    return stream.getvalue()
