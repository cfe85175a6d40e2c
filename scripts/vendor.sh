#!/usr/bin/env bash
# Fetches the libraries and the font of the pages in Airflow anew from the npm registry: these
# versions, with these checksums, and their licences. To take a newer one, change its line.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PAGES=plugins/headrace_pages/static/vendor
TESTS=tests/support/vendor

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch() { # NAME@VERSION CHECKSUM FOLDER FILE...: take the files of a package; its licence is NAME.LICENSE
  local package=$1 checksum=$2 folder=$3 archive found name
  shift 3
  archive=$(cd "$work" && npm pack --silent "$package" 2>/dev/null)
  found=$(openssl dgst -sha512 -binary "$work/$archive" | base64 -w0)
  if [ "$found" != "$checksum" ]; then
    printf '%s has the checksum %s, not %s: nothing of it was taken\n' "$package" "$found" "$checksum" >&2
    exit 1
  fi
  rm -rf "$work/package"
  tar -xzf "$work/$archive" -C "$work"
  mkdir -p "$folder"
  for name in "$@"; do
    sed '/^\/\/# sourceMappingURL=/d; s#"preact"#"./preact.mjs"#' "$work/package/$name" \
      >"$folder/$(basename "$name")"
  done
  name=${package%@*}
  cp "$work/package/LICENSE" "$folder/${name##*/}.LICENSE"
}

fetch uplot@1.6.32 \
  KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw== \
  $PAGES dist/uPlot.iife.min.js dist/uPlot.min.css
fetch preact@11.2.0 \
  /HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg== \
  $PAGES dist/preact.mjs hooks/dist/hooks.mjs
fetch htm@3.1.1 \
  983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ== \
  $PAGES dist/htm.mjs
fetch @fontsource-variable/inter@5.3.0 \
  OupL48va4JNofb97w6NYeF9S7W/kHNKM0Er8Dem5nqi4jeOLrVJDoE8tZEpnMJmtkvNbB1EIPPwHcdkF6b1oUA== \
  $PAGES files/inter-latin-wght-normal.woff2
fetch axe-core@4.14.1 \
  FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ== \
  $TESTS axe.min.js
