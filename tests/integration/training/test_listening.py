"""Where the ranks of a real training listen: nobody else's machine or account is to meet them."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from headrace.files.machine import free_ports
from headrace.training.rendezvous import tcp_store
from support.doors import doors
from support.training import ThisProcessFleet, blob_step, train_here, write_blobs


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_listen_on_the_interface_of_the_lease_alone(tmp_path: Path, nodes: int) -> None:
    """Pains 33."""
    write_blobs(tmp_path / "dataset", train_samples=16)
    model = {"_target_": "listening_model.ListeningModel"}
    site = {"nodes": nodes, "ranks": 2 // nodes}
    context = blob_step(tmp_path, model, site=site, trainer={"max_epochs": 1})
    train_here(context, tmp_path / "dataset", ThisProcessFleet(nodes))
    found = [
        json.loads(note.read_text())
        for note in sorted((tmp_path / "notes").glob("listening-*.json"))
    ]
    assert len(found) == 2
    assert {ip for rank in found for ip, _ in rank} == {"127.0.0.1"}
    # the ranks of a node meet in a private file, those of several at a port of rank 0
    assert (rendezvous_port(context.folder.parts) in {port for _, port in found[0]}) == (nodes > 1)


def rendezvous_port(parts: Path) -> int:
    spec = json.loads((parts / "launch-001" / "node-0.json").read_text())
    return int(spec["launch"]["master_port"])


def test_a_store_listens_at_its_own_address_alone() -> None:
    port = free_ports("127.0.0.1", 0)[0]
    store = tcp_store(("127.0.0.1", port), 0, 1, timedelta(seconds=30))
    assert {door.ip for door in doors([psutil.Process()]) if door.port == port} == {"127.0.0.1"}
    store.set("name", "value")
    assert store.get("name") == b"value"


def test_nodes_that_try_themselves_out_meet_there_without_lightning() -> None:
    """Its import takes twice as long as all else that they do."""
    trial = f"all_reduce_problem('127.0.0.1:{free_ports('127.0.0.1', 0)[0]}', 0, 1, 0)"
    code = (
        "import sys; from headrace.training.rendezvous import all_reduce_problem\n"
        f"print(repr({trial}), 'lightning' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "'' False\n"
