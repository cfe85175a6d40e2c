"""Samples that a function of the user's makes out of files."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import xxhash

from headrace.errors import HeadraceError, RecipeError, UserCodeError
from headrace.fields.array import is_of_numbers
from headrace.fields.field_kind import Value, kind_named, kind_of_bytes
from headrace.files.machine import told_when_full
from headrace.packing.reading import reading
from headrace.packing.sample_table import SampleRef, SampleTable, files_of
from headrace.packing.samples import Access, Fields, SourceField, Unreadable, Values
from headrace.packing.sources.folder import FolderSource
from headrace.packing.sources.source_store import SourceStore
from headrace.recipe.dataset import DatasetSpec

Types = tuple[type, ...]

_DTYPES = {bool: "bool", int: "int64", float: "float64"}


class FunctionSource(FolderSource):
    """Files, each read by `dataset.reader`, which takes a local path.

    Those of S3 lie in a temporary folder while the function reads them, one at a time.
    """

    _takes_columns = False

    def __init__(
        self, spec: DatasetSpec, place: SourceStore, fields: Fields, access: Access
    ) -> None:
        super().__init__(spec, place, fields, access)
        self._access = access
        self._by_folders = spec.labels == "folders"

    @classmethod
    def check_spec(cls, spec: DatasetSpec) -> None:
        if spec.fields:
            raise RecipeError(
                "Both dataset.reader and dataset.fields are given",
                "The names in the dict that the function returns are the fields; keep one.",
            )
        super().check_spec(spec)

    def is_of_arrays(self, refs: Sequence[SampleRef]) -> bool:
        return False

    def _num_own(self, refs: Sequence[SampleRef]) -> int:
        has_value = self._index is not None and self._spec.label_kind == "value"
        return len(self.fields) - 1 if has_value else len(self.fields)

    def _read_own(self, refs: Sequence[SampleRef], fields: Fields) -> Iterator[Values | Unreadable]:
        kinds = {field.name: kind_named(field.kind).types for field in fields}
        for ref, path in zip(refs, self._local(refs), strict=True):
            if isinstance(path, Unreadable):
                yield path
                continue
            try:
                made = self._function(str(path))
            except HeadraceError:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 the user's code may raise anything
                yield Unreadable(ref.path, f"the reader raised {type(error).__name__}: {error}")
                continue
            yield _checked(ref.path, made, kinds)

    def _local(self, refs: Sequence[SampleRef]) -> Generator[Path | Unreadable, None, None]:
        """Local paths of files, each until the next is asked for."""
        if self._place.folder is not None:
            for ref in refs:
                self._place.unchanged(ref.path, ref.version)
                reading(str(self._place.folder / ref.path))
                yield self._place.folder / ref.path
            return
        files = files_of(refs)
        with TemporaryDirectory(prefix="headrace-") as folder:
            for file, content in zip(files, self._place.read(files), strict=True):
                if isinstance(content, Unreadable):
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
        ref = listed[0]
        name = f"{self._place.name}/{ref.path}"
        with closing(self._local([ref])) as paths:
            try:
                made = self._function(str(next(paths)))
            except HeadraceError:
                raise
            except (Exception, SystemExit) as error:
                raise UserCodeError(
                    f"The reader of dataset.reader raised {type(error).__name__} for {name}: "
                    f"{error}",
                    "Correct the function, or narrow dataset.include.",
                    trace="".join(traceback.format_exception(error)),
                ) from error
        if not isinstance(made, Mapping) or not made:
            raise RecipeError(
                f"The reader of dataset.reader returned {type(made).__name__} for {name}",
                "Return a dict of fields: bytes, str, numbers or numpy arrays by name.",
            )
        return tuple(_field(name, str(key), value) for key, value in made.items())

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


def _checked(path: str, made: object, kinds: Mapping[str, Types]) -> Values | Unreadable:
    if not isinstance(made, Mapping) or made.keys() != kinds.keys():
        found = ", ".join(sorted(map(str, made))) if isinstance(made, Mapping) else made
        return Unreadable(path, f"the reader returned {found} in place of {', '.join(kinds)}")
    values: dict[str, Value] = {}
    for name, value in made.items():
        if not isinstance(value, kinds[name]):
            return Unreadable(path, f"the reader returned {type(value).__name__} as '{name}'")
        if isinstance(value, np.ndarray):
            order = value.dtype.newbyteorder("<")
            values[name] = np.ascontiguousarray(value, dtype=order).reshape(value.shape)
        else:
            values[name] = cast("Value", value.item() if isinstance(value, np.generic) else value)
    return values
