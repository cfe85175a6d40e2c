#!/usr/bin/env bash
# Style and common mistakes: Python by ruff, shell scripts by shellcheck (where it is installed).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

.venv/bin/ruff check --quiet .
.venv/bin/ruff format --quiet --check .
if command -v shellcheck >/dev/null; then
  shellcheck scripts/*.sh scripts/real/*.sh deploy/aws/*.sh deploy/compose/*.sh .ci/run
else
  printf 'shellcheck is not installed: the shell scripts are not linted\n' >&2
fi
