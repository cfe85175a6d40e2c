"""A script of `fire`: a function whose arguments are the options."""

from pathlib import Path

import fire
import numpy as np


def train(alpha=1.0, degree=3, out="weights.npy", layers=(1,), verbose=False):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 200)
    y = np.sin(3 * x) + rng.normal(scale=0.1, size=200)
    powers = np.vander(x, degree + 1)
    weights = np.linalg.solve(powers.T @ powers + alpha * np.eye(degree + 1), powers.T @ y)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    np.save(out, weights)
    if verbose:
        print("layers", list(layers))
    return f"alpha {alpha!r} degree {degree!r} mse {np.mean((powers @ weights - y) ** 2):.4f}"


if __name__ == "__main__":
    fire.Fire(train)
