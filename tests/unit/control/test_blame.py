"""What keeps the nodes of one lease after another from coming is no fault of the nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.control.blame import bad_nodes, not_the_nodes
from headrace.control.ledgers import open_ledger
from headrace.leases.preflight import Check, NodeReport, report_file
from headrace.leases.records import BadNodes
from headrace.storage.atomic import write_record
from support.runs import lease_on_disk, make_run


@pytest.mark.parametrize(
    ("problems", "is_blamed"),
    [
        (("no image", None), True),  # it may have been that node
        (("no image", "not mounted"), True),
        (("no image", "no image"), False),
        (("no image", None, "no image"), False),
    ],
)
def test_what_fails_in_the_same_way_again_blames_no_node(
    problems: tuple[str | None, ...], is_blamed: bool
) -> None:
    run = make_run()
    lease_on_disk(run, "gpu")
    (row,) = open_ledger().leases(run_id=run.run_id)
    rows = [replace(row, lease_id=f"l{number}") for number in range(len(problems))]
    for each, problem in zip(rows, problems, strict=True):
        folder = run.lease_folder(each.lease_id)
        check = Check(name="container", problem=problem or "", seconds=0.1)
        write_record(report_file(folder, 0), NodeReport(node="n1", index=0, checks=(check,)))
    write_record(run.lease_folder("l0").bad_nodes, BadNodes(nodes=("n1",), why="x"))
    why = not_the_nodes(run, rows[0], rows)
    assert (why == "") == is_blamed
    assert is_blamed or "container: no image\n  It was the same 2 times" in why
    assert bad_nodes(run, rows) == (("n1",) if is_blamed else ())
