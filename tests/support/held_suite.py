"""A suite on machines that a test takes away, of trials that wait to be let go."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from headrace.ledger.ledger import open_ledger
from headrace.runs.lifecycle import create_run
from headrace.runs.owners import process_owner
from headrace.runs.runs import RunRequest
from headrace.suites.records import ENTRY, Ended, Started
from support.paced_run import Waiting, run_disturbed, until
from support.training import CODE, write_blobs


class HeldSuite:
    """One suite in a home, on a site `pool` with a role `gpu`.

    Args:
        home: Home of headrace.
        role: The role.
        recipe: Keys of the recipe: the points, and what they run.
    """

    def __init__(self, home: Path, role: dict[str, Any], recipe: dict[str, Any]) -> None:
        write_blobs(home / "blobs")
        content = {
            "code": [str(CODE)],
            "pack_role": "cpu",
            "dataset": {"name": "small", "path": str(home / "blobs")},
            "evaluate": None,
        }
        site = {
            "folder": str(home / "site"),
            "roles": {"cpu": {"kind": "pool", "nodes": 1}, "gpu": role},
            "tiers": [{"name": "disk", "folder": str(home / "tier"), "reserve": 0}],
            "allowed_code": [str(CODE)],
            "allowed_sources": ["/"],
            "limits": {"lost_after": 12},
        }
        for kind, name, keys in (("recipes", "held", content | recipe), ("sites", "pool", site)):
            (home / kind).mkdir(exist_ok=True)
            (home / kind / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, **keys}))
        request = {"key": f"test:{uuid.uuid4().hex}", "owner": process_owner(), "kind": "suite"}
        self.run = create_run(RunRequest(recipe="held", site="pool", **request))

    def go(self, disturb: Waiting) -> None:
        """Run to the end, and disturb meanwhile."""
        run_disturbed(self.run, disturb)

    def begun(self) -> dict[int, Started]:
        """The newest attempt at each trial that has begun."""
        entries = (each for each in self._entries() if isinstance(each, Started))
        return {each.number: each for each in entries}

    def ends(self) -> Sequence[Ended]:
        """Ends of attempts, the oldest first."""
        return [each for each in self._entries() if isinstance(each, Ended)]

    def usage(self) -> dict[tuple[int, int], Any]:
        """What attempts took and cost, by trial and attempt."""
        rows = chain.from_iterable(open_ledger().usage_blocks(self.run.run_id))
        return {
            (row["trial"], row["attempt"]): SimpleNamespace(**row) for row in rows if row["trial"]
        }

    def attempts_are(self, wanted: dict[int, int]) -> Waiting:
        """Wait until these trials are at these attempts."""
        yield from until(
            lambda: all(
                number in (begun := self.begun()) and begun[number].attempt == attempt
                for number, attempt in wanted.items()
            )
        )

    def _entries(self) -> Iterable[object]:
        journal = self.run.folder.journal
        text = journal.read_text() if journal.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        return [ENTRY.validate_json(line) for line in whole.splitlines()]
