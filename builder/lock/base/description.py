"""What is known of a base image, and from where: for `spark-build base IMAGE`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from builder.errors import Finding
from builder.lock.base.facts import BaseFact, compare, driver_floor
from builder.lock.base.inventory import Inventory, image_environment
from builder.progress import format_size

_LABELS = (
    "com.nvidia.pytorch.version",
    "com.nvidia.vllm.version",
    "com.nvidia.build.id",
    "com.nvidia.build.ref",
    "ai.vllm.build.commit",
    "ai.vllm.image.tag",
    "org.opencontainers.image.version",
)
"""Not com.nvidia.cuda.version, which is 9.0 in every image."""

_TITLES = {
    "release": "release",
    "python": "Python",
    "glibc": "glibc",
    "cuda": "CUDA",
    "driver_floor": "host driver",
    "driver": "compat driver",
    "torch": "torch",
    "torch_version": "torch, metadata",
    "torch_build": "torch, build",
    "torch_cuda": "torch, CUDA",
    "torch_arch_list": "arch list",
    "vllm": "vLLM",
    "pip_constraint": "pip constraint",
}
"""What is known by these names, as people read them."""

_VARIABLES = {
    "release": "NVIDIA_PYTORCH_VERSION",
    "cuda": "CUDA_VERSION",
    "driver": "CUDA_DRIVER_VERSION",
    "torch_build": "PYTORCH_VERSION",
    "torch_arch_list": "TORCH_CUDA_ARCH_LIST",
    "vllm": "VLLM_VERSION",
    "pip_constraint": "PIP_CONSTRAINT",
}
"""The environment variables by which NVIDIA's images say them."""

_TABLE = "bases.yaml"
_UNKNOWN = "not known"
_LAYERS = "layers"
_WIDTH = max(map(len, _TITLES.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundImage:
    """What a reference leads to.

    `index` is the digest that the tag names, `digest` that of the manifest for `platform`, one of
    the index's `platforms`; both are the same where there is no index. `layers` are the sizes in
    bytes of the layers as they are stored.
    """

    reference: str
    index: str
    digest: str
    platform: str
    platforms: tuple[str, ...]
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A value, and where it is from: `layers`, `config` or a data file of ours.

    Without a value nothing is known, or where there is an origin, that there is no such thing.
    """

    value: str | None = None
    origin: str | None = None

    def __str__(self) -> str:
        return _UNKNOWN if self.origin is None else f"{self.value or 'none'} ({self.origin})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """An image with what is known of it, by the names that `as_dict` gives it.

    `unread` says that its layers were not read, which may know more.
    """

    image: FoundImage
    unread: bool
    created: str | None
    known: Mapping[str, Known]
    labels: Mapping[str, str]
    fact: BaseFact | None
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values, in a fixed key order; what is not known is null."""
        image = self.image
        return {
            "image": image.reference,
            "index": image.index if image.index != image.digest else None,
            "digest": image.digest,
            "platform": image.platform,
            "platforms": list(image.platforms),
            "created": self.created,
            "layers": len(image.layers),
            "size_bytes": sum(image.layers),
            "known": _known_dict(self.known),
            "labels": dict(self.labels),
            "note": None if self.fact is None else self.fact.note,
            "sources": [] if self.fact is None else list(self.fact.sources),
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def lines(self) -> Iterator[str]:
        """The same for people, without the findings; others' words stay as they are."""
        image = self.image
        size = format_size(sum(image.layers))
        yield image.reference
        yield _row("platform", image.platform)
        yield _row("digest", image.digest)
        yield _row("index", image.index if image.index != image.digest else "none")
        yield _row("platforms", ", ".join(image.platforms) or _UNKNOWN)
        yield _row("created", self.created or _UNKNOWN)
        yield _row("layers", f"{len(image.layers)}, {size} compressed")
        yield from _known_rows(self.known)
        for name, value in self.labels.items():
            yield _row("label", f"{name}={value}")
        if self.fact is not None and self.fact.note is not None:
            yield _row("note", self.fact.note)
        if self.unread:
            yield f"  --layers reads the rest (fetches {size})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabled:
    """What `bases.yaml` alone knows of an image, where its registry could not be asked."""

    reference: str
    fact: BaseFact

    @property
    def known(self) -> dict[str, Known]:
        """As that of a `Description`."""
        return _known({}, self.fact, None)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values, by the names that a `Description` gives them."""
        return {
            "image": self.reference,
            "known": _known_dict(self.known),
            "note": self.fact.note,
            "sources": list(self.fact.sources),
        }

    def lines(self) -> Iterator[str]:
        """The same for people."""
        yield self.reference
        yield from _known_rows(self.known)
        if self.fact.note is not None:
            yield _row("note", self.fact.note)


def _known_dict(known: Mapping[str, Known]) -> dict[str, dict[str, str | None]]:
    return {name: {"value": item.value, "from": item.origin} for name, item in known.items()}


def _known_rows(known: Mapping[str, Known]) -> Iterator[str]:
    for name, item in known.items():
        if item.origin is not None:
            yield _row(_TITLES[name], str(item))


def _row(title: str, text: str) -> str:
    return f"  {title:<{_WIDTH}}  {text}"


def describe(
    image: FoundImage,
    config: Mapping[str, Any],
    fact: BaseFact | None = None,
    inventory: Inventory | None = None,
) -> Description:
    """Gather what the image's config document, its layers and `bases.yaml` know.

    For each thing the image's own word goes first: its layers, where they were read, then its
    config.
    """
    settings = config.get("config") or {}
    labels = settings.get("Labels") or {}
    created = config.get("created")
    digests = (image.index, image.digest)
    return Description(
        image=image,
        unread=inventory is None,
        created=created if isinstance(created, str) else None,
        known=_known(image_environment(config), fact, inventory),
        labels={name: labels[name] for name in _LABELS if name in labels},
        fact=fact,
        findings=() if fact is None else tuple(compare(fact, config, inventory, digests)),
    )


def _known(
    env: Mapping[str, str], fact: BaseFact | None, inventory: Inventory | None
) -> dict[str, Known]:
    layers, table = _of_layers(inventory), _of_table(fact)
    known = {
        name: _first(
            (_LAYERS, layers.get(name)),
            ("config", env.get(_VARIABLES.get(name, ""))),
            (_TABLE, table.get(name)),
        )
        for name in _TITLES
    }
    if fact is not None and "driver" in fact.unverified and known["driver"].origin == _TABLE:
        known["driver"] = replace(known["driver"], origin=f"{_TABLE}, unverified")
    if inventory is not None and inventory.torch is None and known["torch"] == Known():
        known["torch"] = Known(origin=_LAYERS)
    return known | {"driver_floor": _floor(known["cuda"].value)}


def _of_layers(inventory: Inventory | None) -> dict[str, str | None]:
    if inventory is None:
        return {}
    found = {"python": inventory.python, "glibc": inventory.glibc}
    if inventory.torch is None:
        return found
    torch = inventory.torch
    return found | {"torch": torch.module, "torch_version": torch.version, "torch_cuda": torch.cuda}


def _of_table(fact: BaseFact | None) -> dict[str, str | None]:
    if fact is None:
        return {}
    found = {
        "release": fact.release,
        "python": fact.python,
        "cuda": fact.cuda,
        "driver": fact.driver,
        "vllm": fact.vllm,
    }
    if fact.torch is None:
        return found
    return found | {"torch": fact.torch.module, "torch_version": fact.torch.version}


def _first(*candidates: tuple[str, str | None]) -> Known:
    """The first that says anything; a variable that is empty says nothing."""
    for origin, value in candidates:
        if value:
            return Known(value=value, origin=origin)
    return Known()


def _floor(cuda: str | None) -> Known:
    floor = None if cuda is None else driver_floor(cuda)
    if floor is None:
        return Known()
    return Known(value=f">= {floor.driver}", origin=_TABLE)
