"""Talking to registries: whose login goes where, what a refusal says, who may be open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from builder.errors import BuilderError, ExternalError, OfflineError, UsageError
from builder.http import RefusedError
from builder.oci.endpoint import UnknownImageError
from builder.oci.reference import Reference, parse_reference

from .fake_registry import (
    ARM,
    BASIC,
    BEARER,
    CUDA,
    ME,
    NAME,
    PING,
    REALM,
    ROOT,
    FakeRegistry,
    Handler,
    always,
    digest_of,
    logged_in,
    registry,
)

# Logins


def test_without_a_challenge_nothing_is_sent(tmp_path: Path) -> None:
    server = FakeRegistry(challenge=None)
    server.store_image(tag="13")
    registry(server, logged_in(tmp_path)).image(CUDA, ARM)
    assert not any("authorization" in request.headers for request in server.requests)


def test_basic_logins_are_sent(tmp_path: Path) -> None:
    server = FakeRegistry(challenge=BASIC, logins=frozenset({ME}))
    server.store_image(tag="13")
    assert registry(server, logged_in(tmp_path)).image(CUDA, ARM).layers
    assert [request.headers.get("authorization") for request in server.requests[:2]] == [None, ME]


def test_a_login_gets_a_token_and_goes_no_further(tmp_path: Path) -> None:
    server = FakeRegistry(logins=frozenset({ME}))
    server.store_image(tag="13")
    assert registry(server, logged_in(tmp_path)).image(CUDA, ARM).layers
    basics = [one for one in server.requests if one.headers.get("authorization") == ME]
    assert [str(one.url).partition("?")[0] for one in basics] == [REALM]


def test_netrc_and_index_credentials_are_not_for_registries(tmp_path: Path) -> None:
    text = "machine {} login me password canary-password\n"
    hosts = ("registry.example", "tokens.example", "cdn.example")
    (tmp_path / ".netrc").write_text("".join(map(text.format, hosts)))
    index = "https://me:canary-password@registry.example/simple"
    server = FakeRegistry(redirects=True)
    server.store_image(tag="13")
    environ = {"HOME": str(tmp_path), "PIP_INDEX_URL": index}
    one = registry(server, environ)
    image = one.image(CUDA, ARM)
    with one.stream(image.layers[0].url) as (_, chunks):
        assert b"".join(chunks) == b"layer"
    assert ME not in {request.headers.get("authorization") for request in server.requests}


def test_a_token_that_ran_out_is_made_again_from_the_first_answer_on() -> None:
    server = FakeRegistry()
    server.store_image(tag="13")
    one = registry(server)
    assert one.image(CUDA, ARM).layers
    server.tokens.clear()
    # NGC names another realm to those who come with an old token.
    other = 'Bearer realm="https://tokens.example/expired"'
    server.first.append(("manifests/13", always(401, headers={"WWW-Authenticate": other})))
    del server.requests[:]
    assert one.resolve(CUDA)
    assert server.lines() == [
        f"HEAD {ROOT}/manifests/13",
        PING,
        f"GET {REALM}",
        f"HEAD {ROOT}/manifests/13",
    ]
    assert "authorization" not in server.requests[1].headers


def test_a_second_refusal_is_told() -> None:
    server = FakeRegistry()
    server.store_image(tag="13")
    again = always(401, headers={"WWW-Authenticate": BEARER})
    server.first += [("manifests/13", again)] * 9
    with pytest.raises(ExternalError, match="answered 401 Unauthorized") as caught:
        registry(server).get_manifest(CUDA)
    assert server.lines().count(f"GET {ROOT}/manifests/13") == 2
    assert "canary" not in f"{caught.value} {caught.value.hint}"


def test_some_ask_at_the_repository_only() -> None:
    server = FakeRegistry(challenge=None, challenges_of_repositories=BEARER)
    server.store_image(tag="13")
    assert registry(server).image(CUDA, ARM).layers
    assert server.lines().count(f"GET {REALM}") == 1


def test_a_challenge_that_cannot_be_understood() -> None:
    handler = always(401, headers={"WWW-Authenticate": 'Bearer realm="canary'})
    with pytest.raises(ExternalError, match="cannot be understood") as caught:
        registry(handler).resolve(CUDA)
    assert "canary" not in caught.value.message


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_says_what_to_do(status: int, tmp_path: Path) -> None:
    ngc = parse_reference(f"nvcr.io/{NAME}:13")
    body = {"errors": [{"code": "DENIED", "message": "canary-password"}, {"code": "CANARY"}]}
    server = FakeRegistry(challenge=None)
    server.first += [("manifests/13", always(status, json=body))] * 2
    environ = {"REGISTRY_AUTH_FILE": str(tmp_path / "none"), "NGC_API_KEY": "canary-key"}
    with pytest.raises(ExternalError) as caught:
        registry(server, environ).get_manifest(ngc)
    assert caught.value.message.startswith(f"{ngc}: nvcr.io answered {status} ")
    assert caught.value.message.endswith("DENIED")
    assert "the login out of NGC_API_KEY is wrong" in (caught.value.hint or "")
    assert "canary" not in f"{caught.value} {caught.value.hint}".lower()


# Layers


def test_a_layer_is_streamed_from_where_it_broke_off() -> None:
    server = FakeRegistry(redirects=True)
    server.store_image([b"0123456789"], tag="13")
    one = registry(server)
    [layer] = one.image(CUDA, ARM).layers
    with one.stream(layer.url) as (first, chunks):
        assert (first, b"".join(chunks)) == (0, b"0123456789")
    with one.stream(layer.url, 4) as (first, chunks):
        assert (first, b"".join(chunks)) == (4, b"456789")
    cdn = [request for request in server.requests if request.url.host == "cdn.example"]
    assert cdn
    assert not any("authorization" in request.headers for request in cdn)
    assert "authorization" in server.requests[-2].headers


def test_a_stream_gets_a_new_token_once() -> None:
    server = FakeRegistry()
    server.store_image(tag="13")
    one = registry(server)
    [layer] = one.image(CUDA, ARM).layers
    server.tokens.clear()
    with one.stream(layer.url) as (_, chunks):
        assert b"".join(chunks) == b"layer"
    server.first += [("blobs/", always(401, headers={"WWW-Authenticate": BEARER}))] * 9
    with pytest.raises(ExternalError, match="401") as caught, one.stream(layer.url):
        pass
    assert "no login was found" in (caught.value.hint or "")


def test_a_stream_names_a_layer_that_is_gone() -> None:
    server = FakeRegistry()
    url = registry(server).blob_url(CUDA, digest_of(b""))
    one = registry(server)
    assert one.blob_url(CUDA, digest_of(b"")) == url
    with pytest.raises(RefusedError, match="404") as caught, one.stream(url):
        pass
    assert caught.value.status == 404


def test_a_body_that_breaks_off_is_not_taken_for_a_refusal() -> None:
    server = FakeRegistry()
    server.store_image(tag="13")
    one = registry(server)
    [layer] = one.image(CUDA, ARM).layers
    refused = RefusedError("https://elsewhere.example/", 401, {})
    with pytest.raises(RefusedError, match="elsewhere"), one.stream(layer.url):
        raise refused


def test_other_urls_are_streamed_as_ever(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine files.example login me password canary-password\n")
    seen: list[tuple[str, str | None]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.host, request.headers.get("authorization")))
        return httpx.Response(200, stream=httpx.ByteStream(b"wheel"))

    one = registry(handler, {"HOME": str(tmp_path)})
    one.blob_url(CUDA, digest_of(b""))
    for url in ("https://files.example/x.whl", "https://registry.example/x.whl"):
        with one.stream(url) as (_, chunks):
            assert b"".join(chunks) == b"wheel"
    assert seen == [("files.example", ME), ("registry.example", None)]


def test_offline_a_blobs_url_is_known_and_nothing_is_asked() -> None:
    one = registry(always(500), offline=True)
    assert one.blob_url(CUDA, digest_of(b"")).startswith(ROOT)
    with pytest.raises(OfflineError):
        one.resolve(CUDA)
    with pytest.raises(OfflineError):
        one.image(parse_reference("localhost:5000/x:y"), ARM)
    with pytest.raises(UsageError, match="not a sha256 digest"):
        one.blob_url(CUDA, "sha256:../x")


# What else a registry answers


def test_what_is_not_there_is_told() -> None:
    server = FakeRegistry()
    server.store_image(tag="13")
    with pytest.raises(UnknownImageError, match="has no such tag") as caught:
        registry(server).resolve(CUDA.with_tag("99"))
    assert caught.value.exit_code == 3
    assert f"docker://registry.example/{NAME}" in (caught.value.hint or "")
    with pytest.raises(UnknownImageError, match="has no such repository"):
        registry(server).image(Reference("registry.example", "other/x", "13"), ARM)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [({"Retry-After": "7"}, "in 7 seconds"), ({"Retry-After": "soon"}, "later"), ({}, "later")],
)
@pytest.mark.parametrize("path", ["/v2/$", "manifests/13"])
def test_a_registry_that_asks_for_patience(path: str, headers: dict[str, str], wait: str) -> None:
    hub = parse_reference("nvidia/cuda:13")
    body = {"errors": [{"code": "TOOMANYREQUESTS", "message": "canary"}]}
    server = FakeRegistry(challenge=None)
    server.first += [(path, always(429, headers=headers, json=body))] * 9
    with pytest.raises(ExternalError, match="429 Too Many Requests TOOMANYREQUESTS") as caught:
        registry(server).get_manifest(hub)
    hint = caught.value.hint or ""
    assert f"again {wait}" in hint
    assert "podman login docker.io" in hint
    server.first = [("/v2/$", always(429))] * 9
    with pytest.raises(ExternalError) as other:
        registry(server).resolve(CUDA)
    assert "docker.io" not in (other.value.hint or "")


def test_a_head_that_is_limited_is_not_followed_by_more() -> None:
    server = FakeRegistry(challenge=None)
    server.first += [("manifests", always(429))] * 9
    with pytest.raises(ExternalError, match="429"):
        registry(server).resolve(CUDA)
    assert {request.method for request in server.requests[1:]} == {"HEAD"}


def test_other_failures_are_told_by_their_codes() -> None:
    body = {"errors": [{"code": "UNSUPPORTED"}, {"code": "canary"}, {"code": ["canary"]}]}
    server = FakeRegistry(challenge=None)
    server.first += [("manifests", always(418, json=body))]
    with pytest.raises(ExternalError) as caught:
        registry(server).get_manifest(CUDA)
    assert caught.value.message.startswith(f"{CUDA}: registry.example answered 418 ")
    assert "canary" not in caught.value.message


@pytest.mark.parametrize("status", [404, 403, 302])
def test_what_is_no_registry_is_told(status: int) -> None:
    with pytest.raises(ExternalError, match=rf"https://registry\.example/v2/: answered {status}"):
        registry(always(status)).resolve(CUDA)


# A registry on this machine


def plain_only(server: FakeRegistry, error: str = "[SSL: WRONG_VERSION_NUMBER]") -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.scheme == "https":
            raise httpx.ConnectError(error)
        return server(request)

    return handler


@pytest.mark.parametrize("host", ["localhost:5000", "127.0.0.1:5000", "[::1]:5000", "localhost"])
def test_this_machines_own_registry_may_be_open(host: str) -> None:
    server = FakeRegistry(challenge=None)
    server.store_image(tag="13")
    one = registry(plain_only(server))
    image = one.image(parse_reference(f"{host}/{NAME}:13"), ARM)
    assert image.layers[0].url.startswith(f"http://{host}/v2/")
    with one.stream(image.layers[0].url) as (_, chunks):
        assert b"".join(chunks) == b"layer"


@pytest.mark.parametrize("host", ["registry.example", "127.0.0.1.example", "10.0.0.1:5000"])
def test_any_other_one_has_to_encrypt(host: str) -> None:
    server = FakeRegistry(challenge=None)
    with pytest.raises(ExternalError, match="WRONG_VERSION_NUMBER"):
        registry(plain_only(server)).image(parse_reference(f"{host}/{NAME}:13"), ARM)
    assert server.requests == []


def test_it_is_asked_with_encryption_first() -> None:
    server = FakeRegistry(challenge=None)
    server.store_image(tag="13")
    image = registry(server).image(parse_reference(f"localhost:5000/{NAME}:13"), ARM)
    assert image.layers[0].url.startswith("https://localhost:5000/")
    broken = plain_only(server, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    with pytest.raises(ExternalError, match="CERTIFICATE_VERIFY_FAILED"):
        registry(broken).resolve(parse_reference(f"localhost:5000/{NAME}:13"))
    assert {request.url.scheme for request in server.requests} == {"https"}


# No secret in any message


def _failures() -> Iterator[FakeRegistry]:
    yield FakeRegistry(logins=frozenset())
    for status in (400, 401, 403, 404, 418, 429, 500):
        for pattern in ("/v2/$", "manifests/13", "tokens.example"):
            server = FakeRegistry(logins=frozenset({ME}))
            echo = {"errors": [{"code": "DENIED canary", "message": ME}]}
            server.first += [(pattern, always(status, json=echo))] * 9
            yield server


@pytest.mark.parametrize("server", list(_failures()))
def test_no_message_holds_a_login_or_a_token(server: FakeRegistry, tmp_path: Path) -> None:
    one = registry(server, logged_in(tmp_path))
    with pytest.raises(BuilderError) as caught:
        one.get_manifest(CUDA)
    shown = f"{caught.value} {caught.value.hint} {caught.value!r} {one!r} {vars(one)!r}"
    assert "canary" not in shown
    assert ME not in shown
    assert ME.split()[1] not in shown
