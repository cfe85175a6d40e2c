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
TORCH_INDEX=https://download.pytorch.org/whl/cpu/torch/
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

find_uv() { # its path: one that is there, else the pinned one from where pip installs
  local pin
  if command -v uv; then
    return
  fi
  pin=$(grep -E '^uv==' constraints.txt) || return
  "$VENV/bin/python" -m pip install --disable-pip-version-check --quiet "$pin" >>"$LOG" 2>&1 </dev/null &&
    printf '%s' "$PWD/$VENV/bin/uv"
}

uv_settings() { # uv's words for what pip is configured with, which uv does not read: one a line
  local key value word
  printf '%s\n' --index-strategy unsafe-best-match # the newest of all indexes, as pip does
  "$VENV/bin/python" -m pip config list | while IFS='=' read -r key value; do
    value=${value#\'}
    value=${value%\'}
    for word in ${value//\\n/ }; do
      case ${key##*.} in
        index-url) printf '%s\n' --default-index "$word" ;;
        extra-index-url) printf '%s\n' --index "$word" ;;
        find-links) printf '%s\n' --find-links "$word" ;;
        constraint) printf '%s\n' --constraints "$word" ;;
        trusted-host) printf '%s\n' --allow-insecure-host "$word" ;;
        no-index) printf '%s\n' --no-index ;;
        *) ;;
      esac
    done
  done
}

torch_settings() { # PyTorch for this machine's GPU, or without CUDA, where its own index can be reached
  if [[ " $* " == *" --no-index "* || " $* " == *" --find-links "* ]]; then
    return
  fi
  if "$VENV/bin/python" -c "import urllib.request as u; u.urlopen('$TORCH_INDEX', timeout=5)" 2>/dev/null; then
    printf '%s\n' --torch-backend auto
  fi
}

by_uv() { # UV: all packages at once, as the pins say
  local uv=$1 settings torch certificates
  mapfile -t settings < <(uv_settings)
  mapfile -t torch < <(torch_settings "${settings[@]}")
  certificates=$("$VENV/bin/python" -m pip config list | sed -n "s/.*\.cert='\(.*\)'/\1/p" | tail -n 1)
  if [[ -n $certificates ]]; then
    export SSL_CERT_FILE=$certificates
  fi
  step "headrace with Airflow, Dask, PyTorch and the tools for tests, by uv" \
    "$uv" pip install --python "$VENV/bin/python" --no-progress "${settings[@]}" "${torch[@]}" \
    -c constraints.txt -e '.[dev]'
}

by_pip() { # PyTorch first: what needs it finds that build
  local torch pip=("$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off
    --no-compile)
  torch=$(grep -E '^torch==' constraints.txt)
  step "PyTorch ($torch)" "${pip[@]}" "$torch"
  step "headrace with Airflow, Dask, Lightning and the tools for tests" \
    "${pip[@]}" -c constraints.txt -e '.[dev]'
}

compile_all() { # as pip does with one core, except tests; files of other Python versions stay as they are
  "$VENV/bin/python" -m compileall -qq -j 0 -x "/tests?/" "$VENV/lib" || true
}

main() {
  local uv
  trap 'exit 130' INT # Ctrl-C must not count as a failure of uv, after which pip would begin
  exec 9<.
  flock 9 # two `make` at once: the second waits and finds it done
  if [[ -f $STAMP && $(<"$STAMP") == "$(wanted)" && -x $VENV/bin/headrace ]]; then
    return
  fi
  say "Setting up $VENV (this takes 1 to 2 minutes on 2 cores, and 2.7 GB; once)"
  rm -f "$STAMP"
  if [[ -e $STARTED ]] || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    [[ ! -e $STARTED ]] || say "  An earlier install was interrupted; starting anew."
    make_venv
  fi
  touch "$STARTED"
  if ! uv=$(find_uv); then
    say "  uv is missing here and in the index of pip: installing with pip, which takes longer"
    by_pip
  elif ! (by_uv "$uv"); then # an index that pip knows how to log in to, and uv does not
    say "  Once more, by pip"
    by_pip
  fi
  step "Byte code of all packages" compile_all
  wanted >"$STAMP"
  rm -f "$STARTED"
  say "Set up."
}

main
