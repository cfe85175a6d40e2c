"""The demo's model learns the digits; how well, the demo itself shows."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from headrace.data.sampling import seed_at
from headrace.examples.digits_model import DigitsClassifier


def test_two_epochs_are_enough_to_be_mostly_right():
    digits = load_digits()
    image = torch.from_numpy((digits.images / 16).astype(np.float32))
    label = torch.from_numpy(digits.target.astype(np.int64))
    seed_at(7, 0, 0, 0, "weights")
    model = DigitsClassifier(learning_rate=0.003)
    model.log = lambda *arguments, **options: None
    optimizer = model.configure_optimizers()
    for batch in torch.randperm(1400).split(64) + torch.randperm(1400).split(64):
        optimizer.zero_grad()
        model.training_step({"image": image[batch], "label": label[batch]}, 0).backward()
        optimizer.step()
    scores = model.eval().predict_step({"image": image[1400:]}, 0)
    assert scores.shape == (397, 10)
    assert (scores.argmax(1) == label[1400:]).float().mean() > 0.8
