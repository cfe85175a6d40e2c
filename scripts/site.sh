#!/usr/bin/env bash
# Builds the documentation as a site: scripts/site.sh [FOLDER], build/site if none is named. Every warning is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=${1:-build/site}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf "$folder"
.venv/bin/sphinx-build --quiet --fail-on-warning --keep-going --jobs auto \
  --conf-dir docs/site --doctree-dir "$work" . "$folder"
