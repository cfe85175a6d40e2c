"""A script of Keras: MultiWorkerMirroredStrategy, which reads TF_CONFIG, and BackupAndRestore."""

import argparse
import json
import os

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

cluster = json.loads(os.environ.get("TF_CONFIG", "{}"))
strategy = tf.distribute.MultiWorkerMirroredStrategy() if cluster else tf.distribute.get_strategy()
x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).repeat().batch(32)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
rank = cluster.get("task", {}).get("index", 0)
backup = tf.keras.callbacks.BackupAndRestore(f"backup-{rank}")
history = model.fit(data, epochs=args.epochs, steps_per_epoch=8, verbose=2, callbacks=[backup])
print(f"worker {rank} of {strategy.num_replicas_in_sync}: loss {history.history['loss'][-1]:.4f}")
model.save(f"model-{rank}.keras")  # all workers take part, each with a file of its own
