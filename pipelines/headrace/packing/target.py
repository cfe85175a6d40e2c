"""Where a packed dataset is put: a folder, or an S3 prefix to which each shard goes when whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from headrace.errors import DataError, ManifestError
from headrace.packing.packed import DatasetFolder, has_size
from headrace.recipe.site import Site, StoreOptions
from headrace.storage.atomic import write_text
from headrace.storage.layout import SiteFolder
from headrace.storage.manifest import Manifest, ShardInfo
from headrace.storage.manifest_file import FILE_NAME, sealed_manifest, write_manifest
from headrace.storage.packed import read_manifest_at
from headrace.storage.room import told_when_full
from headrace.storage.store import below, is_remote, open_store

_URL_FILE = "url"
"""In the folder of a dataset that lies in S3: where."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The place of one dataset."""

    folder: DatasetFolder
    """Plans, records and locks; with no `url` also shards and manifest."""
    url: str | None
    """S3 prefix of shards and manifest; None when they stay in the folder."""
    s3: StoreOptions
    """How to reach S3."""

    @classmethod
    def of(cls, site: Site, place: str | None, name: str) -> Target:
        """The target of a dataset.

        Args:
            site: Where steps leave what they know.
            place: `pack.target` of the recipe.
            name: Name of the dataset, with its key.
        """
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

    def siblings(self, name: str) -> Iterator[Target]:
        """All datasets of a name at the same place that were packed by this site.

        Args:
            name: Name of a dataset, without its key.
        """
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

    @property
    def lock_file(self) -> Path:
        """Locked while the dataset is packed."""
        return self.folder.path.parent / f".{self.folder.path.name.lstrip('.')}.lock"

    def reusable(self, pack_key: str) -> Manifest | None:
        """The manifest of the dataset when it is packed and whole; None when there is work to do.

        Args:
            pack_key: The pack key it must have.
        """
        try:
            manifest = read_manifest_at(self.location, self.s3)
        except ManifestError:
            return None
        if manifest.pack_key != pack_key or _missing_shards(
            self.location, self.s3, manifest.shards
        ):
            return None
        return manifest

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest: from now on the dataset is there.

        Raises:
            StorageFullError: There is no room.
            StoreError: S3 kept failing.
        """
        text = sealed_manifest(manifest)
        if self.url is not None:
            with told_when_full(self.folder.path, len(self.url)):
                write_text(self.folder.path / _URL_FILE, self.url)
            open_store(self.url, self.s3).write(FILE_NAME, text)
            return
        with told_when_full(self.folder.path, len(text)):
            write_manifest(self.folder.path, manifest)

    def keep(self, manifest: Manifest) -> None:
        """Write a manifest that the next version is about to replace, beside it.

        Raises:
            StorageFullError: There is no room.
            StoreError: S3 kept failing.
        """
        text = sealed_manifest(manifest)
        name = f"manifest-{manifest.version}.json"
        with told_when_full(self.folder.path, len(text)):
            open_store(self.location, self.s3).write(name, text)


def packed_dataset(location: str, options: StoreOptions) -> Manifest:
    """The manifest of a dataset that is whole.

    Args:
        location: Its folder or URL.
        options: How to reach S3.

    Raises:
        ManifestError: It is no dataset.
        DataError: A shard is missing or not as long as it was.
    """
    manifest = read_manifest_at(location, options)
    for shard in _missing_shards(location, options, manifest.shards):
        raise DataError(
            f"The dataset {location} is not whole: {shard.file} is missing or is not "
            f"{shard.num_bytes:,} bytes long",
            "Pack the dataset again, or restore the shard.",
        )
    return manifest


def send_shard(folder: DatasetFolder, url: str, options: StoreOptions | None, file: str) -> None:
    """Move a whole shard from the folder to S3.

    Raises:
        StoreError: S3 kept failing; the shard stays.
    """
    path = folder.path / file
    open_store(url, options).upload(path, file)
    path.unlink()


def is_sent(url: str, options: StoreOptions | None, shard: ShardInfo) -> bool:
    """Whether S3 has a shard; uploads are whole or not there, so that the size tells."""
    found = open_store(url, options).stat(shard.file)
    return found is not None and found.num_bytes == shard.num_bytes


def _missing_shards(
    location: str, options: StoreOptions, shards: Sequence[ShardInfo]
) -> list[ShardInfo]:
    if not is_remote(location):
        return [shard for shard in shards if not has_size(Path(location), shard)]
    found = {file.path: file.num_bytes for file in open_store(location, options).list_files()}
    return [shard for shard in shards if found.get(shard.file) != shard.num_bytes]
