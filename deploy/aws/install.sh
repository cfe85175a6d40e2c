#!/usr/bin/env bash
# Installs headrace on a machine of EC2, for all its users: as root, on Debian or Ubuntu.
#
#   install.sh FROM [TO]    FROM has headrace-*.whl and constraints.txt; TO is /opt/headrace
#
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu takes PyTorch without CUDA.
set -euo pipefail
from=$1
to=${2:-/opt/headrace}
umask 022 # user data runs with 077

export DEBIAN_FRONTEND=noninteractive
# images update their packages when they boot: wait for that
apt=(apt-get -qq -o DPkg::Lock::Timeout=300)
"${apt[@]}" update
"${apt[@]}" install --no-install-recommends curl nfs-common python3-venv

python3 -m venv "$to"
"$to/bin/pip" install --no-cache-dir --progress-bar off -c "$from/constraints.txt" \
  "$from"/headrace-*.whl
"$to/bin/headrace" --version
