"""Packing from S3: the same dataset as from a folder of the same files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DataError, RecipeError, StoreAccessError
from headrace.packing.step import pack
from headrace.steps.context import StepContext
from headrace.storage.manifest import read_manifest
from headrace.storage.store import open_store
from support.s3_servers import S3Server

MakeContext = Callable[..., StepContext]


@pytest.fixture(params=["moto", "rclone"])
def server(request: pytest.FixtureRequest) -> S3Server:
    """An S3 server."""
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, S3Server)
    return found


@pytest.fixture
def bucket(server: S3Server, request: pytest.FixtureRequest) -> str:
    """An empty bucket of it."""
    return str(request.getfixturevalue(f"{server.name}_bucket"))


def copied(folder: Path, url: str, server: S3Server) -> None:
    store = open_store(url, server.options)
    for file in open_store(str(folder)).list_files():
        store.upload(folder / file.path, file.path)


def at(context: StepContext, server: S3Server) -> StepContext:
    """The context on a site with that server."""
    context.site = context.site.model_copy(update={"s3": server.options})
    return context


def shard_bytes(outputs: dict[str, Any]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(outputs["dataset"], "shards").iterdir()}


def test_the_same_shards_as_from_a_folder(
    image_source: Path, make_context: MakeContext, in_process: Any, bucket: str, server: S3Server
) -> None:
    copied(image_source, f"{bucket}/images", server)
    local = pack(make_context(image_source), in_process)
    context = at(make_context(f"{bucket}/images"), server)
    remote = pack(context, in_process)
    assert shard_bytes(remote) == shard_bytes(local)
    assert remote["fingerprint"] == local["fingerprint"]
    assert read_manifest(Path(remote["dataset"])).provenance["source"] == f"{bucket}/images"
    assert pack(context, in_process)["reused"]
    store = open_store(f"{bucket}/images", server.options)
    store.write("cat/01.png", store.read("cat/02.png"))
    assert pack(context, in_process)["dataset"] != remote["dataset"]


def test_arrays_too(
    array_source: Path, make_context: MakeContext, in_process: Any, bucket: str, server: S3Server
) -> None:
    copied(array_source, bucket, server)
    local = pack(make_context(array_source, {"labels": "none"}), in_process)
    remote = pack(at(make_context(bucket, {"labels": "none"}), server), in_process)
    assert shard_bytes(remote) == shard_bytes(local)


def test_a_file_that_is_replaced_while_packing_is_told(
    image_source: Path, make_context: MakeContext, in_process: Any, bucket: str, server: S3Server
) -> None:
    """Never a dataset of two generations of files."""
    copied(image_source, bucket, server)

    def replace_then_backwards(count: int) -> Any:
        open_store(bucket, server.options).write("cat/01.png", b"other")
        return range(count)

    in_process.order = replace_then_backwards
    with pytest.raises(DataError, match=r"cat/01\.png was written to since"):
        pack(at(make_context(bucket), server), in_process)


def test_an_empty_prefix_and_a_missing_bucket_are_told(
    make_context: MakeContext, in_process: Any, bucket: str, server: S3Server
) -> None:
    with pytest.raises(RecipeError, match=f"{bucket}/none is empty"):
        pack(at(make_context(f"{bucket}/none"), server), in_process)
    with pytest.raises(StoreAccessError, match="no bucket"):
        pack(at(make_context("s3://nobody-has-this-bucket/a"), server), in_process)
