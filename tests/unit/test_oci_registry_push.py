"""Pushing to a registry: nothing twice, nothing unasked after a failure, nothing openly."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from builder.errors import ExternalError, UsageError
from builder.oci.image import MANIFEST
from builder.oci.reference import Reference

from .fake_registry import (
    BEARER,
    CUDA,
    NAME,
    ROOT,
    FakeRegistry,
    Handler,
    always,
    digest_of,
    registry,
)

DATA = b"wheel" * 1000
DIGEST = digest_of(DATA)
TO = f"{ROOT}/blobs"


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    return path


def push(server: Handler, blob: Path) -> None:
    registry(server).push_blob(CUDA, blob, DIGEST, len(DATA))


def test_a_blob_is_pushed_once(blob: Path) -> None:
    server = FakeRegistry()
    one = registry(server)
    assert not one.has_blob(CUDA, DIGEST)
    one.push_blob(CUDA, blob, DIGEST, len(DATA))
    assert server.blobs[NAME, DIGEST] == DATA
    assert one.has_blob(CUDA, DIGEST)
    sent = [line for line in server.lines() if line.startswith(("POST", "PUT"))]
    assert sent == [f"POST {TO}/uploads/", f"PUT {TO}/uploads/1"]
    query = dict(server.requests[-2].url.params)
    assert query == {"state": "some", "digest": DIGEST}
    one.push_blob(CUDA, blob, DIGEST, len(DATA))
    assert server.uploads == 1


def test_a_token_to_push_with_is_asked_for_once(blob: Path) -> None:
    server = FakeRegistry()
    push(server, blob)
    assert list(server.tokens.values()) == [f"repository:{NAME}:pull,push"]


def test_a_manifest_is_pushed_by_tag_or_digest() -> None:
    server = FakeRegistry()
    data = FakeRegistry().store_image()
    one = registry(server)
    assert one.push_manifest(CUDA, data, MANIFEST) == digest_of(data)
    assert server.documents[NAME, "13"] == (MANIFEST, data)
    pinned = Reference(CUDA.registry, CUDA.repository, None, digest_of(data))
    assert one.push_manifest(pinned, data, MANIFEST) == pinned.digest
    assert server.lines()[-1] == f"PUT {ROOT}/manifests/{pinned.digest}"
    with pytest.raises(UsageError, match="the manifest's digest is"):
        one.push_manifest(pinned, data + b" ", MANIFEST)
    other = {"Docker-Content-Digest": DIGEST}
    server.first.append(("PUT", always(201, headers=other)))
    with pytest.raises(ExternalError, match="stored another manifest"):
        one.push_manifest(CUDA, data, MANIFEST)
    server.first.append(("PUT", always(400, json={"errors": [{"code": "MANIFEST_INVALID"}]})))
    with pytest.raises(ExternalError, match="400 Bad Request MANIFEST_INVALID"):
        one.push_manifest(CUDA, data, MANIFEST)


@pytest.mark.parametrize(
    ("location", "signed"),
    [
        (f"https://registry.example/v2/{NAME}/blobs/uploads/7", True),
        ("/elsewhere/7?a=b&c=d", True),
        ("7", True),
        ("https://storage.example/bucket/7?signature=canary", False),
    ],
)
def test_an_upload_goes_where_the_registry_says(location: str, signed: object, blob: Path) -> None:
    server = FakeRegistry()
    server.first += [
        ("POST", always(202, headers={"Location": location})),
        ("PUT", always(201)),
    ]
    push(server, blob)
    put = server.requests[-1]
    assert put.url.path in {f"/v2/{NAME}/blobs/uploads/7", "/elsewhere/7", "/bucket/7"}
    assert put.url.params["digest"] == DIGEST
    assert put.content == DATA
    assert ("authorization" in put.headers) == signed


@pytest.mark.parametrize("location", ["https://[storage/7", "https://storage.example:99999/7"])
def test_an_upload_to_what_is_no_url_is_refused(location: str, blob: Path) -> None:
    server = FakeRegistry()
    server.first.append(("POST", always(202, headers={"Location": location})))
    with pytest.raises(ExternalError, match="is not sound"):
        push(server, blob)


@pytest.mark.parametrize("location", ["http://registry.example/v2/x", "", "ftp://x.example/"])
def test_an_upload_is_not_sent_openly(location: str, blob: Path) -> None:
    server = FakeRegistry()
    server.first.append(("POST", always(202, headers={"Location": location})))
    with pytest.raises(ExternalError, match="no private place"):
        push(server, blob)
    assert not any(request.method == "PUT" for request in server.requests)


def lost(server: FakeRegistry, *, arrives: bool) -> Handler:
    def answer(request: httpx.Request) -> httpx.Response:
        if arrives:
            server.blobs[NAME, DIGEST] = DATA
        raise httpx.ReadTimeout("no answer in time")

    return answer


def methods_of_blobs(server: FakeRegistry) -> list[str]:
    return [request.method for request in server.requests if "/blobs/" in str(request.url)]


def test_an_upload_whose_answer_was_lost_is_looked_for_first(blob: Path) -> None:
    server = FakeRegistry()
    server.first.append(("PUT", lost(server, arrives=True)))
    push(server, blob)
    assert methods_of_blobs(server) == ["HEAD", "POST", "PUT", "HEAD"]


def test_an_upload_that_broke_off_begins_anew(blob: Path) -> None:
    server = FakeRegistry()
    server.first += [("PUT", lost(server, arrives=False)), ("PUT", always(503))]
    push(server, blob)
    assert methods_of_blobs(server) == ["HEAD", "POST", "PUT"] * 3
    assert server.blobs[NAME, DIGEST] == DATA


def test_uploads_are_not_tried_for_ever(blob: Path) -> None:
    server = FakeRegistry()
    server.first += [("PUT", lost(server, arrives=False))] * 9
    with pytest.raises(ExternalError, match="ReadTimeout"):
        push(server, blob)
    assert methods_of_blobs(server) == ["HEAD", "POST", "PUT"] * 3 + ["HEAD"]
    server = FakeRegistry()
    server.first += [
        *[("PUT", lost(server, arrives=False))] * 2,
        ("PUT", lost(server, arrives=True)),
    ]
    push(server, blob)


def test_a_token_that_runs_out_meanwhile_is_made_again(blob: Path) -> None:
    server = FakeRegistry()

    def expired(request: httpx.Request) -> httpx.Response:
        server.tokens.clear()
        return httpx.Response(401, headers={"WWW-Authenticate": BEARER})

    server.first.append(("PUT", expired))
    push(server, blob)
    assert server.made == 2


@pytest.mark.parametrize(("line", "status"), [("PUT", 400), ("POST", 404), ("POST", 405)])
def test_a_refused_upload_is_told_at_once(line: str, status: int, blob: Path) -> None:
    server = FakeRegistry()
    server.first.append((line, always(status)))
    with pytest.raises(ExternalError, match=f"answered {status}"):
        push(server, blob)
    assert sum(request.method == line for request in server.requests) == 1


def test_a_file_of_another_size_is_not_sent(blob: Path) -> None:
    server = FakeRegistry()
    with pytest.raises(ExternalError, match="has 5000 bytes, not 4999"):
        registry(server).push_blob(CUDA, blob, DIGEST, 4999)
    with pytest.raises(ExternalError, match="cannot be read"):
        registry(server).push_blob(CUDA, blob.with_name("absent"), DIGEST, 5000)
    assert server.requests == []


def test_has_blob_takes_a_redirect_for_a_yes_and_a_failure_for_none() -> None:
    server = FakeRegistry(redirects=True)
    server.store(DATA)
    assert registry(server).has_blob(CUDA, DIGEST)
    assert not any(request.url.host == "cdn.example" for request in server.requests)
    server.first += [("blobs", always(418))]
    with pytest.raises(ExternalError, match="418"):
        registry(server).has_blob(CUDA, DIGEST)
