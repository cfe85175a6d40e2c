"""The identity of a dataset's content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

from headrace.storage.manifest import FieldInfo, ShardInfo


def content_fingerprint(
    fields: Iterable[FieldInfo], classes: Sequence[str], shards: Iterable[ShardInfo]
) -> str:
    """Hash of fields, classes and shard checksums: equal content, equal fingerprint.

    Args:
        fields: Fields of a sample.
        classes: Class names.
        shards: All shards in order.

    Returns:
        32 hexadecimal digits (XXH3, 128 bits).
    """
    state = xxhash.xxh3_128()
    for info in fields:
        state.update(f"{info.model_dump_json()}\n".encode())
    for name in classes:
        state.update(f"{name!r}\n".encode())
    for shard in shards:
        line = f"{shard.file} {shard.split} {shard.num_samples} {shard.xxh3_128}\n"
        state.update(line.encode())
    return state.hexdigest()
