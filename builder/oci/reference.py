"""Names of images in registries: `nvcr.io/nvidia/cuda:13.0.2-base-ubuntu24.04@sha256:…`.

The grammar is that of https://github.com/distribution/reference (`reference.go`, `regexp.go`), and
so are Docker Hub's abbreviations: `ubuntu:24.04` is `docker.io/library/ubuntu:24.04`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from builder.errors import UsageError
from builder.oci.image import DIGEST

DOCKER_HUB = "docker.io"
_HUB_HOST = "registry-1.docker.io"
HUB_NAMES = frozenset({DOCKER_HUB, "index.docker.io", _HUB_HOST})
_DEFAULT_TAG = "latest"
_NAME_MAX = 255

_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PASSWORD = re.compile(r"[^/@]*:[^@]*@(?!sha256:)")
_SCHEMES = ("docker://", "oci://", "https://", "http://")


@dataclass(frozen=True, slots=True)
class Reference:
    """An image in a registry, by tag, by digest, or by both: then the digest is what counts."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"

    @property
    def host(self) -> str:
        """Where the registry is asked, with its port: Docker Hub answers under another name."""
        return _HUB_HOST if self.registry == DOCKER_HUB else self.registry

    @property
    def wanted(self) -> str:
        """What the registry is asked for: the digest, else the tag, else `latest`."""
        return self.digest or self.tag or _DEFAULT_TAG

    def with_digest(self, digest: str) -> Reference:
        """The same name, pinned; its tag stays for people to read. UsageError for no digest."""
        if not DIGEST.fullmatch(digest):
            raise UsageError(f"{digest!r}: not a sha256 digest")
        return replace(self, digest=digest)

    def with_tag(self, tag: str) -> Reference:
        """Another tag of the same repository, and no digest. UsageError for what is no tag."""
        if not _TAG.fullmatch(tag):
            raise UsageError(f"{tag!r}: not an image tag")
        return replace(self, tag=tag, digest=None)


def hostname(host: str) -> str:
    """`host` without its port; of an IPv6 address what is within the brackets."""
    return urlsplit(f"//{host}").hostname or ""


def parse_reference(text: str) -> Reference:
    """What `text` names; the tag stays None where it has none. UsageError where it is no name."""
    try:
        return _parse(text)
    except ValueError as error:
        hint = "an image is written HOST/NAME:TAG or HOST/NAME@sha256:DIGEST"
        if text.startswith(_SCHEMES):
            hint = f"without {text.partition('//')[0]}//"
        shown = _PASSWORD.sub("…@", text)
        raise UsageError(f"{shown!r}: not an image's name: {error}", hint=hint) from None


def _parse(text: str) -> Reference:
    name, at, digest = text.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise ValueError("what follows @ is not sha256: and 64 small hex digits")
    head, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise ValueError(f"{tag!r} is not a tag")
    registry, repository = _split(f"{head}{slash}{last}")
    if not _REGISTRY.fullmatch(registry):
        raise ValueError(f"{registry!r} is not a host")
    if not _REPOSITORY.fullmatch(repository) or len(repository) > _NAME_MAX:
        raise ValueError(f"{repository!r} is not a repository's name, which is of small letters")
    return Reference(registry, repository, tag or None, digest or None)


def _split(name: str) -> tuple[str, str]:
    """Registry and repository; the first part is a host only if it can be nothing else."""
    first, _, rest = name.partition("/")
    is_host = "." in first or ":" in first or first == "localhost" or first != first.lower()
    registry, repository = (first, rest) if rest and is_host else (DOCKER_HUB, name)
    if registry in HUB_NAMES:
        registry = DOCKER_HUB
        repository = repository if "/" in repository else f"library/{repository}"
    return registry, repository
