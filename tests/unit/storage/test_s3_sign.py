"""Our signatures are botocore's."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.s3_sign import signed_headers

HOST = "bucket.s3.eu-central-1.amazonaws.com"


def botocores(url: str, headers: dict[str, str], keys: Credentials, day: str) -> dict[str, str]:
    request = AWSRequest("GET", url, headers)
    auth = S3SigV4Auth(keys, "s3", "eu-central-1")
    auth.add_auth(request)
    found = {name.lower(): value for name, value in request.headers.items()}
    assert found["x-amz-date"][:8] == day
    return found


@settings(max_examples=30, deadline=None)
@given(
    key=st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=20),
    token=st.sampled_from([None, "a/token+with=signs"]),
    span=st.sampled_from(["", "bytes=0-99"]),
    prefix=st.sampled_from(["", "a b/ü+&="]),
)
def test_as_botocore_signs(key: str, token: str | None, span: str, prefix: str) -> None:
    keys = Credentials("AKID", "secret", token)
    path = f"/{quote(key, safe='/~')}"
    query = f"list-type=2&prefix={quote(prefix, safe='-_.~')}" if prefix else ""
    more = {"range": span} if span else {}
    ours = signed_headers(
        path, query, {"host": HOST, **more}, keys.get_frozen_credentials(), "eu-central-1"
    )
    with pytest.MonkeyPatch.context() as patch:  # the same second
        patch.setattr("botocore.auth.get_current_datetime", lambda: moment(ours["x-amz-date"]))
        url = f"https://{HOST}{path}?{query}" if query else f"https://{HOST}{path}"
        theirs = botocores(url, more, keys, ours["x-amz-date"][:8])
    assert ours.pop("host") == HOST
    assert ours == theirs


def moment(text: str):
    from datetime import datetime, timezone

    return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
