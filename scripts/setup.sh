#!/usr/bin/env bash
# Makes the virtual environment .venv with everything the demo, the tests and development need.
# Says nothing and takes no time when pyproject.toml and constraints.txt have not changed since;
# an install that was interrupted is detected and done anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
STAMP=$VENV/.headrace-installed # holds the hash of what was installed
STARTED=$VENV/.headrace-installing
LOG=$VENV/install.log
PYTHONS=(python3.11 python3.12 python3.13 python3 python3.10)

say() { printf '%s\n' "$@" >&2; } # one line an argument

die() {
  say "$@"
  exit 1
}

wanted() { # what the environment depends on: the two files, and where the editable install points
  { cat pyproject.toml constraints.txt && pwd; } | sha256sum | cut -d' ' -f1
}

is_usable() { # PYTHON: of a version headrace supports, able to make virtual environments
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' \
    >/dev/null 2>&1
}

find_python() {
  local name
  for name in "${PYTHONS[@]}"; do
    if is_usable "$name"; then
      printf '%s' "$name"
      return
    fi
  done
  return 1
}

install_python() {
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    die "No Python 3.10 to 3.13 with 'venv' was found." \
      "  On Debian or Ubuntu: sudo apt-get install python3-venv, then the same command again."
  fi
  say "Installing the Debian package python3-venv"
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    python3 python3-venv >/dev/null </dev/null
}

step() { # TITLE COMMAND...: run with its output in the log, tell how long it took
  local title=$1 started=$SECONDS
  shift
  say "  $title …"
  if ! "$@" >>"$LOG" 2>&1 </dev/null; then
    say "" "$(tail -n 25 "$LOG")" ""
    die "That failed (the whole log: $LOG)." "  Correct the cause and run the same command again."
  fi
  say "    done in $((SECONDS - started)) s"
}

make_venv() {
  local python
  find_python >/dev/null || install_python
  python=$(find_python) || die "python3-venv is installed, but no Python 3.10 to 3.13 can use it."
  rm -rf "$VENV"
  mkdir "$VENV"
  touch "$STARTED"
  step "Virtual environment with $python ($("$python" -V | cut -d' ' -f2))" \
    "$python" -m venv "$VENV"
}

compile_all() { # as pip does by one core, but for tests; what is no Python of this version stays as it is
  "$VENV/bin/python" -m compileall -qq -j 0 -x "/tests?/" "$VENV/lib" || true
}

main() {
  exec 9<.
  flock 9 # two `make` at once: the second waits and finds it done
  if [[ -f $STAMP && $(<"$STAMP") == "$(wanted)" && -x $VENV/bin/headrace ]]; then
    return
  fi
  say "Setting up $VENV (this takes 2 to 4 minutes on 2 cores, and 2.7 GB; once)"
  rm -f "$STAMP"
  if [[ -e $STARTED ]] || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    [[ ! -e $STARTED ]] || say "  An earlier install was interrupted; starting anew."
    make_venv
  fi
  touch "$STARTED"
  local pip=("$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off
    --no-compile)
  local torch
  torch=$(grep -E '^torch==' constraints.txt)
  step "PyTorch ($torch)" "${pip[@]}" "$torch"
  step "headrace with Airflow, Dask, Lightning and the tools for tests" \
    "${pip[@]}" -c constraints.txt -e '.[dev]'
  step "Byte code of all packages" compile_all
  wanted >"$STAMP"
  rm -f "$STARTED"
  say "Set up."
}

main
