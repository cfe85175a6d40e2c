"""A scikit-learn script in the usual manner: argparse, a file in the working folder."""

import argparse
import json
from pathlib import Path

from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

parser = argparse.ArgumentParser()
parser.add_argument("--penalty", type=float, default=1.0)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

inputs, targets = load_iris(return_X_y=True)
model = LogisticRegression(C=options.penalty, max_iter=500, random_state=options.seed)
model.fit(inputs, targets)
Path("model.json").write_text(json.dumps({"options": vars(options), "rows": model.coef_.tolist()}))
print(f"accuracy {model.score(inputs, targets):.3f}")
