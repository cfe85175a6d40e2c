"""The batch system of docs/how-to/extend.md, as an installed package, passes what others do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.batch.system import BatchSystem
from headrace.recipe.backend import backend_of
from headrace.recipe.load import load_site
from support.added_packages import blocks, entry_points_of, found_in, install
from support.batch_contract import FakeQueueContract


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[None]:
    section, folder = "A batch system", tmp_path / "site-packages"
    install(folder, "headrace_tq", blocks(section, "python"), entry_points_of(section))
    (folder / "headrace_tq.sh.jinja").write_text(blocks(section, "jinja"))
    with found_in(folder):
        yield


class TestTq(FakeQueueContract):
    kind = "tq"
    refused = {"partition": "nope"}
    refusal = "no queue nope"
    impossible = {"nodes": 99}
    no_answer = {"program": "tq-submit", "error": "tq-submit: no answer"}

    @staticmethod
    def make(commands: object) -> BatchSystem:
        return backend_of("tq")(commands)  # type: ignore[call-arg, return-value]


def test_it_is_short() -> None:
    written = blocks("A batch system", "python") + blocks("A batch system", "jinja")
    assert len(written.splitlines()) <= 120


def test_a_role_names_it_and_what_it_lacks_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    text = (
        f"folder: {tmp_path}\ntiers: [{{name: t, folder: {tmp_path}/t}}]\n"
        "roles: {gpu: {backend: tq, batch: {BATCH}}}\n"
    )
    site.write_text(text.replace("BATCH", "partition: main"))
    assert load_site(str(site)).roles["gpu"].has_queue
    for batch, words in (
        ("qos: high", "backend 'tq' has no `batch.qos`: write the cluster's own option"),
        ("options: [--name=x]", "must not hold '--name=x': headrace finds its jobs by their names"),
    ):
        site.write_text(text.replace("BATCH", batch))
        with pytest.raises(Exception, match=words):
            load_site(str(site))
