"""Metrics of a script in the logs that it writes: of Hugging Face's Trainer, CSV, TensorBoard.

The files are the user's: they are read in bounded pieces, links are not followed, and what cannot
be read is left out.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.files.sharing import open_to_read
from headrace.informing import AFTERWARDS_S, PATIENCE_S, inform
from headrace.steps.history import HistoryRow, RowWriter
from headrace.training.launch_records import SOURCES, NodeLaunch, TrainingProgress
from headrace.training.progress import finite, training_rows

_EVERY_S, _SHARE = 2.0, 0.05
"""Seconds between looks at the files, and the largest share of the time that looks take."""
_MOST_FOLDERS, _MOST_EVENTS, _MOST_BYTES, _MOST_ROWS = 2_000, 5_000, 2**20, 500
_MOST_STATE_BYTES, _MOST_POINTS = 2**26, 20_000

_KINDS = (r"trainer_state\.json", r".*\.(?:csv|tsv|log)", r"events\.out\.tfevents.*")
_LOG = re.compile("|".join(_KINDS))
_STEPS = ("step", "global_step", "iteration")
_SPLITS = ("train", "validation", "val", "test", "eval")
"""Folders of event files whose names become part of the names of metrics."""
_NUMBERS = (1, 2, 3, 9)
"""Types of TensorFlow's tensors: float, double, int32, int64."""
_Reader = Callable[[Path], Iterator[Mapping[str, object]]]


class ScriptLogs:
    """Writes the metrics in the logs of a script as its progress, from the best of `SOURCES`.

    Of several logs of a kind the one in the folder that appeared last counts.
    """

    def __init__(self, launch: NodeLaunch) -> None:
        self._progress, self._run = launch.folder.progress, RunFolder(Path(launch.run_folder))
        self._due_s = 0.0
        self._files: dict[Path, tuple[int, int]] = {}
        self._folders: dict[Path, int] = {}
        self._loaders: dict[Path, Any] = {}
        self._last = TrainingProgress(epoch=0, step=0)
        self._rows: tuple[RowWriter[HistoryRow], int] | None = None

    def look(self, *, at_end: bool = False) -> None:
        """Read what is new, every few seconds and at the end of the ranks."""
        began_s = time.monotonic()
        if at_end or began_s >= self._due_s:
            within_s = AFTERWARDS_S if at_end else PATIENCE_S
            inform(self._run, "logs of the script", partial(self._look, at_end), None, within_s)
            now_s = time.monotonic()
            self._due_s = now_s + max(_EVERY_S, (now_s - began_s) / _SHARE)

    def _look(self, at_end: bool) -> None:
        now = read_record(self._progress, TrainingProgress)
        files = _logs_in(self._run.work, self._run.checkpoints)
        if files == self._files and not at_end:
            return
        self._files = files
        for path in sorted(files, key=files.__getitem__):
            self._folders.setdefault(path.parent, len(self._folders))
        paths = sorted(files, key=lambda p: (self._folders[p.parent], files[p]), reverse=True)
        worst = SOURCES.index(now.source) if now else len(SOURCES)
        readers: tuple[_Reader, ...] = (
            _states,
            partial(_rows, at_end=at_end),
            partial(self._events, most=_MOST_EVENTS * (40 if at_end else 1)),
        )
        for source, kind, read in zip(SOURCES[2 : worst + 1], _KINDS, readers, strict=False):
            folders: dict[Path, list[Path]] = {}
            for path in (path for path in paths if re.fullmatch(kind, path.name)):
                of = path.parent.parent if path.parent.name in _SPLITS else path.parent
                folders.setdefault(of, []).append(path)
            for logs in folders.values():
                # the last rows, so that a look takes about a second for logs of any size
                last = (deque(read(path), max(_MOST_POINTS // len(logs), 1)) for path in logs)
                found = chain(*(_merged(_points(rows)) for rows in last))
                points = _merged(sorted(found, key=attrgetter("step")))
                if has_metrics := any(each.metrics for each in points):
                    self._write(source, points)
                if has_metrics or source == SOURCES[-1]:  # events are read only once
                    return

    def _events(self, path: Path, most: int) -> Iterator[Mapping[str, object]]:
        """Yield the numbers in a file of TensorBoard, each once; none without TensorBoard."""
        if find_spec("tensorboard") is None:
            return
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray

        if path not in self._loaders:
            self._loaders[path] = EventFileLoader(str(path))
        split = f"{path.parent.name}/" if path.parent.name in _SPLITS else ""
        for event in islice(self._loaders[path].Load(), most):
            for value in event.summary.value:
                if value.tensor.dtype in _NUMBERS and not value.tensor.tensor_shape.dim:
                    number = make_ndarray(value.tensor).item()
                    yield {"step": event.step, f"{split}{value.tag}": number}

    def _write(self, source: str, points: list[TrainingProgress]) -> None:
        """Write points that are new: all of them, if their source is or the log began again."""
        metrics, last = self._last.metrics, self._last
        if last.source == source and points[-1].step >= last.step:
            points = [each for each in points if each.step >= last.step]
        for each in points:
            metrics = metrics | each.metrics
        update = {"metrics": metrics, "loss": finite(metrics.get("loss")), "source": source}
        self._last = points[-1].model_copy(update=update)
        write_record(self._progress, self._last)
        rows, number = self._rows = self._rows or training_rows(self._run, _EVERY_S)
        for each in (*points[: -1 : len(points) // _MOST_ROWS + 1], points[-1]):
            shown = {name: value for name, value in each.metrics.items() if name != "loss"}
            about = each.model_dump(include={"epoch", "step", "loss"})
            if rows.has_room:
                rows.append(HistoryRow(at=time.time(), launch=number, metrics=shown, **about))


def _logs_in(*folders: Path) -> dict[Path, tuple[int, int]]:
    """Return logs with the time of their last change and their size, without links and pipes."""
    found: dict[Path, tuple[int, int]] = {}
    below = (islice(os.walk(each), _MOST_FOLDERS) for each in folders)
    for folder, _, names in chain(*below):
        for path in (Path(folder, name) for name in names if _LOG.fullmatch(name)):
            with suppress(OSError):  # it may be gone already
                about = path.lstat()
                if stat.S_ISREG(about.st_mode):
                    found[path] = (about.st_mtime_ns, about.st_size)
    return found


def _states(path: Path) -> Iterator[Mapping[str, object]]:
    """Yield the history of Hugging Face's Trainer, with the epoch under way, not those done."""
    state: Any = None
    with suppress(OSError, ValueError, RecursionError), open_to_read(path) as file:
        state = json.loads(file.read(_MOST_STATE_BYTES))
    rows = state.get("log_history") if isinstance(state, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and (epoch := _number(row.get("epoch"))) is not None:
            yield row | {"epoch": epoch - 1}


def _rows(path: Path, at_end: bool) -> Iterator[Mapping[str, object]]:
    """Yield the rows of a table with steps or epochs; of a large one the last."""
    with suppress(OSError, csv.Error), open_to_read(path) as file:
        head = file.readline(_MOST_BYTES).decode("utf-8-sig", "replace")
        separator = max(",;\t", key=head.count)
        names = [name.strip() for name in next(csv.reader([head], delimiter=separator), [])]
        if not {"epoch", *_STEPS} & {name.lower() for name in names}:
            return
        begin, size = file.tell(), file.seek(0, os.SEEK_END)
        is_long = size - begin > _MOST_BYTES
        file.seek(size - _MOST_BYTES if is_long else begin)
        lines = file.read(_MOST_BYTES).splitlines(keepends=True)[is_long:]
        if lines and not (at_end or lines[-1].endswith(b"\n")):
            lines.pop()  # half written
        texts = (line.decode("utf-8", "replace") for line in lines)
        yield from csv.DictReader(texts, names, delimiter=separator)


def _points(rows: Iterable[Mapping[str, object]]) -> Iterator[TrainingProgress]:
    """Yield the numbers of rows that have a step, or an epoch, counted from the first: 0 or 1."""
    first: int | None = None
    for row in rows:
        found = {str(name): _number(each) for name, each in row.items()}
        values = {name: each for name, each in found.items() if each is not None}
        step, epoch = (
            next((values.pop(name) for name in [*values] if name.lower() in names), math.nan)
            for names in (_STEPS, ("epoch",))
        )
        if not math.isfinite(step) and not math.isfinite(epoch):
            continue
        whole = max(math.ceil(epoch), 0) if math.isfinite(epoch) else 0
        if math.isfinite(step):
            yield TrainingProgress(epoch=whole, step=int(step), metrics=values)
            continue
        first = min(whole, 1) if first is None else first
        whole -= first
        yield TrainingProgress(epoch=whole, step=whole + 1, unit="epochs", metrics=values)


def _number(value: object) -> float | None:
    with suppress(ValueError, OverflowError):
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            return float(value)
    return None


def _merged(points: Iterable[TrainingProgress]) -> list[TrainingProgress]:
    """Return one point for a step; a step that comes again replaces those after it."""
    found: list[TrainingProgress] = []
    for each in points:
        while found and found[-1].step > each.step:
            found.pop()
        before = found.pop().metrics if found and found[-1].step == each.step else {}
        metrics = before | each.metrics
        update = {"metrics": metrics, "loss": finite(metrics.get("loss"))}
        found.append(each.model_copy(update=update))
    return found
