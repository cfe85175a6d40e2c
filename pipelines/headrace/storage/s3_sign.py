"""Signatures of plain GET requests to S3: AWS Signature Version 4.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html says how. botocore
signs any request of any service and takes twenty times as long; tests compare the two.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from functools import lru_cache

from botocore.credentials import ReadOnlyCredentials

_EMPTY = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"


def signed_headers(
    path: str, query: str, headers: dict[str, str], keys: ReadOnlyCredentials, region: str
) -> dict[str, str]:
    """Headers of a GET request, with those that sign it.

    Args:
        path: Path of the URL, quoted.
        query: Query of the URL, quoted and sorted; empty for none.
        headers: Headers to sign, by lower-case name; `host` must be among them.
        keys: Credentials.
        region: The bucket's region.
    """
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    every = {**headers, "x-amz-content-sha256": _EMPTY, "x-amz-date": now}
    if keys.token:
        every["x-amz-security-token"] = keys.token
    names = sorted(every)
    listed = "".join(f"{name}:{every[name]}\n" for name in names)
    signed = ";".join(names)
    canonical = f"GET\n{path}\n{query}\n{listed}\n{signed}\n{_EMPTY}"
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"{_ALGORITHM}\n{now}\n{scope}\n{digest}"
    key = _signing_key(keys.secret_key, now[:8], region)
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    every["authorization"] = (
        f"{_ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={signed}, "
        f"Signature={signature}"
    )
    return every


@lru_cache(maxsize=16)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
