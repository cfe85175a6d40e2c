"""Datasets in S3: versions, delete markers and unfinished uploads of a prefix, on real servers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace.cleanup.clean import carry_out
from headrace.cleanup.disk_use import disk_use
from headrace.cleanup.plan import make_plan
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.objects.s3 import S3Store
from headrace.recipe.retention import RetentionRule
from headrace.runs.audit import Actor
from headrace.states import StepState
from support.past_runs import step_ended
from support.runs import lease_on_disk, make_run
from support.s3_servers import S3Server, client


def test_versions_markers_and_uploads_go_and_neighbours_stay(
    moto_server: S3Server, moto_bucket: str
):
    s3, bucket = client(moto_server), moto_bucket.removeprefix("s3://")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for key in ("data/a", "data/a", "data/b", "data-2/a"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x" * 100)
    s3.delete_object(Bucket=bucket, Key="data/b")
    for key in ("data/c", "data-2/c"):
        s3.create_multipart_upload(Bucket=bucket, Key=key)
    store = S3Store(f"{moto_bucket}/data", moto_server.options)
    assert store.stored_bytes() == 300
    assert store.purge(keeps_newest=True, older_than_s=3600.0) == 1  # moto's uploads are of 2010
    assert store.purge(keeps_newest=True) == 2  # the old a, the hidden b
    assert store.read("a") == b"x" * 100
    assert store.purge(keeps_newest=False) == 2
    left = s3.list_object_versions(Bucket=bucket)
    assert [each["Key"] for each in left["Versions"]] == ["data-2/a"]
    assert not left.get("DeleteMarkers")
    uploads = s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [each["Key"] for each in uploads] == ["data-2/c"]


@pytest.mark.parametrize("kind", ["moto", "rclone", "swift"])
def test_a_dataset_in_s3_goes_whole(kind: str, request: pytest.FixtureRequest, headrace_home: Path):
    server: S3Server = request.getfixturevalue(f"{kind}_server")
    bucket: str = request.getfixturevalue(f"{kind}_bucket")
    url = f"{bucket}/sets/digits-0123"
    S3Store(url, server.options).write("shards/a", b"x" * 1000)
    S3Store(f"{bucket}/sets", server.options).write("other", b"x")
    run = make_run()
    site = run.site.model_copy(update={"s3": server.options})
    write_record(run.folder.site, site)
    outputs: dict[str, Any] = {
        "dataset": url,
        "fingerprint": "f",
        "reused": False,
        "num_bytes": 1000,
    }
    step_ended(run, "pack", lease_on_disk(run), 1.0, outputs=outputs, number=1)
    open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, time.time())
    assert [(each.name, each.num_bytes) for each in disk_use(remote=True).stores] == [(url, 1000)]
    plan = make_plan(RetentionRule(older_than=0.0, what=("datasets",)))
    assert [each.name for each in plan.items] == [url]
    (done,) = carry_out(plan, Actor("ada", "here"))
    assert done.why_not == ""
    assert [*S3Store(f"{bucket}/sets", server.options).list_names()] == ["other"]
