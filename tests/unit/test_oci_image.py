"""Layouts: what is written is read back, and whatever else lies in the folder is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.oci.image import (
    CONFIG,
    INDEX,
    LAYER_GZIP,
    MANIFEST,
    Image,
    LayerBlob,
    canonical_json,
    digest_of,
    holds,
    link_or_copy,
    read_layout,
    verify_blob,
    write_layout,
)
from builder.oci.layer import LayerWriter
from tests.builders import base_layout, image_of, write_layer

ARM = "linux/arm64"
AMD = "linux/amd64"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"


def small_image(folder: Path, architecture: str = "arm64", **further: Any) -> Image:
    def first(writer: LayerWriter) -> None:
        writer.file("a", b"first")

    def second(writer: LayerWriter) -> None:
        writer.file("b", b"second")

    layers = [write_layer(folder / "one", first), write_layer(folder / "two", second)]
    config = {"Env": ["PATH=/usr/bin"], "Labels": {"k": "ü"}}
    return image_of(layers, architecture=architecture, config=config, **further)


def layout(tmp_path: Path, image: Image | None = None) -> Path:
    folder = tmp_path / "layout"
    write_layout(image or small_image(tmp_path / "made"), folder)
    return folder


def blob(folder: Path, digest: str) -> Path:
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def put(folder: Path, value: Any) -> dict[str, Any]:
    """Store a JSON document as a blob; returns a descriptor without its media type."""
    raw = json.dumps(value).encode()
    blob(folder, digest_of(raw)).write_bytes(raw)
    return {"digest": digest_of(raw), "size": len(raw)}


def set_index(folder: Path, *descriptors: Any) -> None:
    document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(descriptors)}
    (folder / "index.json").write_text(json.dumps(document))


def manifest_of(folder: Path) -> dict[str, Any]:
    index = json.loads((folder / "index.json").read_text())
    manifest: dict[str, Any] = json.loads(blob(folder, index["manifests"][0]["digest"]).read_text())
    return manifest


def with_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The layout with another manifest, whose digest fits."""
    manifest = manifest_of(folder)
    change(manifest)
    set_index(folder, {"mediaType": MANIFEST, **put(folder, manifest)})


def with_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads(blob(folder, manifest_of(folder)["config"]["digest"]).read_text())
    change(config)
    with_manifest(folder, lambda manifest: manifest["config"].update(put(folder, config)))


def refusal(folder: Path, platform: str = ARM) -> str:
    with pytest.raises(UsageError) as caught:
        read_layout(folder, platform)
    return caught.value.message


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    image = small_image(tmp_path / "made")
    folder = layout(tmp_path, image)
    found = read_layout(folder, ARM)
    assert found.config == image.config
    assert (found.digest, found.size) == (image.digest, image.size)
    assert found.manifest_bytes == image.manifest_bytes
    assert [layer.diff_id for layer in found.layers] == [layer.diff_id for layer in image.layers]
    for layer, written in zip(found.layers, image.layers, strict=True):
        assert layer.path.read_bytes() == written.path.read_bytes()
        verify_blob(layer)
    again = tmp_path / "again"
    write_layout(found, again)
    assert {p.name: p.read_bytes() for p in again.rglob("*") if p.is_file()} == {
        p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def test_the_digest_depends_on_the_content_only(tmp_path: Path) -> None:
    one = image_of([], config={"Env": ["A=1"], "Labels": {"a": "1", "b": "2"}})
    two = image_of([], config={"Labels": {"b": "2", "a": "1"}, "Env": ["A=1"]})
    assert one.digest == two.digest
    assert one.digest == ("sha256:c82433452968ba58245af309f958576676f959a58b8233077d0030fb7a761738")
    assert image_of([], config={"Env": ["A=2"]}).digest != one.digest
    annotated = Image(config=one.config, layers=(), annotations={"k": "v"})
    assert json.loads(annotated.manifest_bytes)["annotations"] == {"k": "v"}


def test_the_written_layout_follows_the_specification(tmp_path: Path) -> None:
    image = small_image(tmp_path / "made", variant="v8")
    folder = layout(tmp_path, image)
    assert json.loads((folder / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    [descriptor] = json.loads((folder / "index.json").read_text())["manifests"]
    assert descriptor["digest"] == image.digest
    assert descriptor["platform"] == {"architecture": "arm64", "os": "linux", "variant": "v8"}
    manifest = manifest_of(folder)
    assert (manifest["mediaType"], manifest["config"]["mediaType"]) == (MANIFEST, CONFIG)
    assert {layer["mediaType"] for layer in manifest["layers"]} == {LAYER_GZIP}
    for entry in (descriptor, manifest["config"], *manifest["layers"]):
        data = blob(folder, entry["digest"]).read_bytes()
        assert (digest_of(data), len(data)) == (entry["digest"], entry["size"])


def test_a_layer_that_comes_twice_is_stored_once(tmp_path: Path) -> None:
    layer = write_layer(tmp_path / "one", lambda writer: writer.file("a", b""))
    folder = layout(tmp_path, image_of([layer, layer]))
    assert len(read_layout(folder, ARM).layers) == 2
    assert len(list((folder / "blobs" / "sha256").iterdir())) == 3


def test_blobs_are_linked_where_that_works_and_copied_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    link_or_copy(source, tmp_path / "linked")
    assert (tmp_path / "linked").samefile(source)

    def refuse(source: Path, destination: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    link_or_copy(source, tmp_path / "copied")
    assert not (tmp_path / "copied").samefile(source)
    assert (tmp_path / "copied").read_bytes() == b"x"
    assert (tmp_path / "copied").stat().st_mode & 0o222 == 0


def test_a_link_to_a_blob_is_followed(tmp_path: Path) -> None:
    """A link of a relative one would lead nowhere."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "blob").write_bytes(b"x")
    (tmp_path / "link").symlink_to("store/blob")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    found = tmp_path / "deep" / "er" / "found"
    link_or_copy(tmp_path / "link", found)
    assert not found.is_symlink()
    assert found.read_bytes() == b"x"


def test_a_blob_of_the_right_size_with_other_bytes_is_noticed(tmp_path: Path) -> None:
    image = small_image(tmp_path / "made")
    folder = layout(tmp_path, image)
    for path in (folder / "blobs" / "sha256").iterdir():
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert not holds(folder, image)
        path.write_bytes(data)
        assert holds(folder, image)


def test_layers_are_judged_by_whoever_knows_them(tmp_path: Path) -> None:
    image = small_image(tmp_path / "made")
    folder = layout(tmp_path, image)
    asked: list[Path] = []

    def is_sound(layer: LayerBlob) -> bool:
        asked.append(layer.path)
        return len(asked) < 2

    assert not holds(folder, image, is_sound)
    assert asked == [blob(folder, layer.digest) for layer in image.layers]


def test_a_layout_that_holds_the_image_is_known(tmp_path: Path) -> None:
    image = small_image(tmp_path / "made")
    folder = layout(tmp_path, image)
    assert holds(folder, image)
    assert holds(folder, read_layout(folder, ARM))
    assert not holds(folder, small_image(tmp_path / "made", author="another"))
    assert not holds(tmp_path / "absent", image)


@pytest.mark.parametrize("number", range(5))
def test_a_layout_that_lost_a_part_does_not_hold_the_image(tmp_path: Path, number: int) -> None:
    image = small_image(tmp_path / "made")
    folder = layout(tmp_path, image)
    parts = [*sorted((folder / "blobs" / "sha256").iterdir()), folder / "index.json"]
    assert len(parts) == 5
    parts[number].unlink()
    assert not holds(folder, image)
    parts[number].write_bytes(b"cut")
    assert not holds(folder, image)


def two_platforms(tmp_path: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A layout with an arm64 and an amd64 image, and the descriptors of the two."""
    folder = layout(tmp_path)
    amd = tmp_path / "amd"
    write_layout(small_image(tmp_path / "made-amd", "amd64", author="x"), amd)
    entries = [json.loads((f / "index.json").read_text())["manifests"][0] for f in (folder, amd)]
    shutil.copytree(amd / "blobs", folder / "blobs", dirs_exist_ok=True)
    return folder, entries[0], entries[1]


@pytest.mark.parametrize("stated", [True, False], ids=["stated", "unstated"])
def test_the_image_of_the_platform_is_found(tmp_path: Path, *, stated: bool) -> None:
    """Also where the index does not say which is which: then the configs do."""
    folder, arm, amd = two_platforms(tmp_path)
    if not stated:
        del arm["platform"], amd["platform"]
    set_index(folder, amd, arm)
    assert read_layout(folder, ARM).digest == arm["digest"]
    assert read_layout(folder, AMD).digest == amd["digest"]
    assert refusal(folder, "linux/riscv64").endswith(
        "holds no image for linux/riscv64, only linux/amd64, linux/arm64"
    )


@pytest.mark.parametrize("media_type", [INDEX, DOCKER_INDEX])
def test_nested_indexes_are_looked_through(tmp_path: Path, media_type: str) -> None:
    """All of them: the first may hold another image altogether."""
    folder, arm, amd = two_platforms(tmp_path)
    attestation = {**amd, "platform": {"os": "unknown", "architecture": "unknown"}}
    first = {"mediaType": media_type, **put(folder, {"manifests": [attestation, amd]})}
    second = {"mediaType": media_type, **put(folder, {"manifests": [arm]})}
    outer = {"mediaType": media_type, **put(folder, {"manifests": [second]})}
    set_index(folder, first, outer)
    assert read_layout(folder, ARM).digest == arm["digest"]
    assert read_layout(folder, AMD).digest == amd["digest"]


def test_blobs_of_other_platforms_need_not_be_there(tmp_path: Path) -> None:
    folder, arm, amd = two_platforms(tmp_path)
    blob(folder, amd["digest"]).unlink()
    set_index(folder, amd, arm)
    assert read_layout(folder, ARM).digest == arm["digest"]
    assert str(blob(folder, amd["digest"])) in refusal(folder, AMD)


def test_a_manifest_whose_config_says_otherwise_is_not_taken(tmp_path: Path) -> None:
    folder = layout(tmp_path)
    with_config(folder, lambda config: config.update(architecture="amd64"))
    assert "only linux/amd64" in refusal(folder)


def test_what_is_no_layout_is_told_from_a_broken_one(tmp_path: Path) -> None:
    assert "not an OCI layout" in refusal(tmp_path / "absent")
    assert "not an OCI layout" in refusal(tmp_path)
    (tmp_path / "oci-layout").write_text("{}")
    assert "index.json: cannot be read" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["", "nonsense", "\xff", "[" * 100_000, '"\\ud800"', "[]", "7"])
def test_an_index_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    folder = layout(tmp_path)
    (folder / "index.json").write_bytes(text.encode("latin-1"))
    assert "index.json" in refusal(folder)


@pytest.mark.parametrize("which", ["manifest", "config"])
def test_a_document_that_was_changed_is_refused(tmp_path: Path, which: str) -> None:
    folder = layout(tmp_path)
    index = json.loads((folder / "index.json").read_text())
    descriptor = index["manifests"][0] if which == "manifest" else manifest_of(folder)["config"]
    path = blob(folder, descriptor["digest"])
    path.write_bytes(path.read_bytes().replace(b"{", b"{ ", 1))
    assert refusal(folder) == f"{path}: the blob does not match its digest"
    path.unlink()
    assert f"{path}: cannot be read" in refusal(folder)


def test_a_layer_that_is_missing_or_cut_off_is_refused(tmp_path: Path) -> None:
    folder = layout(tmp_path)
    path = blob(folder, manifest_of(folder)["layers"][1]["digest"])
    data = path.read_bytes()
    path.unlink()
    assert refusal(folder) == f"{path}: the layer is missing or cut off"
    path.write_bytes(data[:-1])
    assert "missing or cut off" in refusal(folder)
    path.write_bytes(data[:-1] + b"x")
    layers = read_layout(folder, ARM).layers
    verify_blob(layers[0])
    with pytest.raises(UsageError, match="the blob's digest is"):
        verify_blob(layers[1])


EVIL = [
    "sha256:../../../../etc/passwd",
    "sha256:" + "../" * 21 + "x",
    "sha256:" + "A" * 64,
    "sha256:" + "a" * 63,
    "sha256:" + "a" * 64 + "\n",
    "sha512:" + "a" * 64,
    "a" * 64,
    "",
    None,
    7,
    ["sha256"],
    {"a": 1},
]


@pytest.mark.parametrize("digest", EVIL, ids=repr)
def test_a_digest_that_is_none_never_becomes_a_path(tmp_path: Path, digest: object) -> None:
    folder = layout(tmp_path)
    kept = (folder / "index.json").read_bytes()
    for change in (
        lambda manifest: manifest["layers"][0].update(digest=digest),
        lambda manifest: manifest["config"].update(digest=digest),
    ):
        with_manifest(folder, change)
        assert refusal(folder)
        (folder / "index.json").write_bytes(kept)
    with_config(folder, lambda config: config["rootfs"]["diff_ids"].__setitem__(0, digest))
    assert refusal(folder)
    set_index(folder, {"mediaType": MANIFEST, "digest": digest, "size": 1})
    assert refusal(folder)


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)
PLACES = [
    ("index", ("manifests",)),
    ("index", ("manifests", 0)),
    ("index", ("manifests", 0, "mediaType")),
    ("index", ("manifests", 0, "platform")),
    ("manifest", ("config",)),
    ("manifest", ("layers",)),
    ("manifest", ("layers", 0)),
    ("manifest", ("layers", 0, "size")),
    ("manifest", ("layers", 0, "mediaType")),
    ("manifest", ("annotations",)),
    ("config", ("rootfs",)),
    ("config", ("rootfs", "diff_ids")),
    ("config", ("config",)),
    ("config", ("config", "Env")),
    ("config", ("config", "Labels")),
    ("config", ("history",)),
    ("config", ("os",)),
]


def replaced(value: Any, at: tuple[str | int, ...], other: Any) -> None:
    for key in at[:-1]:
        value = value[key]
    value[at[-1]] = other


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(place=st.sampled_from(PLACES), other=HOSTILE)
def test_values_of_any_type_anywhere_are_read_or_refused(
    tmp_path: Path, place: tuple[str, tuple[str | int, ...]], other: object
) -> None:
    folder = tmp_path / "layout"
    shutil.rmtree(folder, ignore_errors=True)
    layout(tmp_path)
    document, at = place
    if document == "index":
        index = json.loads((folder / "index.json").read_text())
        replaced(index, at, other)
        (folder / "index.json").write_text(json.dumps(index))
    elif document == "manifest":
        with_manifest(folder, lambda manifest: replaced(manifest, at, other))
    else:
        with_config(folder, lambda config: replaced(config, at, other))
    try:
        told = str(read_layout(folder, ARM).config["architecture"])
    except UsageError as error:
        told = error.message
    assert told == "arm64" or str(folder) in told or "not a sha256 digest" in told


@pytest.mark.parametrize("key", ["mediaType", "digest"])
def test_a_descriptor_without_a_key_is_refused(tmp_path: Path, key: str) -> None:
    folder = layout(tmp_path)
    [descriptor] = json.loads((folder / "index.json").read_text())["manifests"]
    del descriptor[key]
    set_index(folder, descriptor)
    assert f"'{key}' is missing" in refusal(folder)


@pytest.mark.parametrize("env", ["A=1", [1], [None], {"A": "1"}])
def test_variables_that_are_no_list_of_texts_are_refused(tmp_path: Path, env: object) -> None:
    folder = layout(tmp_path)
    with_config(folder, lambda config: config["config"].update(Env=env))
    assert "Env" in refusal(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Entrypoint", 5),
        ("Entrypoint", [5]),
        ("Cmd", "bash"),
        ("User", [1]),
        ("WorkingDir", 7),
        ("StopSignal", 9),
        ("Volumes", []),
        ("ExposedPorts", ["80/tcp"]),
        ("Labels", {"a": 1}),
        ("Labels", {"a": "\ud800"}),
        ("Labels", {"\ud800": "a"}),
        ("Env", ["A=\ud800"]),
        ("Env", ["A"]),
        ("Env", ["=1"]),
        ("Other", float("nan")),
        ("Other", float("inf")),
    ],
)
def test_settings_that_an_image_on_top_could_not_take_over_are_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    folder = layout(tmp_path)
    with_config(folder, lambda config: config["config"].update({key: value}))
    assert refusal(folder).startswith(f"{folder}: not a sound OCI layout: ")


@pytest.mark.parametrize(
    "key", ["Entrypoint", "Cmd", "User", "WorkingDir", "Volumes", "ExposedPorts", "Labels", "Env"]
)
def test_settings_may_be_null(tmp_path: Path, key: str) -> None:
    folder = layout(tmp_path)
    with_config(folder, lambda config: config["config"].update({key: None}))
    assert read_layout(folder, ARM).config["config"][key] is None


@pytest.mark.parametrize("which", ["index", "manifest"])
def test_a_pipe_in_place_of_a_document_is_refused(tmp_path: Path, which: str) -> None:
    image = small_image(tmp_path / "made")
    folder = layout(tmp_path, image)
    path = folder / "index.json" if which == "index" else blob(folder, image.digest)
    path.unlink()
    os.mkfifo(path)
    assert refusal(folder) == f"{path}: cannot be read: not a regular file"
    assert not holds(folder, image)


def test_more_layers_than_diff_ids_are_refused(tmp_path: Path) -> None:
    folder = layout(tmp_path)
    with_config(folder, lambda config: config["rootfs"]["diff_ids"].pop())
    assert "not a sound OCI layout" in refusal(folder)


def test_json_of_ours_is_sorted_and_without_blanks() -> None:
    assert canonical_json({"b": [1, {"d": None, "c": "ü"}], "a": True}) == (
        '{"a":true,"b":[1,{"c":"ü","d":null}]}'.encode()
    )


def test_the_shared_base_of_the_tests_is_a_sound_layout(tmp_path: Path) -> None:
    image = base_layout(tmp_path / "base")
    assert read_layout(tmp_path / "base", ARM).digest == image.digest
