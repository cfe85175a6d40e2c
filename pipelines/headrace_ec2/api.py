"""Access to EC2: botocore's client, and the meaning of its errors.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

from __future__ import annotations

import itertools
import socket
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from headrace.errors import BatchError, SilentError
from headrace.recipe.unix_accounts import login_name
from headrace_ec2.options import Ec2Options

Json = Mapping[str, Any]
"""A part of a request or an answer."""

TOO_OFTEN = {
    *("RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequestsException"),
    *("BandwidthLimitExceeded", "ConcurrentCreateInstances", "PendingVerification"),
}
"""Refusals of requests that come too often."""

_PASSING = {
    *("InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "RequestTimeout"),
    *TOO_OFTEN,
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId"}
_EXPIRED |= {"AuthFailure", "SignatureDoesNotMatch"}
_RENEW = "Renew the credentials: see `aws sts get-caller-identity`. The work then continues."
_SILENT = "Is EC2 reachable from here? See https://health.aws.amazon.com, proxies and `region`."
_NAMES_AT_ONCE = 200  # values of one filter
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 10, 60
_ATTEMPTS = 4
_MOST_WORDS = 500
_DOWN = 500
_MOST_AHEAD_S = 240.0  # some services take five minutes, and EC2 a few more


class Ec2Error(BatchError):
    """EC2 refuses a request: its code of the error, and its message."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"EC2 says {code}: {words}")
        self.code = code
        self.words = words

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.words)


class PassingError(Ec2Error, SilentError):
    """EC2 failed for now; unless requests came too often, it may have done what was requested."""


class Ec2Api:
    """EC2 in one region, with one user's rights; threads may share it."""

    def __init__(self, options: Ec2Options) -> None:
        self._connection = (options.region, options.profile, options.endpoint_url)

    def call(self, operation: str, *, service: str = "ec2", **request: Any) -> Json:
        """Send one operation of botocore, as `run_instances`, to EC2 or another `service`.

        Throttled and failed requests are repeated a few times; botocore's model checks the request.

        Raises:
            Ec2Error: EC2 refuses it.
            SilentError: EC2 gave no answer, or rejects the credentials.
            BatchError: There are no credentials.
        """
        from botocore import exceptions as errors  # slow to load, and few sites need it

        try:
            answer: Json = getattr(_client(service, *self._connection), operation)(**request)
        except errors.ClientError as error:
            described, answered = error.response["Error"], error.response["ResponseMetadata"]
            code, words = str(described.get("Code")), str(described.get("Message"))
            words = textwrap.shorten(words, _MOST_WORDS, placeholder=" …")  # may be a page
            if code in _EXPIRED:
                _client.cache_clear()  # the next request reads new ones
                what = f"EC2 does not accept the credentials: {words}"
                raise SilentError(what, _advice(answered)) from error
            is_down = answered["HTTPStatusCode"] >= _DOWN
            kind = PassingError if is_down or code in _PASSING else Ec2Error
            raise kind(code, words) from error
        except (errors.HTTPClientError, errors.ConnectionError) as error:
            raise SilentError(f"EC2 does not answer {operation}: {error}", _SILENT) from error
        except errors.ParamValidationError as error:
            raise Ec2Error("ParamValidation", str(error)) from error
        except errors.BotoCoreError as error:
            _client.cache_clear()
            raise BatchError(f"EC2 cannot be asked: {error}", _RENEW) from error
        return answer

    def pages(self, operation: str, key: str, **request: Any) -> Iterator[Json]:
        """Yield all that a listing has under `key`; see `call`."""
        token: dict[str, str] = {}
        while True:
            answer = self.call(operation, **request, **token)
            yield from answer.get(key, ())
            if not answer.get("NextToken"):
                return
            token = {"NextToken": answer["NextToken"]}

    def instances(self, names: Sequence[str]) -> dict[str, list[Json]]:
        """Return instances by the names of their jobs, even if ended within the last hour."""
        found: dict[str, list[Json]] = {}
        for first in range(0, len(names), _NAMES_AT_ONCE):
            which = {"Name": "tag:Name", "Values": list(names[first : first + _NAMES_AT_ONCE])}
            pages = self.pages("describe_instances", "Reservations", Filters=[which])
            for each in itertools.chain.from_iterable(page["Instances"] for page in pages):
                found.setdefault(tags_of(each)["Name"], []).append(each)
        return found


def _advice(answered: Json) -> str:
    """Return what helps if credentials are rejected, as signatures are if the clock is wrong."""
    date = answered.get("HTTPHeaders", {}).get("date")
    ahead_s = time.time() - parsedate_to_datetime(date).timestamp() if date else 0.0
    if abs(ahead_s) < _MOST_AHEAD_S:
        return _RENEW
    how = "ahead of" if ahead_s > 0 else "behind"
    return f"The clock of this machine is {abs(ahead_s) / 60:.0f} min {how} EC2's: correct it."


def tags_of(instance: Json) -> dict[str, str]:
    """Return an instance's tags by name."""
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}


def whoami() -> str:
    """Return user and machine of this process, as in the tag of the owner."""
    return f"{login_name()}@{socket.gethostname()}"


@lru_cache(maxsize=16)
def _client(service: str, region: str, profile: str | None, endpoint_url: str | None) -> Any:
    """Return a client, which is thread-safe; a new one reads credentials again, but no models."""
    from botocore.config import Config
    from botocore.session import Session

    session = Session(profile=profile)
    session.register_component("data_loader", _models(session.get_config_variable("data_path")))
    config = Config(
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
    )
    return session.create_client(service, region, endpoint_url=endpoint_url, config=config)


@lru_cache(maxsize=16)
def _models(data_path: str | None) -> Any:
    """Return botocore's loader of service models, cached: loading takes a third of a second."""
    from botocore.loaders import create_loader

    return create_loader(data_path)
