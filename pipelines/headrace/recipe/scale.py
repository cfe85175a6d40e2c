"""The part of a recipe for many ranks: what they share, and what they tell each other."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from headrace.recipe.base import Amount, Count, CountFrom0, Parallel, Texts
from headrace.record import Record


class PowerSgdSpec(Record):
    """Gradients as products of two narrow matrices (Vogels et al. 2019, arXiv:1905.13727)."""

    rank: Count = 1
    """Columns of the narrow matrices: more are more exact."""
    start: Annotated[Count, Field(ge=2)] = 1000
    """Optimizer steps with whole gradients before, again after each resume."""
    min_compression_rate: Amount = 2.0
    """Weights whose gradients would shrink by less than this factor are sent whole."""


class LocalSgdSpec(Record):
    """Ranks train alone and average weights now and then (Lin et al. 2020, arXiv:1808.07217)."""

    period: Annotated[Count, Field(ge=2)]
    """Optimizer steps between two averagings; validation and checkpoints take the mean, too."""
    start: CountFrom0 = 0
    """Optimizer steps as in plain DDP before; weights are averaged after the step that follows."""
    within_nodes: bool = False
    """Ranks of a node average their gradients in each step: only nodes go on their own."""


class DdpSpec(Record):
    """PyTorch's DistributedDataParallel; what is left out is as there."""

    bucket_cap_mb: Amount | None = None
    """MiB of gradients sent at a time; null: PyTorch's own."""
    static_graph: bool = False
    """The same weights are used in each step. With more than two ranks a resume that gives the
    same bits is lost."""
    gradient_as_bucket_view: bool = False
    """Gradients lie in what is sent: saves memory of their size."""
    find_unused_parameters: bool | None = None
    """Look in each step for weights without gradient. Null: with `deterministic` and more than two
    ranks, where a resume with the same bits needs it, and for models that step optimizers by
    themselves, as GANs do."""
    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Gradients are sent in this form. `powersgd` keeps what it left out for the next step, on each
    rank, in no checkpoint: a resume gives slightly other weights."""
    powersgd: PowerSgdSpec | None = None
    """Goes with `comm_hook: powersgd`."""
    local_sgd: LocalSgdSpec | None = None
    """Average weights now and then, not gradients in each step. A resume begins with the mean on
    all ranks: it gives slightly other weights."""

    @model_validator(mode="after")
    def _check(self) -> DdpSpec:
        if self.static_graph and self.find_unused_parameters:
            raise ValueError(
                "static_graph finds unused weights by itself: leave out find_unused_parameters"
            )
        if self.powersgd is not None and self.comm_hook != "powersgd":
            raise ValueError("powersgd goes with comm_hook: powersgd")
        if self.local_sgd is not None and self.comm_hook != "none":
            raise ValueError(
                f"local_sgd sends no gradients: it goes without comm_hook: {self.comm_hook}"
            )
        return self


class FsdpSpec(Record):
    """Weights, gradients and optimizer state shared out (PyTorch's FSDP2, `fully_shard`).

    A model with a `configure_model` of its own shards itself there, over `self.device_mesh`, whose
    axes are `data_parallel` and `tensor_parallel`.
    """

    wrap: Texts = ()
    """Names of classes of modules, such as `TransformerBlock`: one of each is whole at a time.
    Empty: all that the model's attributes hold."""
    tensor_parallel_size: Parallel = 1
    """Ranks side by side that get the same samples, for tensor parallelism by the model."""
    reshard_after_forward: bool = True
    """Give up others' weights between forward and backward: less memory, more messages."""


class EmaSpec(Record):
    """An exponential moving average of the weights, which is validated, kept and evaluated."""

    decay: float = Field(default=0.999, gt=0, lt=1)
    """Share of the average that stays at each update."""
    every: Count = 1
    """Optimizer steps from one update to the next."""
    start: CountFrom0 = 0
    """Optimizer steps before the first update, which takes the weights as they are."""


class ScaleLrSpec(Record):
    """Learning rates for a larger batch (Goyal et al. 2017, arXiv:1706.02677)."""

    base_batch_size: Count
    """Batch size for which the model's learning rate is meant."""
    rule: Literal["linear", "sqrt"] = "linear"
    """Factor: `data.global_batch_size` by `base_batch_size`, or the root of that."""
    warmup_steps: CountFrom0 = 0
    """Optimizer steps in which the factor grows from 1, by equal amounts."""
