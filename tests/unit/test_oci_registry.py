"""Registries: images by name and platform, checked; refusals in words; no login astray."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from builder.errors import ExternalError, LockError
from builder.oci.endpoint import UnknownImageError
from builder.oci.image import CONFIG, INDEX, LAYER_GZIP, MANIFEST
from builder.oci.reference import parse_reference

from .fake_registry import (
    AMD,
    ARM,
    CUDA,
    NAME,
    PING,
    REALM,
    ROOT,
    FakeRegistry,
    always,
    descriptor,
    digest_of,
    registry,
)


def platform(data: bytes, name: str, media_type: str = MANIFEST, **further: str) -> dict[str, Any]:
    system, _, architecture = name.partition("/")
    stated = {"os": system, "architecture": architecture, **further}
    return descriptor(data, media_type, platform=stated)


# What a reference names


def test_a_tag_is_resolved_by_its_head() -> None:
    server = FakeRegistry()
    manifest = server.store_image(tag="13")
    assert registry(server).resolve(CUDA) == digest_of(manifest)
    assert server.lines() == [PING, f"GET {REALM}", f"HEAD {ROOT}/manifests/13"]
    accepted = server.requests[-1].headers["accept"].split(", ")
    assert accepted == [
        INDEX,
        MANIFEST,
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]


@pytest.mark.parametrize(
    "server", [FakeRegistry(states_digests=False), FakeRegistry(answers_heads=False)]
)
def test_a_tag_is_resolved_by_its_manifest_where_the_head_does_not_say(
    server: FakeRegistry,
) -> None:
    manifest = server.store_image(tag="13")
    assert registry(server).resolve(CUDA) == digest_of(manifest)
    assert server.lines()[-1] == f"GET {ROOT}/manifests/13"


def test_a_digest_is_resolved_to_itself_if_it_is_there() -> None:
    server = FakeRegistry()
    manifest = server.store_image()
    pinned = CUDA.with_digest(digest_of(manifest))
    assert registry(server).resolve(pinned) == digest_of(manifest)
    assert server.lines()[-1] == f"HEAD {ROOT}/manifests/{pinned.digest}"
    with pytest.raises(UnknownImageError, match="does not have that digest") as caught:
        registry(server).resolve(CUDA.with_digest("sha256:" + "0" * 64))
    assert "--upgrade" in (caught.value.hint or "")


def test_docker_hub_answers_under_another_name() -> None:
    server = FakeRegistry()
    server.store_manifest({"mediaType": MANIFEST}, "24.04", name="library/ubuntu")
    registry(server).resolve(parse_reference("ubuntu:24.04"))
    assert server.lines()[0] == "GET https://registry-1.docker.io/v2/"
    assert server.lines()[-1] == (
        "HEAD https://registry-1.docker.io/v2/library/ubuntu/manifests/24.04"
    )


def test_tags_come_page_by_page() -> None:
    server = FakeRegistry(page=2)
    for tag in ("13", "12", "11", "10", "9"):
        server.store_image(tag=tag)
    assert registry(server).tags(CUDA) == ("13", "12", "11", "10", "9")
    assert server.lines().count(f"GET {ROOT}/tags/list") == 3
    server.page = 0
    assert registry(server).tags(CUDA) == ("13", "12", "11", "10", "9")


def test_a_repository_may_have_no_tags() -> None:
    assert registry(FakeRegistry()).tags(CUDA) == ()


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("<https://evil.example/v2/nvidia/cuda/tags/list>; rel=next", "at another place"),
        ("</v2/other/x/tags/list>; rel=next", "at another place"),
        (f"</v2/{NAME}/tags/list>; rel=next", "without end"),
    ],
)
def test_pages_stay_where_they_are_and_end(
    link: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.oci.registry._TAGS_PAGES_MAX", 3)
    body = b'{"tags": ["a"]}'

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.host == "registry.example"
        return httpx.Response(200, headers={"Link": link}, content=body)

    with pytest.raises(ExternalError, match=message):
        registry(handler).tags(CUDA)


# Images


def test_an_image_is_found_in_an_index() -> None:
    server = FakeRegistry()
    arm = server.store_image([b"one", b"two"])
    amd = server.store_image(architecture="amd64")
    note = descriptor(b"{}", MANIFEST, platform={"os": "unknown", "architecture": "unknown"})
    index = server.store_index(note, platform(amd, AMD), platform(arm, ARM, variant="v8"), tag="13")
    image = registry(server).image(CUDA, ARM)
    assert (image.reference, image.index) == (CUDA, digest_of(index))
    assert (image.manifest, image.digest) == (arm, digest_of(arm))
    assert digest_of(image.config) == json.loads(arm)["config"]["digest"]
    assert [layer.digest for layer in image.layers] == [digest_of(b"one"), digest_of(b"two")]
    [first, _] = image.layers
    assert (first.diff_id, first.size, first.media_type) == (digest_of(b"one"), 3, LAYER_GZIP)
    assert first.url == f"{ROOT}/blobs/{digest_of(b'one')}"
    assert f"GET {ROOT}/manifests/{digest_of(amd)}" not in server.lines()
    assert server.lines().count(f"GET {REALM}") == 1


def test_an_image_by_itself_says_its_platform_in_its_config() -> None:
    server = FakeRegistry()
    manifest = server.store_image(tag="13", variant="v8")
    image = registry(server).image(CUDA, ARM)
    assert image.index == image.digest == digest_of(manifest)
    pinned = CUDA.with_digest(image.digest)
    assert registry(server).image(pinned, ARM).layers == image.layers


def test_an_index_may_be_nested_or_silent_about_platforms() -> None:
    server = FakeRegistry()
    arm, amd = server.store_image(), server.store_image(architecture="amd64")
    inner = server.store_index(descriptor(amd, MANIFEST), descriptor(arm, MANIFEST))
    artefact = descriptor(b"{}", "application/vnd.example+json")
    server.store_index(artefact, descriptor(inner, INDEX), tag="13")
    assert registry(server).image(CUDA, ARM).manifest == arm
    assert registry(server).image(CUDA, AMD).manifest == amd


def test_dockers_own_documents_mean_the_same() -> None:
    server = FakeRegistry()
    docker = "application/vnd.docker"
    arm = server.store_image(
        media_type=f"{docker}.distribution.manifest.v2+json",
        config_type=f"{docker}.container.image.v1+json",
        layer_type=f"{docker}.image.rootfs.diff.tar.gzip",
    )
    entry = platform(arm, ARM, media_type=f"{docker}.distribution.manifest.v2+json")
    listing = f"{docker}.distribution.manifest.list.v2+json"
    server.store_manifest({"schemaVersion": 2, "mediaType": listing, "manifests": [entry]}, "13")
    image = registry(server).image(CUDA, ARM)
    assert image.manifest == arm
    assert image.layers[0].media_type == LAYER_GZIP


def test_a_type_that_a_document_does_not_say_is_the_servers_word() -> None:
    server = FakeRegistry()
    manifest = json.loads(server.store_image())
    del manifest["mediaType"]
    server.store_manifest(manifest, "13")
    assert registry(server).image(CUDA, ARM).layers
    media_type, data = server.documents[NAME, "13"]
    server.documents[NAME, "13"] = f"{media_type}; charset=utf-8", data
    assert registry(server).get_manifest(CUDA) == (data, MANIFEST)


@pytest.mark.parametrize(
    ("stated", "wanted"),
    [
        ({"architecture": "arm64", "variant": "v9"}, ARM),
        ({"architecture": "arm", "variant": "v7"}, ARM),
        ({"architecture": "amd64", "variant": "v3"}, AMD),
        ({"os": "windows", "architecture": "amd64"}, AMD),
    ],
)
def test_a_platform_that_is_not_there_is_told_with_those_that_are(
    stated: dict[str, str], wanted: str
) -> None:
    server = FakeRegistry()
    manifest = server.store_image(config=stated)
    name = "/".join({"os": "linux", **stated}.values())
    for entry in (descriptor(manifest, MANIFEST), platform(manifest, "linux/", **stated)):
        server.store_index(entry, entry, tag="13")
        with pytest.raises(LockError) as caught:
            registry(server).image(CUDA, wanted)
        assert caught.value.message == f"{CUDA}: holds no image for {wanted}, only {name}"


def test_an_index_that_lies_about_a_platform_is_not_believed() -> None:
    server = FakeRegistry()
    amd = server.store_image(architecture="amd64")
    server.store_index(platform(amd, ARM), tag="13")
    with pytest.raises(LockError, match="no image for linux/arm64, only linux/amd64"):
        registry(server).image(CUDA, ARM)


def test_what_is_no_container_image_is_told() -> None:
    server = FakeRegistry()
    server.store_image(tag="13", config_type="application/vnd.cncf.helm.config.v1+json")
    with pytest.raises(LockError, match=r"only something of the type application/vnd\.cncf\.helm"):
        registry(server).image(CUDA, ARM)
    server.store_index(tag="empty")
    with pytest.raises(LockError, match="only nothing at all"):
        registry(server).image(CUDA.with_tag("empty"), ARM)


# Nothing is believed that was not checked


def test_a_manifest_without_its_digest_is_refused() -> None:
    server = FakeRegistry()
    manifest = server.store_image(tag="13")
    server.documents[NAME, digest_of(manifest)] = MANIFEST, manifest + b" "
    with pytest.raises(ExternalError, match="does not have the digest that it should"):
        registry(server).image(CUDA.with_digest(digest_of(manifest)), ARM)
    other = {"Docker-Content-Digest": digest_of(b""), "Content-Type": MANIFEST}
    server.first.append(("manifests/13", always(200, headers=other, content=manifest)))
    with pytest.raises(ExternalError, match="does not have the digest that it should"):
        registry(server).image(CUDA, ARM)


def test_a_child_of_an_index_is_checked() -> None:
    server = FakeRegistry()
    arm = server.store_image()
    server.store_index(platform(arm, ARM), tag="13")
    server.documents[NAME, digest_of(arm)] = MANIFEST, arm.replace(b"layers", b"Layers")
    with pytest.raises(ExternalError, match="does not have the digest that it should"):
        registry(server).image(CUDA, ARM)


def test_a_config_is_checked() -> None:
    server = FakeRegistry()
    manifest = json.loads(server.store_image(tag="13"))
    config = manifest["config"]["digest"]
    server.blobs[NAME, config] += b" "
    with pytest.raises(ExternalError, match="a config that does not match its digest"):
        registry(server).image(CUDA, ARM)
    del server.blobs[NAME, config]
    with pytest.raises(UnknownImageError, match=config):
        registry(server).image(CUDA, ARM)
    manifest["config"]["size"] = 5 << 20
    server.store_manifest(manifest, "13")
    with pytest.raises(ExternalError, match="a config of 5242880 bytes"):
        registry(server).image(CUDA, ARM)


def test_no_document_is_larger_than_it_may_be() -> None:
    server = FakeRegistry()
    server.documents[NAME, "13"] = MANIFEST, b" " * ((4 << 20) + 1)
    with pytest.raises(ExternalError, match="more than 4194304 bytes"):
        registry(server).get_manifest(CUDA)


def test_an_index_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.oci.registry._DOCUMENTS_MAX", 5)
    server = FakeRegistry()
    data = server.store_index()
    for _ in range(10):
        data = server.store_index(descriptor(data, INDEX), tag="13")
    with pytest.raises(ExternalError, match="an index of more than 5 documents"):
        registry(server).image(CUDA, ARM)


_CONFIG = descriptor(b"{}", CONFIG)
_UNSOUND: list[bytes | dict[str, Any]] = [
    b"",
    b"\xff",
    b"[]",
    b"[" * 100_000,
    {},
    {"mediaType": "application/vnd.docker.distribution.manifest.v1+prettyjws"},
    {"mediaType": MANIFEST, "config": _CONFIG},
    {"mediaType": MANIFEST, "config": _CONFIG, "layers": [], "manifests": []},
    {"mediaType": MANIFEST, "config": {**_CONFIG, "digest": "sha256:../../x"}, "layers": []},
    {"mediaType": MANIFEST, "config": {**_CONFIG, "size": -1}, "layers": []},
    {"mediaType": MANIFEST, "config": {**_CONFIG, "size": "1"}, "layers": []},
    {"mediaType": MANIFEST, "config": _CONFIG, "layers": [{**_CONFIG, "digest": "md5:0"}]},
    {"mediaType": INDEX, "layers": [], "manifests": []},
    {"mediaType": INDEX, "manifests": {}},
    {"mediaType": INDEX, "manifests": [{**_CONFIG, "digest": "sha256:" + "A" * 64}]},
]


@pytest.mark.parametrize("document", _UNSOUND)
def test_what_is_no_image_is_refused(document: bytes | dict[str, Any]) -> None:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    server = FakeRegistry(documents={(NAME, "13"): ("text/plain", data)})
    with pytest.raises(ExternalError, match=f"^{CUDA}: .* is not sound: "):
        registry(server).image(CUDA, ARM)


@pytest.mark.parametrize(
    "config",
    [
        {"rootfs": {"type": "layers", "diff_ids": []}},
        {"rootfs": {"type": "layers", "diff_ids": ["sha256:0"]}},
        {"rootfs": None},
        {"config": {"Env": ["PATH"]}},
        {"os": 1},
    ],
)
def test_a_config_that_is_none_is_refused(config: dict[str, Any]) -> None:
    server = FakeRegistry()
    server.store_image(tag="13", config=config)
    with pytest.raises(ExternalError, match="is not sound"):
        registry(server).image(CUDA, ARM)
