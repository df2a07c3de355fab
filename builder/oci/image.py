"""Images and the OCI layouts they are kept in: manifest, config, blobs by digest.

Formats: the OCI image-spec (https://github.com/opencontainers/image-spec), `manifest.md`,
`config.md`, `image-index.md` and `image-layout.md`. JSON of ours is written with sorted keys and
no blanks, so an image's digest depends on what it holds only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from builder.errors import UsageError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
LAYOUT_MARK = "oci-layout"
"""The file by which a folder says that it is a layout (image-layout.md)."""

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
"""A digest in the only algorithm that is taken here (image-spec, descriptor.md, "Digests")."""

MAX_LAYERS = 127
"""What overlay2 can stack (docker's `max depth exceeded`)."""

_OCI_LAYERS = {"application/vnd.docker.image.rootfs.diff.tar.gzip": LAYER_GZIP}
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlob:
    """One layer as a file: `digest` and `size` (bytes) of the blob, `diff_id` of the tar in it."""

    digest: str
    diff_id: str
    size: int
    media_type: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image for one platform: its whole config document and its layers, lowest first.

    One that was read keeps its documents' own bytes, which its digests are over.
    """

    config: Mapping[str, Any]
    layers: tuple[LayerBlob, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    read_config: bytes | None = None
    read_manifest: bytes | None = None

    @property
    def platform(self) -> dict[str, str]:
        """`architecture`, `os` and, where the config has one, `variant`."""
        keys = ("architecture", "os", "variant")
        return {key: self.config[key] for key in keys if key in self.config}

    @property
    def config_bytes(self) -> bytes:
        """The config document as it is stored."""
        return self.read_config or canonical_json(self.config)

    @property
    def manifest_bytes(self) -> bytes:
        """The manifest as it is stored."""
        if self.read_manifest is not None:
            return self.read_manifest
        config = self.config_bytes
        manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": digest_of(config), "size": len(config)},
            "layers": [
                {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size}
                for layer in self.layers
            ],
        }
        if self.annotations:
            manifest["annotations"] = dict(self.annotations)
        return canonical_json(manifest)

    @property
    def digest(self) -> str:
        """What the image is called by: the digest of its manifest."""
        return digest_of(self.manifest_bytes)

    @property
    def size(self) -> int:
        """Bytes of all its blobs: layers, config, manifest."""
        blobs = sum(layer.size for layer in self.layers)
        return blobs + len(self.config_bytes) + len(self.manifest_bytes)


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no blanks, as UTF-8; ValueError for what neither can express."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def digest_of(data: bytes) -> str:
    """`sha256:<hex>` of bytes (image-spec, descriptor.md, "Digests")."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_layout(image: Image, folder: Path) -> None:
    """Write the image as an OCI layout into `folder`, which must not exist yet.

    Layers are hard-linked where the file system allows it, copied elsewhere; they are read-only.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for layer in image.layers:
        link_or_copy(layer.path, blobs / digest_hex(layer.digest))
    for document in (image.config_bytes, image.manifest_bytes):
        (blobs / digest_hex(digest_of(document))).write_bytes(document)
    (folder / LAYOUT_MARK).write_bytes(canonical_json({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_bytes(canonical_json(_index(image)))


def link_or_copy(source: Path, destination: Path) -> None:
    """Give `source` a second name, or copy it where a hard link is not possible."""
    if destination.exists():
        return
    try:
        os.link(source.resolve(), destination)  # a second name of a symbolic link would dangle
    except OSError:
        shutil.copyfile(source, destination)
        destination.chmod(0o444)


def holds(folder: Path, image: Image, is_sound: Callable[[LayerBlob], bool] | None = None) -> bool:
    """Whether `folder` is the layout of just this image, every blob as its digest says.

    `is_sound` is asked about each layer there; every one is read and hashed where it is absent.
    """
    is_sound = is_sound or _has_digest
    try:
        same = _read_regular(folder / "index.json") == canonical_json(_index(image)) and all(
            _read_regular(_blob_path(folder, digest_of(raw))) == raw
            for raw in (image.config_bytes, image.manifest_bytes)
        )
        return same and all(
            is_sound(replace(layer, path=_blob_path(folder, layer.digest)))
            for layer in image.layers
        )
    except OSError:
        return False


def _has_digest(layer: LayerBlob) -> bool:
    return digest_of_file(layer.path) == layer.digest


def digest_of_file(path: Path) -> str:
    """`sha256:<hex>` of a file's bytes."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def digest_hex(digest: object) -> str:
    """The hexadecimal part of a digest, fit to be a file's name; UsageError where it is none."""
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise UsageError(f"{digest!r}: not a sha256 digest")
    return digest.removeprefix("sha256:")


def read_layout(folder: Path, platform: str) -> Image:
    """The image for `platform` (`linux/arm64`) in the OCI layout at `folder`.

    Raises UsageError where the folder is no layout, has no such image, or holds a blob that does
    not match its digest. Layers are checked by size here and by digest when their bytes are used.
    """
    if not (folder / LAYOUT_MARK).is_file():
        raise UsageError(
            f"{folder}: not an OCI layout (it has no file named {LAYOUT_MARK})",
            hint="`skopeo copy docker://IMAGE oci:FOLDER` makes one",
        )
    try:
        return _find_image(folder, platform)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{folder}: not a sound OCI layout: {error}") from None


def verify_blob(layer: LayerBlob, copy: Path | None = None) -> None:
    """Hash the layer's file, or a copy of it; UsageError where that is not its digest."""
    found = digest_of_file(copy or layer.path)
    if found != layer.digest:
        raise UsageError(f"{layer.path}: the blob's digest is {found}, not what its name says")


def _index(image: Image) -> dict[str, Any]:
    manifest = image.manifest_bytes
    descriptor = {
        "mediaType": MANIFEST,
        "digest": digest_of(manifest),
        "size": len(manifest),
        "platform": image.platform,
        "annotations": {"org.opencontainers.image.ref.name": "latest"},  # what umoci asks for
    }
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}


def _find_image(folder: Path, platform: str) -> Image:
    seen = []
    for descriptor in _manifests(folder, _load(folder / "index.json")):
        stated = descriptor.get("platform")
        if isinstance(stated, dict) and _platform(stated) != platform:
            seen.append(_platform(stated))
            continue
        raw_manifest = _blob(folder, descriptor)
        manifest = json.loads(raw_manifest)
        raw_config = _blob(folder, _field(manifest, "config", dict))
        config = json.loads(raw_config)
        if _platform(config) == platform:
            return read_image(raw_manifest, raw_config, partial(_stored_layer, folder))
        seen.append(_platform(config))
    raise UsageError(
        f"{folder}: holds no image for {platform}, only {', '.join(seen) or 'nothing at all'}"
    )


def _manifests(folder: Path, index: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The descriptors of all manifests, those of nested indexes too, in order."""
    for descriptor in _field(index, "manifests", list):
        media_type = _field(descriptor, "mediaType", str)
        if media_type in (INDEX, DOCKER_INDEX):
            yield from _manifests(folder, json.loads(_blob(folder, descriptor)))
        elif media_type in (MANIFEST, DOCKER_MANIFEST):
            yield descriptor


def _platform(value: Mapping[str, Any]) -> str:
    return f"{value.get('os')}/{value.get('architecture')}"


def read_image(raw_manifest: bytes, raw_config: bytes, find: Callable[[str, int], Path]) -> Image:
    """The image that a manifest and a config describe; `find` gives a layer's file.

    It is called with the layer's digest and its size in bytes. Raises TypeError or ValueError
    where the documents are not what manifest.md and config.md say. Docker's names for layer types
    become OCI's, which mean the same bytes (image-spec, "Compatibility Matrix").
    """
    manifest, config = json.loads(raw_manifest), json.loads(raw_config)
    _check_config(config)
    pairs = zip(_field(manifest, "layers", list), config["rootfs"]["diff_ids"], strict=True)
    return Image(
        config=config,
        layers=tuple(_layer(descriptor, diff_id, find) for descriptor, diff_id in pairs),
        annotations=manifest.get("annotations") or {},
        read_manifest=raw_manifest,
        read_config=raw_config,
    )


def _check_config(config: Mapping[str, Any]) -> None:
    """What images on top of this one take over must have the types that config.md gives it.

    All of it must be JSON that we can write again: no lone surrogates, no NaN.
    """
    canonical_json(config)
    for diff_id in _field(_field(config, "rootfs", dict), "diff_ids", list):
        digest_hex(diff_id)
    _field(config, "history", list, default=[])
    _field(config, "variant", str, default="")
    settings = _field(config, "config", dict, default={})
    for key in ("ExposedPorts", "Volumes"):
        _field(settings, key, dict, default={})
    for key in ("User", "WorkingDir", "StopSignal"):
        _field(settings, key, str, default="")
    _check_texts("Labels", _field(settings, "Labels", dict, default={}).values())
    for key in ("Entrypoint", "Cmd"):
        _check_texts(key, _field(settings, key, list, default=[]))
    env = _field(settings, "Env", list, default=[])
    _check_texts("Env", env)
    if not all(entry.partition("=")[0] and "=" in entry for entry in env):
        raise ValueError("Env holds something that is not NAME=VALUE")


def _check_texts(key: str, values: Iterable[object]) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError(f"{key} holds something that is no text")


def _field(value: Any, key: str, kind: type[_Kind], default: _Kind | None = None) -> _Kind:
    """`value[key]` where `value` is an object that has it; absent or null gives `default`."""
    found = value.get(key) if isinstance(value, dict) else None
    found = default if found is None else found
    if not isinstance(found, kind):
        raise TypeError(f"{key!r} is missing, or not a {kind.__name__}")
    return found


def _load(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(_read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a JSON object")
    return value


def _read_regular(path: Path) -> bytes:
    """A file's bytes; OSError for a pipe or a device, which might never end."""
    if path.exists() and not path.is_file():
        raise OSError("not a regular file")
    return path.read_bytes()


def _blob(folder: Path, descriptor: Mapping[str, Any]) -> bytes:
    """The JSON document that `descriptor` names, as it is stored."""
    digest = _field(descriptor, "digest", str)
    path = _blob_path(folder, digest)
    _load(path)
    data = path.read_bytes()
    if digest_of(data) != digest:
        raise UsageError(f"{path}: the blob does not match its digest")
    return data


def _blob_path(folder: Path, digest: str) -> Path:
    return folder / "blobs" / "sha256" / digest_hex(digest)


def _layer(
    descriptor: Mapping[str, Any], diff_id: str, find: Callable[[str, int], Path]
) -> LayerBlob:
    digest = _field(descriptor, "digest", str)
    size = _field(descriptor, "size", int)
    media_type = _field(descriptor, "mediaType", str)
    return LayerBlob(
        digest=digest,
        diff_id=diff_id,
        size=size,
        media_type=_OCI_LAYERS.get(media_type, media_type),
        path=find(digest, size),
    )


def _stored_layer(folder: Path, digest: str, size: int) -> Path:
    path = _blob_path(folder, digest)
    if not path.is_file() or path.stat().st_size != size:
        raise UsageError(f"{path}: the layer is missing or cut off")
    return path
