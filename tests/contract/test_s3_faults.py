"""S3 that throttles, fails, cuts connections or refuses: tried again, or told clearly."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import xxhash

from headrace.errors import StoreAccessError, StoreError, UserError
from headrace.objects import s3_errors, s3_quick
from headrace.objects.protocol import Store, StoredFile
from headrace.objects.s3_quick import bucket_url
from headrace.objects.store import open_store
from headrace.recipe.site import StoreOptions
from headrace.states import FailureClass
from support.ports import find_free_port
from support.s3_faults import Cut, Faults, Refuse, faulty
from support.s3_servers import KEY, SECRET, S3Server, new_bucket

MIB = 2**20
CONTENT = bytes(range(256)) * (20 * MIB // 256)

Fault = Refuse | Cut


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other quickly."""
    monkeypatch.setattr(s3_errors, "FIRST_PAUSE_S", 0.001)


@pytest.fixture(params=["moto_server", "rclone_server", "swift_server"])
def server(request: pytest.FixtureRequest, s3_credentials: None) -> S3Server:
    """An S3 server."""
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def faults(server: S3Server) -> Iterator[Faults]:
    """A proxy before the server, without faults yet."""
    with faulty(server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def store(faults: Faults, server: S3Server) -> Store:
    """A store behind the proxy; five attempts."""
    options = StoreOptions(endpoint_url=faults.endpoint_url, max_attempts=5)
    store = open_store(f"{new_bucket(server)}/data", options)
    store.write("small", b"0123456789")
    return store


ANY_SERVER = pytest.mark.parametrize("server", ["rclone_server"], indirect=True)
"""It is the proxy that answers, whichever server is behind it."""

PASSING: list[list[Fault]] = [
    [Refuse(503, "SlowDown")] * 4,
    [Refuse(500, "InternalError"), Refuse(502, ""), Refuse(429, "TooManyRequests")],
    [Cut(3), Cut(0), Refuse(503, "SlowDown")],
]


@pytest.mark.parametrize("passing", PASSING, ids=["throttled", "failing", "cut"])
def test_what_passes_is_tried_again(store: Store, faults: Faults, passing: list[Fault]) -> None:
    faults.waiting.extend(passing)
    assert store.read("small") == b"0123456789"
    assert not faults.waiting
    faults.waiting.extend(passing)
    assert list(store.read_files([StoredFile("small", 10, "")] * 10)) == [b"0123456789"] * 10
    faults.waiting.extend(passing)
    assert [file.path for file in store.list_files()] == ["small"]
    faults.waiting.extend(passing)
    store.write("other", b"x")
    assert store.read("other") == b"x"
    assert not faults.waiting


@ANY_SERVER
def test_pauses_between_attempts_grow_up_to_a_bound(store, faults, monkeypatch):
    bounds: list[float] = []

    def drawn(least: float, bound: float) -> float:
        bounds.append(bound)
        return least

    monkeypatch.setattr("headrace.objects.s3_errors.random.uniform", drawn)
    monkeypatch.setattr(s3_errors, "FIRST_PAUSE_S", 0.5)
    monkeypatch.setattr(s3_errors, "LONGEST_PAUSE_S", 1.5)
    faults.always = Refuse(503, "SlowDown")
    with pytest.raises(StoreError):
        store.read("small")
    assert bounds == [0.5, 1, 1.5, 1.5]


def test_large_files_survive_cuts_and_throttling(store, faults, tmp_path):
    """A connection that is cut in the middle of a body costs that piece, not the transfer."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(CONTENT)
    faults.concerns = lambda method, path: method == "PUT"
    faults.waiting.extend([Refuse(503, "SlowDown"), Cut(0), Refuse(500, "InternalError")])
    store.upload(source, "large")
    assert not faults.waiting
    faults.concerns = lambda method, path: method == "GET"
    faults.waiting.extend([Cut(5 * MIB), Refuse(503, "SlowDown"), Cut(1)])
    assert store.download("large", target) == xxhash.xxh3_128_hexdigest(CONTENT)
    assert target.read_bytes() == CONTENT
    assert not faults.waiting


@ANY_SERVER
def test_a_server_that_keeps_failing_is_told(store: Store, faults: Faults, tmp_path: Path) -> None:
    faults.always = Refuse(500, "InternalError")
    before = len(faults.requests)
    with pytest.raises(StoreError) as caught:
        store.read("small")
    assert len(faults.requests) - before == 1 + 5  # a quick one that does not count
    assert caught.value.failure_class is FailureClass.INFRASTRUCTURE
    for part in (f"{store.url}/small", faults.endpoint_url, "5 times", "500 InternalError"):
        assert part in str(caught.value)
    faults.always = Cut(2)
    with pytest.raises(StoreError, match="5 times"):
        store.read("small")


@ANY_SERVER
def test_a_download_that_fails_leaves_nothing(store: Store, faults: Faults, tmp_path: Path) -> None:
    faults.concerns = lambda method, path: method == "GET"
    faults.always = Cut(2)
    with pytest.raises(StoreError):
        store.download("small", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_an_upload_that_fails_is_taken_back(store: Store, faults: Faults, tmp_path: Path) -> None:
    """No invisible parts stay that somebody pays for."""
    (tmp_path / "source").write_bytes(CONTENT)
    faults.concerns = lambda method, path: method == "PUT" and "partNumber=2" in path
    faults.always = Refuse(503, "SlowDown")
    with pytest.raises(StoreError, match="SlowDown"):
        store.upload(tmp_path / "source", "large")
    assert any(request.startswith("DELETE") for request in faults.requests)
    assert store.stat("large") is None


def test_an_upload_that_is_stopped_is_taken_back(store, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.objects.fsspec_store._LOOK_S", 0.001)
    (tmp_path / "source").write_bytes(CONTENT * 5)

    def stop(num_bytes: int) -> None:
        if num_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.upload(tmp_path / "source", "large", stop)
    assert store.stat("large") is None
    assert store.read("small") == b"0123456789"


def test_a_marker_of_a_folder_is_no_file(moto_server: S3Server, moto_bucket: str) -> None:
    """Consoles make them; obstore drops the slash of their names."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]  # the server is in this process
    for name in (f"a/{index:04d}" for index in range(1100)):  # more than a page
        backend.put_object(moto_bucket[5:], f"x/{name}", b"1")
    backend.put_object(moto_bucket[5:], "x/b/", b"")
    backend.put_object(moto_bucket[5:], "x/c//d", b"1")
    found = [file.path for file in open_store(f"{moto_bucket}/x", moto_server.options).list_files()]
    assert found == [*(f"a/{index:04d}" for index in range(1100)), "c//d"]


REFUSED = {
    "AccessDenied": (403, "s3:GetObject"),
    "ExpiredToken": (400, "Renew the credentials"),
    "InvalidAccessKeyId": (403, "AWS_ACCESS_KEY_ID"),
    "SignatureDoesNotMatch": (403, "AWS_ACCESS_KEY_ID"),
    "PermanentRedirect": (301, "s3.region"),
    "RequestTimeTooSkewed": (403, "clock"),
}


@ANY_SERVER
@pytest.mark.parametrize("code", REFUSED)
def test_a_refusal_is_told_at_once(store: Store, faults: Faults, code: str) -> None:
    status, step = REFUSED[code]
    faults.concerns = lambda method, path: method == "GET"
    faults.always = Refuse(status, code)
    before = len(faults.requests)
    with pytest.raises(StoreAccessError) as caught:
        store.read("small")
    got = [request for request in faults.requests[before:] if request.startswith("GET")]
    # a quick one, and then s3fs'; that follows a redirect when it is told the region
    assert 2 <= len(got) <= (3 if code == "PermanentRedirect" else 2)
    assert caught.value.failure_class is FailureClass.USER_ERROR
    for part in (f"{store.url}/small", faults.endpoint_url, "environment", code, step):
        assert part in str(caught.value)
    assert SECRET not in str(caught.value)
    faults.always = None
    assert store.read("small") == b"0123456789"


def test_a_missing_bucket_is_told(moto_server: S3Server, s3_credentials: None) -> None:
    store = open_store("s3://no-such-bucket-here/data", moto_server.options)
    for action in (lambda: list(store.list_files()), lambda: store.read("a")):
        with pytest.raises(StoreAccessError, match="bucket of s3://no-such-bucket-here"):
            action()


def test_wrong_keys_are_told(rclone_server, rclone_bucket, monkeypatch):
    """Against a server that checks signatures."""
    store = open_store(rclone_bucket, rclone_server.options.model_copy(update={"max_attempts": 9}))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    with pytest.raises(StoreAccessError, match="environment's credentials") as caught:
        list(store.list_files())
    assert "another-secret" not in str(caught.value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert list(store.list_files()) == []


def test_keys_that_are_renewed_in_their_file_are_read_again(
    rclone_server: S3Server, rclone_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As programs for single sign-on do every few hours: a process lives longer."""
    open_store(rclone_bucket, rclone_server.options).write("a", b"content")
    monkeypatch.setattr(s3_quick, "_KEYS_LAST", timedelta())
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    quick = s3_quick.Quick(rclone_server.endpoint_url, "us-east-1", rclone_server.options)
    for secret, found in (("of-yesterday", None), (SECRET, b"content")):
        content = f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n"
        (tmp_path / "credentials").write_text(content)
        piece = quick.get(rclone_bucket.removeprefix("s3://"), "a")
        assert (piece and bytes(piece.content)) == found


def test_no_credentials_are_told(moto_server, moto_bucket, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    options = moto_server.options.model_copy(update={"max_attempts": 7})
    with pytest.raises(StoreAccessError, match="AWS_ACCESS_KEY_ID"):
        open_store(moto_bucket, options).read("a")


def test_an_unknown_profile_is_told(moto_server: S3Server, moto_bucket: str) -> None:
    options = moto_server.options.model_copy(update={"profile": "nobody"})
    with pytest.raises(StoreAccessError, match="profile 'nobody'"):
        open_store(moto_bucket, options).read("a")


def test_a_profile_gives_the_credentials(rclone_server, rclone_bucket, monkeypatch, tmp_path):
    file = tmp_path / "credentials"
    file.write_text(f"[ours]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    options = rclone_server.options.model_copy(update={"profile": "ours"})
    assert list(open_store(rclone_bucket, options).list_files()) == []


def test_the_endpoint_may_come_from_the_environment(rclone_server, rclone_bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", rclone_server.endpoint_url)
    store = open_store(rclone_bucket)
    store.write("a", b"x")
    assert store.read("a") == b"x"


def test_a_server_that_is_away_is_told(s3_credentials: None) -> None:
    endpoint = f"http://127.0.0.1:{find_free_port()}"
    store = open_store("s3://bucket", StoreOptions(endpoint_url=endpoint, max_attempts=2))
    with pytest.raises(StoreError, match="2 times") as caught:
        store.stat("a")
    assert endpoint in str(caught.value)


def test_an_endpoint_with_a_password_is_not_shown(s3_credentials, monkeypatch):
    """One of the environment; that of a site is refused when it is loaded."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://me:hidden@127.0.0.1:{find_free_port()}")
    with pytest.raises(StoreAccessError, match="contains a user or password") as caught:
        open_store("s3://bucket", StoreOptions(max_attempts=1)).read("a")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://", "ftp://bucket/a", "s3:///a", "gs://"])
def test_a_url_that_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="s3://bucket/prefix"):
        open_store(url)


def test_credentials_in_a_url_are_refused_without_showing_them() -> None:
    with pytest.raises(UserError, match="holds credentials") as caught:
        open_store("s3://key:hidden@bucket/a")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "bucket", "addressing", "expected"),
    [
        ("https://s3.eu-central-1.amazonaws.com", "a-bucket", "auto", "https://a-bucket.s3.eu-"),
        ("https://s3.eu-central-1.amazonaws.com", "a-bucket", "path", "https://s3.eu-central-1."),
        ("https://s3.eu-central-1.amazonaws.com", "a.bucket", "auto", "https://s3.eu-central-1."),
        ("http://127.0.0.1:9000", "a-bucket", "auto", "http://127.0.0.1:9000"),
        ("http://store:9000", "a-bucket", "virtual", "http://a-bucket.store:9000"),
    ],
)
def test_quick_requests_go_straight_to_the_bucket(endpoint, bucket, addressing, expected):
    url, is_virtual = bucket_url(endpoint, bucket, addressing)
    assert url.startswith(expected)
    assert is_virtual == (f"//{bucket}." in expected)


def test_requests_go_through_the_proxy_of_the_environment(
    rclone_server, s3_credentials, monkeypatch
):
    """Whether obstore sends them or s3fs, and past it for what `NO_PROXY` names."""
    bucket, url = new_bucket(rclone_server), rclone_server.endpoint_url
    with faulty(url) as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.endpoint_url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, "127.0.0.1")
        endpoint = url.replace("127.0.0.1", "s3.invalid")
        far = open_store(bucket, StoreOptions(endpoint_url=endpoint, max_attempts=1))
        far.write("a", b"x")
        assert far.read("a") == b"x"
        assert [line.split("//")[0] for line in proxy.requests] == ["PUT http:", "GET http:"]
        proxy.requests.clear()
        near = open_store(bucket, StoreOptions(endpoint_url=url, max_attempts=2))
        assert near.read("a") == b"x"
        assert near.stat("a") is not None
        assert not proxy.requests


def worked(store: Store, folder: Path) -> list[object]:
    """What every method gives, one after the other."""
    (folder / "source").write_bytes(CONTENT)
    store.upload(folder / "source", "large")
    digest = store.download("large", folder / "target")
    listed = sorted(file.path for file in store.list_files())
    small = store.read_files([StoredFile("small", 10, "")] * 4)
    return [digest, listed, *small, store.read("large", 5, 9)]


def test_the_child_of_a_process_that_has_read_works(store: Store, tmp_path: Path) -> None:
    """obstore would wait for ever for threads that a fork does not bring: s3fs does it all."""
    expected = worked(store, tmp_path)
    assert expected[:2] == [xxhash.xxh3_128_hexdigest(CONTENT), ["large", "small"]]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(worked, (store, tmp_path)).get(60) == expected
    assert worked(store, tmp_path) == expected


@pytest.mark.parametrize(
    ("url", "extra"),
    [("gs://bucket/a", "gs"), ("az://box/a", "az"), ("abfs://box/a", "az"), ("hf://u/a", "hf")],
)
def test_a_scheme_whose_package_is_missing_names_what_to_install(monkeypatch, url, extra):
    monkeypatch.setattr("headrace.objects.store.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"pip install 'headrace\[{extra}\]'") as caught:
        open_store(url)
    assert url in str(caught.value)


@ANY_SERVER
def test_no_error_holds_a_secret(store: Store, faults: Faults, tmp_path: Path) -> None:
    """Neither in its text nor in that of what caused it."""
    (tmp_path / "source").write_bytes(CONTENT)
    reads = (
        lambda: store.read("small"),
        lambda: list(store.list_files()),
        lambda: store.download("small", tmp_path / "target"),
    )
    writes = (
        lambda: store.write("small", b"x"),
        lambda: store.upload(tmp_path / "source", "large"),
    )
    refused, failing = Refuse(403, "SignatureDoesNotMatch"), Refuse(500, "InternalError")
    told = [(refused, (*reads, *writes)), (failing, (*reads, *writes)), (Cut(2), reads)]
    for fault, actions in told:
        faults.always = fault
        for action in actions:
            with pytest.raises((StoreError, StoreAccessError)) as caught:
                action()
            text = "".join(traceback.format_exception(caught.value))
            assert SECRET not in text
            assert "Signature=" not in text
