"""EC2 instead of a batch system: a job is one request for all of its instances.

A job's name is its id: a tag of its instances. Each instance ends itself, with its work, when its
time is over, or when the heartbeat of the lease's host stops; its shutdown terminates it.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from headrace import errors
from headrace.batch.commands import LocalCommands
from headrace.batch.findings import Finding, fail, ok
from headrace.batch.job_records import JobSpec, JobStatus
from headrace.batch.system import BatchSystem, render
from headrace.files.atomic import read_text
from headrace.recipe.backend import ASSUMED_PER_HOUR, QUEUE_KEYS, Interruptions
from headrace_ec2 import check, states
from headrace_ec2.api import TOO_OFTEN, Ec2Api, Ec2Error, Json, tags_of, whoami
from headrace_ec2.options import Ec2Options
from headrace_ec2.requests import (
    ASKED_AT,
    LOG,
    MOST_USER_DATA_BYTES,
    Offer,
    last_minute,
    offers,
    run_instances,
    tags,
    with_tags,
)

if TYPE_CHECKING:
    from headrace.recipe.site import Role
    from headrace_ec2.meter import Ec2Meter

logger = logging.getLogger(__name__)

_NO_ROOM = {
    *("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientCapacityOnHost"),
    *("InsufficientReservedInstanceCapacity", "ReservationCapacityExceeded", "Unsupported"),
    *("InsufficientFreeAddressesInSubnet", "SpotMaxPriceTooLow", "UnfulfillableCapacity"),
    *("InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"),
}
"""Refusals of an offer that another offer, or a later request, may not get."""
_STARTED_OTHERWISE = "IdempotentParameterMismatch"
_ALLOWED = "DryRunOperation"
_FULL = "InsufficientInstanceCapacity"
_ZONE = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d+[a-z]\b")
_RESTS_S = 60.0
"""Time for which an offer without capacity is tried after the others."""
_CONSOLE_LINES = 5
_NO_ROOM_TO_TELL = "it could not write how it ended: is the shared folder full?"
_HINT = "Correct `ec2` of the role in the site; `headrace site check` shows more."

_ASSUMED = Interruptions(
    per_hour=ASSUMED_PER_HOUR,
    source="assumed: 1 in 5 instances a month, the begin of the last range of AWS's Spot Instance "
    "Advisor; set `ec2.interruptions_per_hour` for a better value",
)


class Ec2(BatchSystem):
    """Instances of one role instead of a queue's jobs."""

    options = Ec2Options
    has_queue = False
    hosts_in_jobs = False
    lacks = dict.fromkeys(QUEUE_KEYS, "there is no queue; `ec2` of the role names the instances")
    name = "EC2"
    template = "ec2"
    config_variable = ""
    job_variable = "HEADRACE_EC2_JOB"
    job_variables = ("HEADRACE_EC2_",)
    accounting_pause_s = 30.0
    show = "aws ec2 describe-instances --filters Name=tag:Name,Values="

    def __init__(self, given: Ec2Options, queue: str = "") -> None:
        super().__init__(LocalCommands({}), queue)
        self._options = given
        self._api = Ec2Api(given)
        self._health = states.HealthWatch(self._api)
        self._offers = offers(given)
        self._rests_until_s: dict[Offer, float] = {}
        self._unclear: dict[str, tuple[Offer, Json]] = {}
        self._asked_at: dict[str, float] = {}
        self._image = ""

    @classmethod
    @override
    def check_role(cls, role: Role) -> None:
        """Refuse a role without instances, and keys that EC2 replaces."""
        if role.own_options is None:
            raise ValueError("backend 'ec2' and the key `ec2` go together; write both or neither")
        if role.price is not None:
            raise ValueError("instances have their prices in `ec2.prices`; leave `price` out")
        if role.host == "job":
            raise ValueError("backend 'ec2' keeps the host of a pool here; leave `host: job` out")

    @classmethod
    @override
    def connect(cls, role: Role, timeout_s: float) -> Ec2:
        given: Ec2Options = role.own_options
        return cls(given, f"ec2 {given.profile or ''} {given.region}")

    @classmethod
    @override
    def meter(cls, role: Role, *, asks_all: bool = False) -> Ec2Meter:
        from headrace_ec2.meter import Ec2Meter

        given: Ec2Options = role.own_options
        if asks_all:
            given = given.model_copy(update={"price_sources": ("spot-history", "price-list")})
        return Ec2Meter(given)

    @classmethod
    @override
    def interruptions(cls, role: Role) -> Interruptions | None:
        given: Ec2Options = role.own_options
        if "spot" not in given.markets:
            return None
        if given.interruptions_per_hour is None:
            return _ASSUMED
        source = "`ec2.interruptions_per_hour`"
        return Interruptions(per_hour=given.interruptions_per_hour, source=source)

    @classmethod
    @override
    def reap(cls) -> list[str]:
        from headrace_ec2 import strays  # imports the ledger, which no lease needs

        return strays.reap()

    @override
    def render(self, spec: JobSpec) -> str:
        minutes = last_minute(spec)
        return render(self.template, spec, beside=__file__, options=self._options, minutes=minutes)

    @override
    def preview(self, spec: JobSpec) -> str:
        requests = {offer: self._request(spec, offer, "below", ()) for offer in self._offers}
        (first, request), *others = requests.items()
        parts = [
            f"# RunInstances in {self._options.region}: {first}",
            json.dumps(request, indent=2),
        ]
        for offer, other in others:
            differs = {key: value for key, value in other.items() if value != request.get(key)}
            parts += [f"# without capacity for that: {offer}", json.dumps(differs)]
        return "\n".join([*parts, "# user data", self._user_data(spec)])

    @override
    def submit(self, spec: JobSpec) -> str:
        refused: dict[Offer, str] = {}
        for offer, request in self._requests(spec, refused):
            self._unclear[spec.name] = (offer, request)
            refused[offer] = self._start(spec.name, offer, request)
            if not refused[offer]:
                del self._unclear[spec.name]
                return spec.name
            logger.warning("EC2 has no capacity for %s", refused[offer])
            self._rests_until_s[offer] = time.monotonic() + _RESTS_S
        del self._unclear[spec.name]
        raise errors.SubmitLimitError(
            f"waiting: EC2 has no capacity for {'; '.join(refused.values())}"
        )

    @override
    def refusal(self, spec: JobSpec) -> str:
        why = ""
        try:
            for offer in self._offers:
                why = self._dry_run(spec, offer)
                if not why:
                    break
        except errors.JobRefusedError as error:
            return error.what
        return why

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        found = self._api.instances(job_ids)
        instances = [each for nodes in found.values() for each in nodes]
        for each in instances:
            if states.reason_code(each) == states.NO_CAPACITY:
                self._rest(each)
        hung = self._health.hung(instances)
        jobs = {name: states.status_of(name, nodes, self._last_words, hung)
                for name, nodes in found.items()}  # fmt: skip
        self._terminate(each for name in jobs if jobs[name].state.is_final for each in found[name])
        return jobs

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        return tuple(self.poll([name]).values())

    @override
    def cancel(self, job_ids: Sequence[str]) -> None:
        found = self._api.instances(job_ids)
        self._terminate(each for nodes in found.values() for each in nodes)

    def _terminate(self, instances: Iterable[Json]) -> None:
        left = [each["InstanceId"] for each in instances if not states.has_ended(each)]
        if left:
            self._api.call("terminate_instances", InstanceIds=left)

    @override
    def check(self, spec: JobSpec) -> Iterator[Finding]:
        yield from check.findings(self._api, self._options, spec, self._image_id)
        for offer in self._offers:
            why = self._dry_run(spec, offer)
            yield fail("start", f"{offer}: {why}", _HINT) if why else ok("start", f"{offer}")

    def _requests(
        self, spec: JobSpec, refused: Mapping[Offer, str]
    ) -> Iterator[tuple[Offer, Json]]:
        """Yield requests in order; first an earlier one that EC2 may have granted."""
        user_data = self._user_data(spec)
        if spec.name in self._unclear:
            yield self._unclear[spec.name]
        now_s = time.monotonic()
        for offer in sorted(self._offers, key=lambda x: self._rests_until_s.get(x, 0.0) > now_s):
            if offer not in refused:
                yield offer, self._request(spec, offer, user_data, tuple(refused.values()))

    def _request(
        self, spec: JobSpec, offer: Offer, user_data: str, refused: Sequence[str]
    ) -> dict[str, Any]:
        request = run_instances(spec, self._options, offer, self._image_id(), user_data)
        own = tags(spec, self._options, refused, whoami(), time.time())
        asked_at = self._asked_at.setdefault(spec.name, time.time())
        return with_tags(request, {**own, ASKED_AT: f"{asked_at:.1f}"})

    def _user_data(self, spec: JobSpec) -> str:
        text = self.render(spec)
        num_bytes = len(text.encode())
        if num_bytes > MOST_USER_DATA_BYTES:
            raise errors.JobRefusedError(
                f"EC2 refuses the job {spec.name}: its user data has {num_bytes:,} bytes, and EC2 "
                f"accepts {MOST_USER_DATA_BYTES:,}",
                "Move the commands of the role's `batch.prologue` into the image, or into a script "
                "that it calls.",
            )
        return text

    def _start(self, name: str, offer: Offer, request: Json) -> str:
        """Start the instances of a job; return why not, if another offer may succeed."""
        try:
            self._api.call("run_instances", **request)
        except Ec2Error as error:
            if error.code in _NO_ROOM:
                return _lacking(offer, error)
            if error.code in TOO_OFTEN:
                raise errors.SubmitLimitError(
                    f"waiting: EC2 limits requests: {error.words}"
                ) from error
            if isinstance(error, errors.SilentError) or error.code == _STARTED_OTHERWISE:
                raise errors.AmbiguousSubmitError(
                    f"No clear answer for {name}: {error.what}"
                ) from error
            raise errors.JobRefusedError(
                f"EC2 refuses the job {name}: {error.code}: {error.words}", _HINT
            ) from error
        except errors.SilentError as error:
            what = f"No clear answer for {name}: {error.what}"
            raise errors.AmbiguousSubmitError(what, error.hint) from error
        return ""

    def _dry_run(self, spec: JobSpec, offer: Offer) -> str:
        """Return why EC2 would never start a job with this offer; empty if it would, even later."""
        request = self._request(spec, offer, self._user_data(spec), ())
        try:
            self._api.call("run_instances", **request, DryRun=True)
        except Ec2Error as error:
            passes = error.code in {_ALLOWED, *_NO_ROOM} or isinstance(error, errors.SilentError)
            return "" if passes else f"{error.code}: {error.words}"
        return ""

    def _image_id(self) -> str:
        """Return the id of the image; of several that match a pattern, the newest."""
        given = self._options.image
        if given.startswith(("ami-", "resolve:ssm:")):
            return given
        if not self._image:
            which = [
                {"Name": "name", "Values": [given]},
                {"Name": "state", "Values": ["available"]},
            ]
            owner = [self._options.image_owner]
            found = list(self._api.pages("describe_images", "Images", Owners=owner, Filters=which))
            if not found:
                raise errors.JobRefusedError(
                    f"EC2 has no image '{given}' of owner '{owner[0]}' in {self._options.region}",
                    "Correct `ec2.image` or `ec2.image_owner` of the role in the site.",
                )
            self._image = max(found, key=lambda each: str(each["CreationDate"]))["ImageId"]
        return self._image

    def _rest(self, instance: Json) -> None:
        """Try other offers first for a while: this instance's capacity was missing."""
        market = instance.get("InstanceLifecycle", "on-demand")
        mark = (instance.get("InstanceType"), market, instance.get("SubnetId"))
        for offer in self._offers:
            if (offer.instance_type, offer.market, offer.subnet or mark[2]) == mark:
                self._rests_until_s[offer] = time.monotonic() + _RESTS_S

    def _last_words(self, instance: Json) -> str | None:
        """Return what a node wrote beside the job's log or, after its end, on its console."""
        node, log = instance["InstanceId"], tags_of(instance).get(LOG, "")
        with suppress(OSError):
            written = read_text(Path(f"{log}.{node}.end"))
            if written is not None:
                return written.strip() or (_NO_ROOM_TO_TELL if states.has_ended(instance) else None)
        if not states.has_ended(instance):
            return None
        limit = states.ends_at(instance)
        if limit is not None and time.time() >= limit:
            return states.TIME_IS_OVER
        with suppress(errors.BatchError):
            console = str(self._api.call("get_console_output", InstanceId=node).get("Output", ""))
            lines = [line for line in console.splitlines() if line.strip()][-_CONSOLE_LINES:]
            return f"it ended before its work began; its console: {' | '.join(lines) or 'nothing'}"
        return None


def _lacking(offer: Offer, error: Ec2Error) -> str:
    """Return the type and zone without capacity, as users know them."""
    zone = _ZONE.search(error.words)
    where = f" in {zone[0]}" if zone else str(offer).removeprefix(offer.what)
    return f"{offer.what}{where}{'' if error.code == _FULL else f' ({error.code})'}"
