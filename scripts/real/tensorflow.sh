#!/usr/bin/env bash
# Keras on TensorFlow for real: one worker, two on a node, four on two nodes of a small Slurm, and
# four on two hosts. Their Python is of an environment of its own, of another version if there is
# one: TensorFlow must not enter .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

UV=.venv/bin/uv
FOLDER=$(mktemp -d /tmp/headrace-tf-XXXXXX)
trap 'rm -rf "$FOLDER"' EXIT
for version in 3.12 3.13 3.10 3.11; do
  if python=$("$UV" python find --no-python-downloads "$version" 2>/dev/null); then break; fi
done
"$UV" venv --quiet --python "$python" "$FOLDER/env"
"$UV" pip install --quiet --python "$FOLDER/env/bin/python" tensorflow-cpu==2.21.* tf_keras==2.21.*
"$FOLDER/env/bin/python" --version
TENSORFLOW_PYTHON=$FOLDER/env/bin/python .venv/bin/pytest -m slow -k keras --durations=8 "$@" \
  tests/integration/training/found_by_hand.py
