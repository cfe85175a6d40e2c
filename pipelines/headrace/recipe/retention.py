"""Which old files of a site may be removed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headrace.recipe.base import Seconds, Settings, Texts, Times

_Metric = Annotated[str, Field(pattern=r"^[^:\s]+(:(min|max))?$")]


class RetentionRule(Settings):
    """What is removed: what has ended and nothing needs, except what these keys keep."""

    older_than: Seconds | None = None
    """Only runs that ended, and files that were last used, longer ago, as in `30d`."""
    keep_last: Times | None = None
    """The newest runs of each recipe that stay."""
    keep_best: Annotated[tuple[_Metric, ...], Field(max_length=100)] = ()
    """The best run of each recipe by these metrics stays: `accuracy`, `val_loss:min`. Without
    `:min` or `:max`, lower is better for names with `loss` or `error`, else higher."""
    keep_tags: Texts = ()
    """Runs with one of these tags stay; those with a star or the tag `keep` always do."""
    unreferenced: bool = False
    """Datasets that no run refers to go, however old."""

    @property
    def selects_runs(self) -> bool:
        """Whether ended runs may go."""
        return (
            self.older_than is not None
            or self.keep_last is not None
            or bool(self.keep_best or self.keep_tags)
        )
