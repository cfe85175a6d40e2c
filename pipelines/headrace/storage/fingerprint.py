"""The identity of a dataset's content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import xxhash
from pydantic import BaseModel


def content_fingerprint(
    fields: Iterable[BaseModel], classes: Sequence[str], shards: Iterable[BaseModel]
) -> str:
    """Hash of fields, classes and shard checksums: equal content, equal fingerprint.

    Args:
        fields: Fields of a sample, `FieldInfo`.
        classes: Class names.
        shards: All shards in order, `ShardInfo`.

    Returns:
        32 hexadecimal digits (XXH3, 128 bits).
    """
    return fingerprint_of(
        [info.model_dump(mode="json") for info in fields],
        classes,
        [shard.model_dump(mode="json") for shard in shards],
    )


def fingerprint_of(
    fields: Iterable[Mapping[str, Any]],
    classes: Sequence[str],
    shards: Iterable[Mapping[str, Any]],
) -> str:
    """As `content_fingerprint`, of what a manifest says as it is written there.

    A field counts with just the keys that were known when the dataset was packed.
    """
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
