"""How a registry is talked to: where it answers, with whose word, and what its refusals mean.

`Endpoints` sends signed requests of the distribution API. After a 401 it starts again from the
registry's first answer without a token: that of NGC names another token server once a token has
run out. Of the caller's other credentials (netrc, package indexes) none goes to a registry.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from builder.errors import BuilderError, ExternalError, LockError
from builder.http import ATTEMPTS, Answer, Http, RefusedError, is_loopback, phrase
from builder.oci.authorization import Authority, Challenge, parse_challenges
from builder.oci.reference import DOCKER_HUB, Reference, hostname

PULL, PUSH = "pull", "pull,push"
"""What a request is for, in the words of a token's scope."""

_SMALL_BYTES = 1 << 20
_REPOSITORY_PATH = re.compile(r"/v2/(.+)/(?:blobs|manifests)/[^/]+")

# The specification's codes; the words beside them could repeat what was sent with the request.
_CODES = frozenset(
    {
        "BLOB_UNKNOWN",
        "BLOB_UPLOAD_INVALID",
        "BLOB_UPLOAD_UNKNOWN",
        "DENIED",
        "DIGEST_INVALID",
        "MANIFEST_BLOB_UNKNOWN",
        "MANIFEST_INVALID",
        "MANIFEST_UNKNOWN",
        "NAME_INVALID",
        "NAME_UNKNOWN",
        "SIZE_INVALID",
        "TOOMANYREQUESTS",
        "UNAUTHORIZED",
        "UNSUPPORTED",
    }
)


class UnknownImageError(LockError):
    """The registry has no such repository, tag or digest."""


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """A registry's first answer; `origin` is scheme, host and port."""

    origin: str
    challenges: tuple[Challenge, ...]


class Endpoints:
    """The registries of a run, each asked once how it wants to be spoken to; thread-safe."""

    def __init__(self, http: Http, authority: Authority) -> None:
        self._http = http
        self._authority = authority
        self._by_host: dict[str, _Endpoint] = {}
        self._registries: dict[str, str] = {}  # by origin
        self._lock = threading.Lock()

    def url(self, reference: Reference, path: str) -> str:
        """The URL of something in the repository. Only a registry on this machine is asked for it.

        From now on `stream` signs requests for this registry.
        """
        local = is_loopback(hostname(reference.host))
        origin = self._endpoint(reference).origin if local else f"https://{reference.host}"
        self._registries[origin] = reference.registry
        return f"{origin}/v2/{reference.repository}/{path}"

    def ask(
        self,
        method: str,
        reference: Reference,
        path: str,
        *,
        actions: str = PULL,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        limit: int = _SMALL_BYTES,
    ) -> Answer:
        """What the registry answers, whatever its status; a 401 stays only if a new token gets it.

        Raises ExternalError where no answer comes.
        """

        def send(signature: Mapping[str, str]) -> Answer:
            every = {**(headers or {}), **signature}
            return self._http.exchange(method, url, every, content=content, limit=limit)

        url = self.url(reference, path)
        answer = send(self.sign(reference, actions))
        if answer.status == 401:
            answer = send(self.sign_anew(reference, actions, answer.headers))
        return answer

    @contextmanager
    def stream(self, url: str, start: int = 0) -> Iterator[tuple[int, Iterator[bytes]]]:
        """As `Http.stream`, signed where `url` is in a registry that was talked to."""
        reference = self._owner(url)
        with ExitStack() as stack:
            if reference is None:
                yield stack.enter_context(self._http.stream(url, start))
            else:
                yield self._open(stack, reference, url, start)

    def sign(self, reference: Reference, actions: str) -> dict[str, str]:
        """The headers that the registry wants to see."""
        return self._authority.sign(reference, actions, self._endpoint(reference).challenges)

    def sign_anew(
        self, reference: Reference, actions: str, refusal: Mapping[str, str]
    ) -> dict[str, str]:
        """The same from scratch, after a 401 with the headers `refusal`."""
        endpoint = self._ping(reference)
        if not endpoint.challenges:  # some let anybody in at the door, and ask at the repository
            endpoint = replace(endpoint, challenges=_challenges(reference, refusal))
        with self._lock:
            self._by_host[reference.host] = endpoint
        return self._authority.sign(reference, actions, endpoint.challenges, anew=True)

    def problem(self, reference: Reference, answer: Answer, *, sought: bool = True) -> BuilderError:
        """What to tell about an answer that is not the one asked for.

        UnknownImageError for a 404 where something was `sought`; ExternalError for all else.
        """
        codes = _codes(answer.data)
        if answer.status == 404 and sought:
            return _unknown(reference, codes)
        return self._problem(reference, answer.status, answer.headers, codes)

    def _problem(
        self,
        reference: Reference,
        status: int,
        headers: Mapping[str, str],
        codes: tuple[str, ...] = (),
    ) -> ExternalError:
        said = f"{reference.registry} answered {' '.join((phrase(status), *codes))}"
        if status in {401, 403}:
            return self._authority.denial(reference, said)
        hint = _patience(reference, headers) if status == 429 else None
        return ExternalError(f"{reference}: {said}", hint=hint)

    def _owner(self, url: str) -> Reference | None:
        """The repository that `url` is in, of a registry that was talked to."""
        parts = urlsplit(url)
        registry = self._registries.get(f"{parts.scheme}://{parts.netloc}")
        found = _REPOSITORY_PATH.fullmatch(parts.path)
        return Reference(registry, found[1]) if registry and found else None

    def _open(
        self, stack: ExitStack, reference: Reference, url: str, start: int
    ) -> tuple[int, Iterator[bytes]]:
        def enter(signature: Mapping[str, str]) -> tuple[int, Iterator[bytes]]:
            return stack.enter_context(self._http.stream(url, start, signature))

        try:
            try:
                return enter(self.sign(reference, PULL))
            except RefusedError as refused:
                if refused.status != 401:
                    raise
                return enter(self.sign_anew(reference, PULL, refused.headers))
        except RefusedError as refused:
            if refused.status not in {401, 403, 429}:
                raise
            raise self._problem(reference, refused.status, refused.headers) from None

    def _endpoint(self, reference: Reference) -> _Endpoint:
        with self._lock:
            found = self._by_host.get(reference.host)
            if found is None:
                found = self._by_host[reference.host] = self._ping(reference)
            return found

    def _ping(self, reference: Reference) -> _Endpoint:
        """The registry's first answer; this machine's own may speak plain HTTP, as docker has it.

        Raises ExternalError where it is none of a registry's.
        """
        local = is_loopback(hostname(reference.host))
        origin = f"https://{reference.host}"
        try:
            answer = self._greet(origin, attempts=1 if local else ATTEMPTS)
        except ExternalError as failure:
            # OpenSSL's word for one that does encrypt, and cannot be told to be the right one.
            if not local or "CERTIFICATE_VERIFY_FAILED" in failure.message:
                raise
            origin = f"http://{reference.host}"
            answer = self._greet(origin)
        if answer.status == 429:
            raise self.problem(reference, answer)
        if answer.status not in {200, 401}:
            raise ExternalError(
                f"{origin}/v2/: answered {phrase(answer.status)}, as no registry does",
                hint=f"check the host in {reference}",
            )
        asked = answer.status == 401
        return _Endpoint(origin, _challenges(reference, answer.headers) if asked else ())

    def _greet(self, origin: str, attempts: int = ATTEMPTS) -> Answer:
        url = f"{origin}/v2/"
        return self._http.exchange("GET", url, {}, limit=_SMALL_BYTES, attempts=attempts)


def _challenges(reference: Reference, headers: Mapping[str, str]) -> tuple[Challenge, ...]:
    try:
        return parse_challenges(headers.get("www-authenticate", ""))
    except ValueError:
        raise ExternalError(
            f"{reference.host}: how the registry asks for a login cannot be understood"
        ) from None


def _codes(data: bytes) -> tuple[str, ...]:
    """The codes in an error's body (distribution-spec, "Error Codes")."""
    try:
        errors = json.loads(data)["errors"]
        codes = [error["code"] for error in errors]
        return tuple(dict.fromkeys(code for code in codes if code in _CODES))
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()


def _unknown(reference: Reference, codes: Iterable[str]) -> UnknownImageError:
    name = f"{reference.registry}/{reference.repository}"
    if "NAME_UNKNOWN" in codes:
        return UnknownImageError(
            f"{reference}: {reference.registry} has no such repository", hint="check the name"
        )
    if reference.digest:
        return UnknownImageError(
            f"{reference}: {reference.registry} does not have that digest",
            hint="what a tag named before may be gone; "
            "`spark-build lock RECIPE --upgrade` locks what it names now",
        )
    return UnknownImageError(
        f"{reference}: {reference.registry} has no such tag",
        hint=f"`skopeo list-tags docker://{name}` shows the tags that are there",
    )


def _patience(reference: Reference, headers: Mapping[str, str]) -> str:
    seconds = headers.get("retry-after", "")
    wait = f"in {seconds} seconds" if seconds.isdecimal() else "later"
    hint = f"run the same command again {wait}; what was fetched stays in the cache"
    if reference.registry == DOCKER_HUB:
        hint += "\nDocker Hub lets those who log in read more often: `podman login docker.io`"
    return hint
