"""The simulated EC2 leaves no process behind, at whatever moment it ends."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.ec2_sim import Ec2Sim
from support.s3_servers import S3Server


def test_an_instance_that_comes_up_while_all_ends_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    instance = SimpleNamespace(
        id="i-1", _state=SimpleNamespace(name="running"), user_data=b"sleep 600", get_tags=list
    )
    instance.terminate = lambda: None  # its user data is being started already
    monkeypatch.setattr(Ec2Sim, "instances", [instance])
    comes_up, boot, started = threading.Event(), Ec2Sim._boot, []

    def boot_late(sim: Ec2Sim, instance: SimpleNamespace) -> None:
        comes_up.set()
        assert sim._stop.wait(60)
        boot(sim, instance)
        started.append(sim._booted[instance.id])

    monkeypatch.setattr(Ec2Sim, "_boot", boot_late)
    sim = Ec2Sim(S3Server(name="none", endpoint_url=""), tmp_path, boot_s=0.0)
    serving = threading.Thread(target=sim.serve)
    serving.start()
    assert comes_up.wait(60)
    sim.stop()
    serving.join()
    sim.imds.server_close()
    (process,) = started
    ended = process.poll() is not None
    process.kill()
    process.wait()
    assert ended
