"""The source of a recipe as it lies there now, and whether it was packed before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.files.manifest import Manifest, Quarantined
from headrace.packing.division import SourceListing, with_classes
from headrace.packing.packing_plan import pack_key, sources_key
from headrace.packing.samples import Access, Source
from headrace.packing.sources.function import reader_code
from headrace.packing.sources.open import open_source, settled
from headrace.packing.target import PackTarget
from headrace.recipe.dataset import DatasetSpec, PackSpec
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site

Check = Callable[[], None]
"""Called often; may raise to stop."""


@dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """A source that is not listed yet."""

    dataset: DatasetSpec
    """The recipe's dataset, its form and place settled."""
    pack: PackSpec
    access: Access
    source: Source
    code: str
    """Hash of the user's code that makes the values; empty where there is none."""
    sources_key: str
    """Hash of its containers and all settings; empty where samples are files of their own."""

    @classmethod
    def of(cls, recipe: Recipe, site: Site, check: Check) -> OpenedSource:
        """The source of a recipe on a site."""
        access = Access.of(recipe, site)
        dataset = settled(recipe.named_dataset, access)
        source, code = open_source(dataset, access), reader_code(dataset, access)
        containers = source.containers(check)
        key = sources_key(dataset, recipe.pack, code, containers) if containers else ""
        return cls(
            dataset=dataset,
            pack=recipe.pack,
            access=access,
            source=source,
            code=code,
            sources_key=key,
        )

    def known_target(self, site: Site) -> tuple[PackTarget, Manifest] | None:
        """The whole dataset that was packed from the same containers, if there is one."""
        place = PackTarget.of(site, self.pack.target, f"{self.dataset.name}-")
        return place.packed_from(self.sources_key, self.dataset.name) if self.sources_key else None

    def listed(self, check: Check) -> ListedSource:
        """The source with what lies in it."""
        samples = self.source.list_samples(check)
        listing = SourceListing(
            source=self.dataset.source or "",
            samples=with_classes(samples, self.source.classes),
            sequential=self.source.sequential,
            quarantined=tuple(
                Quarantined(path=each.path, reason=each.reason) for each in self.source.quarantined
            ),
            code=self.code,
        )
        key = pack_key(self.dataset, self.pack, listing)
        return ListedSource(**vars(self), listing=listing, key=key)


@dataclass(frozen=True, kw_only=True)
class ListedSource(OpenedSource):
    """A source and what lies in it."""

    listing: SourceListing
    key: str

    def new_target(self, site: Site) -> PackTarget:
        """Where it is packed to."""
        return PackTarget.of(site, self.pack.target, f"{self.dataset.name}-{self.key[:12]}")


def is_packed(recipe: Recipe, site: Site, check: Check) -> bool:
    """Whether packing would find a dataset that is packed, as far as is seen from here.

    Raises:
        HeadraceError: The source cannot be opened or listed.
    """
    opened = OpenedSource.of(recipe, site, check)
    if opened.sources_key:
        return opened.known_target(site) is not None
    listed = opened.listed(check)
    return listed.new_target(site).reusable(listed.key) is not None
