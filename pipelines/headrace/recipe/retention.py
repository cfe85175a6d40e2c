"""Which old files of a site may be removed."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from headrace.recipe.base import Problems, Seconds, Settings, Texts, Times

Kind = Literal["runs", "checkpoints", "logs", "datasets", "staged", "uploads", "caches"]
"""What can be removed. `runs`: all files of a run but its record and its copy of the code;
`checkpoints` and `logs`: only these; `uploads`: unfinished uploads and old versions in S3;
`caches`: environments, images, compiled extensions, logs of Airflow."""

KINDS: tuple[Kind, ...] = get_args(Kind)

Metric = Annotated[str, Field(pattern=r"^[^:\s]+(:(min|max))?$")]


class RetentionRule(Settings):
    """What is removed: all that has ended and that nothing needs, except what these keys keep."""

    older_than: Seconds | None = None
    """Only runs that ended, and files that were last used, longer ago, as in `30d`."""
    keep_last: Times | None = None
    """The newest runs of each recipe that stay."""
    keep_best: Annotated[tuple[Metric, ...], Field(max_length=100)] = ()
    """The best run of each recipe by these metrics stays: `accuracy`, `val_loss:min`. Without
    `:min` or `:max`, lower is better for names with `loss` or `error`, else higher."""
    keep_tags: Texts = ()
    """Runs with one of these tags stay; those with a star or the tag `keep` always do."""
    unreferenced: bool = False
    """Datasets that no run refers to any more go, however old."""
    what: Annotated[tuple[Kind, ...], Field(min_length=1)] = KINDS
    """Kinds of files that may go; by default all."""

    @property
    def selects_runs(self) -> bool:
        """Whether ended runs may go."""
        return self.older_than is not None or self.keep_last is not None or bool(self.keep_best)

    def problems(self) -> Problems:
        """Yield that it would remove nothing on purpose."""
        if not self.selects_runs and not self.unreferenced and self.keep_tags:
            yield "`keep_tags` needs `older_than`, `keep_last` or `keep_best`; write one of them"
