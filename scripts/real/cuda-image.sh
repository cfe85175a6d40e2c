#!/usr/bin/env bash
# Builds headrace-base and headrace-core by Apptainer on a Debian of mmdebstrap, with the CUDA build
# of PyTorch from PyPI, and imports it. No Docker Hub, no GPU. 15 GB;
# 36 minutes on 2 busy cores, much of it compression.
#     scripts/real/cuda-image.sh FOLDER     (make real-cuda-image)
# Run as root. It works in a user namespace with all capabilities, which containers' root may lack.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath -m "$1")
mkdir -p "$folder"/{tmp,cache}
export APPTAINER_TMPDIR=$folder/tmp APPTAINER_CACHEDIR=$folder/cache
PATH=$PWD/.venv/bin:$PATH

[[ -d $folder/bookworm ]] ||
  mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$folder/bookworm"
rm -rf "$folder"/bookworm/dev/* # nodes of devices cannot be copied in a user namespace

python - build --builder apptainer --base "$folder/bookworm" \
  --with TORCH_INDEX=https://pypi.org/simple core \
  -- --force --mksquashfs-args "-comp zstd -Xcompression-level 1" \
  --bind /etc/ssl/certs/ca-certificates.crt <<'PYTHON'
import ctypes, os, runpy, sys

CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
(unshared, done), (mapped, go) = os.pipe(), os.pipe()
parent = os.getpid()
if os.fork() == 0:  # root of the machine maps all ids for its parent
    os.read(unshared, 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{parent}/{name}", "w") as file:
            file.write("0 0 65536")
    os.write(go, b"x")
    os._exit(0)
if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNS):
    sys.exit(os.strerror(ctypes.get_errno()))
os.write(done, b"x")
os.read(mapped, 1)
os.setgid(0), os.setuid(0)
sys.argv[0] = "deploy/containers/container_images.py"
runpy.run_path(sys.argv[0], run_name="__main__")
PYTHON
apptainer --quiet exec --userns headrace-core.sif /opt/headrace/bin/python -c \
  'import headrace, torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
mv headrace-base.sif headrace-core.sif "$folder/"
ls -l "$folder"/*.sif
