"""A bill of AWS beside what headrace counts, and the ranking of sites."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import UnknownNameError, UserError
from headrace.ledger.ledger import open_ledger
from headrace.states import StepState
from support.command_line import headrace
from support.ledger_rows import add_ended_lease, day, run_row, usage_row

_OURS = {"user_name": "headrace-digits-1", "user_headrace_owner": "ann"}
_VOLUME = {"user_headrace_owner": "ann"}
_LINES: list[tuple[str, float, str, dict[str, str] | None]] = [
    ("2026-10-31", 99.0, "AmazonEC2", _OURS),
    ("2026-11-01", 1.5, "AmazonEC2", _OURS),
    ("2026-11-23", 0.25, "AmazonEBS", _VOLUME),
    ("2026-11-23", 2.0, "AmazonEC2", {"user_name": "headrace-digits-2", "user_team": "vision"}),
    ("2026-11-23", 7.0, "AmazonS3", {"user_name": "bucket-of-headrace-", "user_x": "headrace-y"}),
    ("2026-11-23", 3.0, "AmazonVPC", None),
    ("2026-11-23", 0.5, "AWSSupport", {}),
]


def _csv(file: Path) -> Path:
    header = "line_item_usage_start_date,line_item_unblended_cost,line_item_product_code"
    rows = [f"{header},product_servicecode,resource_tags,line_item_usage_amount"]
    for begin, usd, service, tags in _LINES:
        told = "" if tags is None else json.dumps(tags).replace('"', '""')
        rows.append(f'{begin}T00:00:00.000Z,{usd},x,{service},"{told}",1')
    file = file / "report.csv.gz"
    file.write_bytes(gzip.compress("\n".join(rows).encode()))
    return file


def _parquet(file: Path) -> Path:
    begins, usd, services, tags = zip(*_LINES, strict=True)
    columns = {
        "line_item_usage_start_date": [datetime.fromisoformat(each) for each in begins],
        "line_item_unblended_cost": usd,
        "line_item_product_code": services,
        "product_servicecode": [None] * len(services),
    }
    kind = pa.map_(pa.string(), pa.string())
    maps = pa.array([None if each is None else [*each.items()] for each in tags], kind)
    file = file / "report-00001.snappy.parquet"
    pq.write_table(pa.table(columns).append_column("resource_tags", maps), file)
    return file


@pytest.mark.parametrize("write", [_csv, _parquet])
@pytest.mark.usefixtures("headrace_home")
def test_a_bill_is_added_up_by_service_beside_what_is_counted(
    tmp_path: Path, write: Callable[[Path], Path]
):
    """pains 37."""
    open_ledger().add_run(run_row())
    add_ended_lease("lease-1", 2.0, 1.6, backend="ec2")
    add_ended_lease("lease-2", 2.0, 50.0, backend="slurm")
    add_ended_lease("lease-3", 2.0, 50.0, backend="ec2", ended_at=day("2026-11-24"))
    file = write(tmp_path)
    ended = headrace("cost", "--bill", str(file), "--since", "2026-11", "--json")
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert list(found["services"].items()) == [("AmazonEC2", 3.5), ("AmazonEBS", 0.25)]
    assert (found["first_day"], found["last_day"]) == ("2026-11-01", "2026-11-23")
    assert (found["usd"], found["untagged_usd"], found["counted_usd"]) == (3.75, 10.5, 3.2)
    text = headrace("cost", "--bill", str(file)).stdout
    assert "AmazonEC2  102.50" in text
    assert "From 2026-10-31 to 2026-11-23 headrace counts 3.20 for EC2 instances" in text


@pytest.mark.usefixtures("headrace_home")
def test_what_is_no_report_is_refused_with_what_it_lacks(tmp_path: Path):
    required = "line_item_usage_start_date,line_item_unblended_cost,resource_tags"
    for name, content, message in (
        ("a.csv", "a,b\n1,2\n", "lacks the columns line_item_unblended_cost"),
        ("b.parquet", "a,b\n1,2\n", "cannot be read"),
        ("c.csv", f"{required}\n2026-11-01,1,x\n", "lacks the columns product_servicecode"),
        ("missing.csv", None, "cannot be read"),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=message):
            headrace("cost", "--bill", str(tmp_path / name))
    with pytest.raises(UserError, match="none with a tag of headrace"):
        headrace("cost", "--bill", str(_csv(tmp_path)), "--since", "2026-12")


@pytest.mark.usefixtures("headrace_home")
def test_a_bill_in_another_currency_is_refused(tmp_path: Path):
    file = tmp_path / "cny.csv"
    header = (
        "line_item_usage_start_date,line_item_unblended_cost,product_servicecode,resource_tags,"
    )
    tags = json.dumps(_OURS).replace('"', '""')
    for currency in ("USD", "CNY"):
        line = f'2026-11-01T00:00:00.000Z,1.5,AmazonEC2,"{tags}",{currency}'
        file.write_text(f"{header}line_item_currency_code\n{line}\n")
        if currency == "USD":
            assert headrace("cost", "--bill", str(file)).exit_code == 0
    with pytest.raises(UserError, match="has costs in CNY"):
        headrace("cost", "--bill", str(file))
    with pytest.raises(UserError, match="--bill has no table for --csv"):
        headrace("cost", "--bill", str(file), "--csv")


@pytest.fixture
def measured(headrace_home: Path) -> None:
    """Two runs of a recipe on a cluster, one on a laptop without a price, one of another recipe."""
    done: dict[str, Any] = {"state": StepState.SUCCEEDED, "finished_at": 101.0}
    for run_id, site, recipe, usd, samples in (
        ("run-1", "cluster", "files:r1;s1", 2.0, 1000),
        ("run-2", "cluster", "files:r1;s1", 4.0, 3000),
        ("run-3", "laptop", "files:r1;s2", None, 500),
        ("run-4", "box", "files:r1;s3", 1.0, None),
        ("run-5", "cluster", "files:r2;s1", 99.0, 10**9),
    ):
        run = run_row(run_id, site_name=site, recipe_fingerprint=recipe, **done)
        run.created_at += int(run_id[-1] == "4")  # the newest of the recipe
        open_ledger().add_run(run)
        lease_id = add_ended_lease(f"lease-{run_id}", 1.0, usd, run_id=run_id, site_name=site)
        row = usage_row(step="train", kind="train", run_id=run_id, lease_id=lease_id)
        used = {"samples": samples, "train_s": 10.0}
        open_ledger().put_usage([row.model_copy(update=used)])


@pytest.mark.usefixtures("measured")
def test_sites_are_ranked_by_samples_per_second_and_by_dollars_a_run():
    def ranking(*words: str) -> list[dict[str, Any]]:
        ended = headrace("rank", *words, "--json")
        assert ended.exit_code == 0, ended.output
        return list(json.loads(ended.stdout))

    found = ranking("digits")
    told = [(row["site"], row["runs"], row["samples_per_s"], row["usd"]) for row in found]
    assert told == [("cluster", 2, 200.0, 3.0), ("laptop", 1, 50.0, None), ("box", 1, None, 1.0)]
    assert [row["is_fastest"] for row in found] == [True, False, False]
    assert [row["is_cheapest"] for row in found] == [False, False, True]
    assert [row["site"] for row in ranking("run-1", "--by", "usd")] == ["box", "cluster", "laptop"]
    assert [row["runs"] for row in ranking("run-5")] == [1]
    (only,) = ranking("digits", "--site", "laptop")
    assert (only["site"], only["is_fastest"], only["is_cheapest"]) == ("laptop", True, False)
    lines = [line.split() for line in headrace("rank", "digits").stdout.splitlines()]
    assert lines[1][:4] == ["cluster", "2", "200", "3.00"]
    assert lines[1][-1] == "fastest"


@pytest.mark.usefixtures("measured")
def test_what_has_no_run_is_named():
    for words, message in (
        (("digit",), "No run of 'digit' has succeeded"),
        (("digits", "--site", "moon"), "has succeeded on site 'moon'"),
    ):
        with pytest.raises(UnknownNameError, match=message):
            headrace("rank", *words)
    with pytest.raises(UserError, match="--by is 'sample'"):
        headrace("rank", "digits", "--by", "sample")
