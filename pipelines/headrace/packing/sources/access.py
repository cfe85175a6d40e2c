"""What the site allows a source."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site, StoreOptions


@dataclass(frozen=True, kw_only=True)
class Access:
    """How S3 is reached, and which code may be named; may be pickled."""

    s3: StoreOptions | None = None
    """How S3 is reached; null for the defaults."""
    recipe: Recipe | None = None
    """The recipe, whose `code` folders may hold `dataset.reader`."""
    site: Site | None = None
    """The site, which allows code; null allows none."""

    @classmethod
    def of(cls, recipe: Recipe, site: Site) -> Access:
        """What a site allows a recipe."""
        return cls(s3=site.s3, recipe=recipe, site=site)


NOTHING = Access()
"""Local folders and no code."""
