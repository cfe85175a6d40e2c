"""Packing from S3: the same dataset as from a folder of the same files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DataError, RecipeError, StoreAccessError
from headrace.files.manifest_file import read_manifest
from headrace.objects import s3_errors
from headrace.objects.store import open_store
from headrace.packing.pack_step import pack
from headrace.steps.context import StepContext
from support.packing import write_image
from support.s3_faults import Cut, Refuse, faulty
from support.s3_servers import S3Server

MakeContext = Callable[..., StepContext]


@pytest.fixture(params=["rclone", "swift"])
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
    image_source, packs, make_context, in_process, bucket, server
):
    copied(image_source, f"{bucket}/images", server)
    local = packs(image_source)
    context = at(make_context(f"{bucket}/images"), server)
    remote = pack(context, in_process)
    assert shard_bytes(remote) == shard_bytes(local)
    assert remote["fingerprint"] == local["fingerprint"]
    assert read_manifest(Path(remote["dataset"])).provenance["source"] == f"{bucket}/images"
    assert pack(context, in_process)["reused"]
    store = open_store(f"{bucket}/images", server.options)
    store.write("cat/01.png", store.read("cat/02.png"))
    assert pack(context, in_process)["dataset"] != remote["dataset"]


def test_from_and_to_a_store_of_another_scheme(image_source, packs):
    """What fsspec opens is packed by the same code."""
    local = packs(image_source)
    store = open_store("memory://bucket/images")
    for file in open_store(str(image_source)).list_files():
        store.upload(image_source / file.path, file.path)
    target = {"target": "memory://bucket/packed"}
    remote = packs("memory://bucket/images", pack=target)
    packed = open_store(remote["dataset"])
    assert remote["fingerprint"] == local["fingerprint"]
    for name, content in shard_bytes(local).items():
        assert packed.read(f"shards/{name}") == content
    assert packs("memory://bucket/images", pack=target)["reused"]


def test_a_dataset_is_put_on_s3_shard_by_shard(
    image_source, packs, make_context, in_process, bucket, server
):
    local = packs(image_source)
    context = at(make_context(image_source, pack={"target": f"{bucket}/packed/"}), server)
    remote = pack(context, in_process)
    assert remote["dataset"] == f"{bucket}/packed/{Path(local['dataset']).name}"
    assert remote["fingerprint"] == local["fingerprint"]
    store = open_store(remote["dataset"], server.options)
    for name, content in shard_bytes(local).items():
        assert store.read(f"shards/{name}") == content
    assert {file.path for file in store.list_files()} == {
        "manifest.json",
        *(f"shards/{name}" for name in shard_bytes(local)),
    }
    calls = in_process.num_calls
    assert pack(context, in_process) == {**remote, "reused": True}
    assert in_process.num_calls == calls
    given = make_context(None, {"path": remote["dataset"]})
    assert pack(at(given, server), in_process) == {**remote, "reused": True}


def test_only_missing_shards_are_packed_and_sent_again(
    image_source, make_context, in_process, bucket, server, tmp_path
):
    site = tmp_path / "other-site"
    context = at(make_context(image_source, pack={"target": bucket}, site_folder=site), server)
    store = open_store(bucket, server.options)
    upload = type(store).upload
    lying: list[list[str]] = []

    def counted(self: Any, source: Path, path: str, tick: Any = None) -> None:
        lying.append([each.name for each in site.glob("**/*.h5*")])
        upload(self, source, path, tick)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store), "upload", counted)
        first = pack(context, in_process)
    assert len(lying) == first["num_shards"]
    assert all(len(names) == 1 for names in lying)  # the shard that is sent, and no other
    assert not list(site.glob("**/*.h5*"))  # no shard stays here
    store = open_store(first["dataset"], server.options)
    before = {file.path: file for file in store.list_files()}
    store.delete("shards/val-00001.h5")
    with pytest.raises(DataError, match=r"not whole: shards/val-00001\.h5 is missing"):
        pack(at(make_context(None, {"path": first["dataset"]}), server), in_process)
    sent: list[str] = []

    def watched(self: Any, source: Path, path: str, tick: Any = None) -> None:
        sent.append(path)
        upload(self, source, path, tick)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store), "upload", watched)
        again = pack(context, in_process)
    assert sent == ["shards/val-00001.h5"]
    assert again == first
    after = {file.path: file for file in store.list_files()}
    assert {path: after[path].num_bytes for path in after} == {
        path: before[path].num_bytes for path in before
    }


def test_new_samples_are_added_to_a_dataset_on_s3(
    image_source, make_context, in_process, bucket, server, monkeypatch
):
    """Old shards stay as they are, also when it is interrupted; the same as in a folder."""

    def packed(**options: Any) -> dict[str, Any]:
        options["append"] = True
        return pack(at(make_context(image_source, pack=options), server), in_process)

    local, first = packed(), packed(target=bucket)
    assert packed(target=f"{bucket}/elsewhere")["dataset"].startswith(f"{bucket}/elsewhere/")
    store = open_store(first["dataset"], server.options)
    old = {file.path: file.version for file in store.list_files()}
    manifest = store.read("manifest.json")
    for number in range(40, 50):
        write_image(image_source / "cow" / f"{number}.png", number)

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headrace.packing.pack_step.merge", cut)
        with pytest.raises(KeyboardInterrupt):
            packed(target=bucket)
    assert store.read("manifest.json") == manifest
    again, grown = packed(target=bucket), packed()
    assert (again["dataset"], again["num_samples"]) == (first["dataset"], 50)
    assert again["fingerprint"] == grown["fingerprint"] != local["fingerprint"]
    new = {file.path: file.version for file in store.list_files()}
    assert {path: new[path] for path in old if path != "manifest.json"} == {
        path: version for path, version in old.items() if path != "manifest.json"
    }
    assert store.read("manifest-1.json") == manifest
    for name, content in shard_bytes(grown).items():
        assert store.read(f"shards/{name}") == content
    assert packed(target=bucket) == {**again, "reused": True}


def test_trouble_on_the_way_costs_nothing_but_time(
    image_source, packs, make_context, in_process, swift_bucket, swift_server, monkeypatch
):
    """Throttling, 5xx and cuts: the same dataset. Expired credentials: told, then resumed."""
    monkeypatch.setattr(s3_errors, "FIRST_PAUSE_S", 0.001)
    copied(image_source, f"{swift_bucket}/raw", swift_server)
    local = packs(image_source)
    with faulty(swift_server.endpoint_url) as faults:
        server = S3Server(name="faulty", endpoint_url=faults.endpoint_url)
        pack_to = {"target": f"{swift_bucket}/packed"}
        context = at(make_context(f"{swift_bucket}/raw", pack=pack_to), server)
        trouble = [Refuse(503, "SlowDown"), Cut(3), Refuse(500, "InternalError"), Cut(0)]
        faults.waiting.extend(trouble)
        faults.concerns = lambda method, path: (
            "/shards/val-00001" in path if not faults.waiting else ".png" in path
        )
        faults.always = Refuse(400, "ExpiredToken")
        with pytest.raises(StoreAccessError, match="ExpiredToken") as caught:
            pack(context, in_process)
        assert "Renew the credentials" in str(caught.value)
        assert not faults.waiting
        faults.always = None
        before = len(faults.requests)
        remote = pack(context, in_process)
        sent = [one for one in faults.requests[before:] if one.startswith("PUT")]
    assert remote["fingerprint"] == local["fingerprint"]
    store = open_store(remote["dataset"], swift_server.options)
    for name, content in shard_bytes(local).items():
        assert store.read(f"shards/{name}") == content
    assert not [one for one in sent if "train-00000" in one]  # finished work is kept
    assert [one for one in sent if "val-00001" in one]


def test_a_local_target_is_a_folder_of_datasets(image_source, packs, tmp_path):
    made = packs(image_source, pack={"target": str(tmp_path / "there")})
    assert Path(made["dataset"]).parent == tmp_path / "there"
    assert read_manifest(Path(made["dataset"])).fingerprint == made["fingerprint"]


def test_an_empty_prefix_and_a_missing_bucket_are_told(make_context, in_process, bucket, server):
    with pytest.raises(RecipeError, match=f"{bucket}/none is empty"):
        pack(at(make_context(f"{bucket}/none"), server), in_process)
    with pytest.raises(StoreAccessError, match="The bucket of"):
        pack(at(make_context("s3://nobody-has-this-bucket/a"), server), in_process)
