"""What is known of base images beside their own word, out of `bases.yaml`, and where they disagree.

An image's config and layers count more than the table: it fills in what they do not say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Any, Literal, Self

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, model_validator

from builder.document import Flaw, Refused, read_document, validate
from builder.errors import Finding, Severity
from builder.lock.base.inventory import Inventory, image_environment
from builder.resources import package_file

RULE = "base-fact-mismatch"

_RELEASES = {
    "nvcr.io/nvidia/pytorch": "NVIDIA_PYTORCH_VERSION",
    "nvcr.io/nvidia/vllm": "NVIDIA_VLLM_VERSION",
}
_Numbers = Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")]
_Source = Annotated[
    str,
    Field(pattern=r"^(public-files:[1-9]\d*|gh:[\w.-]+/[\w.-]+#\d+|(pb|vllm):\S+|https://\S+)$"),
]
_Sources = Annotated[tuple[_Source, ...], Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TorchFact(_Model):
    """`module` is torch.__version__, `version` that of its metadata."""

    module: str
    version: str | None = None


class DigestFact(_Model):
    """A digest that was seen under a tag."""

    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    sources: _Sources
    note: str | None = None


class BaseFact(_Model):
    """One row of `bases.yaml`; its head says what each field means. None is not known."""

    repository: str
    tags: Annotated[tuple[str, ...], Field(min_length=1)]
    release: str | None = None
    python: Annotated[str, Field(pattern=r"^3\.\d+$")] | None = None
    torch: TorchFact | None = None
    vllm: str | None = None
    cuda: _Numbers | None = None
    driver: _Numbers | None = None
    digests: tuple[DigestFact, ...] = ()
    note: str | None = None
    sources: _Sources
    unverified: tuple[Literal["cuda", "driver", "python", "torch", "vllm"], ...] = ()

    @model_validator(mode="after")
    def _check_unverified(self) -> Self:
        """Only what is stated can be doubted."""
        for index, name in enumerate(self.unverified):
            if getattr(self, name) is None:
                raise Refused(Flaw(message=f"{name} is not stated", at=("unverified", index)))
        return self

    @property
    def name(self) -> str:
        """The image, by its first tag."""
        return f"{self.repository}:{self.tags[0]}"


class DriverFloor(_Model):
    """The lowest Linux driver for a CUDA major version."""

    cuda: int
    driver: str
    source: _Source


class _Table(_Model):
    drivers: tuple[DriverFloor, ...]
    bases: tuple[BaseFact, ...]


@cache
def _load_table() -> _Table:
    return validate(_Table, read_document(package_file("bases.yaml")))


def load_facts() -> tuple[BaseFact, ...]:
    """Every row, in the file's order."""
    return _load_table().bases


def driver_floor(cuda: str) -> DriverFloor | None:
    """The lowest driver for a CUDA version such as `13.0.2`; None where it is not known."""
    major = cuda.partition(".")[0]
    return next((row for row in _load_table().drivers if str(row.cuda) == major), None)


def find_fact(reference: str) -> BaseFact | None:
    """The row of an image, narrowed to its tag; `reference` is `REGISTRY/NAME[:TAG][@DIGEST]`.

    A digest that the table has goes before the tag that stands beside it, which may have moved.
    """
    name, _, digest = reference.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    rows = [row for row in load_facts() if row.repository == f"{folder}{slash}{last}"]
    for row in rows:
        if any(known.digest == digest for known in row.digests):
            return row
    for row in rows:
        if any(fnmatchcase(tag, pattern) for pattern in row.tags):
            return row.model_copy(update={"tags": (tag,)})
    return None


def compare(
    fact: BaseFact,
    config: Mapping[str, Any],
    inventory: Inventory | None = None,
    digests: Collection[str] = (),
) -> list[Finding]:
    """Where the table and an image disagree, at most one finding a field.

    `config` is the image's config document, `digests` are those that its tag names now, of the
    index and of the manifest. What either side does not say is no disagreement. What the table only
    inferred, or a tag that has moved, is worth no more than a note.
    """
    found: dict[str, Finding] = {}
    for word in _words(fact, config, inventory):
        if not word.agrees():
            found.setdefault(word.field, _mismatch(fact, word))
    known = {item.digest for item in fact.digests}
    if known and digests and known.isdisjoint(digests):
        found["digest"] = _moved(fact, sorted(digests))
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Word:
    """What the table says of a field, and what the image says at `place`."""

    field: str
    fact: str | None
    image: str | None
    place: str
    same: Callable[[str, str], bool]

    def agrees(self) -> bool:
        return self.fact is None or self.image is None or self.same(self.fact, self.image)


def _words(
    fact: BaseFact, config: Mapping[str, Any], inventory: Inventory | None
) -> Iterator[_Word]:
    env = image_environment(config)
    torch = fact.torch
    module = None if torch is None else torch.module
    variables: tuple[tuple[str, str | None, str, Callable[[str, str], bool]], ...] = (
        ("release", fact.release, _RELEASES.get(fact.repository, ""), str.__eq__),
        ("cuda", fact.cuda, "CUDA_VERSION", same_numbers),
        ("driver", fact.driver, "CUDA_DRIVER_VERSION", same_numbers),
        ("torch.module", module, "PYTORCH_VERSION", same_build),
        ("vllm", fact.vllm, "VLLM_VERSION", same_build),
    )
    for field, known, name, same in variables:
        yield _Word(field=field, fact=known, image=env.get(name), place=name, same=same)
    if inventory is not None:
        yield from _inventory_words(fact, inventory)


def _inventory_words(fact: BaseFact, inventory: Inventory) -> Iterator[_Word]:
    """A table that knows of a torch and an image without one disagree too."""
    python = inventory.python or "none"
    yield _Word(field="python", fact=fact.python, image=python, place="Python", same=str.__eq__)
    if fact.torch is None:
        return
    held, known = inventory.torch, fact.torch
    module = "none" if held is None else held.module
    version = "none" if held is None else held.version
    cuda = None if held is None else held.cuda
    for field, stated, image, place, same in (
        ("torch.module", known.module, module, "torch.__version__", same_torch),
        ("torch.version", known.version or known.module, version, "torch's metadata", same_torch),
        ("cuda", fact.cuda, cuda, "torch.version.cuda", same_numbers),
    ):
        yield _Word(field=field, fact=stated, image=image, place=place, same=same)


def same_numbers(one: str, other: str) -> bool:
    """Whether two dotted numbers are the same as far as both go: 13.0 and 13.0.2.006."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return all(left.lstrip("0") == right.lstrip("0") for left, right in pairs)


def same_build(one: str, other: str) -> bool:
    """Whether two versions are of one build where a commit may be shortened, or left out.

    NVIDIA's images set PYTORCH_VERSION=2.9.0a0+145a3a7 where torch says
    2.9.0a0+145a3a7bda.nv25.10.
    """
    left, right = _parsed(one), _parsed(other)
    if left is None or right is None:
        return one == other
    commits = [version.local.partition(".")[0] for version in (left, right) if version.local]
    return left.public == right.public and (
        len(commits) < 2 or commits[0].startswith(commits[1]) or commits[1].startswith(commits[0])
    )


def same_torch(one: str, other: str) -> bool:
    """Whether two spellings name one build of NVIDIA's: module and metadata differ.

    Metadata has the version normalised (PEP 440: `.nv26.08` is `.nv26.8`), and a build number may
    follow in one of them: `2.14.0a0+4fdf77b940.nv26.8.63802676`.
    """
    left, right = _parsed(one), _parsed(other)
    if left is None or right is None:
        return one == other
    short, long = sorted((_local(left), _local(right)), key=len)
    further = long[len(short) :]
    return (
        left.public == right.public
        and long[: len(short)] == short
        and (not further or (bool(short) and len(further) == 1 and further[0].isdigit()))
    )


def _local(version: Version) -> list[str]:
    return (version.local or "").split(".") if version.local else []


def _parsed(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _mismatch(fact: BaseFact, word: _Word) -> Finding:
    unverified = word.field.partition(".")[0] in fact.unverified
    said = "was taken to have" if unverified else "is known with"
    return Finding(
        rule=RULE,
        severity=Severity.INFO if unverified else Severity.WARNING,
        subject=fact.name,
        message=f"{word.place} says {word.image}, and this image {said} {word.fact}",
        hint="what the image says counts; it may have been pushed anew under its tag",
        evidence={
            "field": word.field,
            "fact": word.fact,
            "image": word.image,
            "unverified": unverified,
            "sources": list(fact.sources),
        },
    )


def _moved(fact: BaseFact, digests: Collection[str]) -> Finding:
    known = [item.digest for item in fact.digests]
    return Finding(
        rule=RULE,
        severity=Severity.INFO,
        subject=fact.name,
        message=f"is {', '.join(digests)} now, and was seen as {', '.join(known)}",
        hint="a tag may move; the lock holds the digest",
        evidence={
            "field": "digest",
            "fact": known,
            "image": list(digests),
            "unverified": False,
            "sources": [source for item in fact.digests for source in item.sources],
        },
    )
