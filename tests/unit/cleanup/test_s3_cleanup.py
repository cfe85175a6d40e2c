"""Datasets in S3: versions, delete markers and unfinished uploads of a prefix, on real servers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace.cleanup.clean import carry_out, make_plan
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.objects.s3 import S3Store
from headrace.packing.target import PackTarget
from headrace.recipe.site import RetentionRule
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
    S3Store(f"{moto_bucket}/data", moto_server.options).purge()
    left = s3.list_object_versions(Bucket=bucket)
    assert [each["Key"] for each in left["Versions"]] == ["data-2/a"]
    assert not left.get("DeleteMarkers")
    uploads = s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [each["Key"] for each in uploads] == ["data-2/c"]


@pytest.mark.parametrize("kind", ["moto", "rclone", "swift"])
def test_a_dataset_in_s3_goes_whole(kind: str, request: pytest.FixtureRequest, headrace_home: Path):
    server: S3Server = request.getfixturevalue(f"{kind}_server")
    bucket: str = request.getfixturevalue(f"{kind}_bucket")
    S3Store(f"{bucket}/sets", server.options).write("other", b"x")
    run = make_run()
    site = run.site.model_copy(update={"s3": server.options})
    write_record(run.folder.site, site)
    target = PackTarget.of(site, f"{bucket}/sets", "digits-0123456789ab")
    S3Store(target.location, server.options).write("shards/a", b"x" * 1000)
    target.folder.path.mkdir(parents=True)
    (target.folder.path / "url").write_text(f"{target.location}\n")
    outputs: dict[str, Any] = {"dataset": target.location, "fingerprint": "f", "reused": False}
    step_ended(run, "pack", lease_on_disk(run), 1.0, outputs=outputs, number=1)
    open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, time.time())
    plan = make_plan(RetentionRule(older_than=0.0))
    assert target.location in [item.name for item in plan]
    assert [item.stays for item in carry_out(plan, Actor("ada", "here")) if item.stays] == []
    assert [*S3Store(f"{bucket}/sets", server.options).list_names()] == ["other"]
    assert not target.folder.path.exists()
    assert make_plan(RetentionRule(older_than=0.0, unreferenced=True)) == []
