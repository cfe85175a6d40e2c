"""A registry of images on loopback: Debian's `docker-registry`, filled by `skopeo`."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from headrace.processes.identity import die_with_parent
from support.ports import find_free_port
from support.waiting import wait_until


def why_not() -> str:
    """Why this machine has none; empty when it has."""
    for program in ("docker-registry", "skopeo"):
        if shutil.which(program) is None:
            return f"install {program}: scripts/system-packages.sh"
    return ""


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run a registry with its files in a folder; yield `host:port`."""
    folder.mkdir()
    at = ("127.0.0.1", find_free_port())
    settings = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"{at[0]}:{at[1]}"},
    }
    (folder / "config.yml").write_text(json.dumps(settings))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")],
            stdout=log, stderr=log, preexec_fn=partial(die_with_parent, signal.SIGKILL),
        )  # fmt: skip
    try:
        wait_until(lambda: _listens(at), 30, "the registry")
        yield f"{at[0]}:{at[1]}"
    finally:
        process.terminate()
        process.wait()


def push(root: Path, reference: str) -> None:
    """Push a root folder as an image of one layer, `host:port/name:tag`."""
    layout = root.with_suffix(".oci")
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    with tarfile.open(layout / "layer", "w") as archive:
        archive.add(root, ".")

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    layer = blob((layout / "layer").read_bytes(), "layer.v1.tar")
    content = {"type": "layers", "diff_ids": [layer["digest"]]}
    config = {"architecture": "amd64", "os": "linux", "rootfs": content}
    described = {"schemaVersion": 2, "layers": [layer]}
    described["config"] = blob(json.dumps(config).encode(), "config.v1+json")
    manifest = blob(json.dumps(described).encode(), "manifest.v1+json")
    manifest["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    copy = ("skopeo", "copy", "--dest-tls-verify=false", f"oci:{layout}:latest")
    subprocess.run([*copy, f"docker://{reference}"], check=True, capture_output=True, timeout=60)


def _listens(at: tuple[str, int]) -> bool:
    with suppress(OSError), socket.create_connection(at, 1):
        return True
    return False
