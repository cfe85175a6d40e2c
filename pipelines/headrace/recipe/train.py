"""The part of a recipe that trains: Lightning's Trainer, what its ranks share, its launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from headrace.errors import RecipeError, nearest, shortened
from headrace.recipe.base import (
    MAX_COUNT,
    Amount,
    AmountFrom0,
    Arguments,
    Count,
    CountFrom0,
    Name,
    Parallel,
    Place,
    PositiveSeconds,
    Problems,
    ScriptArguments,
    Seconds,
    Settings,
    Target,
    Targets,
    Texts,
    Times,
)
from headrace.recipe.lightning_arguments import (
    OF_LIGHTNING,
    STRATEGIES,
    Precision,
    check_arguments,
    is_lightnings,
)


class PowerSgdSpec(Settings):
    """Gradients as products of two narrow matrices (Vogels et al. 2019, arXiv:1905.13727)."""

    rank: Count = 1
    """Columns of the narrow matrices: more are more exact."""
    start: Annotated[Count, Field(ge=2)] = 1000
    """Optimizer steps with whole gradients before, again after each resume."""
    min_compression_rate: Amount = 2.0
    """Weights whose gradients would shrink by less than this factor are sent whole."""


class LocalSgdSpec(Settings):
    """Ranks train alone and average weights periodically (Lin et al. 2020, arXiv:1808.07217)."""

    period: Annotated[Count, Field(ge=2)]
    """Optimizer steps between two averagings; validation and checkpoints take the mean, too."""
    start: CountFrom0 = 0
    """Optimizer steps as in plain DDP before; weights are averaged after the step that follows."""
    within_nodes: bool = False
    """Ranks of a node average their gradients in each step: only nodes go on their own."""


class DdpSpec(Settings):
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
    """Average weights periodically, not gradients in each step. A resume starts with the mean on
    all ranks: it gives slightly other weights."""

    def problems(self) -> Problems:
        """Yield keys that exclude each other."""
        if self.static_graph and self.find_unused_parameters:
            yield "static_graph finds unused weights by itself: leave out find_unused_parameters"
        if self.powersgd is not None and self.comm_hook != "powersgd":
            yield "powersgd goes with comm_hook: powersgd"
        if self.local_sgd is not None and self.comm_hook != "none":
            yield f"local_sgd sends no gradients: leave out comm_hook: {self.comm_hook}"


class FsdpSpec(Settings):
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


class EmaSpec(Settings):
    """An exponential moving average of the weights, which is validated, kept and evaluated."""

    decay: float = Field(default=0.999, gt=0, lt=1)
    """Share of the average that stays at each update."""
    every: Count = 1
    """Optimizer steps from one update to the next."""
    start: CountFrom0 = 0
    """Optimizer steps before the first update, which takes the weights as they are."""


class ScaleLrSpec(Settings):
    """Learning rates for a larger batch (Goyal et al. 2017, arXiv:1706.02677)."""

    base_batch_size: Count
    """Batch size for which the model's learning rate is meant."""
    rule: Literal["linear", "sqrt"] = "linear"
    """Factor: `data.global_batch_size` by `base_batch_size`, or the root of that."""
    warmup_steps: CountFrom0 = 0
    """Optimizer steps in which the factor grows from 1, by equal amounts."""


_SHARDED_PRECISIONS = ("32-true", "bf16-mixed", "bf16-true", "16-true")
"""Source: Lightning 2.6, `_AcceleratorConnector._check_precision…` for ModelParallelStrategy."""

_LOGGERS = {
    "csv": {
        "_target_": "lightning.pytorch.loggers.CSVLogger",
        "name": "csv",
        "flush_logs_every_n_steps": 1,  # a kill loses what is not flushed
    },
    "tensorboard": {
        "_target_": "lightning.pytorch.loggers.TensorBoardLogger",
        "name": "tensorboard",
    },
    "mlflow": {"_target_": "lightning.pytorch.loggers.MLFlowLogger"},
    "wandb": {"_target_": "lightning.pytorch.loggers.WandbLogger"},
}


def _logger_of(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in _LOGGERS:
        raise ValueError(f"valid: {', '.join(_LOGGERS)}, or a mapping with _target_")
    return _LOGGERS[value]


LoggerTarget = Annotated[
    Target,
    BeforeValidator(_logger_of),
    WithJsonSchema(
        {"anyOf": [{"enum": [*_LOGGERS]}, {"type": "object", "required": ["_target_"]}]}
    ),
]
"""A logger, by a short name or as a target."""


def _canonical(target: object) -> object:
    """Return the full name of Lightning's Trainer for its short one."""
    return "lightning.pytorch.Trainer" if target == "lightning.Trainer" else target


class TrainerSpec(Settings):
    """Lightning's Trainer, checkpoints and what stops training."""

    target: Annotated[str, BeforeValidator(_canonical)] = Field(
        default="lightning.pytorch.Trainer", alias="_target_"
    )
    """The Trainer class."""
    max_epochs: Count = 10
    """Passes over the training split."""
    max_steps: int = Field(default=-1, ge=-1, le=MAX_COUNT)
    """Stop after this many optimizer steps; -1 for no limit."""
    precision: Precision = "32-true"
    """Lightning's precision."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """Device kind."""
    gradient_clip_val: AmountFrom0 | None = None
    """Clip the gradient norm at this value."""
    accumulate_grad_batches: Count = 1
    """Batches an optimizer step, which has `data.global_batch_size` samples in all."""
    val_every_epochs: Count = 1
    """Validate after every so many epochs."""
    deterministic: bool = True
    """Use only deterministic kernels."""
    strategy: str = "ddp"
    """How ranks share the work: `ddp`, `fsdp`, or another strategy of Lightning's by its name."""
    ddp: DdpSpec = DdpSpec()
    """How ranks share gradients, with strategy ddp."""
    fsdp: FsdpSpec = FsdpSpec()
    """How ranks share weights, with strategy fsdp."""
    scale_lr: ScaleLrSpec | None = None
    """Scale the model's learning rates by the batch size; null: they are as the model sets them."""
    ema: EmaSpec | None = None
    """Average the weights over the steps; null: they are as the optimizer left them."""
    compile: bool | Arguments = False
    """Compile what the model's attributes hold by `torch.compile`; a mapping holds options of that,
    as `mode`."""
    channels_last: bool = False
    """Lay weights of convolutions out by `torch.channels_last`."""
    activation_checkpointing: Texts = ()
    """Names of classes of modules, such as `TransformerBlock`, that compute their activations again
    in the backward pass: less memory, more work."""
    checkpoint_every_steps: Count = 100
    """Write a checkpoint after every so many optimizer steps."""
    keep_checkpoints: Parallel = 2
    """Newest checkpoints kept."""
    async_checkpoints: bool = False
    """Training waits only for a copy of what is written, in the memory of rank 0's node."""
    sharded_checkpoints: bool = False
    """Each rank writes its part of weights and optimizer state, with strategy fsdp: a checkpoint is
    a folder."""
    checkpoint_target: Place | None = None
    """Folder or URL, as `s3://bucket/prefix`, where the run's checkpoints are copied to while it
    goes on; a resume that finds none in the run's folder takes the newest one from there."""
    monitor: str | None = None
    """Metric that the model logs, such as `val_loss`: the weights with its best value are kept."""
    monitor_mode: Literal["min", "max"] = "min"
    """Whether the metric is better when it is lower, `min`, or higher, `max`."""
    stop_on_nan: bool = True
    """End the step with an error when the loss is NaN or infinite."""
    callbacks: Targets = ()
    """Further Lightning callbacks."""
    loggers: Annotated[tuple[LoggerTarget, ...], Field(max_length=100)] = ()
    """`csv`, `tensorboard`, `mlflow`, `wandb`, or loggers of Lightning; `save_dir` defaults to the
    run's `loggers`."""
    extra: Arguments = {}
    """Further arguments of the Trainer, passed as they are. Those of Lightning's may as well be
    written beside the keys above: `limit_train_batches`, `val_check_interval`, `profiler`, …"""

    @model_validator(mode="before")
    @classmethod
    def _pass_on(cls, content: object) -> object:
        """Take arguments of Lightning's Trainer by their own names."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        if not isinstance(content, Mapping) or content.keys() <= known:
            return content
        from headrace.recipe.python_source import trainer_arguments  # it reads Lightning's source

        passed = (content.keys() - known - OF_LIGHTNING.keys()) & set(trainer_arguments())
        extra = content.get("extra", {})
        if not isinstance(extra, Mapping):
            return content
        if twice := sorted(passed & extra.keys()):
            raise ValueError(f"'{twice[0]}' is written twice, also in extra: leave one out")
        kept = {name: value for name, value in content.items() if name not in passed}
        return {**kept, "extra": {**extra, **{name: content[name] for name in sorted(passed)}}}

    @property
    def gpu_only(self) -> tuple[str, str] | None:
        """What PyTorch does between GPUs only, and what to do; None when none of it is asked for.

        Source: `_check_comm_hook`, `_passing_sync_batchnorm_handle` of its DDP, 2.13.
        """
        if self.ddp.comm_hook == "bf16":
            key, instead = "ddp.comm_hook: bf16", "Set trainer.ddp.comm_hook to fp16 or powersgd"
        elif self.extra.get("sync_batchnorm"):
            key, instead = "sync_batchnorm", "Set trainer.sync_batchnorm to false"
        else:
            return None
        return f"trainer.{key} works between GPUs only, in PyTorch", f"{instead}, or use GPUs."

    def problems(self) -> Problems:
        """Yield keys that exclude each other."""
        if self.max_steps == 0:
            yield "max_steps: 0 makes no training: write -1 for no limit, or 1 and more"
        if self.accelerator == "cpu" and self.gpu_only:
            yield ". ".join(self.gpu_only)
        strategy = self.extra.get("strategy", self.strategy)
        if is_lightnings(self.target) and strategy not in STRATEGIES:
            valid = nearest(str(strategy), STRATEGIES)
            yield f"strategy is {shortened(repr(strategy))}, which is unknown. {valid}"
        if strategy != "ddp" and self.ddp != DdpSpec():
            yield f"ddp goes with strategy ddp, not with {strategy}"
        if strategy != "fsdp" and self.fsdp != FsdpSpec():
            yield f"fsdp goes with strategy fsdp, not with {strategy}"
        if strategy != "fsdp" and self.sharded_checkpoints:
            yield f"sharded_checkpoints goes with strategy fsdp: with {strategy} each rank has all"
        if strategy == "fsdp":
            yield from self._sharding()
        if self.ema is not None and self.ddp.local_sgd is not None:
            yield "ema excludes ddp.local_sgd: each rank would average its own weights"

    def _sharding(self) -> Problems:
        """Yield what Lightning leaves out without a message, or refuses on the nodes."""
        if self.extra.get("sync_batchnorm"):
            yield "sync_batchnorm goes with strategy ddp: fsdp does not convert layers"
        if self.compile is not False:
            yield "compile goes with strategy ddp: compile parts in configure_model"
        if self.sharded_checkpoints and self.async_checkpoints:
            yield "sharded_checkpoints are waited for: leave out async_checkpoints"
        if self.ema is not None:
            yield "ema goes with strategy ddp: Lightning averages no sharded weights"
        if self.precision not in _SHARDED_PRECISIONS:
            yield (f"strategy fsdp knows no precision {self.precision}: choose one of "
                   f"{', '.join(_SHARDED_PRECISIONS)}")  # fmt: skip

    def data_ranks(self, world_size: int) -> int:
        """Number of ranks that get samples of their own; the others get the same as their peers."""
        rest = world_size % self.fsdp.tensor_parallel_size
        if rest:
            raise RecipeError(
                f"trainer.fsdp.tensor_parallel_size is {self.fsdp.tensor_parallel_size}, by which "
                f"{world_size} ranks cannot be divided",
                "Set it to a divisor of train.nodes x train.ranks_per_node.",
            )
        return world_size // self.fsdp.tensor_parallel_size

    def data_rank(self, rank: int) -> int:
        """Whose samples a rank gets: neighbours share the work on the same ones."""
        return rank // self.fsdp.tensor_parallel_size

    @field_validator("extra")
    @classmethod
    def _can_be_passed(cls, extra: dict[str, object], info: ValidationInfo) -> dict[str, object]:
        if taken := sorted(set(extra) & OF_LIGHTNING.keys()):
            instead = "; ".join(f"{name}: {OF_LIGHTNING[name]}" for name in taken)
            raise ValueError(f"it sets {', '.join(taken)}, which headrace sets itself ({instead})")
        if is_lightnings(info.data.get("target")):
            check_arguments(extra)
        return extra


_ModuleName = Annotated[
    str,
    Field(
        pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$",
        max_length=500,
        description="the dotted name of a module, as lab.train",
    ),
]


class TrainSpec(Settings):
    """How training is launched."""

    role: Name = "gpu"
    """The site's role that trains and evaluates."""
    nodes: Parallel | None = None
    """Nodes of the gang; null takes the site's number, for a script 1."""
    ranks_per_node: Parallel | None = None
    """Ranks on each node; null takes the site's number, for a script 1."""
    script: Place | None = None
    """A Python file that runs in place of `model` and `trainer`, as `python train.py`."""
    module: _ModuleName | None = None
    """A module that runs in their place, as `python -m lab.train`."""
    command: Texts = ()
    """A program and its first arguments that run in their place, as `[bash, run.sh]`; no shell
    reads them."""
    args: ScriptArguments = ()
    """Arguments of the script, module or command: a list of words, or a mapping of names to values,
    as `{--epochs: 3, opt.lr: 0.1}`. `{run}`, `{checkpoints}`, `{dataset}`, `{seed}`, `{rank}`,
    `{local_rank}` and `{trial}` are replaced."""
    folder: Place | None = None
    """Working folder of the script, module or command; null: the folder `work` of the run or
    trial."""
    function: Target | None = None
    """A function of yours that is called once, in place of `model` and `trainer`: it returns
    metrics, a mapping of names to numbers."""
    init_from: Place | None = None
    """Weights that training begins with: a checkpoint, a `.safetensors` file, or a run, `RUN`,
    `RUN:best`, `RUN:last`, `RUN:STEP` (`RUN` is its best one, or its last); null: the model's own.
    """
    init_strict: bool = True
    """All weights must be there by name and shape; `false` takes those that fit."""
    max_restarts: Times = 3
    """Restarts of all ranks from the last checkpoint after a rank or worker died, in a row without
    a later checkpoint between them."""
    hang_timeout: PositiveSeconds = 300.0
    """All ranks are restarted when one shows no sign of life for this time."""
    timeout: Seconds | None = None
    """Longest time one attempt may take."""

    @property
    def is_script(self) -> bool:
        """Whether a script, module or command trains."""
        return self.script is not None or self.module is not None or bool(self.command)

    @property
    def words(self) -> tuple[str, ...]:
        """Texts of `args` without their names; of `name=value` the value, too."""
        args = self.args.values() if isinstance(self.args, Mapping) else self.args
        parts = (each if isinstance(each, tuple) else (each,) for each in args)
        texts = [each for part in parts for each in part if isinstance(each, str)]
        return *texts, *(text.partition("=")[2] for text in texts if "=" in text)
