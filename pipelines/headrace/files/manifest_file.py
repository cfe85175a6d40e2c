"""`manifest.json`: a manifest on disk, with a digest of all its bytes, which every reader checks.

The digest detects damage and edits by hand. It is not a signature: a process that can write the
file can also compute the digest.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash
from pydantic import BaseModel, ValidationError

from headrace.errors import ManifestError, NoDatasetError
from headrace.files.atomic import AS_USUAL, write_bytes
from headrace.files.manifest import FORMAT_VERSION, Manifest

FILE_NAME = "manifest.json"

_KEY = "digest"
"""Last key of a sealed manifest."""

_MEND = (
    "Restore the file, or remove it and run the recipe again: shards that are whole stay. The "
    "next run mends a staged copy."
)
_SEAL = re.compile(rb'"digest": "([0-9a-f]{32})"\s*\}\s*\Z')


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write `manifest.json` into a dataset's folder, atomically, as readable as its shards."""
    path = folder / FILE_NAME
    write_bytes(path, sealed_manifest(manifest), AS_USUAL)
    return path


def sealed_manifest(manifest: Manifest) -> bytes:
    """Return the content of `manifest.json` with its digest, in the format of this release."""
    current = manifest.model_copy(update={"format_version": FORMAT_VERSION})
    return sealed(current.model_dump_json(indent=1))


def sealed(text: str) -> bytes:
    """Return a JSON object, indented, with the digest of its bytes as its last key."""
    before = f'{text.rstrip().removesuffix("}").rstrip()},\n "{_KEY}": "'.encode()
    after = b'"\n}\n'
    return before + _digest(before + after) + after


def is_sealed(version: int) -> bool:
    """Whether manifests of a format version have a digest."""
    return version > 1


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the dataset in `folder`; raises as `parse_manifest`."""
    path = folder / FILE_NAME
    try:
        return parse_manifest(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise no_dataset(str(folder)) from None


def no_dataset(place: str) -> NoDatasetError:
    """Return the error for a folder or address without a manifest."""
    return NoDatasetError(
        f"{place} is not a dataset: it holds no {FILE_NAME}",
        "Give the folder that `headrace run` or a pack step printed.",
    )


def parse_manifest(text: bytes, path: str) -> Manifest:
    """Parse a manifest file; `ManifestError` if it is damaged, edited or of a newer release."""
    content = unsealed(text, path)
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        from headrace.recipe.schema import explain  # slow to import, rarely needed

        raise _damaged(path, explain(error, Manifest, "its content")[0]) from None
    for problem in _contradictions(manifest, content):
        raise _damaged(path, problem)
    return manifest


def unsealed(text: bytes, path: str) -> dict[str, Any]:
    """Return a manifest's JSON without its digest; arguments and errors as `parse_manifest`."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(content, dict):
        raise _damaged(path, "it does not hold a JSON object")
    version = content.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ManifestError(
            f"{path} has format version {version}; this release reads up to {FORMAT_VERSION}",
            "Upgrade headrace.",
        )
    if content.pop(_KEY, None) is not None:
        _compare(text, path)
    elif isinstance(version, int) and is_sealed(version):
        raise _damaged(path, f"it has no '{_KEY}'")
    return content


def content_fingerprint(
    fields: Iterable[BaseModel], classes: Sequence[str], shards: Iterable[BaseModel]
) -> str:
    """Return the XXH3 of fields, classes and shard checksums; equal if the content is equal."""
    return _fingerprint(
        [info.model_dump(mode="json") for info in fields],
        classes,
        [shard.model_dump(mode="json") for shard in shards],
    )


def _fingerprint(
    fields: Iterable[Mapping[str, Any]], classes: Sequence[str], shards: Iterable[Mapping[str, Any]]
) -> str:
    """Hash the JSON as written: a field counts only with the keys that it was given."""
    state = xxhash.xxh3_128()
    for info in fields:
        line = json.dumps(info, ensure_ascii=False, separators=(",", ":"))
        state.update(f"{line}\n".encode())
    for name in classes:
        state.update(f"{name!r}\n".encode())
    for shard in shards:
        line = " ".join(str(shard[key]) for key in ("file", "split", "num_samples", "xxh3_128"))
        state.update(f"{line}\n".encode())
    return state.hexdigest()


def _contradictions(manifest: Manifest, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield contradictions in a manifest, whose file holds `content`."""
    yield from _of_shards(manifest)
    for split, counts in manifest.class_counts.items():
        if not set(counts) <= set(manifest.classes):
            yield f"it counts samples of classes that it does not name, in split '{split}'"
        elif not manifest.is_part and sum(counts.values()) != manifest.splits.get(split):
            yield f"it counts {sum(counts.values())} samples of classes in split '{split}'"
    if not manifest.is_part:
        found = _fingerprint(content["fields"], manifest.classes, content["shards"])
        if found != manifest.fingerprint:
            yield f"its content has the fingerprint {found}, not {manifest.fingerprint}"


def _of_shards(manifest: Manifest) -> Iterator[str]:
    sums = Counter(dict.fromkeys(manifest.splits, 0))
    folds = {(split, n): 0 for split, sizes in manifest.folds.items() for n in range(len(sizes))}
    for shard in manifest.shards:
        path = PurePosixPath(shard.file)
        if path.is_absolute() or ".." in path.parts:
            yield f"the shard '{shard.file}' is outside of its folder"
        sums[shard.split] += shard.num_samples
        if shard.fold is not None:
            folds[shard.split, shard.fold] = folds.get((shard.split, shard.fold), 0)
            folds[shard.split, shard.fold] += shard.num_samples
    if len({shard.file for shard in manifest.shards}) < len(manifest.shards):
        yield "a shard occurs twice"
    if dict(sums) != manifest.splits:
        yield f"its shards hold {dict(sums)} samples, its splits {manifest.splits}"
    listed = {(split, n): size for split, of in manifest.folds.items() for n, size in enumerate(of)}
    if folds != listed:
        yield f"the folds of its shards hold {folds} samples, its folds {listed}"


def _damaged(path: str, problem: str) -> ManifestError:
    return ManifestError(f"{path} is damaged, or was changed by hand: {problem}", _MEND)


def _compare(text: bytes, path: str) -> None:
    found = _SEAL.search(text)
    if found is None:
        raise _damaged(path, f"'{_KEY}' is not its last key, of 32 digits")
    digest = _digest(text[: found.start(1)] + text[found.end(1) :])
    if digest != found[1]:
        written = found[1].decode()
        raise _damaged(path, f"its {_KEY} is {digest.decode()}, but {written} was written")


def _digest(text: bytes) -> bytes:
    digits: str = xxhash.xxh3_128_hexdigest(text)
    return digits.encode()
