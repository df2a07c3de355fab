"""The documents by which a registry says what an image is made of, as strangers write them.

Formats: the OCI image-spec's `image-index.md`, `manifest.md`, `descriptor.md`, and Docker's own
before them (https://distribution.github.io/distribution/spec/manifest-v2-2/), which mean the same.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError
from pydantic.alias_generators import to_camel

from builder.oci.image import CONFIG, DIGEST, DOCKER_INDEX, DOCKER_MANIFEST, INDEX, MANIFEST

INDEXES = frozenset({INDEX, DOCKER_INDEX})
CONFIGS = frozenset({CONFIG, "application/vnd.docker.container.image.v1+json"})
MEDIA_TYPES = (INDEX, MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST)
ACCEPT = ", ".join(MEDIA_TYPES)
"""What a registry is told we can read; others it would turn into Docker's first schema."""

# What an image may say beside the architecture and still run on every machine of it.
_PLAIN_VARIANTS = {"arm64": ("", "v8"), "amd64": ("", "v1")}


class _Document(BaseModel):
    model_config = ConfigDict(
        strict=True, frozen=True, alias_generator=to_camel, protected_namespaces=()
    )


_Model = TypeVar("_Model", bound=_Document)


class Platform(_Document):
    """Where an image runs (image-index.md, "platform"); a config has the same fields."""

    os: str = ""
    architecture: str = ""
    variant: str | None = None

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))

    def is_for(self, platform: str) -> bool:
        """Whether it runs on every `platform`, such as `linux/arm64`."""
        plain = _PLAIN_VARIANTS.get(self.architecture, ("",))
        same = f"{self.os}/{self.architecture}" == platform
        return same and (self.variant or "") in plain


class Descriptor(_Document):
    """A document or blob by its digest; `size` in bytes."""

    media_type: str
    digest: Annotated[str, Field(pattern=rf"^{DIGEST.pattern}$")]
    size: NonNegativeInt
    platform: Platform | None = None


class Index(_Document):
    """Images of several platforms."""

    manifests: tuple[Descriptor, ...]


class Manifest(_Document):
    """One image: its config and its layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


class _Tags(_Document):
    tags: list[str] | None = None


class _Kind(_Document):
    """What tells the two apart."""

    media_type: str | None = None
    manifests: list[object] | None = None
    layers: list[object] | None = None


def media_type_of(data: bytes, content_type: str) -> str:
    """What a document is: by its own word, else by the server's.

    Raises ValueError for what is none of the four, and for what could be read as two of them
    (manifest.md: the one digest would stand for two images).
    """
    kind = _validated(_Kind, data)
    media_type = kind.media_type or content_type.partition(";")[0].strip()
    if media_type not in MEDIA_TYPES:
        raise ValueError(f"of the type {media_type!r}, which is not one of images")
    wrong = kind.layers if media_type in INDEXES else kind.manifests
    if wrong is not None:
        raise ValueError("both an index and a manifest")
    return media_type


def read_index(data: bytes) -> Index:
    """The index in `data`; ValueError where it is none."""
    return _validated(Index, data)


def read_manifest(data: bytes) -> Manifest:
    """The manifest in `data`; ValueError where it is none."""
    return _validated(Manifest, data)


def read_platform(config: bytes) -> Platform:
    """Where the image of this config runs; ValueError where it is no config."""
    return _validated(Platform, config)


def read_tags(data: bytes) -> list[str]:
    """The tags in a listing (distribution-spec, "Listing Tags"); ValueError where it is none."""
    return _validated(_Tags, data).tags or []


def _validated(model: type[_Model], data: bytes) -> _Model:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
