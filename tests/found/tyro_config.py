"""A script of `tyro`: nested dataclasses are the options."""

import dataclasses
import json
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

try:  # for a search: the metric
    from headrace.script import report
except ImportError:

    def report(step, **metrics):
        print(step, metrics)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    kind: Literal["sgd", "momentum"] = "sgd"
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)


@dataclasses.dataclass(frozen=True)
class Config:
    opt: Optimizer = Optimizer()
    steps: int = 20
    layers: tuple[int, ...] = (8,)
    bias: bool = True


def main(config: Config) -> None:
    x = np.random.default_rng(0).normal(size=(64, 3))
    y = x @ np.array([1.0, -2.0, 0.5])
    weights, speed = np.zeros(3), np.zeros(3)
    keep = config.opt.betas[0] if config.opt.kind == "momentum" else 0.0
    for _ in range(config.steps):
        residual = x @ weights - y
        speed = keep * speed - config.opt.lr * 2 * x.T @ residual / len(x)
        weights += speed
    Path("config.json").write_text(json.dumps(dataclasses.asdict(config)))
    report(config.steps, loss=float(np.mean((x @ weights - y) ** 2)))


if __name__ == "__main__":
    main(tyro.cli(Config))
