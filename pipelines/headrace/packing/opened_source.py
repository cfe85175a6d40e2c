"""The source of a recipe as it lies there now, and whether it was packed before."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath

from headrace.fields.field_kind import kind_named
from headrace.files.manifest import Manifest, Quarantined
from headrace.objects.protocol import Check
from headrace.packing.division import SourceListing, check_names, with_classes
from headrace.packing.packing_plan import pack_key, sources_key
from headrace.packing.sample_table import SampleTable, shown
from headrace.packing.samples import Access, Source
from headrace.packing.sources.folder_layout import split_named
from headrace.packing.sources.function import reader_code
from headrace.packing.sources.open import open_source, with_format
from headrace.packing.target import PackTarget
from headrace.recipe.dataset import DatasetSpec, PackField, PackSpec
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site

_HOLDS_EXIF = re.compile(r"(?s).*\.(?:jpe?g|tiff?|webp)", re.IGNORECASE).fullmatch
_DEFAULT = PackField()


@dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """A source that is not listed yet."""

    dataset: DatasetSpec
    """The recipe's dataset, with its form and place."""
    pack: PackSpec
    access: Access
    source: Source
    code: str
    """Hash of the user's code that makes the values; empty where there is none."""
    containers: tuple[str, ...]
    """Paths of the files that hold all samples; empty where samples are files of their own."""
    sources_key: str
    """Hash of its containers and all settings; empty where samples are files of their own."""

    @classmethod
    def of(cls, recipe: Recipe, site: Site, check: Check) -> OpenedSource:
        """The source of a recipe on a site."""
        access = Access.of(recipe, site)
        dataset = with_format(recipe.named_dataset, access)
        source, code = open_source(dataset, access), reader_code(dataset, access)
        containers = source.containers(check)
        key = sources_key(dataset, recipe.pack, code, containers) if containers else ""
        return cls(
            dataset=dataset,
            pack=recipe.pack,
            access=access,
            source=source,
            code=code,
            containers=tuple(file.path for file in containers),
            sources_key=key,
        )

    def known_target(self, site: Site) -> tuple[PackTarget, Manifest] | None:
        """The whole dataset that was packed from the same containers, if there is one."""
        place = PackTarget.of(site, self.pack.target, f"{self.dataset.name}-")
        return place.packed_from(self.sources_key, self.dataset.name) if self.sources_key else None

    def listed(self, check: Check) -> ListedSource:
        """The source with what lies in it."""
        samples = with_classes(self.source.list_samples(check), self.source.classes)
        listing = SourceListing(
            source=self.dataset.source or "",
            samples=samples,
            sequential=self.source.sequential,
            quarantined=tuple(
                Quarantined(path=each.path, reason=each.reason) for each in self.source.quarantined
            ),
            code=self.code + "".join(f"\nturned: {name}" for name in self._turned(samples)),
            notes=(
                *self.source.notes,
                *check_names(self.dataset, samples),
                *([] if samples.column("split") is not None else self._named_as_splits()),
            ),
        )
        key = pack_key(self.dataset, self.pack, listing)
        return ListedSource(**vars(self), listing=listing, key=key)

    def _named_as_splits(self) -> list[str]:
        """Return a note on containers that are named as splits, which are split anew."""
        parts = {
            part for path in self.containers for part in PurePosixPath(path).with_suffix("").parts
        }
        names = sorted(part for part in parts if split_named(part))
        if len(set(map(split_named, names))) < 2:
            return []
        return [f"{shown(names)}: files are named as splits, but all samples were split anew"]

    def _turned(self, samples: SampleTable) -> list[str]:
        """Return the fields of images that EXIF data may turn.

        Others, as folders of PNG files, keep the key that older releases gave them.
        """
        names = chain(self.dataset.fields.values(), samples.iter_paths())
        if self.dataset.format in ("files", "tar") and not any(map(_HOLDS_EXIF, names)):
            return []
        images = (f.name for f in self.source.fields if "orientation" in kind_named(f.kind).options)
        options = self.pack.fields
        return [name for name in images if options.get(name, _DEFAULT).orientation != "keep"]


@dataclass(frozen=True, kw_only=True)
class ListedSource(OpenedSource):
    """A source and what lies in it."""

    listing: SourceListing
    key: str

    def new_target(self, site: Site) -> PackTarget:
        """Where it is packed to."""
        return PackTarget.of(site, self.pack.target, f"{self.dataset.name}-{self.key[:12]}")


def is_packed(recipe: Recipe, site: Site, check: Check) -> bool:
    """Whether packing would find a dataset that is packed, as far as this machine can tell.

    Raises:
        HeadraceError: The source cannot be opened or listed.
    """
    opened = OpenedSource.of(recipe, site, check)
    if opened.sources_key:
        return opened.known_target(site) is not None
    listed = opened.listed(check)
    return listed.new_target(site).reusable(listed.key) is not None
