"""Manifests and HDF5 headers of any content: nothing but named errors."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ManifestError
from headrace.files.manifest_file import parse_manifest, sealed

MANIFEST = json.loads((Path(__file__).parent / "format_1/manifest.json").read_bytes())
SHARD = Path(__file__).parent / "format_1/shards/train-00000.h5"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)

MUTATE = """
import random, sys
from pathlib import Path
from headrace.errors import HeadraceError
from headrace.shards.foreign import ForeignFile
from headrace.shards.reader import read_layout

content, path = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
generator, refused = random.Random(int(sys.argv[3])), 0
for _ in range(int(sys.argv[4])):
    damaged = bytearray(content)
    for _ in range(generator.randrange(1, 4)):
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
    path.write_bytes(damaged)
    for look in (read_layout, lambda path: ForeignFile(path, "a.h5").columns()):
        try:
            look(path)
        except HeadraceError:
            refused += 1
print(refused)
"""


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*MANIFEST, "more"]), min_size=1, max_size=3), JSON, st.booleans())
def test_manifests(keys: list[str], value: Any, is_sealed: bool) -> None:
    content = json.loads(json.dumps(MANIFEST))
    for key in keys:
        content[key] = value
    text = json.dumps(content, indent=1)
    with suppress(ManifestError):
        parse_manifest(sealed(text) if is_sealed else text.encode(), "m")


def test_headers_of_hdf5(tmp_path: Path) -> None:
    """In a process of its own, since HDF5 may crash on what it reads."""
    command = [sys.executable, "-c", MUTATE, str(SHARD), str(tmp_path / "a.h5"), "7", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= 300  # ForeignFile refuses shards anyhow
