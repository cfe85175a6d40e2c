"""Tar files: their members as if they were files, and WebDataset shards.

Members of a WebDataset shard with the same key are one sample.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple

from headrace.errors import DataError, RecipeError, nearest
from headrace.fields.value import number_type
from headrace.objects.protocol import ByteRange, Check, StoredFile
from headrace.packing.listed import SampleRef
from headrace.packing.samples import Access, Content, Fields, SourceField, Unreadable, Values
from headrace.packing.sources.files import (
    chosen,
    containers,
    damaged,
    field_of,
    kind_of,
    no_index,
    no_second_label,
    sorted_unique,
)
from headrace.packing.sources.parts import values_of
from headrace.packing.sources.source_store import SourceStore, Wanted, check_names
from headrace.recipe.dataset import DatasetSpec

_SUFFIXES = (".tar",)  # compressed ones cannot be read at any place
_BLOCK_BYTES = 512
_LABEL_KEY = "cls"
_IGNORED = ("__key__", "__url__")
_NUM_LOOKED_AT = 64


class _Member(NamedTuple):
    path: str
    start: int
    """Where its bytes begin in the tar file."""
    num_bytes: int


def _members(place: SourceStore, file: StoredFile, stream: BinaryIO) -> Iterator[_Member]:
    """Files of a tar file in their order, but no folders and no names that begin with a dot."""
    name = f"{place.name}/{file.path}"
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # all would stay in memory
                found = _member(name, info)
                if found is not None:
                    yield found
            end = archive.offset
    except (tarfile.TarError, ValueError) as error:
        raise damaged(name, "tar", error) from error
    stream.seek(end)
    if stream.read(_BLOCK_BYTES) != bytes(_BLOCK_BYTES):  # tarfile takes any other block for it
        raise damaged(name, "tar", "it is cut, or has a broken header")


def _member(name: str, info: tarfile.TarInfo) -> _Member | None:
    path = PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(
            f"{name} holds '{info.name}', a path that leads out of it",
            "Write the tar file again, with paths that begin with no '/' and hold no '..'.",
        )
    if info.isdir() or any(part.startswith(".") for part in path.parts):
        return None
    if not info.isreg() or info.issparse():
        kind = "a link" if info.issym() or info.islnk() else "no plain file"
        raise DataError(
            f"{name} holds '{info.name}', which is {kind}",
            "Write the tar file again with the files themselves (tar --dereference "
            "--hard-dereference).",
        )
    check_names(name, [str(path)])
    return _Member(str(path), info.offset_data, info.size)


class TarStore(SourceStore):
    """The members of all tar files of a source; `a.tar/cat/1.png` is one.

    The version of a member is that of the tar file and where its bytes begin.
    """

    def __init__(self, source: SourceStore) -> None:
        super().__init__(source.store)
        self.folder = None
        self._source = source

    def inside(self, path: str) -> str:
        return path[path.lower().index(".tar/") + len(".tar/") :]

    def names(self, check: Check | None = None) -> Iterator[str]:
        return (file.path for file in self._files(bool, check))

    def read(self, files: Sequence[StoredFile]) -> Iterator[Content]:
        return self.read_ranges([_range(file) for file in files])

    def _files(self, wanted: Wanted, check: Check | None) -> Iterator[StoredFile]:
        for file in containers(self._source, "tar", _SUFFIXES, check):
            with self.open(file.path, file.version) as stream:
                for member in _members(self._source, file, stream):
                    path = f"{file.path}/{member.path}"
                    if wanted(path):
                        version = f"{file.version}@{len(file.path)}@{member.start}"
                        yield StoredFile(path, member.num_bytes, version)
            if check is not None:
                check()


def _range(member: StoredFile) -> ByteRange:
    version, num_outer, start = member.version.rsplit("@", 2)
    return ByteRange(member.path[: int(num_outer)], version, int(start), member.num_bytes)


class WebDatasetSource:
    """Samples of tar files as the library `webdataset` writes them."""

    classes: tuple[str, ...] = ()
    sequential = True

    def __init__(
        self, spec: DatasetSpec, place: SourceStore, fields: Fields, access: Access
    ) -> None:
        no_index(spec.index, "webdataset")
        if spec.labels == "folders":
            raise RecipeError(
                "dataset.labels is 'folders', but WebDataset samples lie in no class folders",
                "Set dataset.labels to 'field' and dataset.label_field to the key that holds the "
                "label, such as cls, or dataset.labels to 'none'.",
            )
        self.fields = fields
        self._place = place
        self._include = chosen(spec)
        self._keys = dict(spec.fields)
        self._label_key = spec.label_field or _LABEL_KEY
        self._label_needed = spec.label_field is not None
        self._labels = "none" if spec.labels == "none" else spec.label_kind
        self._roles = {"group": spec.group_field, "split": spec.split_field}

    def containers(self, check: Check | None = None) -> Sequence[StoredFile]:
        return containers(self._place, "webdataset", _SUFFIXES, check, self._include)

    def list_samples(self, check: Check | None = None) -> Sequence[SampleRef]:
        refs: list[SampleRef] = []
        dtypes: set[str] = set()
        for file in self.containers(check):
            with self._place.open(file.path, file.version) as stream:
                found = list(_members(self._place, file, stream))
                name = f"{self._place.name}/{file.path}"
                for key, parts in _grouped(name, found):
                    sample = _TarSample(file, name, key, parts)
                    if not self.fields:
                        self._start(sample)
                    refs.append(self._ref(sample, stream, dtypes))
            if check is not None:
                check()
        if self._labels == "value" and dtypes:
            dtype = "int64" if dtypes == {"int64"} else "float64"
            self.fields = (*self.fields, SourceField("label", "value", dtype=dtype))
        no_second_label(self.fields, refs)
        return sorted_unique(refs)

    def read(self, refs: Sequence[SampleRef]) -> Iterator[Values | Unreadable]:
        parts = [
            ByteRange(ref.path[: ref.where[0]], ref.version, start, num_bytes)
            for ref in refs
            for start, num_bytes in zip(ref.where[1::2], ref.where[2::2], strict=True)
        ]
        return values_of(refs, self._place.read_ranges(parts), self.fields)

    def _start(self, sample: _TarSample) -> None:
        """Let the first sample decide which keys count, and what they are."""
        if self._labels == "class" and not self._label_needed:
            self._labels = "class" if self._label_key in sample.parts else "none"
        if not self._keys:
            told = {name for name in self._roles.values() if name}
            if self._labels != "none":
                told.add(self._label_key)
            names = [name for name in sample.parts if name not in told]
            names.sort(key=lambda name: kind_of(f".{name}").is_text)  # these come last
            self._keys = {name: name for name in names}
        if not self._keys:
            raise DataError(f"{sample.name}: sample '{sample.key}' holds no field")
        example = {name: sample.member(keys) for name, keys in self._keys.items()}
        self.fields = tuple(field_of(name, member.path) for name, member in example.items())

    def _ref(self, sample: _TarSample, stream: BinaryIO, dtypes: set[str]) -> SampleRef:
        chosen = [sample.member(keys) for keys in self._keys.values()]
        roles = {"label": None if self._labels == "none" else self._label_key, **self._roles}
        told = {role: _text(stream, sample.member(name)) for role, name in roles.items() if name}
        if self._labels == "value":
            chosen.append(sample.member(self._label_key))
            label = told.pop("label")
            dtypes.add(number_type(label))
            if not number_type(label):
                raise DataError(
                    f"The label of '{sample.key}' in {sample.name} is '{label}', no number",
                    "Correct it, or set dataset.label_kind to 'class'.",
                )
        places = (number for part in chosen for number in (part.start, part.num_bytes))
        return SampleRef(
            f"{sample.file.path}/{sample.key}",
            sum(part.num_bytes for part in chosen),
            sample.file.version,
            **told,
            where=(len(sample.file.path), *places),
        )


@dataclass(frozen=True)
class _TarSample:
    file: StoredFile
    name: str
    """The tar file, for messages."""
    key: str
    parts: Mapping[str, _Member]

    def member(self, keys: str) -> _Member:
        """The file of the first of several endings, as in `jpg;png`."""
        for name in keys.split(";"):
            if name in self.parts:
                return self.parts[name]
        raise DataError(
            f"Sample '{self.key}' of {self.name} has no '{keys}'",
            f"{nearest(keys, self.parts)} Write dataset.fields as in {{image: 'jpg;png'}} where it "
            "has several names.",
        )


def _grouped(name: str, found: Sequence[_Member]) -> Iterator[tuple[str, dict[str, _Member]]]:
    for key, group in groupby(found, key=lambda member: _split_key(member.path)[0]):
        parts: dict[str, _Member] = {}
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


def _text(stream: BinaryIO, member: _Member) -> str:
    stream.seek(member.start)
    return stream.read(member.num_bytes).decode("utf-8", "backslashreplace").strip()


def is_webdataset(spec: DatasetSpec, place: SourceStore, path: str) -> bool:
    """Whether the first two samples of a tar file have several parts, as in WebDataset shards."""
    if spec.label_field or spec.group_field or spec.split_field:
        return True
    if spec.fields:
        return not any("*" in key for key in spec.fields.values())
    file = place.stat(path)
    if file is None:
        return False
    with place.open(path, file.version) as stream:
        found = list(islice(_members(place, file, stream), _NUM_LOOKED_AT))
    samples = [parts for _, parts in _grouped(path, found)][:2]
    return bool(samples) and all(len(parts) > 1 for parts in samples)
