"""WebDataset shards: tar files; members with the same key are one sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import DataError, nearest
from headrace.fields.text import number_type
from headrace.objects.protocol import ByteRange, Check, StoredFile
from headrace.packing.sample_table import (
    SampleTable,
    by_path,
    columns_of,
    extracted,
    joined,
    repeated,
    strings,
)
from headrace.packing.samples import Opening, Source, SourceField, Unreadable, Values
from headrace.packing.sources.files import (
    check_field_name,
    chosen,
    containers,
    field_of,
    kind_of,
    left_out,
    no_second_label,
    refuse_paths,
)
from headrace.packing.sources.parts import values_of
from headrace.packing.sources.source_store import SourceStore
from headrace.packing.sources.tars import Member, members
from headrace.recipe.dataset import DatasetSpec

_LABEL_KEY = "cls"
_IGNORED = ("__key__", "__url__")
_NUM_LOOKED_AT = 64
_PARTS = r"(?s)^(?P<key>(?:.*/)?[^/.]*)\.?(?P<ending>[^/]*)$"


class WebDatasetSource(Source):
    """Samples of tar files as the library `webdataset` writes them."""

    sequential = True

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        spec = opening.spec
        self._keys = dict(spec.fields)
        self._label_key = spec.label_field or _LABEL_KEY
        self._label_needed = spec.label_field is not None
        self._labels = "none" if spec.labels == "none" else spec.label_kind
        self._roles = {"group": spec.group_field, "split": spec.split_field}
        self._left_out = Counter[str]()
        self._num_spaced = 0

    @classmethod
    def check_spec(cls, spec: DatasetSpec) -> None:
        refuse_paths(spec, "webdataset", "key that holds the label, such as cls")

    def containers(self, check: Check | None = None) -> Sequence[StoredFile]:
        return containers(self._place, "webdataset", check, chosen(self._spec))

    def list_samples(self, check: Check | None = None) -> SampleTable:
        found, dtypes = list[Any](), set[str]()
        for file in self.containers(check):
            with self._place.open(file.path, file.version) as stream:
                name = f"{self._place.name}/{file.path}"
                samples = _TarSamples(name, members(self._place, file, stream))
                if samples.keys:
                    if not self.fields:
                        self._start(samples)
                    found.append(self._listed(file, samples, stream, dtypes))
            if check is not None:
                check()
        if self._labels == "value" and dtypes:
            dtype = "int64" if dtypes == {"int64"} else "float64"
            self.fields = (*self.fields, SourceField("label", "value", dtype=dtype))
        if not found:
            raise DataError(f"The tar files in {self._place.name} hold no sample")
        self.notes = left_out(self._place.left_out + self._left_out)
        if self._num_spaced:
            self.notes += (f"spaces around {self._num_spaced:,} labels left out",)
        listed = SampleTable.concatenated(found)
        found.clear()  # before they are there once more, sorted
        listed = by_path(listed)
        no_second_label([each.name for each in self.fields], listed.has("label"))
        return listed

    def read(self, refs: SampleTable) -> Iterator[Values | Unreadable]:
        parts = [
            ByteRange(ref.path[: ref.where[0]], ref.version, start, num_bytes)
            for ref in refs
            for start, num_bytes in zip(ref.where[1::2], ref.where[2::2], strict=True)
        ]
        return values_of(refs, self._place.read_ranges(parts), self.fields)

    def _start(self, samples: _TarSamples) -> None:
        """Let the first sample decide which keys count, and what they are."""
        first = samples.endings(0)
        if self._labels == "class" and not self._label_needed:
            self._labels = "class" if self._label_key in first else "none"
        if not self._keys:
            taken = {name for name in self._roles.values() if name}
            if self._labels != "none":
                taken.add(self._label_key)
            names = [name for name in first if name not in taken]
            names.sort(key=lambda name: kind_of(f".{name}").is_text)  # these come last
            self._keys = {name: name for name in names}
        if not self._keys:
            raise DataError(f"{samples.name}: sample '{samples.keys[0]}' holds no field")
        for name in self._keys:
            check_field_name(name, f"'{name}' of {samples.name}")
        examples = {name: samples.files(keys)[0] for name, keys in self._keys.items()}
        self.fields = tuple(
            field_of(name, samples.paths[int(at)].as_py()) for name, at in examples.items()
        )

    def _listed(
        self, file: StoredFile, samples: _TarSamples, stream: BinaryIO, dtypes: set[str]
    ) -> Any:
        """Return the samples of a tar file as a table, and add the types of numeric labels."""
        chosen = [samples.files(endings) for endings in self._keys.values()]
        roles = {"label": None if self._labels == "none" else self._label_key, **self._roles}
        texts = {role: samples.texts(stream, name) for role, name in roles.items() if name}
        self._left_out += samples.left_out({*self._keys.values(), *roles.values()})
        self._num_spaced += samples.num_spaced
        if self._labels == "value":
            chosen.append(samples.files(self._label_key))
            dtypes |= _number_types(samples, texts.pop("label"))
        starts_and_sizes = [each[at] for at in chosen for each in (samples.starts, samples.sizes)]
        places = np.full(len(samples.keys), len(file.path)), *starts_and_sizes
        columns = {
            "path": joined(file.path, samples.keys, separator="/"),
            "bytes": np.sum(starts_and_sizes[1::2], axis=0),
            "version": repeated(file.version, len(samples.keys)),
        }
        return pa.table(columns | texts | {f"place_{n}": each for n, each in enumerate(places)})


def _number_types(samples: _TarSamples, labels: Any) -> set[str]:
    types = {label: number_type(label) for label in labels.dictionary.to_pylist()}
    if not all(types.values()):
        texts = labels.to_numpy(zero_copy_only=False)
        at, label = next((at, label) for at, label in enumerate(texts) if not types[label])
        raise DataError(
            f"The label of '{samples.keys[at]}' in {samples.name} is {label!r:.100}, no number of "
            "64 bits",
            "Correct it, or set dataset.label_kind to 'class'.",
        )
    return set(types.values())


class _TarSamples:
    """The files of a tar file; those of one key that follow each other are a sample.

    Attributes:
        name: The tar file, for messages.
        keys: Key of each sample.
        paths: Path of each file.
        starts: Where its bytes begin, `(num_files,) int64`.
        sizes: How many it has, `(num_files,) int64`.
    """

    def __init__(self, name: str, found: Iterator[Member]) -> None:
        self.name = name
        columns = columns_of(found, pa.large_string(), pa.int64(), pa.int64())
        self.paths, self.starts, self.sizes = columns[0], *map(np.asarray, columns[1:])
        keys, endings = extracted(self.paths, _PARTS)
        begins = np.diff(keys.indices, prepend=-1) != 0
        self.keys = keys.dictionary.take(keys.indices.filter(begins))
        self._sample_of = np.cumsum(begins) - 1
        self._files = self._by_ending(endings)
        self.num_spaced = 0

    def _by_ending(self, endings: Any) -> dict[str, NDArray[np.int64]]:
        """The files that count by their ending in lower case, in order."""
        known: dict[str, int] = {}
        lower = [
            known.setdefault(ending.lower(), len(known))
            for ending in endings.dictionary.to_pylist()
        ]
        codes = np.array(lower, dtype=np.int64)[endings.indices.to_numpy()]
        ends = np.cumsum(np.bincount(codes, minlength=len(known)))
        each = zip(known, np.split(np.argsort(codes, kind="stable"), ends[:-1]), strict=False)
        found = {ending: at for ending, at in each if ending not in _IGNORED}
        for at in found.values():
            again = np.flatnonzero(np.diff(self._sample_of[at]) == 0)
            if len(again):
                raise DataError(
                    f"{self.name} holds '{self.paths[int(at[again[0] + 1])]}' twice",
                    "Write it again without the copy.",
                )
        return found

    def endings(self, sample: int) -> list[str]:
        """Endings of the files of a sample, in order where it is the first."""
        return [ending for ending, at in self._files.items() if sample in self._sample_of[at]]

    def files(self, endings: str) -> NDArray[np.int64]:
        """Of each sample the file with the first of several endings, as in `jpg;png`.

        Raises:
            DataError: A sample has none of them.
        """
        found = np.full(len(self.keys), -1, dtype=np.int64)
        for ending in reversed(endings.split(";")):
            at = self._files.get(ending, found[:0])
            found[self._sample_of[at]] = at
        if len(found) and found.min() < 0:
            first = int(found.argmin())
            raise DataError(
                f"Sample '{self.keys[first]}' of {self.name} has no '{endings}'",
                f"{nearest(endings, self.endings(first))} Write dataset.fields as in "
                "{image: 'jpg;png'} where it has several names.",
            )
        return found

    def left_out(self, taken: Iterable[str | None]) -> Counter[str]:
        """Return how many files have endings that are not among those taken."""
        known = {each for endings in taken for each in (endings or "").split(";")}
        counts = {ending: len(at) for ending, at in self._files.items() if ending not in known}
        return Counter({f".{ending}": num for ending, num in counts.items()})

    def texts(self, stream: BinaryIO, endings: str) -> Any:
        """What the file with one of the endings holds, of each sample."""
        at, found = self.files(endings), []
        for key, start, num_bytes in zip(self.keys, self.starts[at], self.sizes[at], strict=True):
            stream.seek(start)
            content = stream.read(num_bytes)
            text = content.decode("utf-8", "ignore")
            if not text.strip() or text.encode() != content:
                raise DataError(
                    f"'{endings}' of sample '{key}' of {self.name} is {content!r:.100}, no text in "
                    "UTF-8",
                    "Correct it, or remove the sample.",
                )
            found.append(text.strip())
            self.num_spaced += found[-1] != text.strip("\r\n")
        return strings(found).dictionary_encode()


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
        found = _TarSamples(path, islice(members(place, file, stream), _NUM_LOOKED_AT))
    firsts = [found.endings(number) for number in range(len(found.keys))[:2]]
    return bool(firsts) and all(len(endings) > 1 for endings in firsts)
