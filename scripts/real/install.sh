#!/usr/bin/env bash
# Builds dist/ and installs the wheel in an environment of its own, without the checkout: its
# version, its commands, and the digits trained and evaluated. Packages come from pip's index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=${PYTHON:-python3}
away=$(mktemp -d)
trap 'rm -rf "$away"' EXIT
"$python" -m venv "$away/venv"
"$away/venv/bin/python" -m pip install --quiet --disable-pip-version-check build twine
rm -rf dist
"$away/venv/bin/python" -m build --outdir dist . >"$away/build.log" || {
  cat "$away/build.log"
  exit 1
}
"$away/venv/bin/python" -m twine check --strict dist/*
"$python" -m venv "$away/installed"
"$away/installed/bin/python" -m pip install --quiet --disable-pip-version-check dist/*.whl
cd "$away"
export HEADRACE_HOME=$away/home
"$away/installed/bin/headrace" --version
"$away/installed/bin/headrace" example digits >"$away/example.log"
"$away/installed/bin/headrace" run digits evaluate.min_metrics.accuracy=0.9
