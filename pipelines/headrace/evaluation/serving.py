"""The nodes of a gang pass shards on to each other while they evaluate, as they do in training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.errors import StepCancelledError
from headrace.leases.cancellable_call import wanted
from headrace.leases.fleet import Fleet
from headrace.recipe.dataset import packed_split
from headrace.recipe.recipe import StageSpec
from headrace.recipe.site import StoreOptions, Tier
from headrace.staging.peer_group import PeerGroup, groups_of
from headrace.staging.staged import staged
from headrace.staging.staged_copy import StagingOptions
from headrace.steps.context import StepContext

logger = logging.getLogger(__name__)

_PATIENCE_S = 60.0
"""Longest wait for the nodes to serve; those that come later serve from then on."""

_LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class ServeJob:
    """What one node is to hold and serve."""

    dataset: str
    """Folder or URL of the packed dataset."""
    tiers: tuple[Tier, ...]
    """Tiers of the site, fastest first."""
    split: str
    """Split as it was packed."""
    stage: StageSpec
    """The recipe's `stage`."""
    s3: StoreOptions
    """How to reach S3."""
    group: PeerGroup
    """The nodes, as this one sees them."""


def serve_node(job: ServeJob) -> None:
    """Put the split onto this node, and serve what lies here as long as somebody waits for it.

    Raises:
        HeadraceError: The split cannot be staged.
    """
    options = StagingOptions(
        partial=job.stage.partial, s3=job.s3, group=job.group, serves_readers=True
    )
    splits = (job.split,)
    with staged(job.dataset, job.tiers, splits, job.stage.verify, _go_on, options):
        while wanted():
            time.sleep(_LOOK_S)


@contextmanager
def serving(
    context: StepContext, fleet: Fleet, dataset: str, split: str
) -> Iterator[Mapping[str, PeerGroup]]:
    """Have the nodes of a gang serve what they hold of a split while the block runs.

    Args:
        context: The step.
        fleet: The lease's nodes.
        dataset: Folder or URL of the packed dataset.
        split: The split to evaluate.

    Yields:
        The group as each node sees it, by the node's name; empty when nodes read by themselves:
        in a pool, with `stage.peers: never`, and where nodes share a host.
    """
    groups = _groups(context, fleet)
    if not groups:
        yield groups
        return
    stage, site = context.recipe.stage, context.site
    jobs = [
        ServeJob(
            dataset=dataset,
            tiers=site.tiers,
            split=packed_split(split, context.recipe.data.fold),
            stage=stage,
            s3=site.s3,
            group=group,
        )
        for group in groups.values()
    ]
    nodes = fleet.nodes(len(jobs), fleet.role.start_timeout, check=context.check)
    with fleet.beside(serve_node, [(job,) for job in jobs], nodes) as has_ended:
        _wait(tuple(groups.values()), has_ended, context.check)
        yield groups


def _groups(context: StepContext, fleet: Fleet) -> dict[str, PeerGroup]:
    role, mode = fleet.role, context.recipe.stage.peers
    if role.kind != "gang" or role.nodes < 2 or mode == "never":
        return {}
    nodes = fleet.nodes(role.nodes, role.start_timeout, check=context.check)
    found = groups_of(context.folder.parts, [node.host for node in nodes], mode)
    return {node.name: group for node, group in zip(nodes, found, strict=True) if group}


def _wait(
    groups: tuple[PeerGroup, ...], has_ended: Callable[[int], bool], check: Callable[[], None]
) -> None:
    """Until each node has told what it holds, or will not."""
    deadline = time.monotonic() + _PATIENCE_S
    for group in groups:
        while group.held_by(group.index) is None and not has_ended(group.index):
            check()
            if time.monotonic() > deadline:
                logger.warning("Node %d does not serve its shards yet", group.index)
                break
            time.sleep(_LOOK_S)


def _go_on(done_bytes: int, total_bytes: int) -> None:
    if not wanted():
        raise StepCancelledError(
            f"Staging was stopped after {done_bytes} of {total_bytes} bytes: "
            "its step was cancelled or has gone"
        )
