"""A loop of JAX: a jitted step, parameters in an .npz file; several ranks if there are several."""

import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=50)
options = parser.parse_args()

if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=int(os.environ["WORLD_SIZE"]),
        process_id=int(os.environ["RANK"]),
    )
key = jax.random.key(0)
x = jax.random.normal(key, (256, 3))
y = x @ jnp.array([1.0, -2.0, 0.5])


@jax.jit
def step(weights):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
    return weights - options.lr * gradient, loss


weights = jnp.zeros(3)
for _ in range(options.steps):
    weights, loss = step(weights)
print(f"process {jax.process_index()} of {jax.process_count()}: loss {loss:.6f}")
if jax.process_index() == 0:
    np.savez("weights.npz", weights=np.asarray(weights))
