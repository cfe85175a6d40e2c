#!/usr/bin/env bash
# Packs, stages and trains the digits on another processor, emulated by qemu: the shards must have
# the same bytes as here. As root: makes a Debian root (3 GB) in FOLDER, which is kept for the next
# call; minutes on an idle machine.
#   scripts/real/power.sh [--arch ppc64el|arm64] [FOLDER]
set -euo pipefail

arch=ppc64el
if [[ ${1:-} == --arch ]]; then
  arch=$2
  shift 2
fi
folder=${1:-/var/tmp/headrace-$arch}
here=$(cd "$(dirname "$0")/../.." && pwd)
suite=forky # trixie has neither pyarrow nor s3fs
declare -A QEMU=([ppc64el]=ppc64le [arm64]=aarch64)

FROM_DEBIAN=(torch h5py numpy dask distributed aiobotocore aiohttp alembic botocore cryptography
  filelock fsspec hdf5plugin omegaconf jinja2 matplotlib pil psutil pyarrow pydantic rich s3fs
  safetensors sklearn scipy sortedcontainers sqlalchemy typing-extensions xxhash grpcio protobuf
  contourpy markdown werkzeug absl pandas tqdm colorlog yaml networkx markdown-it threadpoolctl)
FROM_PYPI=(lightning pytorch-lightning lightning-utilities torchmetrics hydra-core dask-jobqueue
  optuna bokeh narwhals xyzservices simpy tensorboard tensorboard-data-server typer shellingham
  click annotated-doc) # without compiled code; obstore is in neither

fail() {
  printf '%s\n' "$@" >&2
  exit 1
}

needs() {
  [[ $(id -u) == 0 ]] || fail "It must be root: it makes a root file system."
  [[ -n ${QEMU[$arch]:-} ]] || fail "--arch is $arch; valid are ${!QEMU[*]}."
  command -v mmdebstrap arch-test "qemu-${QEMU[$arch]}-static" >/dev/null ||
    fail "Install them: apt-get install mmdebstrap arch-test qemu-user-static"
}

# The kernel starts the emulator for programs of this processor, until it is asked not to.
emulate() {
  local name="qemu-${QEMU[$arch]}"
  mountpoint -q /proc/sys/fs/binfmt_misc || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  [[ -e /proc/sys/fs/binfmt_misc/$name ]] ||
    cat "/usr/lib/binfmt.d/$name.conf" >/proc/sys/fs/binfmt_misc/register
}

# shellcheck disable=SC2016  # mmdebstrap's shell expands them
make_root() {
  local packages
  packages=$(printf 'python3-%s,' "${FROM_DEBIAN[@]}")
  rm -rf "$folder/root"
  # byte code of all packages would take longer than everything else
  mmdebstrap --mode=root --variant=minbase --architectures="$arch" --include="${packages%,}" \
    --aptopt='Apt::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --essential-hook='mkdir -p "$1/usr/bin"; ln -s /bin/true "$1/usr/bin/py3compile"' \
    --dpkgopt='path-exclude=/usr/bin/py3compile' \
    "$suite" "$folder/root" "deb [trusted=yes] http://deb.debian.org/debian $suite main"
  touch "$folder/made"
}

add_wheels() {
  local python
  python=$(basename "$(readlink "$folder/root/usr/bin/python3")")
  rm -rf "$folder/site"
  "$here/.venv/bin/python" -m pip install --quiet --target "$folder/site" --no-deps --no-compile \
    --only-binary=:all: --platform any --implementation py --python-version "${python#python}" \
    --constraint "$here/constraints.txt" "${FROM_PYPI[@]}"
  make -s -C "$here" wheel
  "$here/.venv/bin/python" -m pip install --quiet --target "$folder/site" --no-deps --no-compile \
    --ignore-requires-python "$here"/dist/headrace-*.whl
}

# shellcheck disable=SC2016  # the inner shell expands them
inside() { # COMMAND…: in the root, which sees the folder as /mnt
  unshare --mount --propagation private bash -euc '
    root=$1/root
    mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev"
    mount --bind "$1" "$root/mnt" && shift
    exec chroot "$root" env -i HOME=/mnt HEADRACE_HOME=/mnt/home PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      LANG=C.UTF-8 PYTHONPATH=/mnt/site PYTHONDONTWRITEBYTECODE=1 "$@"' bash "$folder" "$@"
}

needs
emulate
mkdir -p "$folder"
[[ -e $folder/made ]] || make_root
add_wheels
cp "$here/scripts/real/digits_here.py" "$folder"
rm -rf "$folder/there" "$folder/here"
"$here/.venv/bin/headrace" example digits "$folder/digits"
"$here/.venv/bin/python" "$folder/digits_here.py" train "$folder/digits" "$folder/here" >/dev/null
time inside python3 /mnt/digits_here.py train /mnt/digits /mnt/there
"$here/.venv/bin/python" "$folder/digits_here.py" compare "$folder/here" "$folder/there"
