"""Errors of S3: which requests are repeated, and the messages for users."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    SSLError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from headrace.errors import StoreAccessError, StoreError, StoreMissingError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

FIRST_PAUSE_S = 0.1
"""Longest pause before the second attempt; doubles with every further one."""
LONGEST_PAUSE_S = 10.0

_TRANSIENT_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504})
_TRANSIENT_CODES = frozenset((
    "BadDigest", "IncompleteBody", "InternalError", "OperationAborted", "RequestLimitExceeded",
    "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "XAmzContentSHA256Mismatch",
))  # fmt: skip
_TRANSIENT_ERRORS = (
    HTTPClientError,
    BotoConnectionError,
    IncompleteReadError,
    ChecksumError,
    ResponseParserError,  # XML that was cut
    aiohttp.ClientError,  # a body that was cut
    ConnectionError,
    TimeoutError,
    asyncio.TimeoutError,
)
_FROM_S3 = (BotoCoreError, *_TRANSIENT_ERRORS, OSError)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_UNKNOWN_KEY = frozenset({"InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"})
_WRONG_REGION = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)


@dataclass(frozen=True, kw_only=True)
class S3Request:
    """Facts about a request, for its error message."""

    url: str
    endpoint: str
    """The server's URL, or `AWS`."""
    identity: str
    """Used credentials: `profile 'x'`, `no credentials` or the environment's."""


async def retried(
    call: Callable[[], Awaitable[Result]], place: S3Request, max_attempts: int
) -> Result:
    """Return the result of a request; after a temporary failure, repeat it after a random pause.

    The pause is drawn from zero to a bound that doubles with every attempt ("full jitter"), so that
    workers that were throttled at the same time do not repeat at the same time. `call` sends the
    request and reads the whole answer.

    Raises:
        StoreError: All attempts failed temporarily.
        StoreAccessError: The server refuses it, or there are no usable credentials.
        StoreMissingError: The file does not exist.
        EOFError: It requests a range behind the end.
    """
    for attempt in range(1, max_attempts + 1):
        try:
            return await call()
        except _FROM_S3 as raised:
            error = _source(raised)
            if not _is_transient(error):
                raise explained(error, place) from error
            if attempt == max_attempts:
                raise StoreError(
                    f"{place.url} at {place.endpoint} failed {attempt} times, last with: "
                    f"{_reason(error)}",
                    "Check the server and the network, then run again: finished work is kept. "
                    "`s3.max_attempts` and `s3.timeout` of the site bound the attempts.",
                ) from error
            logger.info("Attempt %d at %s failed: %s", attempt, place.url, _reason(error))
        bound = min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S)
        await asyncio.sleep(random.uniform(0, bound))
    raise ValueError(f"max_attempts is {max_attempts}, but must be 1 or more")


def _is_transient(error: Exception) -> bool:
    if isinstance(error, SSLError):
        return "CERTIFICATE_VERIFY_FAILED" not in str(error)
    if isinstance(error, ClientError):
        code, status = _code(error), _status(error)
        return code in _TRANSIENT_CODES or status in _TRANSIENT_STATUS
    return isinstance(error, _TRANSIENT_ERRORS)


def explained(error: Exception, place: S3Request) -> Exception:
    """Return the error to raise for a permanent error of botocore."""
    reason = _reason(error)
    if isinstance(error, ClientError):
        if _status(error) == 416:
            return EOFError(f"The range begins behind the end of {place.url}")
        if _code(error) == "NoSuchBucket":
            what = f"The bucket of {place.url} does not exist at {place.endpoint}"
            return StoreAccessError(what, _ENDPOINT_HINT)
        if _status(error) == 404:
            return StoreMissingError(f"{place.url} does not exist at {place.endpoint}")
    what = f"{place.endpoint} refuses access to {place.url} with {place.identity}: {reason}"
    if not isinstance(error, ClientError):
        what = f"{place.url} cannot be reached with {place.identity}: {reason}"
    return StoreAccessError(what, _next_step(error))


_ENDPOINT_HINT = (
    "Check the bucket's name and the endpoint: `s3.endpoint_url` of the site, "
    "else AWS_ENDPOINT_URL, else AWS."
)
_CREDENTIALS_HINT = (
    "Credentials come from the environment (AWS_ACCESS_KEY_ID, ...), the profile named by "
    "`s3.profile` of the site or AWS_PROFILE, or the machine's role; they must be there on every "
    "node."
)


def _next_step(error: Exception) -> str:
    if isinstance(error, SSLError):
        return "Name the file of the server's certificate authority in AWS_CA_BUNDLE."
    code = _code(error) if isinstance(error, ClientError) else ""
    if code in _EXPIRED:
        return "Renew the credentials (`aws sso login`, new session keys) and run again."
    if code in _WRONG_REGION or (code and _status(error) == 301):
        return "Set `s3.region` of the site, or AWS_REGION, to the bucket's region."
    if code == "RequestTimeTooSkewed":
        return "Set the clock of this machine."
    if code in _UNKNOWN_KEY or not code:
        return _CREDENTIALS_HINT
    return (
        "Ask for s3:ListBucket and s3:GetObject on the bucket (to write also s3:PutObject, "
        f"s3:DeleteObject, s3:AbortMultipartUpload). {_CREDENTIALS_HINT}"
    )


def _source(error: Exception) -> Exception:
    """Return the server's answer, which s3fs turns into an error of the operating system."""
    return error.__cause__ if isinstance(error.__cause__, ClientError) else error


def _reason(error: Exception) -> str:
    if not isinstance(error, ClientError):
        return f"{type(error).__name__}: {error}"
    message = error.response.get("Error", {}).get("Message", "")
    return " ".join(str(part) for part in (_status(error), _code(error), message) if part)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: Exception) -> int:
    response = getattr(error, "response", {})
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
