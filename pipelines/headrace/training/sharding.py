"""Shares out the weights of a model that does not do so itself, by PyTorch's FSDP2."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from headrace.errors import RecipeError
from headrace.recipe.train import FsdpSpec
from headrace.training.model_form import of_classes, parts_of

_OWN_WAY = "Give the model a configure_model of its own that shards it, over self.device_mesh."


def shard(model: nn.Module, spec: FsdpSpec, mesh: DeviceMesh) -> None:
    """Share out all weights over the ranks of a mesh; the optimizer is made afterwards.

    What the model's attributes hold is sharded, not the model: `training_step` calls those.

    Raises:
        RecipeError: No module has a class of `spec.wrap`, or FSDP2 cannot shard the model so.
    """
    wrapped = of_classes(model, spec.wrap, "trainer.fsdp.wrap")
    parts = list(parts_of(model))
    _check_all_shared_out(model, parts)
    for module in reversed(wrapped):  # what is inside comes first
        fully_shard(module, mesh=mesh, reshard_after_forward=spec.reshard_after_forward)
    for module in parts:
        if module not in wrapped:
            fully_shard(module, mesh=mesh, reshard_after_forward=spec.reshard_after_forward)


def clip_by_norm(weights: Iterable[Tensor], max_norm: float) -> None:
    """Scale gradients so that the norm of all together is `max_norm` at most.

    As PyTorch's `clip_grad_norm_`, which takes no weights of which only some are split over
    neighbours, that is, of several meshes.
    """
    by_mesh = defaultdict[DeviceMesh | None, list[Tensor]](list)
    for weight in weights:
        if weight.grad is not None:
            mesh = weight.grad.device_mesh if isinstance(weight.grad, DTensor) else None
            by_mesh[mesh].append(weight)
    if not by_mesh:
        return
    norms = [
        get_total_norm([each.grad for each in group if each.grad is not None])
        for group in by_mesh.values()
    ]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(whole))
    for group in by_mesh.values():
        clip_grads_with_norm_(group, max_norm, total)


def _check_all_shared_out(model: nn.Module, parts: list[nn.Module]) -> None:
    """Each weight lies in one part: ranks would go different ways with one that lies in none."""
    counts = Counter(id(weight) for part in parts for weight in part.parameters())
    for name, weight in model.named_parameters():
        if counts[id(weight)] != 1:
            where = "in two parts" if counts[id(weight)] else "in no part"
            raise RecipeError(f"trainer.strategy fsdp: the weight {name} lies {where} of the model",
                              _OWN_WAY)  # fmt: skip
