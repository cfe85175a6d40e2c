"""Lightning's strategies with exact results, and the form and shards of a model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import (
    DDPStrategy,
    ModelParallelStrategy,
    ParallelStrategy,
    Strategy,
)
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

from headrace.errors import RecipeError, nearest
from headrace.recipe.train import DdpSpec, FsdpSpec, LocalSgdSpec, PowerSgdSpec, TrainerSpec

_OWN_WAY = "Give the model a configure_model of its own that shards it, over self.device_mesh."


class _ExactMeans(ParallelStrategy):  # type: ignore[misc]
    """Computes exact means over ranks."""

    def reduce(self, tensor: Any, group: Any | None = None, reduce_op: Any = "mean") -> Any:
        """Reduce over ranks; means of integers are not rounded.

        Lightning divides a logged sum by the mean number of samples over ranks, rounded down. That
        is wrong if ranks validate on unequal numbers.
        """
        is_mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
        if is_mean and isinstance(tensor, Tensor) and not tensor.is_floating_point():
            tensor = tensor.double()
        return super().reduce(tensor, group=group, reduce_op=reduce_op)


class ExactDDPStrategy(_ExactMeans, DDPStrategy):  # type: ignore[misc]
    """DDP whose results do not depend on interruptions.

    After its first step DDP orders gradients by the time they became ready. The sum of more than
    two ranks depends on that order, so a resumed training would differ in its first step. With
    `find_unused_parameters` the order stays.
    """

    def __init__(self, spec: TrainerSpec, world_size: int, ranks_per_node: int) -> None:
        self._gpu_only = spec.gpu_only
        self._ranks_per_node = ranks_per_node
        self._ddp = ddp = spec.ddp
        unused = ddp.find_unused_parameters
        if unused is None:
            unused = spec.deterministic and world_size > 2 and not ddp.static_graph
        super().__init__(
            **_communication(ddp),
            bucket_cap_mb=ddp.bucket_cap_mb,
            static_graph=ddp.static_graph,
            gradient_as_bucket_view=ddp.gradient_as_bucket_view,
            find_unused_parameters=unused,
        )

    def configure_ddp(self) -> None:
        """Wrap the model; raise a `RecipeError` for options that PyTorch refuses on CPUs."""
        if self.root_device.type == "cpu" and self._gpu_only:
            raise RecipeError(*self._gpu_only)
        optimizes_itself = not self.lightning_module.automatic_optimization
        if optimizes_itself and self._ddp.find_unused_parameters is None:
            # each of its backward passes reaches some weights only, as those of a GAN
            self._ddp_kwargs["find_unused_parameters"] = not self._ddp.static_graph
        super().configure_ddp()

    def _register_ddp_hooks(self) -> None:
        """Register the hook on CPUs, too; Lightning does so on GPUs only."""
        state = self._ddp_comm_state
        if isinstance(state, PostLocalSGDState) and state.post_local_gradient_allreduce:
            state.subgroup, _ = dist.new_subgroups(self._ranks_per_node)  # type: ignore[no-untyped-call]
        if self._ddp_comm_hook is not None:
            self.model.register_comm_hook(state, self._ddp_comm_hook)

    def on_train_start(self) -> None:
        """Set local SGD's counts to the step of the checkpoint; PyTorch starts them at 0."""
        if self._model_averager is not None:
            step = self.lightning_module.trainer.global_step
            self._ddp_comm_state.iter = self._model_averager.step = step

    def average_replicas(self) -> None:
        """Give all ranks the mean of their weights, if local SGD lets them differ."""
        if self._model_averager is not None:
            for weight in filter(lambda each: each.requires_grad, self.model.parameters()):
                weight.data.copy_(super().reduce(weight.data, reduce_op="mean"))

    on_validation_start = average_replicas


class ShardedStrategy(_ExactMeans, ModelParallelStrategy):  # type: ignore[misc]
    """FSDP2, for models that do not shard themselves too.

    A checkpoint is one ordinary file, or a folder to which each rank writes its part.
    """

    def __init__(self, spec: TrainerSpec, world_size: int) -> None:
        self._spec = spec.fsdp
        super().__init__(
            data_parallel_size=spec.data_ranks(world_size),
            tensor_parallel_size=spec.fsdp.tensor_parallel_size,
            save_distributed_checkpoint=spec.sharded_checkpoints,
        )

    def setup_environment(self) -> None:
        """Have the model sharded where Lightning asks it to do so by itself."""
        super().setup_environment()
        model, mesh = self.lightning_module, self.device_mesh["data_parallel"]
        if not is_overridden("configure_model", model):
            model.configure_model = partial(shard, model, self._spec, mesh)

    def setup(self, trainer: Trainer) -> None:
        """Have gradients clipped whatever meshes they lie on."""
        super().setup(trainer)
        plugin = self.precision_plugin
        plugin.clip_grad_by_norm = lambda optimizer, clip_val: clip_by_norm(
            plugin.main_params(optimizer), clip_val
        )

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Write a file, or the folder's parts."""
        if self._save_distributed_checkpoint:
            _parts().save(checkpoint, Path(self.broadcast(filepath)))
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Load either, whichever is written now."""
        path = Path(self.broadcast(checkpoint_path))
        if not path.is_dir():
            return super().load_checkpoint(path, weights_only)
        pickled = not weights_only
        return _parts().restore(self.lightning_module, self.optimizers, path, pickled=pickled)


def _parts() -> ModuleType:
    from headrace.checkpoints import sharded_writer  # it takes a second, and few need it

    return sharded_writer


def make_strategy(spec: TrainerSpec, num_nodes: int, ranks_per_node: int) -> Strategy | str:
    """Return the strategy of a recipe's Trainer."""
    world_size = num_nodes * ranks_per_node
    if spec.strategy == "fsdp":
        return ShardedStrategy(spec, world_size)
    if spec.strategy != "ddp":
        return spec.strategy
    if world_size == 1:
        return "auto"
    return ExactDDPStrategy(spec, world_size, ranks_per_node)


def _communication(spec: DdpSpec) -> dict[str, Any]:
    """Return the arguments of Lightning's DDPStrategy for the hook of a recipe."""
    if spec.local_sgd is not None:
        return _local_sgd(spec.local_sgd)
    if spec.comm_hook == "powersgd":
        return _power_sgd(spec.powersgd or PowerSgdSpec())
    hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    return {"ddp_comm_hook": hooks.get(spec.comm_hook)}


def _power_sgd(spec: PowerSgdSpec) -> dict[str, Any]:
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=spec.rank,
        start_powerSGD_iter=spec.start,
        min_compression_rate=spec.min_compression_rate,
    )
    return {"ddp_comm_state": state, "ddp_comm_hook": powerSGD_hook.powerSGD_hook}


def _local_sgd(spec: LocalSgdSpec) -> dict[str, Any]:
    state = PostLocalSGDState(  # type: ignore[no-untyped-call]
        process_group=None,
        subgroup=None,
        start_localSGD_iter=spec.start,
        post_local_gradient_allreduce=spec.within_nodes,
    )
    return {
        "ddp_comm_state": state,
        "ddp_comm_hook": post_localSGD_hook,
        "model_averaging_period": spec.period,
    }


def form(model: nn.Module, spec: TrainerSpec) -> None:
    """Have a model compute as a recipe wants; names of weights stay as they are.

    Raises:
        RecipeError: No module has a class that the recipe names.
    """
    if spec.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    names = spec.activation_checkpointing
    for module in of_classes(model, names, "trainer.activation_checkpointing"):
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    if spec.compile is not False:
        options: dict[str, Any] = spec.compile if isinstance(spec.compile, dict) else {}
        for module in parts_of(model):
            module._compiled_call_impl = torch.compile(_call_of(module), **options)  # noqa: SLF001


def _call_of(module: nn.Module) -> Callable[..., Any]:
    """The call of a module as a function of this file.

    The compiler begins with no function of PyTorch's own files: `module.compile()` leaves those as
    they are whose class is PyTorch's, as `nn.Sequential`.
    """
    call: Callable[..., Any] = module._call_impl  # noqa: SLF001

    def called(*arguments: Any, **named: Any) -> Any:
        return call(*arguments, **named)

    return called


def of_classes(model: nn.Module, names: Sequence[str], key: str) -> list[nn.Module]:
    """Modules whose classes have these names, outer ones first; errors as `form`."""
    known = {type(module).__name__ for module in model.modules()}
    for name in names:
        if name not in known:
            raise RecipeError(
                f"{key} names {name}, and no module of the model is one", nearest(name, known)
            )
    return [module for module in model.modules() if type(module).__name__ in names]


def parts_of(model: nn.Module) -> Iterator[nn.Module]:
    """What the model calls, if it has weights; lists of modules are not called."""
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from parts_of(child)
        elif any(True for _ in child.parameters()):
            yield child


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
    """Scale gradients so that the norm of all together is at most `max_norm`.

    PyTorch's `clip_grad_norm_` does not accept weights of several meshes, as in tensor parallelism.
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
    """Refuse a weight that lies in no part or in two: its values would differ between ranks."""
    counts = Counter(id(weight) for part in parts for weight in part.parameters())
    for name, weight in model.named_parameters():
        if counts[id(weight)] != 1:
            where = "in two parts" if counts[id(weight)] else "in no part"
            raise RecipeError(f"trainer.strategy fsdp: the weight {name} lies {where} of the model",
                              _OWN_WAY)  # fmt: skip
