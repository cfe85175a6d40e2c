"""What AWS billed, by service, beside what headrace counts in the same days.

The file is a Cost and Usage Report 2.0, as CSV or Parquet. Columns:
https://docs.aws.amazon.com/cur/latest/userguide/table-dictionary-cur2.html.
"""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.console import hundredths, open_console, tell, tell_json
from headrace.cli.listing import Listing
from headrace.errors import UserError
from headrace.ledger.ledger import open_ledger
from headrace.record import Record

if TYPE_CHECKING:
    import pyarrow as pa

_COST, _BEGIN, _TAGS = ("line_item_unblended_cost", "line_item_usage_start_date", "resource_tags")
_SERVICES = ("product_servicecode", "line_item_product_code")
_OURS = '"(user[:_])?headrace[:_]|"(user[:_])?[Nn]ame" *: *"headrace-'
"""Tags of instances and volumes, as `{"user_Name": "headrace-…", "user_headrace_owner": "…"}`."""


class Bill(Record):
    """A bill of headrace's resources; US dollars."""

    first_day: str
    last_day: str
    services: dict[str, float]
    """Unblended cost by service, the highest first."""
    usd: float
    """All services together."""
    untagged_usd: float
    """Cost of these days without a tag of headrace, as of storage and taxes."""
    counted_usd: float | None
    """What headrace counts for its EC2 instances; null: no price is known."""


def compare(file: Path, chosen: dict[str, Any], *, as_json: bool) -> None:
    """Print the bill of a report beside what headrace counts; `chosen` as for `usage_sums`."""
    found = bill_of(file, chosen)
    if as_json:
        tell_json(found)
        return
    listed = Listing("service", "USD", figures=("USD",))
    for name, usd in {**found.services, "all": found.usd}.items():
        listed.add(name, hundredths(usd))
    open_console().print(listed)
    counted = "an unknown amount" if found.counted_usd is None else hundredths(found.counted_usd)
    tell(
        f"From {found.first_day} to {found.last_day} headrace counts {counted} for EC2 instances; "
        f"the report has {hundredths(found.untagged_usd)} USD more without headrace's tags."
    )


def bill_of(file: Path, chosen: dict[str, Any]) -> Bill:
    """Return the bill of headrace's resources in a report.

    Raises:
        UserError: The file cannot be read, lacks a column, or has no costs of these days.
    """
    import pyarrow.compute as pc

    table = _read(file)
    days = pc.utf8_slice_codeunits(table[_BEGIN].cast("string"), 0, 10)
    table = table.append_column("day", days)
    table = table.filter(pc.greater_equal(days, chosen["since"]))
    tagged = table.filter(_is_tagged(table[_TAGS].combine_chunks()))
    if not tagged.num_rows:
        raise UserError(
            f"{file} has {table.num_rows:,} lines of these days, none with a tag of headrace",
            "Activate the tags Name and headrace:owner as cost allocation tags in AWS's Billing "
            "console; they count from then on.",
        )
    sums = tagged.group_by("service").aggregate([("usd", "sum")])
    sums = sums.sort_by([("usd_sum", "descending")])
    services = dict(zip(*(sums[name].to_pylist() for name in ("service", "usd_sum")), strict=True))
    first, last = (str(each) for each in pc.min_max(table["day"]).as_py().values())
    chosen = {**chosen, "since": first, "before": str(date.fromisoformat(last) + timedelta(days=1))}
    counted = open_ledger().usage_sums(None, backend="ec2", **chosen)
    usd = sum(services.values())
    return Bill(
        first_day=first,
        last_day=last,
        services=services,
        usd=usd,
        untagged_usd=pc.sum(table["usd"]).as_py() - usd,
        counted_usd=counted[0].usd if counted else 0.0,
    )


def _read(file: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv, dataset

    texts = dict.fromkeys((_BEGIN, _TAGS, *_SERVICES), pa.string()) | {_COST: pa.float64()}
    as_csv = dataset.CsvFileFormat(convert_options=csv.ConvertOptions(column_types=texts))
    try:
        report = dataset.dataset(file, format="parquet" if ".parquet" in file.name else as_csv)
        names = [name for name in _SERVICES if name in report.schema.names]
        if missing := {_COST, _BEGIN, _TAGS, *_SERVICES[: not names]} - {*report.schema.names}:
            raise UserError(
                f"{file} lacks the columns {', '.join(sorted(missing))}",
                "Give a Cost and Usage Report 2.0 (AWS Data Exports), as CSV or Parquet.",
            )
        known = {"line_item_currency_code"}.intersection(report.schema.names)
        table = report.to_table(columns=[_COST, _BEGIN, _TAGS, *names, *known])
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{file} cannot be read: {error}", "Give CSV or Parquet.") from error
    if others := {x for n in known for x in table[n].unique().to_pylist()} - {"USD", "", None}:
        raise UserError(f"{file} has costs in {', '.join(sorted(others))}", "Give a report in USD.")
    service = pc.coalesce(*(table[name].cast("string") for name in names), "unknown")
    return table.append_column("service", service).append_column("usd", table[_COST].cast("double"))


def _is_tagged(tags: pa.Array) -> pa.Array:
    """Return whether each line has a tag of headrace, in a map or in JSON text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_map(tags.type):
        tags = pa.array([json.dumps(dict(each or ())) for each in tags.to_pylist()], pa.string())
    return pc.fill_null(pc.match_substring_regex(tags, _OURS), False)
