"""Where a packed dataset is put: a folder, or an S3 prefix to which each shard goes when whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from headrace.errors import DataError, ManifestError
from headrace.files.atomic import read_bytes, write_text
from headrace.files.checksums import file_xxh3_128
from headrace.files.layout import Entry, Folder, SiteFolder
from headrace.files.machine import told_when_full
from headrace.files.manifest import Manifest, ShardInfo
from headrace.files.manifest_file import FILE_NAME, sealed_manifest
from headrace.objects.store import (
    below,
    is_remote,
    missing_shards,
    open_store,
    read_manifest_at,
)
from headrace.recipe.site import Site, StoreOptions

_URL_FILE = "url"  # in the folder of a dataset that lies in S3: where


class DatasetFolder(Folder):
    """A dataset's folder while it is packed and after."""

    shards = Entry("shards")
    """Folder of the shards."""
    parts = Entry("parts")
    """Folder of plans and records of single shards; readers of the dataset ignore it."""
    sources_file = Entry("parts/sources")
    """Keys by which the dataset is known without listing what its containers hold."""

    def plan_file(self, shard_file: str) -> Path:
        """Plan of a shard, by its path relative to the dataset."""
        return self.parts / f"{Path(shard_file).stem}.plan.arrow"

    def reading_file(self, shard_file: str) -> Path:
        """What is read for a shard; left over if that ended its worker."""
        return self.parts / f"{Path(shard_file).stem}.reading"

    def record_file(self, shard_file: str) -> Path:
        """Record of a packed shard, by its path relative to the dataset."""
        return self.parts / f"{Path(shard_file).stem}.json"


@dataclass(frozen=True, kw_only=True)
class PackTarget:
    """The place of one dataset; may be pickled.

    Whatever reaches S3 raises a `StoreError`, whatever writes a `StorageFullError`.
    """

    folder: DatasetFolder
    """Plans, records and locks; with no `url` also shards and manifest."""
    url: str | None
    """S3 prefix of shards and manifest; None when they stay in the folder."""
    s3: StoreOptions

    @classmethod
    def of(cls, site: Site, place: str | None, name: str) -> PackTarget:
        """The target of a dataset."""
        folder = SiteFolder(Path(site.folder).expanduser()).datasets / name
        if place is not None and is_remote(place):
            url = below(place, name)  # a folder of its own: a dataset packed here stays whole
            folder = folder.with_name(f".{name}-{xxhash.xxh3_64_hexdigest(url.encode())}")
            return cls(folder=DatasetFolder(folder), url=url, s3=site.s3)
        if place is not None:
            folder = Path(open_store(place).url) / name
        return cls(folder=DatasetFolder(folder), url=None, s3=site.s3)

    @property
    def location(self) -> str:
        """Folder or URL of the dataset."""
        return self.url or str(self.folder.path)

    @property
    def lock_file(self) -> Path:
        """Locked while the dataset is packed."""
        return self.folder.path.parent / f".{self.folder.path.name.lstrip('.')}.lock"

    def siblings(self, name: str) -> Iterator[PackTarget]:
        """All datasets of a name, without its key, that this site packed at the same place."""
        datasets = self.folder.path.parent
        if self.url is None:
            for folder in datasets.glob(f"{name}-*"):
                yield replace(self, folder=DatasetFolder(folder))
            return
        place = self.url.rpartition("/")[0]
        for file in datasets.glob(f".{name}-*/{_URL_FILE}"):
            url = file.read_text().strip()
            if url.rpartition("/")[0] == place:
                yield replace(self, folder=DatasetFolder(file.parent), url=url)

    def remember(self, sources_key: str, pack_key: str) -> None:
        """Note that containers of these sizes, times and settings were packed into the dataset."""
        text = f"{sources_key} {pack_key}\n"
        # of another user's dataset: it is listed again next time
        with suppress(PermissionError), told_when_full(self.folder.parts, len(text)):
            if read_bytes(self.folder.sources_file) != text.encode():
                write_text(self.folder.sources_file, text)

    def packed_from(self, sources_key: str, name: str) -> tuple[PackTarget, Manifest] | None:
        """The whole dataset of a name, at the same place, that `remember` knows by that key."""
        for each in self.siblings(name):
            text = (read_bytes(each.folder.sources_file) or b"").decode()
            known, _, pack_key = text.partition(" ")
            manifest = each.reusable(pack_key.strip()) if known == sources_key else None
            if manifest is not None:
                return each, manifest
        return None

    def reusable(self, pack_key: str) -> Manifest | None:
        """The manifest when a dataset of that key is there and whole; None to pack it."""
        try:
            manifest = read_manifest_at(self.location, self.s3)
        except ManifestError:
            return None
        if manifest.pack_key != pack_key:
            return None
        missing = missing_shards(self.location, self.s3, manifest.shards)
        return None if missing else manifest

    def has(self, shard: ShardInfo) -> bool:
        """Whether a shard is there and whole; uploads to S3 are, when they are of its size."""
        if missing_shards(self.location, self.s3, [shard]):
            return False
        path = self.folder.path / shard.file
        return self.url is not None or file_xxh3_128(path) == shard.xxh3_128

    def send(self, file: str) -> None:
        """Move a whole shard to S3, when the dataset lies there."""
        if self.url is not None:
            path = self.folder.path / file
            open_store(self.url, self.s3).upload(path, file)
            path.unlink()

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest: from now on the dataset is there."""
        if self.url is not None:
            with told_when_full(self.folder.path, len(self.url)):
                write_text(self.folder.path / _URL_FILE, self.url)
        self._write(FILE_NAME, manifest)

    def keep(self, manifest: Manifest) -> None:
        """Write a manifest that the next version is about to replace, beside it."""
        self._write(f"manifest-{manifest.version}.json", manifest)

    def _write(self, name: str, manifest: Manifest) -> None:
        text = sealed_manifest(manifest)
        with told_when_full(self.folder.path, len(text)):
            open_store(self.location, self.s3).write(name, text)


def packed_dataset(location: str, options: StoreOptions) -> Manifest:
    """The manifest of a dataset that is whole.

    Raises:
        ManifestError: It is not a dataset.
        DataError: A shard is missing or not as long as it was.
    """
    manifest = read_manifest_at(location, options)
    for shard in missing_shards(location, options, manifest.shards):
        raise DataError(
            f"The dataset {location} is not whole: {shard.file} is missing or is not "
            f"{shard.num_bytes:,} bytes long",
            "Pack the dataset again, or restore the shard.",
        )
    return manifest
