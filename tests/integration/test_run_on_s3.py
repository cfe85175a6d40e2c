"""A whole run between S3 prefixes: raw samples there, the packed dataset there too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import ManifestError, ShardError
from headrace.objects.store import below, open_store
from headrace.staging.staged import StagingOptions, ensure_staged
from support.bad_input import Place, status_of
from support.s3_servers import SECRET, S3Server
from support.staged_datasets import make_dataset, same_bytes, tier

pytestmark = pytest.mark.slow

NUM_EACH = 12


@pytest.fixture
def place(tmp_path: Path, rclone_server: S3Server) -> Place:
    """A home whose site names the server."""
    found = Place(tmp_path / "home")
    found.home.mkdir()
    found.write_site(s3={"endpoint_url": rclone_server.endpoint_url})
    return found


def test_pack_stage_train_and_evaluate(
    place: Place,
    digits_folder: Path,
    rclone_server: S3Server,
    rclone_bucket: str,
    no_leftover_processes: None,
) -> None:
    """The site's options and the environment's credentials reach every process."""
    raw = open_store(below(rclone_bucket, "raw"), rclone_server.options)
    for folder in sorted(digits_folder.glob("[0-9]")):
        for image in sorted(folder.iterdir())[:NUM_EACH]:
            raw.upload(image, f"{folder.name}/{image.name}")
    overrides = [
        f"dataset.source={rclone_bucket}/raw",
        f"pack.target={rclone_bucket}/packed",
        "pack.shard_samples=16",
        "pack_role=gpu",
        "data.global_batch_size=8",
        "trainer.max_epochs=1",
        f"trainer.checkpoint_target={rclone_bucket}/kept",
    ]
    done = place.run("digits", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    steps = status_of(place)["steps"]
    dataset = steps["pack"]["outputs"]["dataset"]
    assert dataset.startswith(f"{rclone_bucket}/packed/digits-")
    assert steps["pack"]["outputs"]["num_samples"] == 10 * NUM_EACH
    assert steps["evaluate"]["outputs"]["num_samples"] == 10 * NUM_EACH // 5
    assert not list((place.home / "datasets").glob("**/*.h5"))
    files = [file.path for file in open_store(dataset, rclone_server.options).list_files()]
    assert "manifest.json" in files
    final = Path(steps["train"]["outputs"]["checkpoint"])
    kept = open_store(below(rclone_bucket, "kept", final.parents[1].name), rclone_server.options)
    assert kept.read(final.name) == final.read_bytes()
    told = place.headrace("cost", "--by", "kind", "--json")
    took = {each["kind"]: each for each in json.loads(told.stdout)}
    size = steps["pack"]["outputs"]["num_bytes"]
    pictures = sum(file.num_bytes for file in raw.list_files())
    assert (took["pack"]["stored_bytes"], took["pack"]["fetched_bytes"]) == (size, pictures)
    assert took["pack"]["samples"] == 10 * NUM_EACH
    assert took["stage"]["fetched_bytes"] == steps["stage"]["outputs"]["copied_bytes"]


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
