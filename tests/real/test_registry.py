"""Our registry client against a real registry, and beside skopeo, which speaks for the others."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from builder import process
from builder.errors import ExternalError, LockError
from builder.http import Http
from builder.lock.model import LockedFile
from builder.lock.store import Store
from builder.oci.endpoint import UnknownImageError
from builder.oci.image import (
    INDEX,
    MANIFEST,
    Image,
    canonical_json,
    digest_hex,
    digest_of,
    read_layout,
    write_layout,
)
from builder.oci.reference import Reference, parse_reference
from builder.oci.registry import Registry
from builder.progress import Progress
from tests.builders import image_of, python_layer, write_layer

from .standins import StandIns
from .standins.ngc import Ngc
from .standins.registry import registry

pytestmark = pytest.mark.real("docker-registry")

ARM, AMD = "linux/arm64", "linux/amd64"
PASSWORD = "canary-password"
# `me` and that password, by bcrypt with four rounds: what the registry checks, not how well.
HTPASSWD = "me:$2b$04$abcdefghijklmnopqrstuuag0.YlF7tv7WKWN7rgqJ5KkJ9XU2wny\n"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry that anybody may read and write."""
    with registry(tmp_path_factory.mktemp("open")) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry that wants a login."""
    with registry(tmp_path_factory.mktemp("closed"), HTPASSWD) as port:
        yield f"localhost:{port}"


@pytest.fixture
def client() -> Iterator[Registry]:
    with Http({}) as http:
        yield Registry(http, {})


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of two layers, one of them of some size, as a layout."""
    folder = tmp_path_factory.mktemp("image")
    large = write_layer(
        folder / "large", lambda writer: writer.file("data", bytes(range(256)) * 40_000, 0o644)
    )
    small = write_layer(folder / "small", python_layer)
    write_layout(image_of([large, small]), folder / "layout")
    return folder / "layout"


def logged_in(folder: Path, host: str, password: str) -> dict[str, str]:
    path = folder / "auth.json"
    pair = base64.b64encode(f"me:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": pair}}}))
    return {"REGISTRY_AUTH_FILE": str(path)}


def push(client: Registry, image: Image, reference: Reference, folder: Path) -> str:
    """Push all of an image; its config needs a file."""
    config = folder / "config"
    config.write_bytes(image.config_bytes)
    size = len(image.config_bytes)
    client.push_blob(reference, config, digest_of(image.config_bytes), size)
    for layer in image.layers:
        client.push_blob(reference, layer.path, layer.digest, layer.size)
    return client.push_manifest(reference, image.manifest_bytes, MANIFEST)


def test_what_is_pushed_is_read_again(
    host: str, client: Registry, layout: Path, tmp_path: Path
) -> None:
    image = read_layout(layout, ARM)
    reference = parse_reference(f"{host}/some/base:one")
    assert not client.has_blob(reference, image.layers[0].digest)
    assert push(client, image, reference, tmp_path) == image.digest
    assert client.has_blob(reference, image.layers[0].digest)
    assert push(client, image, reference.with_tag("two"), tmp_path) == image.digest
    assert set(client.tags(reference)) == {"one", "two"}
    assert client.resolve(reference) == image.digest
    for name in (reference, reference.with_digest(image.digest)):
        found = client.image(name, ARM)
        assert (found.index, found.digest) == (image.digest, image.digest)
        assert (found.manifest, found.config) == (image.manifest_bytes, image.config_bytes)
        assert [(one.digest, one.diff_id, one.size) for one in found.layers] == [
            (one.digest, one.diff_id, one.size) for one in image.layers
        ]


def test_an_index_leads_to_its_platforms(
    host: str, client: Registry, layout: Path, tmp_path: Path
) -> None:
    arm = read_layout(layout, ARM)
    amd = image_of(arm.layers, architecture="amd64")
    reference = parse_reference(f"{host}/some/index:1")
    entries = []
    for image, architecture in ((amd, "amd64"), (arm, "arm64")):
        digest = push(client, image, Reference(host, "some/index", None, image.digest), tmp_path)
        size = len(image.manifest_bytes)
        stated = {"os": "linux", "architecture": architecture}
        entry = {"mediaType": MANIFEST, "digest": digest, "size": size, "platform": stated}
        entries.append(entry)
    index = canonical_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
    client.push_manifest(reference, index, INDEX)
    assert client.get_manifest(reference) == (index, INDEX)
    found = client.image(reference, ARM)
    assert (found.index, found.digest) == (digest_of(index), arm.digest)
    assert client.image(reference, AMD).digest == amd.digest
    with pytest.raises(LockError, match=r"only linux/amd64, linux/arm64"):
        client.image(reference, "linux/riscv64")


def test_layers_come_into_the_store_from_where_they_broke_off(
    host: str, client: Registry, layout: Path, tmp_path: Path
) -> None:
    image = read_layout(layout, ARM)
    reference = parse_reference(f"{host}/some/layers:1")
    push(client, image, reference, tmp_path)
    layers = client.image(reference, ARM).layers
    whole = image.layers[0].path.read_bytes()
    with client.stream(layers[0].url, 1000) as (first, chunks):
        assert (first, b"".join(chunks)) == (1000, whole[1000:])
    store = Store(tmp_path / "cache")
    files = [
        LockedFile(url=layer.url, sha256=digest_hex(layer.digest), size=layer.size)
        for layer in layers
    ]
    part = tmp_path / "cache" / "files" / files[0].sha256[:2] / f"{files[0].sha256}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(whole[:5000])
    received = store.fetch(files, client, Progress(), "layers")
    assert received == sum(file.size for file in files) - 5000
    assert store.get(files[0]).read_bytes() == whole


def test_what_is_not_there(host: str, client: Registry, layout: Path, tmp_path: Path) -> None:
    reference = parse_reference(f"{host}/some/few:1")
    push(client, read_layout(layout, ARM), reference, tmp_path)
    with pytest.raises(UnknownImageError, match="has no such tag"):
        client.image(reference.with_tag("2"), ARM)
    with pytest.raises(UnknownImageError, match="does not have that digest"):
        client.resolve(reference.with_digest("sha256:" + "0" * 64))
    with pytest.raises(UnknownImageError, match="has no such repository"):
        client.tags(parse_reference(f"{host}/none/at-all"))


def test_a_manifest_without_its_blobs_is_refused(host: str, client: Registry, layout: Path) -> None:
    image = read_layout(layout, ARM)
    reference = parse_reference(f"{host}/some/empty:1")
    with pytest.raises(ExternalError, match="400 Bad Request MANIFEST_BLOB_UNKNOWN"):
        client.push_manifest(reference, image.manifest_bytes, MANIFEST)


def test_a_blob_that_is_not_its_digest_is_refused(
    host: str, client: Registry, tmp_path: Path
) -> None:
    (tmp_path / "blob").write_bytes(b"other")
    reference = parse_reference(f"{host}/some/wrong:1")
    with pytest.raises(ExternalError, match="400 Bad Request DIGEST_INVALID"):
        client.push_blob(reference, tmp_path / "blob", digest_of(b"one"), 5)


def test_a_login_is_needed_and_sent(closed: str, layout: Path, tmp_path: Path) -> None:
    image = read_layout(layout, ARM)
    reference = parse_reference(f"{closed}/some/base:1")
    environ = logged_in(tmp_path, closed, PASSWORD)
    with Http(environ) as http:
        client = Registry(http, environ)
        assert push(client, image, reference, tmp_path) == image.digest
        assert client.resolve(reference) == image.digest
        url = client.image(reference, ARM).layers[1].url
        with client.stream(url, 10) as (first, chunks):
            assert (first, b"".join(chunks)) == (10, image.layers[1].path.read_bytes()[10:])


@pytest.mark.parametrize("password", [None, "canary-wrong"])
def test_a_login_that_is_absent_or_wrong(password: str | None, closed: str, tmp_path: Path) -> None:
    environ: Mapping[str, str] = {"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}
    if password:
        environ = logged_in(tmp_path, closed, password)
    with Http(environ) as http, pytest.raises(ExternalError, match="401") as caught:
        Registry(http, environ).resolve(parse_reference(f"{closed}/some/base:1"))
    hint = caught.value.hint or ""
    assert ("is wrong" if password else "no login was found in") in hint
    assert str(tmp_path / "auth.json") in hint
    assert "canary" not in f"{caught.value} {hint}"


@pytest.mark.real("docker-registry", "skopeo")
def test_skopeo_reads_what_we_push_and_we_read_what_it_pushes(
    host: str, client: Registry, layout: Path, tmp_path: Path
) -> None:
    image = read_layout(layout, ARM)
    ours = parse_reference(f"{host}/beside/ours:1")
    push(client, image, ours, tmp_path)
    copy = ["skopeo", "copy", "--insecure-policy", "--override-arch", "arm64"]
    plain = ["--src-tls-verify=false", f"docker://{ours}"]
    process.run([*copy, *plain, f"oci:{tmp_path / 'copied'}:latest"])
    assert read_layout(tmp_path / "copied", ARM).digest == image.digest
    for kind in ("oci", "v2s2"):
        theirs = f"{host}/beside/theirs:{kind}"
        argv = [*copy, "--format", kind, "--dest-tls-verify=false", f"oci:{layout}"]
        process.run([*argv, f"docker://{theirs}"])
        found = client.image(parse_reference(theirs), ARM)
        assert [layer.diff_id for layer in found.layers] == [
            layer.diff_id for layer in image.layers
        ]


@pytest.mark.real("docker-registry", "skopeo")
def test_a_login_that_skopeo_kept_is_ours(closed: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    argv = ["skopeo", "login", "--tls-verify=false", "--authfile", str(path)]
    process.run([*argv, "--username", "me", "--password-stdin", closed], stdin=PASSWORD)
    environ = {"REGISTRY_AUTH_FILE": str(path)}
    with Http(environ) as http, pytest.raises(UnknownImageError):
        Registry(http, environ).resolve(parse_reference(f"{closed}/none/at-all:1"))


# NGC, as the stand-in plays it: a bare realm, `$oauthtoken`, a CDN, tokens that run out


@pytest.fixture
def ngc(
    standins: StandIns, layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ngc]:
    """The stand-in with our image under a public and a private name, and the way to it."""
    with Http({}) as http:
        client = Registry(http, {})
        for repository in ("nvidia/small", "nvidia/internal"):
            reference = parse_reference(f"127.0.0.1:{standins.registry_port}/{repository}:small")
            push(client, read_layout(layout, ARM), reference, tmp_path)
    for name, value in standins.environ.items():
        monkeypatch.setenv(name, value)
    yield standins.ngc
    standins.ngc.uses, standins.ngc.throttled = None, 0


def read_all(name: str, environ: Mapping[str, str]) -> list[bytes]:
    """Config and layers of an image, by one client of its own."""
    with Http(environ) as http:
        client = Registry(http, environ)
        image = client.image(parse_reference(name), ARM)
        found = [image.config]
        for layer in image.layers:
            with client.stream(layer.url) as (_, chunks):
                found.append(b"".join(chunks))
        assert client.resolve(image.reference) == image.index
        return found


def whole(layout: Path) -> list[bytes]:
    image = read_layout(layout, ARM)
    return [image.config_bytes, *(layer.path.read_bytes() for layer in image.layers)]


NGC_TOOLS = pytest.mark.real("docker-registry", "git", "openssl")


@NGC_TOOLS
def test_ngcs_public_images_are_for_everybody(ngc: Ngc, layout: Path) -> None:
    assert read_all("nvcr.io/nvidia/small:small", {}) == whole(layout)


@NGC_TOOLS
def test_ngcs_private_images_want_the_key(ngc: Ngc, layout: Path, tmp_path: Path) -> None:
    name = "nvcr.io/nvidia/internal:small"
    nowhere = {"REGISTRY_AUTH_FILE": str(tmp_path / "none")}
    assert read_all(name, {**nowhere, "NGC_API_KEY": ngc.key}) == whole(layout)
    with pytest.raises(ExternalError) as absent:
        read_all(name, nowhere)
    assert "set NGC_API_KEY" in (absent.value.hint or "")
    with pytest.raises(ExternalError) as wrong:
        read_all(name, {**nowhere, "NGC_API_KEY": "nvapi-canary"})
    assert "the login out of NGC_API_KEY is wrong" in (wrong.value.hint or "")
    assert "canary" not in f"{wrong.value} {wrong.value.hint}"


@NGC_TOOLS
def test_ngcs_tokens_that_run_out_are_made_again_at_the_first_realm(ngc: Ngc, layout: Path) -> None:
    ngc.uses = 1
    assert read_all("nvcr.io/nvidia/small:small", {}) == whole(layout)


@NGC_TOOLS
def test_ngcs_wish_for_patience_is_met(ngc: Ngc, layout: Path) -> None:
    ngc.throttled = 2
    assert read_all("nvcr.io/nvidia/small:small", {}) == whole(layout)
