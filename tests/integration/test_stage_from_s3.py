"""Staging a dataset that lies in S3."""

import pytest

from headrace.errors import ManifestError, ShardError
from headrace.objects.store import open_store
from headrace.staging.staged import StagingOptions, ensure_staged
from support.staged_datasets import make_dataset, same_bytes, tier


def upload(folder, url, options):
    store = open_store(url, options)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.upload(path, str(path.relative_to(folder)))


@pytest.mark.parametrize("kind", ["moto", "rclone"])
def test_staged_from_s3_and_read_again_only_when_damaged(tmp_path, kind, request):
    options = request.getfixturevalue(f"{kind}_server").options
    url = request.getfixturevalue(f"{kind}_bucket") + "/some/dataset"
    manifest = make_dataset(tmp_path / "source")
    upload(tmp_path / "source", url, options)
    tiers, s3 = [tier(tmp_path / "tier")], StagingOptions(s3=options)
    copy = ensure_staged(url, tiers, options=s3)
    assert copy.copied_bytes == manifest.num_bytes
    assert same_bytes(tmp_path / "source", copy.folder)
    shard = copy.folder / manifest.shards[0].file
    shard.write_bytes(b"damaged")
    again = ensure_staged(url, tiers, options=s3)
    assert again.copied_bytes == manifest.shards[0].num_bytes
    assert same_bytes(tmp_path / "source", copy.folder)


def test_what_is_wrong_in_s3_is_named(tmp_path, moto_server, moto_bucket):
    options, url = moto_server.options, f"{moto_bucket}/dataset"
    tiers, s3 = [tier(tmp_path / "tier")], StagingOptions(s3=options)
    with pytest.raises(ManifestError, match=f"{url} is not a dataset"):
        ensure_staged(url, tiers, options=s3)
    manifest = make_dataset(tmp_path / "source")
    upload(tmp_path / "source", url, options)
    store = open_store(url, options)
    store.write(manifest.shards[2].file, b"x" * manifest.shards[2].num_bytes)
    with pytest.raises(ShardError, match=rf"{url}/{manifest.shards[2].file} is damaged"):
        ensure_staged(url, tiers, options=s3)
    store.delete(manifest.shards[2].file)
    with pytest.raises(ShardError, match=rf"{url}/{manifest.shards[2].file} is missing"):
        ensure_staged(url, tiers, options=s3)
