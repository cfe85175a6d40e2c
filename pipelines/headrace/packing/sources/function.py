"""Samples that a function of the user's makes out of files."""

from __future__ import annotations

import inspect
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import xxhash

from headrace.errors import DataError, HeadraceError, RecipeError, UnreadableError, UserCodeError
from headrace.fields.array import is_of_numbers
from headrace.fields.field_kind import Value, kind_named, kind_of_bytes
from headrace.files.machine import told_when_full
from headrace.objects.protocol import Check, StoredFile
from headrace.packing.reading import reading
from headrace.packing.sample_table import ROLES, SampleTable, by_path, files_of, strings
from headrace.packing.samples import (
    Access,
    Fields,
    Opening,
    SourceField,
    Unreadable,
    Values,
    bytes_of,
)
from headrace.packing.sources.folder import FolderSource
from headrace.packing.sources.row_container import GONE, NO_NAME
from headrace.recipe.dataset import DatasetSpec

Types = tuple[type, ...]

_SEVERAL = (list, tuple, Iterator)
"""Types of what a function returns that makes several samples of a file."""
_DTYPES = {bool: "bool", int: "int64", float: "float64"}


class FunctionSource(FolderSource):
    """Files, each read by `dataset.reader`, which takes a local path.

    Those of S3 lie in a temporary folder while the function reads them, one at a time.
    """

    _takes_columns = False

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        spec = opening.spec
        self._by_folders = spec.labels == "folders"
        self._by_names = spec.labels == "auto" and spec.label_kind == "class"
        self._roles: list[str] = []

    @classmethod
    def check_spec(cls, spec: DatasetSpec) -> None:
        if spec.fields:
            raise RecipeError(
                "Both dataset.reader and dataset.fields are given",
                "The names in the dict that the function returns are the fields; keep one.",
            )
        # numbers to predict may be in the dict
        super().check_spec(spec if spec.index else spec.model_copy(update={"label_kind": "class"}))

    def is_of_arrays(self, refs: SampleTable) -> bool:
        return False

    def _num_own(self, refs: SampleTable) -> int:
        has_value = self._index is not None and self._spec.label_kind == "value"
        return len(self.fields) - 1 if has_value else len(self.fields)

    def _read_own(self, refs: SampleTable, fields: Fields) -> Iterator[Values | Unreadable]:
        kinds = {field.name: kind_named(field.kind).types for field in fields}
        files: dict[StoredFile, set[str]] = {}
        for ref in refs:
            file = StoredFile(*ref[:3])
            if self._index is None and ref.where:  # one of several
                file = StoredFile(ref.path[: ref.where[1]], ref.where[0], ref.version)
            files.setdefault(file, set()).add(ref.path)
        found: dict[str, Values | Unreadable] = {}
        waiting = deque(ref.path for ref in refs)
        with closing(self._local(list(files))) as places:
            for (file, wanted), place in zip(files.items(), places, strict=True):
                for path, made in self._samples(file.path, place):
                    if path in wanted:
                        found[path] = _checked(path, made, kinds)
                while waiting and waiting[0] in found:
                    yield found.pop(waiting.popleft())
        for path in waiting:
            yield found.get(path, Unreadable(path, "the reader did not yield it again"))

    def _samples(self, path: str, place: Path | UnreadableError) -> Iterator[tuple[str, Any]]:
        """Yield what the function makes of a file, each with the path of the sample."""
        if isinstance(place, UnreadableError):
            yield path, Unreadable(path, place.what)
            return
        try:
            made = self._function(str(place))
            if not isinstance(made, _SEVERAL):
                yield path, made
                return
            path = f"{path}#{0:06}"
            for number, each in enumerate(made, 1):
                yield path, each
                path = f"{path.rpartition('#')[0]}#{number:06}"
        except HeadraceError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 the user's code may raise anything
            yield path, Unreadable(path, f"the reader raised {type(error).__name__}: {error}")

    def _expanded(self, listed: SampleTable, check: Check | None) -> SampleTable:
        if not self.sequential and not self._roles:
            return listed
        rows: list[tuple[Any, ...]] = []
        self.quarantined = bad = list[Unreadable]()
        with closing(self._local(files_of(listed))) as places:
            for ref, place in zip(listed, places, strict=True):
                for path, made in self._samples(ref.path, place):
                    names = _names(path, made, self._roles)
                    if isinstance(names, Unreadable):
                        bad.append(names)
                    else:
                        own = sum(map(bytes_of, made.values()))
                        num_bytes = own if self.sequential else ref.num_bytes
                        file = ref.num_bytes, len(ref.path)
                        rows.append((path, num_bytes, ref.version, *file, *names))
                if check is not None:
                    check()
        if not rows:
            raise DataError(f"The reader of dataset.reader made no sample: {bad[0].reason}")
        paths, sizes, versions, of_files, lengths, *roles = map(list, zip(*rows, strict=True))
        columns = dict(zip(self._roles, roles, strict=True))
        columns |= {"path": paths, "bytes": sizes, "version": strings(versions)}
        columns["places"] = [of_files, lengths] if self.sequential else []
        return by_path(SampleTable.of(**columns))

    def _local(self, files: Sequence[StoredFile]) -> Generator[Path | UnreadableError, None, None]:
        """Local paths of files, each until the next is asked for."""
        if self._place.folder is not None:
            for file in files:
                self._place.unchanged(file.path, file.version)
                reading(str(self._place.folder / file.path))
                yield self._place.folder / file.path
            return
        with TemporaryDirectory(prefix="headrace-") as folder:
            for file, content in zip(files, self._place.read(files), strict=True):
                if isinstance(content, UnreadableError):
                    yield content
                    continue
                path = Path(folder, file.path)
                with told_when_full(Path(folder), file.num_bytes):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                reading(f"{self._place.name}/{file.path}")
                yield path
                path.unlink(missing_ok=True)  # the function may have moved it

    def _fields_of(self, listed: SampleTable) -> Fields:
        name, made = self._first(listed)
        if not isinstance(made, Mapping) or not made:
            raise RecipeError(
                f"The reader of dataset.reader returned {type(made).__name__} for {name}",
                "Return a dict of fields: bytes, str, numbers or numpy arrays by name; or yield "
                "such dicts, one for each sample.",
            )
        if self.sequential and self._index is not None:
            raise RecipeError(
                f"dataset.index names files, but the reader yields several samples of {name}",
                "Leave dataset.index out: yield label, group and split with the other fields.",
            )
        is_class = self._by_names and isinstance(made.get("label"), str | int | np.integer)
        roles = ROLES if self._index is None else ()
        self._roles = [each for each in roles if each in made and (each != "label" or is_class)]
        own = {str(key): value for key, value in made.items() if key not in self._roles}
        return tuple(_field(name, key, value) for key, value in own.items())

    def _first(self, listed: SampleTable) -> tuple[str, Any]:
        """Return the first sample, with the name of its file."""
        name, made = "", None
        files = files_of(listed)
        with closing(self._local(files)) as places:
            for file, place in zip(files, places, strict=True):
                name = f"{self._place.name}/{file.path}"
                try:
                    made = self._function(str(place))
                    if isinstance(made, _SEVERAL):
                        self.sequential = True  # neighbours are made together
                        made = next(iter(made), None)
                except HeadraceError:
                    raise
                except (Exception, SystemExit) as error:
                    raise UserCodeError(
                        f"The reader of dataset.reader raised {type(error).__name__} for {name}: "
                        f"{error}",
                        "Correct the function, or narrow dataset.include.",
                        trace="".join(traceback.format_exception(error)),
                    ) from error
                if made is not None or not self.sequential:
                    break
        return name, made

    @cached_property
    def _function(self) -> Callable[[str], Any]:
        return _reader(self._spec, self._access)


def reader_code(spec: DatasetSpec, access: Access) -> str:
    """Hash of the file that `dataset.reader` is written in; empty without one.

    What that file imports does not count.
    """
    if spec.reader is None:
        return ""
    try:
        file = inspect.getsourcefile(inspect.unwrap(_reader(spec, access).func))
    except TypeError:  # it is not written in Python
        file = None
    return xxhash.xxh3_128_hexdigest(Path(file).read_bytes()) if file else ""


def _reader(spec: DatasetSpec, access: Access) -> partial[Any]:
    from headrace.data.instantiate import Allowed, instantiate

    if spec.reader is None or access.recipe is None or access.site is None:
        raise RecipeError("dataset.format 'function' needs dataset.reader, and a site for it")
    allowed = Allowed.of(access.recipe, access.site)
    function = instantiate(spec.reader, allowed, "dataset.reader", partial=True)
    return cast("partial[Any]", function)


def _field(name: str, key: str, value: object) -> SourceField:
    if isinstance(value, bytes):
        return SourceField(key, kind_of_bytes(value).name)
    if isinstance(value, str):
        return SourceField(key, "text")
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _DTYPES:
        return SourceField(key, "value", dtype=_DTYPES[type(value)])
    if isinstance(value, np.ndarray) and is_of_numbers(value.dtype):
        return SourceField(key, "array")
    raise RecipeError(
        f"The reader of dataset.reader returned {type(value).__name__} as '{key}' for {name}",
        "Valid: bytes, str, numbers and numpy arrays of numbers.",
    )


def _names(path: str, made: object, roles: Sequence[str]) -> Sequence[str | None] | Unreadable:
    """Return the class, group and split of a sample, or why it has none."""
    if isinstance(made, Unreadable):
        return made
    if not isinstance(made, Mapping):
        return Unreadable(path, f"the reader returned {type(made).__name__}, not a dict")
    names: list[str | None] = []
    for role in roles:
        value = made.get(role)
        value = value.item() if isinstance(value, np.generic) else value
        if type(value) not in (str, int, type(None)):
            return Unreadable(path, f"the {role} is {value!r}, which is {NO_NAME}")
        names.append(None if value is None else str(value).strip() or None)
        if names[-1] is None and role != "group":
            return Unreadable(path, f"{role}: {GONE}")
    return names


def _checked(path: str, made: object, kinds: Mapping[str, Types]) -> Values | Unreadable:
    if isinstance(made, Unreadable):
        return made
    if isinstance(made, Mapping):
        made = {key: value for key, value in made.items() if key in kinds or key not in ROLES}
    if not isinstance(made, Mapping) or made.keys() != kinds.keys():
        found = ", ".join(sorted(map(str, made))) if isinstance(made, Mapping) else made
        return Unreadable(path, f"the reader returned {found} in place of {', '.join(kinds)}")
    values: dict[str, Value] = {}
    for name, value in made.items():
        if not isinstance(value, kinds[name]):
            return Unreadable(path, f"the reader returned {type(value).__name__} as '{name}'")
        if isinstance(value, np.ndarray):
            order = value.dtype.newbyteorder("<")
            # a copy: a generator may fill its array again
            values[name] = np.array(value, dtype=order, order="C").reshape(value.shape)
        else:
            values[name] = cast("Value", value.item() if isinstance(value, np.generic) else value)
    return values
