"""Images and the OCI layouts they are kept in: manifest, config, blobs by digest.

Formats: the OCI image-spec (https://github.com/opencontainers/image-spec), `manifest.md`,
`config.md`, `image-index.md` and `image-layout.md`. JSON of ours is written with sorted keys and
no blanks, so an image's digest depends on what it holds only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import UsageError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
MAX_LAYERS = 127
"""What overlay2 can stack (docker's `max depth exceeded`)."""

_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
_HASH_BYTES = 1 << 20


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
    """JSON with sorted keys and no blanks, as UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


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
        link_or_copy(layer.path, blobs / _hex(layer.digest))
    for document in (image.config_bytes, image.manifest_bytes):
        (blobs / _hex(digest_of(document))).write_bytes(document)
    (folder / "oci-layout").write_bytes(canonical_json({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_bytes(canonical_json(_index(image)))


def link_or_copy(source: Path, destination: Path) -> None:
    """Give `source` a second name, or copy it where a hard link is not possible."""
    if destination.exists():
        return
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)
        destination.chmod(0o444)


def layout_digest(folder: Path) -> str | None:
    """The digest of a layout's one manifest; None where there is no such layout."""
    try:
        manifests = json.loads((folder / "index.json").read_bytes())["manifests"]
        return str(manifests[0]["digest"]) if len(manifests) == 1 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_layout(folder: Path, platform: str) -> Image:
    """The image for `platform` (`linux/arm64`) in the OCI layout at `folder`.

    Raises UsageError where the folder is no layout, has no such image, or holds a blob that does
    not match its digest. Layers are checked by size here and by digest when their bytes are used.
    """
    if not (folder / "oci-layout").is_file():
        raise UsageError(
            f"{folder}: not an OCI layout (it has no file named oci-layout)",
            hint="`skopeo copy docker://IMAGE oci:FOLDER` makes one",
        )
    raw_manifest = _find_manifest(folder, _load(folder / "index.json"), platform)
    manifest = json.loads(raw_manifest)
    raw_config = _blob(folder, manifest["config"])
    config = json.loads(raw_config)
    found = f"{config.get('os')}/{config.get('architecture')}"
    if found != platform:
        raise UsageError(f"{folder}: the image is for {found}, the target needs {platform}")
    pairs = zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True)
    return Image(
        config=config,
        layers=tuple(_layer(folder, descriptor, diff_id) for descriptor, diff_id in pairs),
        annotations=manifest.get("annotations") or {},
        read_config=raw_config,
        read_manifest=raw_manifest,
    )


def verify_blob(layer: LayerBlob) -> None:
    """Read the layer's file and compare its digest; UsageError where it differs."""
    with layer.path.open("rb") as file:
        found = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
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


def _hex(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise UsageError(f"{digest!r}: not a sha256 digest")
    return value


def _find_manifest(folder: Path, index: Mapping[str, Any], platform: str) -> bytes:
    """The one manifest for `platform`, looked for through nested indexes."""
    os_name, _, architecture = platform.partition("/")
    seen = []
    for descriptor in index.get("manifests", []):
        stated = descriptor.get("platform") or {}
        seen.append(f"{stated.get('os')}/{stated.get('architecture')}")
        if stated and (stated.get("os"), stated.get("architecture")) != (os_name, architecture):
            continue
        if descriptor["mediaType"] in (INDEX, _DOCKER_INDEX):
            return _find_manifest(folder, json.loads(_blob(folder, descriptor)), platform)
        if descriptor["mediaType"] in (MANIFEST, _DOCKER_MANIFEST):
            return _blob(folder, descriptor)
    raise UsageError(
        f"{folder}: holds no image for {platform}, only {', '.join(seen) or 'nothing at all'}"
    )


def _load(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a JSON object")
    return value


def _blob(folder: Path, descriptor: Mapping[str, Any]) -> bytes:
    path = folder / "blobs" / "sha256" / _hex(descriptor["digest"])
    _load(path)
    data = path.read_bytes()
    if digest_of(data) != descriptor["digest"]:
        raise UsageError(f"{path}: the blob does not match its digest")
    return data


def _layer(folder: Path, descriptor: Mapping[str, Any], diff_id: str) -> LayerBlob:
    path = folder / "blobs" / "sha256" / _hex(descriptor["digest"])
    if not path.is_file() or path.stat().st_size != descriptor["size"]:
        raise UsageError(f"{path}: the layer is missing or cut off")
    return LayerBlob(
        digest=descriptor["digest"],
        diff_id=diff_id,
        size=descriptor["size"],
        media_type=descriptor["mediaType"],
        path=path,
    )
