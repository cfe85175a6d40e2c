"""The way to EC2: botocore's client, and what its errors mean.

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
"""Refusals of a request that comes too soon."""

_PASSING = {
    *("InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "RequestTimeout"),
    *TOO_OFTEN,
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId"}
_EXPIRED |= {"AuthFailure", "SignatureDoesNotMatch"}
_RENEW = "Renew the credentials (`aws sts get-caller-identity` tells whose they are); work goes on."
_SILENT = "Is EC2 reached from here? See https://health.aws.amazon.com, proxies and `region`."
_NAMES_AT_ONCE = 200  # values of one filter
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 10, 60
_ATTEMPTS = 4
_MOST_WORDS = 500
_DOWN = 500
_MOST_AHEAD_S = 240.0  # some services take five minutes, and EC2 a few more


class Ec2Error(BatchError):
    """EC2 refuses a request: its name of the error, and what it says."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"EC2 says {code}: {words}")
        self.code = code
        self.words = words

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.words)


class PassingError(Ec2Error, SilentError):
    """EC2 answers later; unless it was asked too often, it may have done what was asked."""


class Ec2Api:
    """EC2 in one region, with one user's rights; safe to share by threads."""

    def __init__(self, options: Ec2Options) -> None:
        self._place = (options.region, options.profile, options.endpoint_url)

    def call(self, operation: str, *, service: str = "ec2", **request: Any) -> Json:
        """Ask EC2, or another `service`, once for an operation of botocore, as `run_instances`.

        Throttled and failed requests are repeated a few times; botocore's model checks the request.

        Raises:
            Ec2Error: EC2 refuses it.
            SilentError: It gave no answer, or does not take the credentials any more.
            BatchError: There are no credentials.
        """
        from botocore import exceptions as told_by  # it takes long to load, and few sites have it

        try:
            answer: Json = getattr(_client(service, *self._place), operation)(**request)
        except told_by.ClientError as error:
            told, answered = error.response["Error"], error.response["ResponseMetadata"]
            code, words = str(told.get("Code")), str(told.get("Message"))
            words = textwrap.shorten(words, _MOST_WORDS, placeholder=" …")  # of a proxy, a page
            if code in _EXPIRED:
                _client.cache_clear()  # the next request reads them anew
                told = f"EC2 does not take the credentials: {words}"
                raise SilentError(told, _advice(answered)) from error
            is_down = answered["HTTPStatusCode"] >= _DOWN
            kind = PassingError if is_down or code in _PASSING else Ec2Error
            raise kind(code, words) from error
        except (told_by.HTTPClientError, told_by.ConnectionError) as error:
            raise SilentError(f"EC2 does not answer {operation}: {error}", _SILENT) from error
        except told_by.ParamValidationError as error:
            raise Ec2Error("ParamValidation", str(error)) from error
        except told_by.BotoCoreError as error:
            _client.cache_clear()
            raise BatchError(f"EC2 cannot be asked: {error}", _RENEW) from error
        return answer

    def pages(self, operation: str, key: str, **request: Any) -> Iterator[Json]:
        """All that a listing has under `key`; see `call`."""
        token: dict[str, str] = {}
        while True:
            answer = self.call(operation, **request, **token)
            yield from answer.get(key, ())
            if not answer.get("NextToken"):
                return
            token = {"NextToken": answer["NextToken"]}

    def instances(self, names: Sequence[str]) -> dict[str, list[Json]]:
        """Instances by the names of their jobs, those that have ended within the last hour too."""
        found: dict[str, list[Json]] = {}
        for first in range(0, len(names), _NAMES_AT_ONCE):
            which = {"Name": "tag:Name", "Values": list(names[first : first + _NAMES_AT_ONCE])}
            pages = self.pages("describe_instances", "Reservations", Filters=[which])
            for each in itertools.chain.from_iterable(page["Instances"] for page in pages):
                found.setdefault(tags_of(each)["Name"], []).append(each)
        return found


def _advice(answered: Json) -> str:
    """What helps where credentials are not taken: signatures by a wrong clock are not, either."""
    date = answered.get("HTTPHeaders", {}).get("date")
    ahead_s = time.time() - parsedate_to_datetime(date).timestamp() if date else 0.0
    if abs(ahead_s) < _MOST_AHEAD_S:
        return _RENEW
    how = "ahead of" if ahead_s > 0 else "behind"
    return f"The clock of this machine is {abs(ahead_s) / 60:.0f} min {how} EC2's: set it right."


def tags_of(instance: Json) -> dict[str, str]:
    """Tags by name."""
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}


def whoami() -> str:
    """Who asks EC2 from here, as the tag of the owner tells it: user and machine."""
    return f"{login_name()}@{socket.gethostname()}"


@lru_cache(maxsize=16)
def _client(service: str, region: str, profile: str | None, endpoint_url: str | None) -> Any:
    """A client, which is thread-safe; one that is made anew reads credentials, no models."""
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
    """What botocore reads of services, once: it takes a third of a second."""
    from botocore.loaders import create_loader

    return create_loader(data_path)
