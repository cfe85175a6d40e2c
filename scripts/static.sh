#!/usr/bin/env bash
# Style, types and contracts between the layers at once: each takes one core for a minute or less.
# What they print comes one after another; fails if one of them does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
names=()
check() { # NAME COMMAND...: run in the background
  local name=$1
  shift
  names+=("$name")
  ("$@" >"$logs/$name" 2>&1 && touch "$logs/$name.passed") &
}

check lint scripts/lint.sh
check types .venv/bin/mypy
check imports .venv/bin/lint-imports --no-logo
wait
failed=()
for name in "${names[@]}"; do
  cat "$logs/$name"
  [[ -e $logs/$name.passed ]] || failed+=("$name")
done
if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[*]}" >&2
  exit 1
fi
