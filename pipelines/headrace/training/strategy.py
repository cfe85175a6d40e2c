"""Lightning's DDP, made exact where it is not."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor


class ExactDDPStrategy(DDPStrategy):  # type: ignore[misc]
    """DDP whose results do not depend on interruptions, and whose means over ranks are right.

    DDP lays gradients out anew after its first step, by the order in which they became ready. More
    than two summands give other bits in another layout, so a resumed training would differ in its
    first step. With `find_unused_parameters` the layout stays.

    Args:
        world_size: Number of ranks.
        deterministic: Whether a resume must give the same bits.
    """

    def __init__(self, world_size: int, deterministic: bool) -> None:
        if deterministic and world_size > 2:
            super().__init__(find_unused_parameters=True)
        else:
            super().__init__()

    def reduce(self, tensor: Any, group: Any | None = None, reduce_op: Any = "mean") -> Any:
        """Reduce over ranks; the mean of integers is no integer.

        Lightning divides what a model logged by the mean number of samples over ranks, rounded
        down, which is wrong when ranks validate on unequal numbers.
        """
        is_mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
        if is_mean and isinstance(tensor, Tensor) and not tensor.is_floating_point():
            tensor = tensor.double()
        return super().reduce(tensor, group=group, reduce_op=reduce_op)
