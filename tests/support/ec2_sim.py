"""EC2 on this machine: moto answers requests, and the user data of its instances really runs.

Nothing is contacted but loopback. What moto lacks is added: a token that is asked for twice starts
nothing twice, instances shut themselves down, the console is what the user data said.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import psutil
import pytest

from support.leftovers import MARK
from support.s3_servers import S3Server
from support.waiting import wait_until

if TYPE_CHECKING:
    from headrace_ec2.options import Ec2Options

REGION = "us-east-1"
IMAGE = "ami-760aaa0f"  # one that moto knows
IMAGE_NAME = "amzn-ami-hvm-2017.09.1.20171103-x86_64-gp2"
QUOTAS = (
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "Running On-Demand G and VT instances",
    "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
    "All G and VT Spot Instance Requests",
)
_ACCOUNT = "123456789012"
_INSTANCE = "SIMULATED_INSTANCE"
_LOOK_S = 0.1
_SHUTDOWN = """#!/bin/sh
echo "$2" >> "$HOME/shutdown"
"""

Refuse = Callable[[str, bool], None]
"""Looks at the type of instances that is asked for, and whether they are spot; may raise."""


@dataclass
class Ec2Sim:
    """EC2 with instances that are groups of local processes."""

    server: S3Server
    """Moto."""
    folder: Path
    """Where the instances have their disks."""
    boot_s: float = 0.2
    """How long an instance takes to come to its user data."""
    boots: bool = True
    """Whether instances come to their user data at all: those of a wrong image do not."""
    minute_s: float = 60.0
    """How long a minute of `shutdown` lasts."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """What RunInstances was asked."""
    refuse: Refuse | None = None
    """Asked before instances start."""
    errors_before: int = 0
    """So many requests that start nothing come to no clear answer."""
    errors_after: int = 0
    """So many requests that start instances come to no clear answer."""
    quotas: dict[str, float] = field(default_factory=lambda: dict.fromkeys(QUOTAS, 64.0))
    """Quotas by name, in vCPUs."""
    refuse_quotas: Exception | None = None
    """Raised when quotas are asked for."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of instances, besides their own."""
    is_silent: bool = False
    """Whether EC2 answers nothing but that it is not available."""
    notices: dict[str, str] = field(default_factory=dict)
    """Spot notices by instance."""
    risks: dict[str, str] = field(default_factory=dict)
    """Recommendations to leave an instance, by instance."""
    impaired: dict[str, datetime] = field(default_factory=dict)
    """Instances whose check of the system fails, and since when."""
    num_looks: int = 0
    """How often the checks of instances were asked for."""
    _booted: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _since_s: dict[str, float] = field(default_factory=dict)
    _tokens: dict[str, Any] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: Any = field(default_factory=threading.RLock)

    def options(self, **changes: Any) -> Ec2Options:
        """What a role says of its instances."""
        from headrace_ec2.options import Ec2Options  # all tests have this fixture, EC2 or not

        return Ec2Options(**{**self.values(), **changes})

    def values(self) -> dict[str, Any]:
        """The same as it stands in a site."""
        return {
            "region": REGION,
            "image": IMAGE,
            "instance_types": ["m5.large"],
            "endpoint_url": self.server.endpoint_url,
        }

    @property
    def num_submits(self) -> int:
        """How often instances were asked for."""
        return len(self.requests)

    @property
    def instances(self) -> list[Any]:
        """Moto's instances, the ended ones too."""
        return [each for group in list(_backend().reservations.values())
                for each in list(group.instances)]  # fmt: skip

    def volumes(self) -> list[Any]:
        """Volumes that cost money."""
        return list(_backend().volumes.values())

    def left(self) -> dict[str, list[str]]:
        """What would stay in an account besides instances, by kind.

        Moto keeps the network interfaces of instances, which EC2 ends with them.
        """
        kinds = ("volumes", "launch_templates", "spot_instance_requests", "key_pairs")
        return {kind: list(found) for kind in kinds if (found := getattr(_backend(), kind))}

    def alive(self, name: str = "") -> list[Any]:
        """Instances that cost money, of all jobs whose names begin so."""
        return [
            x for x in self.instances if _state(x) != "terminated" and name_of(x).startswith(name)
        ]

    def terminate(self, instance: Any, code: str = "Client.UserInitiatedShutdown") -> None:
        """End an instance as somebody from outside, or EC2 itself, does."""
        from moto.ec2.models.instances import StateReason

        with self._lock:
            instance.terminate()
            instance.state_reason = StateReason(f"{code}: so it is", code)
            instance._reason = ""

    def fill(self, *instance_types: str, spot_only: bool = False) -> None:
        """Let there be no capacity for some types from now on."""

        def refuse(instance_type: str, is_spot: bool) -> None:
            if instance_type in instance_types and (is_spot or not spot_only):
                raise client_error(
                    "InsufficientInstanceCapacity",
                    f"We currently do not have sufficient {instance_type} capacity in the "
                    "Availability Zone you requested (us-east-1a).",
                )

        self.refuse = refuse

    def refuse_with(self, code: str) -> None:
        """Refuse all instances with this error from now on."""

        def refuse(_instance_type: str, _is_spot: bool) -> None:
            raise client_error(code, "so it is")

        self.refuse = refuse

    def log(self, instance_id: str) -> str:
        """What the console of an instance has seen."""
        file = self.folder / instance_id / "console"
        return file.read_text() if file.exists() else ""

    def serve(self) -> None:
        """Boot, and end, instances until told to stop; then end all that have booted."""
        try:
            while not self._stop.wait(_LOOK_S):
                for each in self.instances:
                    self._look(each)
        finally:
            for instance_id in list(self._booted):
                self._kill(instance_id)

    def stop(self) -> None:
        """Let everything end; it has when `serve` returns."""
        for each in self.alive():
            each.terminate()
        self._stop.set()

    def _look(self, instance: Any) -> None:
        if _state(instance) != "running":
            self._kill(instance.id)
            return
        age_s = time.monotonic() - self._since_s.setdefault(instance.id, time.monotonic())
        if self.boots and instance.id not in self._booted and age_s >= self.boot_s:
            self._boot(instance)
        told = self.folder / instance.id / "shutdown"
        for when in told.read_text().split() if told.exists() else ():
            due_s = 0.0 if when == "now" else int(when[1:]) * self.minute_s
            if age_s >= due_s:
                self.terminate(instance, "Client.InstanceInitiatedShutdown")

    def _boot(self, instance: Any) -> None:
        disk = self.folder / instance.id
        disk.mkdir(parents=True)
        (disk / "user-data").write_bytes(instance.user_data.decode().encode())
        kept = {key: os.environ[key] for key in ("OMP_WAIT_POLICY", MARK) if key in os.environ}
        port = self.imds.server_address[1]
        with (disk / "console").open("wb") as console:
            self._booted[instance.id] = subprocess.Popen(
                ["bash", str(disk / "user-data")],
                cwd=disk,
                env={
                    **kept,
                    "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                    **self.environment,
                    "HOME": str(disk),
                    "LANG": "C.UTF-8",
                    "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{port}/{instance.id}",
                    "NO_PROXY": "127.0.0.1",
                    _INSTANCE: instance.id,
                },
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _kill(self, instance_id: str) -> None:
        process = self._booted.pop(instance_id, None)
        if process is None:
            return
        for each in psutil.process_iter():
            try:
                if each.environ().get(_INSTANCE) == instance_id:
                    each.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        process.wait()

    def __post_init__(self) -> None:
        bin_folder = self.folder / "bin"
        bin_folder.mkdir(parents=True)
        (bin_folder / "shutdown").write_text(_SHUTDOWN)
        (bin_folder / "shutdown").chmod(0o755)
        self.imds = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Imds, self))

    def _run_instances(self, original: Callable[..., Any], *given: Any, **options: Any) -> Any:
        _, _, _, user_data, *_ = given
        self.requests.append({**options, "user_data": user_data.decode()})
        if self.errors_before:
            self.errors_before -= 1
            raise client_error("InternalError", "An internal error has occurred")
        token = options["client_token"]
        if token not in self._tokens:
            is_spot = bool(options["instance_market_options"])
            if self.refuse is not None:
                self.refuse(options["instance_type"], is_spot)
            self._tokens[token] = original(*given, **options)
        if self.errors_after:
            self.errors_after -= 1
            raise client_error("InternalError", "An internal error has occurred")
        return self._tokens[token]

    def _console(self, response: Any) -> Any:
        from moto.core.responses import ActionResult
        from moto.core.types import Base64EncodedString

        instance_id = response._get_param("InstanceId")
        text = Base64EncodedString.from_raw_string(self.log(instance_id))
        return ActionResult({"InstanceId": instance_id, "Output": text})

    def _statuses(self, response: Any) -> Any:
        from moto.core.responses import ActionResult

        self.num_looks += 1
        found = []
        for instance_id in response._get_param("InstanceIds", []):
            since = self.impaired.get(instance_id)
            check = {"Name": "reachability", "Status": "failed" if since else "passed"}
            system = {"Details": [{**check, "ImpairedSince": since} if since else check]}
            found.append({"InstanceId": instance_id, "SystemStatus": system})
        return ActionResult({"InstanceStatuses": found})

    def _quotas(self) -> str:
        if self.refuse_quotas is not None:
            raise self.refuse_quotas
        listed = [{"QuotaName": name, "Value": value} for name, value in self.quotas.items()]
        return json.dumps({"Quotas": listed})

    def patches(self) -> Iterator[Any]:
        """What is changed in moto while this serves."""
        from moto.ec2.models import EC2Backend
        from moto.ec2.models import instances as of_instances
        from moto.ec2.responses import EC2Response
        from moto.ec2.responses.general import General
        from moto.ec2.responses.instances import InstanceResponse
        from moto.servicequotas.responses import ServiceQuotasResponse

        original, answer, simulated = EC2Backend.run_instances, EC2Response.call_action, self

        def call_action(response: Any) -> Any:
            if simulated.is_silent:
                return 503, {}, "<html>Service Unavailable</html>"
            with simulated._lock:  # no answer tells of an instance that has half ended
                return answer(response)

        def run_instances(backend: Any, *given: Any, **options: Any) -> Any:
            return simulated._run_instances(original, backend, *given, **options)

        def get_console_output(response: Any) -> Any:
            return simulated._console(response)

        def describe_instance_status(response: Any) -> Any:
            return simulated._statuses(response)

        def list_service_quotas(response: Any) -> str:
            return simulated._quotas()

        yield mock.patch.object(EC2Response, "call_action", call_action)
        yield mock.patch.object(EC2Backend, "run_instances", run_instances)
        yield mock.patch.object(
            ServiceQuotasResponse, "list_service_quotas", list_service_quotas, create=True
        )
        yield mock.patch.object(General, "get_console_output", get_console_output)
        yield mock.patch.object(
            InstanceResponse, "describe_instance_status", describe_instance_status
        )
        yield mock.patch.object(of_instances.settings, "ENABLE_AMI_VALIDATION", True)
        yield mock.patch.object(of_instances.settings, "EC2_ENABLE_INSTANCE_TYPE_VALIDATION", True)


class _Imds(BaseHTTPRequestHandler):
    """The metadata service of all instances, each below its own id."""

    def __init__(self, sim: Ec2Sim, *given: Any) -> None:
        self._sim = sim
        super().__init__(*given)

    def do_PUT(self) -> None:
        self._answer(200, "a-token")

    def do_GET(self) -> None:
        _, instance_id, *path = self.path.split("/")
        if self.headers.get("X-aws-ec2-metadata-token") != "a-token":
            self._answer(401, "")
            return
        (instance,) = [each for each in self._sim.instances if each.id == instance_id]
        known = {
            "instance-id": instance_id,
            "ami-launch-index": str(instance.ami_launch_index),
            "instance-type": instance.instance_type,
            "instance-life-cycle": instance.lifecycle or "on-demand",
            "placement/availability-zone": instance.placement.zone,
            "spot/instance-action": self._sim.notices.get(instance_id, ""),
            "events/recommendations/rebalance": self._sim.risks.get(instance_id, ""),
        }
        text = known.get("/".join(path[2:]), "")
        self._answer(200 if text else 404, text)

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *given: Any) -> None:
        """Say nothing."""


@pytest.fixture
def ec2_sim(moto_server: S3Server, s3_credentials: None, tmp_path: Path) -> Iterator[Ec2Sim]:
    """EC2; the test leaves no instance in it, nor anything else."""
    sim = Ec2Sim(moto_server, tmp_path / "ec2-sim")
    with ExitStack() as stack:
        for patch in sim.patches():
            stack.enter_context(patch)
        threads = [
            threading.Thread(target=sim.imds.serve_forever, daemon=True),
            threading.Thread(target=sim.serve, daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield sim
            wait_until(lambda: not sim.alive(), 60.0, "all instances to end")
            wait_until(lambda: not sim.left(), 60.0, f"the rest to go: {sim.left()}")
        finally:
            sim.stop()
            sim.imds.shutdown()
            sim.imds.server_close()
            for thread in threads:
                thread.join()
            _backend().reservations.clear()


def client_error(code: str, message: str) -> Exception:
    """An error of EC2's, for moto to give."""
    from moto.ec2.exceptions import EC2ClientError

    return EC2ClientError(code, message)


def _backend() -> Any:
    from moto.backends import get_backend

    return get_backend("ec2")[_ACCOUNT][REGION]


def _state(instance: Any) -> str:
    return str(instance._state.name)


def name_of(instance: Any) -> str:
    """Name of the job that an instance belongs to."""
    tags = {each["key"]: each["value"] for each in instance.get_tags()}
    return str(tags.get("Name", ""))
