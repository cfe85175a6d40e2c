"""WebDataset shards: members of a tar file with the same key are one sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import BinaryIO

from headrace.errors import DataError, RecipeError, nearest
from headrace.objects.protocol import StoredFile
from headrace.packing.samples import (
    Access,
    Fields,
    SampleRef,
    SourceField,
    Unreadable,
    Value,
    Values,
)
from headrace.packing.sources.files import (
    chosen,
    containers,
    field_of,
    kind_of,
    no_index,
    no_second_label,
    number_type,
    sorted_unique,
    to_number,
)
from headrace.packing.sources.parts import values_of
from headrace.packing.sources.place import ByteRange, Check, SourcePlace
from headrace.packing.sources.tars import SUFFIXES, Member, members
from headrace.recipe.dataset import DatasetSpec

_LABEL_KEY = "cls"
_IGNORED = ("__key__", "__url__")
_NUM_LOOKED_AT = 64


class WebDatasetSource:
    """Samples of tar files as the library `webdataset` writes them."""

    classes: tuple[str, ...] = ()
    sequential = True

    def __init__(
        self, spec: DatasetSpec, place: SourcePlace, fields: Fields, access: Access
    ) -> None:
        no_index(spec.index, "webdataset")
        if spec.labels == "folders":
            raise RecipeError(
                "dataset.labels is 'folders', but WebDataset samples lie in no class folders",
                "Set dataset.label_field to the key that holds the label, such as cls.",
            )
        self.fields = fields
        self._place = place
        self._include = chosen(spec)
        self._keys = dict(spec.fields)
        self._label_key = spec.label_field or _LABEL_KEY
        self._label_needed = spec.label_field is not None
        self._labels = "none" if spec.labels == "none" else spec.label_kind
        self._roles = {"group": spec.group_field, "split": spec.split_field}

    def list_samples(self, check: Check | None = None) -> Sequence[SampleRef]:
        """All samples, sorted by path; labels, groups and splits are read on the way."""
        refs: list[SampleRef] = []
        dtypes: set[str] = set()
        for file in containers(self._place, "webdataset", SUFFIXES, check, self._include):
            with self._place.open(file.path, file.version) as stream:
                found = list(members(self._place, file, stream))
                for key, parts in _grouped(f"{self._place.name}/{file.path}", found):
                    self._start(file, key, parts)
                    refs.append(self._ref(file, stream, key, parts, dtypes))
            if check is not None:
                check()
        if self._labels == "value" and dtypes:
            dtype = "int64" if dtypes == {"int64"} else "float64"
            self.fields = (*self.fields, SourceField("label", "value", dtype=dtype))
        no_second_label(self.fields, refs)
        return sorted_unique(refs)

    def read(self, refs: Sequence[SampleRef]) -> Iterator[Values | Unreadable]:
        """Values of a batch of samples, in order."""
        parts = [
            ByteRange(ref.path[: ref.where[0]], ref.version, start, num_bytes)
            for ref in refs
            for start, num_bytes in zip(ref.where[1::2], ref.where[2::2], strict=True)
        ]
        fields = [
            SourceField(field.name, "text") if field.kind == "value" else field
            for field in self.fields
        ]
        numbers = {field.name: field.dtype for field in self.fields if field.kind == "value"}
        for values in values_of(refs, self._place.read_ranges(parts), fields):
            yield values if isinstance(values, Unreadable) else _with_numbers(values, numbers)

    def _start(self, file: StoredFile, key: str, parts: Mapping[str, Member]) -> None:
        """Let the first sample decide which keys count, and what they are."""
        if self.fields:
            return
        if self._labels == "class" and not self._label_needed and self._label_key not in parts:
            self._labels = "none"
        if not self._keys:
            told = {name for name in self._roles.values() if name}
            if self._labels != "none":
                told.add(self._label_key)
            names = sorted((name for name in parts if name not in told), key=_is_text)
            self._keys = {name: name for name in names}
        example = {name: self._member(file, key, parts, keys) for name, keys in self._keys.items()}
        if not example:
            raise DataError(f"{self._place.name}/{file.path}: sample '{key}' holds no field")
        self.fields = tuple(field_of(name, member.path) for name, member in example.items())

    def _ref(
        self,
        file: StoredFile,
        stream: BinaryIO,
        key: str,
        parts: Mapping[str, Member],
        dtypes: set[str],
    ) -> SampleRef:
        chosen = [self._member(file, key, parts, keys) for keys in self._keys.values()]
        told = {
            role: _text(stream, self._member(file, key, parts, name))
            for role, name in self._roles.items()
            if name
        }
        label = None
        if self._labels != "none":
            member = self._member(file, key, parts, self._label_key)
            label = _text(stream, member)
            if self._labels == "value":
                chosen.append(member)
                dtypes.add(self._number_type(file, key, label))
                label = None
        places = tuple(number for part in chosen for number in (part.start, part.num_bytes))
        return SampleRef(
            f"{file.path}/{key}",
            sum(part.num_bytes for part in chosen),
            file.version,
            label,
            told.get("group"),
            told.get("split"),
            (len(file.path), *places),
        )

    def _member(self, file: StoredFile, key: str, parts: Mapping[str, Member], keys: str) -> Member:
        for name in keys.split(";"):
            if name in parts:
                return parts[name]
        raise DataError(
            f"Sample '{key}' of {self._place.name}/{file.path} has no '{keys}'",
            f"{nearest(keys, parts)} Write dataset.fields as in {{image: 'jpg;png'}} where it has "
            "several names.",
        )

    def _number_type(self, file: StoredFile, key: str, label: str) -> str:
        dtype = number_type(label)
        if dtype:
            return dtype
        raise DataError(
            f"The label of '{key}' in {self._place.name}/{file.path} is '{label}', no number",
            "Correct it, or set dataset.label_kind to 'class'.",
        )


def _is_text(ending: str) -> bool:
    """Whether a key holds text: images, sounds and arrays come before it."""
    return kind_of(f".{ending}") == "text"


def _grouped(name: str, found: Sequence[Member]) -> Iterator[tuple[str, dict[str, Member]]]:
    for key, group in groupby(found, key=lambda member: _split_key(member.path)[0]):
        parts: dict[str, Member] = {}
        for member in group:
            ending = _split_key(member.path)[1]
            if ending in parts:
                raise DataError(
                    f"{name} holds '{member.path}' twice", "Write it again without the copy."
                )
            if ending not in _IGNORED:
                parts[ending] = member
        yield key, parts


def _split_key(path: str) -> tuple[str, str]:
    folder, slash, name = path.rpartition("/")
    key, _, ending = name.partition(".")
    return folder + slash + key, ending.lower()


def _text(stream: BinaryIO, member: Member) -> str:
    stream.seek(member.start)
    return stream.read(member.num_bytes).decode("utf-8", "backslashreplace").strip()


def _with_numbers(values: Values, numbers: Mapping[str, str]) -> Values:
    if not numbers:
        return values
    made: dict[str, Value] = dict(values)
    for name, dtype in numbers.items():
        made[name] = to_number(dtype, made[name])
    return made


def is_webdataset(spec: DatasetSpec, place: SourcePlace, path: str) -> bool:
    """Whether a tar file looks like a WebDataset shard: its first two samples have several parts.

    Raises:
        DataError: It is damaged at its begin.
    """
    if spec.label_field or spec.group_field or spec.split_field:
        return True
    if spec.fields:
        return not any("*" in key for key in spec.fields.values())
    file = place.stat(path)
    if file is None:
        return False
    with place.open(path, file.version) as stream:
        found = list(islice(members(place, file, stream), _NUM_LOOKED_AT))
    samples = [parts for _, parts in _grouped(path, found)][:2]
    return bool(samples) and all(len(parts) > 1 for parts in samples)
