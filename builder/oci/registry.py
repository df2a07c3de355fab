"""Registries: images are looked up, read and pushed over the distribution API.

Specification: https://github.com/opencontainers/distribution-spec/blob/main/spec.md. Every
document is checked against its digest before it is used, and none is larger than it may be.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from builder import process
from builder.errors import BuilderError, ExternalError, LockError, UsageError
from builder.http import Answer, Http, is_loopback, origin_of, redact
from builder.oci.authorization import Authority
from builder.oci.credentials import Keychain
from builder.oci.endpoint import PULL, PUSH, Endpoints
from builder.oci.image import DIGEST, digest_hex, digest_of, read_image
from builder.oci.manifest import (
    ACCEPT,
    CONFIGS,
    INDEXES,
    MEDIA_TYPES,
    Descriptor,
    media_type_of,
    read_index,
    read_manifest,
    read_platform,
    read_tags,
)
from builder.oci.reference import Reference
from builder.process import Runner

_DOCUMENT_MAX_BYTES = 4 << 20  # what every registry should accept (distribution-spec, "Pushing")
_DOCUMENTS_MAX = 64
_TAGS_PAGE = 1000
_TAGS_PAGES_MAX = 1000
_TAGS_MAX_BYTES = 16 << 20
_UPLOADS = 3
_UPLOAD_BLOCK_BYTES = 1 << 20
# Statuses of an upload after which another one may go well: a token or a session ran out, too.
_PASSING = frozenset({401, 404, 408, 425, 429, 500, 502, 503, 504})
_ACCEPT = {"Accept": ACCEPT}
_NEXT_PAGE = re.compile(r'<([^>]*)>\s*;\s*rel="?next"?')


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLayer:
    """A layer as the registry has it: `size` in bytes and `digest` of the blob behind `url`."""

    digest: str
    diff_id: str
    size: int
    media_type: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteImage:
    """An image for one platform; its documents are here, its layers are not.

    `index` is the digest that the reference names, of an index or of the manifest itself; `digest`
    that of `manifest`.
    """

    reference: Reference
    index: str
    digest: str
    manifest: bytes
    config: bytes
    layers: tuple[RemoteLayer, ...]


class Registry:
    """Every registry that a run talks to, for all of its threads.

    Logins are the caller's (see `credentials`). Methods raise ExternalError where a registry
    cannot be reached, refuses or breaks the protocol, and UnknownImageError for what it does not
    have.
    """

    def __init__(
        self,
        http: Http,
        environ: Mapping[str, str],
        *,
        run: Runner = process.run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = http
        self._endpoints = Endpoints(http, Authority(http, Keychain(environ, run), clock))

    def resolve(self, reference: Reference) -> str:
        """The digest that the reference names now; one by digest has to be there."""
        path = f"manifests/{reference.wanted}"
        answer = self._endpoints.ask("HEAD", reference, path, headers=_ACCEPT)
        if answer.status == 429:
            raise self._endpoints.problem(reference, answer)
        digest = _stated_digest(answer)
        if answer.status == 200 and digest and reference.digest in {None, digest}:
            return digest
        return digest_of(self.get_manifest(reference)[0])

    def get_manifest(self, reference: Reference) -> tuple[bytes, str]:
        """The index or manifest that the reference names, as it is stored, and its media type."""
        path = f"manifests/{reference.wanted}"
        answer = self._get(reference, path, headers=_ACCEPT, limit=_DOCUMENT_MAX_BYTES)
        digest = digest_of(answer.data)
        if digest != (reference.digest or _stated_digest(answer) or digest):
            raise _unsound(reference, "does not have the digest that it should")
        with _reading(reference):
            return answer.data, media_type_of(answer.data, answer.headers.get("content-type", ""))

    def image(self, reference: Reference, platform: str) -> RemoteImage:
        """The image for `platform` (`linux/arm64`).

        Raises LockError where there is none, and names the platforms that there are.
        """
        top, media_type = self.get_manifest(reference)
        others: list[str] = []
        for manifest in self._manifests(reference, (top, media_type), platform, others):
            with _reading(reference):
                descriptor = read_manifest(manifest).config
            if descriptor.media_type not in CONFIGS:
                others.append(f"something of the type {descriptor.media_type}")
                continue
            config = self._config(reference, descriptor)
            with _reading(reference):
                found = read_platform(config)
            if found.is_for(platform):
                return self._image(reference, digest_of(top), manifest, config)
            others.append(str(found))
        there = ", ".join(dict.fromkeys(others)) or "nothing at all"
        raise LockError(
            f"{reference}: holds no image for {platform}, only {there}",
            hint="take a base that is made for it, or another target",
        )

    def tags(self, reference: Reference) -> tuple[str, ...]:
        """All tags of the repository, in the registry's order."""
        tags: list[str] = []
        path = f"tags/list?n={_TAGS_PAGE}"
        for _ in range(_TAGS_PAGES_MAX):
            answer = self._get(reference, path, limit=_TAGS_MAX_BYTES)
            with _reading(reference):
                tags += read_tags(answer.data)
            following = self._next_page(reference, path, answer)
            if following is None:
                return tuple(tags)
            path = following
        raise _unsound(reference, "lists tags without end")

    def blob_url(self, reference: Reference, digest: str) -> str:
        """Where the repository's blob is; from now on `stream` signs for this registry."""
        return self._endpoints.url(reference, f"blobs/sha256:{digest_hex(digest)}")

    def stream(
        self, url: str, start: int = 0
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """As `Http.stream`, with the login for a registry that was talked to.

        The login does not go along where the registry sends us elsewhere for the blob.
        """
        return self._endpoints.stream(url, start)

    def has_blob(self, reference: Reference, digest: str) -> bool:
        """Whether the blob is in the repository."""
        return self._has_blob(reference, digest, PULL)

    def push_blob(self, reference: Reference, path: Path, digest: str, size: int) -> None:
        """Bring the file at `path` into the repository, where it is not there yet.

        An upload that failed may have arrived all the same, so none follows unasked.
        """
        _check_size(path, size)
        failure: BuilderError | None = None
        for _ in range(_UPLOADS):
            if self._has_blob(reference, digest, PUSH):
                return
            failure = self._upload(reference, path, digest, size)
            if failure is None:
                return
        if failure is not None and not self._has_blob(reference, digest, PUSH):
            raise failure

    def push_manifest(self, reference: Reference, data: bytes, media_type: str) -> str:
        """Store a manifest under the reference's tag, or by its digest; returns the digest.

        Its blobs have to be there. Raises UsageError where the reference names another digest.
        """
        digest = digest_of(data)
        if reference.digest not in {None, digest}:
            raise UsageError(f"{reference}: the manifest's digest is {digest}")
        answer = self._endpoints.ask(
            "PUT",
            reference,
            f"manifests/{reference.tag or reference.wanted}",
            actions=PUSH,
            headers={"Content-Type": media_type},
            content=data,
        )
        if answer.status != 201:
            raise self._endpoints.problem(reference, answer, sought=False)
        if _stated_digest(answer) not in {None, digest}:
            raise ExternalError(
                f"{reference}: {reference.registry} stored another manifest than {digest}"
            )
        return digest

    def _get(
        self,
        reference: Reference,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        limit: int,
    ) -> Answer:
        answer = self._endpoints.ask("GET", reference, path, headers=headers, limit=limit)
        if answer.status != 200:
            raise self._endpoints.problem(reference, answer)
        return answer

    def _manifests(
        self, reference: Reference, top: tuple[bytes, str], platform: str, others: list[str]
    ) -> Iterator[bytes]:
        """The manifests that may be for `platform`, out of nested indexes too, in order.

        Platforms of those that are not are added to `others`.
        """
        data, media_type = top
        pending: list[Descriptor] = []
        for _ in range(_DOCUMENTS_MAX):
            if media_type in INDEXES:
                with _reading(reference):
                    listed = read_index(data).manifests
                pending[:0] = [one for one in listed if _may_be_for(platform, one, others)]
            else:
                yield data
            if not pending:
                return
            descriptor = pending.pop(0)
            data, media_type = self.get_manifest(reference.with_digest(descriptor.digest))
        raise _unsound(reference, f"is an index of more than {_DOCUMENTS_MAX} documents")

    def _config(self, reference: Reference, descriptor: Descriptor) -> bytes:
        if descriptor.size > _DOCUMENT_MAX_BYTES:
            raise _unsound(reference, f"has a config of {descriptor.size} bytes")
        digest = descriptor.digest
        answer = self._get(
            reference.with_digest(digest), f"blobs/{digest}", limit=_DOCUMENT_MAX_BYTES
        )
        if digest_of(answer.data) != digest:
            raise _unsound(reference, "has a config that does not match its digest")
        return answer.data

    def _image(
        self, reference: Reference, index: str, manifest: bytes, config: bytes
    ) -> RemoteImage:
        with _reading(reference):
            image = read_image(manifest, config, lambda digest, size: Path(digest))
        layers = tuple(
            RemoteLayer(
                digest=layer.digest,
                diff_id=layer.diff_id,
                size=layer.size,
                media_type=layer.media_type,
                url=self.blob_url(reference, layer.digest),
            )
            for layer in image.layers
        )
        return RemoteImage(
            reference=reference,
            index=index,
            digest=digest_of(manifest),
            manifest=manifest,
            config=config,
            layers=layers,
        )

    def _next_page(self, reference: Reference, path: str, answer: Answer) -> str | None:
        """The path of the next page of tags (RFC 8288; distribution-spec, "Listing Tags")."""
        found = _NEXT_PAGE.search(answer.headers.get("link", ""))
        if found is None:
            return None
        url: str = urljoin(self._endpoints.url(reference, path), found[1])
        repository = self._endpoints.url(reference, "")
        if not url.startswith(repository):
            raise _unsound(reference, "lists further tags at another place")
        return url.removeprefix(repository)

    def _has_blob(self, reference: Reference, digest: str, actions: str) -> bool:
        path = f"blobs/sha256:{digest_hex(digest)}"
        answer = self._endpoints.ask("HEAD", reference, path, actions=actions)
        # A redirect leads to where the blob is stored, and that may be closed to a HEAD.
        if answer.status < 400:
            return True
        if answer.status == 404:
            return False
        raise self._endpoints.problem(reference, answer)

    def _upload(
        self, reference: Reference, path: Path, digest: str, size: int
    ) -> BuilderError | None:
        """Send the blob once; returns what failed where another try may go well.

        One POST and one PUT (distribution-spec, "POST then PUT").
        """
        begun = self._endpoints.ask("POST", reference, "blobs/uploads/", actions=PUSH)
        if begun.status != 202:
            raise self._endpoints.problem(reference, begun, sought=False)
        with _reading(reference):
            url = self._upload_url(reference, begun.headers.get("location", ""), digest)
            own = origin_of(url) == origin_of(self._endpoints.url(reference, ""))
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        if own:
            headers |= self._endpoints.sign(reference, PUSH)
        try:
            answer = self._http.exchange("PUT", url, headers, content=_blocks(path))
        except ExternalError as broken_off:
            return broken_off
        if answer.status == 201:
            return None
        refused = self._endpoints.problem(reference, answer, sought=False)
        if answer.status not in _PASSING:
            raise refused
        if answer.status == 401:
            self._endpoints.sign_anew(reference, PUSH, answer.headers)
        return refused

    def _upload_url(self, reference: Reference, location: str, digest: str) -> str:
        """Where to send the blob: the session's own URL, and what is to come of it."""
        url = urljoin(self._endpoints.url(reference, "blobs/uploads/"), location)
        parts = urlsplit(url)
        private = parts.scheme == "https" or is_loopback(parts.hostname or "")
        if not location or not private:
            raise ExternalError(
                f"{reference}: uploads are to go to {redact(url)}, which is no private place",
                hint="the registry does not know that it is reached by https; its settings for "
                "the proxy before it say so",
            )
        query = "&".join(filter(None, (parts.query, f"digest={quote(digest, safe='')}")))
        return urlunsplit(parts._replace(query=query, fragment=""))


def _may_be_for(platform: str, descriptor: Descriptor, others: list[str]) -> bool:
    """Whether it is worth a look; what an index does not say, the config will."""
    stated = descriptor.platform
    if descriptor.media_type not in MEDIA_TYPES:
        return False
    if stated is None or not stated.os or stated.is_for(platform):
        return True
    if stated.os != "unknown":  # buildkit's attestations
        others.append(str(stated))
    return False


def _stated_digest(answer: Answer) -> str | None:
    """The digest by the registry's own word; None where it does not say, or says another kind."""
    digest = answer.headers.get("docker-content-digest", "")
    return digest if DIGEST.fullmatch(digest) else None


@contextmanager
def _reading(reference: Reference) -> Iterator[None]:
    """What a document that was fetched for `reference` has wrong becomes an error of ours."""
    try:
        yield
    except (TypeError, ValueError, RecursionError, UsageError) as error:
        raise _unsound(reference, f"is not sound: {error}") from None


def _unsound(reference: Reference, what: str) -> ExternalError:
    return ExternalError(f"{reference}: what {reference.registry} sends {what}")


def _check_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise ExternalError(f"{path}: cannot be read: {error.strerror}") from None
    if found != size:
        raise ExternalError(f"{path}: has {found} bytes, not {size}")


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_UPLOAD_BLOCK_BYTES):
            yield block
