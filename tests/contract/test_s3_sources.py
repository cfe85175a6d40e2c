"""Sources on S3 give what the same files give in a folder."""

import io
import json
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.errors import DataError
from headrace.objects.store import open_store
from headrace.packing.samples import Access
from headrace.packing.sources.open import open_source, with_format
from headrace.recipe.dataset import DatasetSpec
from support.s3_servers import S3Server, new_bucket

NUM = 40


def write_files(folder: Path) -> None:
    for number in range(NUM):
        path = folder / ("cat", "dog")[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * (1 + 997 * number))


def write_index(folder: Path) -> None:
    write_files(folder)
    rows = "".join(f"{('cat', 'dog')[n % 2]}/{n:02d}.png,{n % 3},why {n}\n" for n in range(NUM))
    (folder / "index.csv").write_text(f"path,label,question\n{rows}")


def write_tars(folder: Path) -> None:
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(NUM):
                for ending, content in {
                    "jpg": bytes([number]) * 5000,
                    "cls": b"%d" % number,
                }.items():
                    info = tarfile.TarInfo(f"{number:03d}.{ending}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))


def write_parquet(folder: Path) -> None:
    folder.mkdir()
    table = pa.table({"n": range(NUM), "text": [f"text {n}" for n in range(NUM)]})
    parquet.write_table(table, folder / "a.parquet", row_group_size=7)


def write_arrow(folder: Path) -> None:
    """As `save_to_disk` of Hugging Face `datasets`."""
    folder.mkdir()
    table = pa.table({"n": range(NUM), "text": [f"text {n}" for n in range(NUM)]})
    with pa.ipc.new_stream(folder / "data.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    state = {"_data_files": [{"filename": "data.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))


def write_hdf5(folder: Path) -> None:
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(NUM), chunks=(8,), compression="gzip")


FORMS = {
    "files": (write_files, {}),
    "index": (write_index, {"index": "index.csv"}),
    "webdataset": (write_tars, {}),
    "tar": (write_tars, {"format": "tar", "include": ["**/*.jpg"], "labels": "none"}),
    "parquet": (write_parquet, {}),
    "hdf5": (write_hdf5, {}),
    "huggingface": (write_arrow, {}),
}


@pytest.fixture(params=["moto_server", "rclone_server"])
def server(request: pytest.FixtureRequest, s3_credentials: None) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("form", list(FORMS))
def test_the_same_as_from_a_folder(tmp_path: Path, server: S3Server, form: str) -> None:
    write, more = FORMS[form]
    local, url = tmp_path / "local", f"{new_bucket(server)}/in/here"
    write(local)
    store = open_store(url, server.options)
    for path in local.rglob("*.*"):
        store.upload(path, str(path.relative_to(local)))
    access = Access(s3=server.options)
    here = DatasetSpec.model_validate({"name": "x", "source": str(local), **more})
    there = here.model_copy(update={"source": url})
    assert with_format(there, access).format == with_format(here).format
    near, far = open_source(here), open_source(there, access)
    expected, found = near.list_samples(), far.list_samples()
    assert [(r.path, r.label, r.num_bytes, r.where) for r in found] == [
        (r.path, r.label, r.num_bytes, r.where) for r in expected
    ]
    assert far.fields == near.fields
    worker = open_source(with_format(there, access), access, far.fields)
    assert list(worker.read(found[::-1])) == list(near.read(expected[::-1]))


@pytest.mark.parametrize("form", list(FORMS))
def test_objects_that_change_while_packing(tmp_path, moto_bucket, moto_server, form):
    write, more = FORMS[form]
    local = tmp_path / "local"
    write(local)
    store = open_store(moto_bucket, moto_server.options)
    paths = [str(path.relative_to(local)) for path in local.rglob("*.*")]
    for path in paths:
        store.upload(local / path, path)
    spec = DatasetSpec.model_validate({"name": "x", "source": moto_bucket, **more})
    source = open_source(spec, Access(s3=moto_server.options))
    refs = source.list_samples()
    name = next(path for path in sorted(paths) if refs[0].path.startswith(path))
    store.write(name, (local / name).read_bytes() + b"more")
    with pytest.raises(DataError, match=f"{name} was written to since"):
        list(source.read(refs))
    store.delete(name)
    with pytest.raises(DataError, match=f"{name} is gone since"):
        list(source.read(refs))
