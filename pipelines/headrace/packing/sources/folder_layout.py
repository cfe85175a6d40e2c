"""What the folders of a source mean: splits, classes, or neither."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from headrace.errors import UnclearNamesError
from headrace.packing.sample_table import SampleTable, coded_texts, extracted, shown
from headrace.packing.sources.source_store import HIDDEN, SourceStore
from headrace.recipe.dataset import TRAIN, DatasetSpec

Chain: TypeAlias = tuple[str, ...]
"""Names of the folders that a sample lies in, the outermost first."""

_SPLIT = re.compile(
    r"(?:(?P<train>train(?:ing)?)|(?P<val>val(?:id(?:ation)?)?|dev)|(?P<test>test(?:ing)?))"
    r"(?:[ ._-]*(?:set|data|images?|imgs?|split|of|\d+))*",
    re.IGNORECASE,
)


def split_named(name: str) -> str:
    """Return the split that a name spells, as `Validation` or `test_images`; empty for none."""
    found = _SPLIT.fullmatch(name.strip())
    return str(found.lastgroup) if found else ""


def with_folders(
    listed: SampleTable, spec: DatasetSpec, place: SourceStore, prefix: str, *, labelled: bool
) -> tuple[SampleTable, tuple[str, ...]]:
    """Return samples with the splits and classes of their folders, and notes for people.

    Splits of an index stay. `prefix` is what all paths begin with; `labelled`: classes are folders.

    Raises:
        UnclearNamesError: It is not clear what folders mean, or a sample lies in no class folder.
    """
    (folders,) = extracted(listed.paths, r"(?s)^(?P<folder>(?:.*/)?)[^/]*$")
    below = [folder.removeprefix(prefix) for folder in folders.dictionary.to_pylist()]
    chains, is_given = _chains(below, place), listed.has("split")
    level = None if is_given else _split_level(chains, spec, place.name, labelled=labelled)
    notes, depth = list[str](), 0
    splits = [split_named(chain[level]) if level is not None else "" for chain in chains]
    if level is not None:
        counts, depth = np.bincount(folders.indices, minlength=len(chains)), level + 1
        sums = Counter[tuple[str, str]]()
        for chain, split, count in zip(chains, splits, counts.tolist(), strict=True):
            sums[split, chain[level]] += count
        notes = [f"split '{of}': folder '{name}', {n:,} samples" for (of, name), n in sums.items()]
        listed = listed.with_columns(split=coded_texts(splits, folders.indices))
    if labelled:
        rests = _without_splits(chains, level)
        columns = takewhile(lambda names: len(set(names)) == 1, zip(*rests, strict=False))
        wrapped = [names[0] for names in columns][: max(min(map(len, rests)) - 1, 0)]
        classes = ["".join(rest[len(wrapped) : len(wrapped) + 1]) for rest in rests]
        _check_classes(listed, folders, rests, classes, place.name)
        depth += len(wrapped) + 1
        notes += [f"classes: the folders in '{'/'.join(wrapped)}'"] if wrapped else []
        trained = {name for name, split in zip(classes, splits, strict=True) if split == TRAIN}
        unknown = sorted(set(classes) - trained) if trained else []
        notes += [f"classes without a sample in split 'train': {shown(unknown)}"] if unknown else []
        listed = listed.with_columns(label=coded_texts(classes, folders.indices))
    empty = _empty_folders(place.folder / prefix, chains, depth) if place.folder else []
    return listed, (*notes, *([f"folders without a sample: {shown(empty)}"] if empty else []))


def _chains(folders: Sequence[str], place: SourceStore) -> list[Chain]:
    """Return the chain of each folder; tar files are folders if their names are several splits."""
    chains: list[Chain] = []
    for folder in folders:
        outer = re.match(place.outer, folder)
        inner = tuple(folder[outer.end() if outer else 0 :].split("/")[:-1])
        parts = outer.group().lower().replace(".tar/", "/").split("/") if outer else ()
        chains.append((next(filter(None, map(split_named, parts)), ""), *inner))
    several = len({chain[0] for chain in chains}) > 1
    return chains if several else [chain[1:] for chain in chains]


def _split_level(
    chains: Sequence[Chain], spec: DatasetSpec, place: str, *, labelled: bool
) -> int | None:
    """Return which folder of each chain is the split; None if none is."""
    named = [(at, name) for chain in chains for at, name in enumerate(chain) if split_named(name)]
    if spec.split_folders is False or not (named or spec.split_folders):
        return None
    level, name = min(named, default=(0, ""))
    outside = [chain for chain in chains if not split_named("".join(chain[level : level + 1]))]
    if spec.split_folders and outside:
        raise UnclearNamesError(
            f"dataset.split_folders is true, but '{place}/{'/'.join(outside[0])}' is no split",
            "Splits are train, training, val, valid, validation, dev, test and testing. Move its "
            "samples, narrow dataset.include, or set dataset.split_folders to false.",
        )
    why = next(_doubts(chains, level, spec, labelled=labelled), "")
    if why and not spec.split_folders:
        raise UnclearNamesError(
            f"The folder '{name}' in {place} may be a split or not: {why}",
            "Set dataset.split_folders to true to take the folders named train, val or test as "
            "splits (leave dataset.splits out), or to false to split all samples anew by "
            "dataset.splits.",
        )
    return level


def _doubts(
    chains: Sequence[Chain], level: int, spec: DatasetSpec, *, labelled: bool
) -> Iterator[str]:
    """Yield why the folders of a level may not be splits."""
    names = sorted({"".join(chain[level : level + 1]) for chain in chains})
    for other in names:
        if not split_named(other):
            yield f"'{other}' beside it is none" if other else "not all samples lie in one"
            return
    if len({chain[:level] for chain in chains}) > 1:
        yield f"it lies in '{'/'.join(chains[0][:level])}', one of several folders"
    if len(names) == 1:
        yield "there is no other"
    if len(set(map(split_named, names))) < len(names):
        yield f"two of the folders {shown(names)} are the same split"
    rests = _without_splits(chains, level)
    if any(split_named(name) for rest in rests for name in rest):
        yield "folders in it have names of splits, too"
    if labelled and not all(rests):
        yield "not all of them have class folders"
    if spec.splits != DatasetSpec.model_fields["splits"].default:
        yield "dataset.splits gives shares"


def _without_splits(chains: Sequence[Chain], level: int | None) -> list[Chain]:
    """Return the chains without the folders of splits, as both of `train/train`."""
    if level is None:
        return list(chains)
    found = list[Chain]()
    for chain in chains:
        at, split = level + 1, split_named(chain[level])
        while at < len(chain) and split_named(chain[at]) == split:
            at += 1
        found.append(chain[:level] + chain[at:])
    return found


def _check_classes(
    listed: SampleTable, folders: Any, rests: Sequence[Chain], classes: Sequence[str], place: str
) -> None:
    """Refuse samples without a class folder, and folders in what seems to be the only class."""
    shallow = min(range(len(rests)), key=lambda number: len(rests[number]))
    path = listed[int(np.flatnonzero(np.asarray(folders.indices) == shallow)[0])].path
    if not rests[shallow]:
        raise UnclearNamesError(
            f"{place}/{path} lies in no class folder, but labels come from folders",
            "Move it into a folder named by its class, set dataset.labels to 'none', or to "
            "'index' with the name of the file of labels in dataset.index.",
        )
    if len(set(classes)) == 1 and len(set(map(len, rests))) > 1:
        raise UnclearNamesError(
            f"{place}/{path} lies beside folders: '{classes[0]}' may be the only class, or hold "
            "the folders of the classes",
            "Move it into a folder named by its class, narrow dataset.include, or set "
            "dataset.labels to 'none' if there are no classes.",
        )


def _empty_folders(place: Path, chains: Sequence[Chain], depth: int) -> list[str]:
    """Return the folders beside those of splits and classes that hold no sample."""
    known = {chain[: at + 1] for chain in chains for at in range(depth)}
    return [
        "/".join((*parent, entry.name))
        for parent in sorted({chain[:at] for chain in chains for at in range(depth)})
        for entry in os.scandir(place.joinpath(*parent))
        if entry.is_dir() and (*parent, entry.name) not in known
        if entry.name[0] != "." and not HIDDEN.search(f"{entry.name}/")
    ]
