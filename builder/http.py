"""HTTP as the rest of the program needs it: whole bodies, byte ranges, resumable streams.

Transient failures are tried again with growing pauses (RFC 9110 section 15.6, RFC 6585 section 4);
credentials come from the caller's netrc or index URL, never appear in a message, and are never
sent to a host that a redirect names (httpx drops them there). Whoever gives headers of his own
(a registry's client) signs his requests himself: none of those credentials go with them.
"""

from __future__ import annotations

import netrc
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from builder import __version__
from builder.errors import ExternalError, OfflineError, UsageError

ATTEMPTS = 4
"""How often a request is sent at most, the first time included."""

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_TIMEOUT = httpx.Timeout(30.0, read=60.0)
_SMALL_BYTES = 64 << 20
_WHOLE_BYTES = 2 << 30  # what a server without ranges may send in place of a part
_DRAINED_BYTES = 64 << 10  # costs less than a new connection
_PACE_SECONDS = 60.0
_PACE_BYTES = 16 << 10
_SEND_TIMEOUT = httpx.Timeout(60.0, read=600.0)  # who took gigabytes in has to hash them, too
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_DIRECT: Mapping[str, httpx.BaseTransport | None] = {  # never by way of a proxy
    "all://localhost": None,
    "all://127.0.0.1": None,
    "all://[::1]": None,
}
_SIGN_IN = "credentials for this host are taken from ~/.netrc, or from the index URL"
_GONE = (
    "the file is not there any more: `spark-build lock RECIPE --upgrade-package NAME` takes the "
    "next source or version; where a copy was vendored, `--vendor PLACE` takes that"
)
_HINTS = {
    401: _SIGN_IN,
    403: _SIGN_IN,
    404: _GONE,
    410: _GONE,
    429: "the server asks for patience; run the same command again later",
}
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_FINAL = (httpx.TooManyRedirects, httpx.DecodingError, httpx.UnsupportedProtocol)
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s`'\"]*[^\s`'\").,;:]", re.IGNORECASE)
_Read = TypeVar("_Read")


class RefusedError(ExternalError):
    """The server answered, with a status that says no."""

    def __init__(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        message = f"{redact(url)}: the server answered {phrase(status)}"
        super().__init__(message, hint=_HINTS.get(status))
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Slice:
    """Part of a remote file: the bytes from `start`, and the whole file's size in bytes."""

    start: int
    data: bytes
    total: int
    ranged: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered, whatever its `status`; the rest may hold secrets and is not shown."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Question:
    """One request: credentials of the client's own go with it where `signed` is not set."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    signed: bool = False
    redirected: bool = True
    content: bytes | Iterable[bytes] = b""
    attempts: int = ATTEMPTS

    @property
    def timeout(self) -> httpx.Timeout:
        return _TIMEOUT if isinstance(self.content, bytes) else _SEND_TIMEOUT


class Http:
    """A client shared by all threads of a run; nothing is opened before the first request.

    `indexes` are package indexes by name: uv's variables for credentials go by these names
    (https://docs.astral.sh/uv/concepts/indexes/#providing-credentials-directly).
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        offline: bool = False,
        indexes: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._environ = environ
        self._offline = offline
        self._indexes = indexes or {}
        self._transport = transport
        self._sleep = sleep
        self._client: httpx.Client | None = None
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            self._client.close()

    def size(self, url: str) -> int:
        """The size in bytes of what `url` names, from its headers alone."""
        size = self.stated_size(url)
        if size is None:
            raise ExternalError(f"{redact(url)}: the server does not say how large the file is")
        return size

    def stated_size(self, url: str) -> int | None:
        """As `size`; None where the server does not say it."""
        response, _ = self._send(_Question("HEAD", url), _whole(url, 0))
        length = response.headers.get("content-length", "")
        return int(length) if length.isdecimal() else None

    def get(self, url: str) -> bytes:
        """The whole body of `url`; for small files."""
        return self._send(_Question("GET", url), _whole(url, _SMALL_BYTES))[1]

    def read(self, url: str, start: int, size: int) -> Slice:
        """`size` bytes of `url` from `start`; from the end where `start` is negative.

        A server without ranges answers with the whole file, which is returned with `ranged` False
        (RFC 9110 section 14.2), so that the caller can say so.
        """
        wanted = f"bytes={start}" if start < 0 else f"bytes={start}-{start + size - 1}"
        question = _Question("GET", url, {"Range": wanted})
        response, data = self._send(question, _whole(url, _WHOLE_BYTES))
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            return Slice(0, data, len(data), ranged=False)
        first, total = _content_range(url, response.headers.get("content-range", ""))
        return Slice(first, data, total, ranged=True)

    @contextmanager
    def stream(
        self, url: str, start: int = 0, headers: Mapping[str, str] | None = None
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield where the body begins and its chunks; it begins at 0 if ranges are refused.

        Only opening the stream is tried again; a body that breaks off raises ExternalError, and
        the caller asks again from where it got to. `headers`, where given, sign the request.
        """
        ranged = {"Range": f"bytes={start}-"} if start else {}
        signed = headers is not None
        question = _Question("GET", url, {**(headers or {}), **ranged}, signed=signed)
        response = self._send(question, lambda response: _accepted(url, response))
        try:
            partial = response.status_code == httpx.codes.PARTIAL_CONTENT
            first = (
                _content_range(url, response.headers.get("content-range", ""))[0] if partial else 0
            )
            yield first, _chunks(url, response)
        finally:
            response.close()

    def exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        content: bytes | Iterable[bytes] = b"",
        limit: int = _SMALL_BYTES,
        attempts: int = ATTEMPTS,
    ) -> Answer:
        """Send a request with just these headers; the answer, whatever its status.

        `content` in chunks cannot be sent twice, and is not; its size in bytes is for the
        caller to say in Content-Length. A redirect is followed for GET alone: a body is for one
        server, and to a HEAD it is answer enough. Raises ExternalError where no answer comes, or
        one of more than `limit` bytes.
        """
        question = _Question(
            method,
            url,
            headers,
            signed=True,
            redirected=method == "GET",
            content=content,
            attempts=attempts if isinstance(content, bytes) else 1,
        )
        return self._send(question, lambda response: _answer(url, response, limit))

    def _send(self, question: _Question, read: Callable[[httpx.Response], _Read]) -> _Read:
        """What `read` makes of the answer; both are tried again where that may help."""
        url = question.url
        if self._offline:
            raise OfflineError(
                f"{redact(url)} would have to be read, and the run is offline",
                hint="run once without --offline; what was fetched stays in the cache",
            )
        client = self._opened()
        for attempt in range(question.attempts):
            last = attempt == question.attempts - 1
            retry_after = None
            request = _request(client, question)
            try:
                response = client.send(
                    request,
                    stream=True,
                    auth=None if question.signed else httpx.USE_CLIENT_DEFAULT,
                    follow_redirects=question.redirected,
                )
                if response.status_code not in _TRANSIENT or last:
                    return read(response)
                _drain(response)
                retry_after = response.headers.get("retry-after")
            except httpx.RequestError as error:
                if last or isinstance(error, _FINAL):
                    raise _unreachable(url, error) from None
            self._sleep(_pause(attempt, retry_after))
        raise AssertionError("the last attempt returns or raises")

    def _opened(self) -> httpx.Client:
        # Threads that ask for the first file together must not open a client each.
        with self._opening:
            if self._client is None:
                self._client = _open(_HostAuth(self._environ, self._indexes), self._transport)
            return self._client


def _open(auth: httpx.Auth, transport: httpx.BaseTransport | None) -> httpx.Client:
    headers = {
        "User-Agent": f"spark-build/{__version__}",
        "Accept-Encoding": "identity",  # sizes and ranges are of the file itself
    }
    try:
        return httpx.Client(auth=auth, transport=transport, mounts=_DIRECT, headers=headers)
    except (httpx.InvalidURL, ValueError, ImportError):  # their messages may quote a password
        raise UsageError(
            "one of the proxy variables does not hold a proxy that can be used",
            hint="HTTP_PROXY, HTTPS_PROXY and ALL_PROXY hold http://HOST:PORT or https://HOST:PORT",
        ) from None
    except OSError as error:
        raise UsageError(
            f"the certificates cannot be read: {error.strerror}",
            hint="SSL_CERT_FILE and SSL_CERT_DIR say where they are",
        ) from None


def redact(url: str) -> str:
    """`url` without user, password, query and fragment, fit for a message or a file.

    One that cannot be taken apart (a password with a bare `/` or `#`) is not shown at all.
    """
    try:
        parts = urlsplit(url)
        unsure = parts.port is None and not parts.netloc and "@" in parts.path
    except ValueError:
        unsure = True
    if unsure:
        return "(a URL that cannot be read)"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def redact_urls(text: str) -> str:
    """What a tool said, with every URL in it redacted."""
    return _URL.sub(lambda match: redact(match[0]), text)


def phrase(status: int) -> str:
    """A status with its name: `404 Not Found` (RFC 9110 section 15)."""
    return f"{status} {httpx.codes.get_reason_phrase(status)}".rstrip()


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine itself, to which an open connection is as good as any."""
    return host in _LOOPBACK


def without_credentials(url: str) -> str:
    """`url` without user and password; the rest stays as it is."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


Origin = tuple[str, str, int | None]
"""Scheme, host and port of a URL (RFC 6454)."""


def origin_of(url: str) -> Origin:
    """Whom a URL is for, its scheme's own port filled in; ValueError where it has none."""
    parts = urlsplit(url)
    default = {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or default


class _HostAuth(httpx.Auth):
    """Basic credentials by origin: of the caller's index URLs, of named indexes, else of netrc.

    netrc, which knows hosts only, is for encrypted connections and this machine itself.
    """

    def __init__(self, environ: Mapping[str, str], indexes: Mapping[str, str]) -> None:
        self._by_origin: dict[Origin, httpx.BasicAuth] = {}
        for name, url in indexes.items():
            variable = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
            user, password = (
                environ.get(f"{variable}_{part}") for part in ("USERNAME", "PASSWORD")
            )
            if user or password:
                self._by_origin[origin_of(url)] = httpx.BasicAuth(user or "", password or "")
        for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
            url = environ.get(name, "")
            try:
                parts, origin = urlsplit(url), origin_of(url)
            except ValueError:
                raise UsageError(f"the variable {name} does not hold a URL") from None
            if parts.hostname and parts.username:
                user, password = unquote(parts.username), unquote(parts.password or "")
                self._by_origin[origin] = httpx.BasicAuth(user, password)
        self._netrc = _netrc_auth(environ.get("NETRC") or f"{environ.get('HOME', '')}/.netrc")

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        url = request.url
        private = url.scheme == "https" or is_loopback(url.host)
        auth = self._by_origin.get(origin_of(str(url))) or (self._netrc if private else None)
        if auth is None:
            yield request
        else:
            yield from auth.auth_flow(request)


def _netrc_auth(path: str) -> httpx.NetRCAuth | None:
    if not Path(path).is_file():
        return None
    try:
        return httpx.NetRCAuth(path)
    except netrc.NetrcParseError as error:  # its message may quote a password
        raise UsageError(f"{path}:{error.lineno}: not in the form of a netrc file") from None
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{path}: cannot be read as a netrc file") from None


def _request(client: httpx.Client, question: _Question) -> httpx.Request:
    try:
        return client.build_request(
            question.method,
            question.url,
            headers=question.headers,
            content=question.content or None,
            timeout=question.timeout,
        )
    except httpx.InvalidURL:  # its message may quote a password
        raise ExternalError(f"{redact(question.url)}: not a URL that can be asked for") from None


def _content_range(url: str, value: str) -> tuple[int, int]:
    """First byte and total size out of `bytes 0-99/1234` (RFC 9110 section 14.4)."""
    try:
        span, total = value.removeprefix("bytes ").split("/")
        return int(span.split("-")[0]), int(total)
    except ValueError:
        raise ExternalError(f"{redact(url)}: unreadable Content-Range {value!r}") from None


def _accepted(url: str, response: httpx.Response) -> httpx.Response:
    """The response, still open, if it brings what was asked for and as it is."""
    if response.is_error:
        _drain(response)
        raise RefusedError(url, response.status_code, response.headers)
    if response.headers.get("content-encoding", "identity") != "identity":
        response.close()
        raise ExternalError(
            f"{redact(url)}: the server sends it encoded, though it was asked not to",
            hint="a proxy or mirror on the way compresses; have it leave files alone",
        )
    return response


def _whole(url: str, limit: int) -> Callable[[httpx.Response], tuple[httpx.Response, bytes]]:
    return lambda response: (response, _body(url, _accepted(url, response), limit))


def _answer(url: str, response: httpx.Response, limit: int) -> Answer:
    if not response.is_error:
        _accepted(url, response)
    data = _body(url, response, limit)
    return Answer(response.status_code, response.headers, data)


def _body(url: str, response: httpx.Response, limit: int) -> bytes:
    """The body of at most `limit` bytes; the response is closed."""
    if response.request.method == "HEAD":  # what it announces does not come
        _drain(response)
        return b""
    data = bytearray()
    try:
        for chunk in _at_pace(url, response.iter_bytes()):
            data += chunk
            if len(data) > limit:
                raise ExternalError(f"{redact(url)}: the server sends more than {limit} bytes")
    finally:
        response.close()
    return bytes(data)


def _drain(response: httpx.Response) -> None:
    """Close a response that nobody wants, its connection fit for the next request if that is cheap.

    What is closed unread takes its connection along (RFC 9112 section 9.3).
    """
    length = response.headers.get("content-length", "")
    small = length.isdecimal() and int(length) <= _DRAINED_BYTES
    try:
        if small or response.request.method == "HEAD":
            response.read()
    except httpx.RequestError:  # what it was closed for is told, not this
        pass
    finally:
        response.close()


def _chunks(url: str, response: httpx.Response) -> Iterator[bytes]:
    try:
        # As it comes: gathering would lose what precedes a break.
        yield from _at_pace(url, response.iter_raw())
    except httpx.TransportError as error:
        raise _unreachable(url, error) from None


def _at_pace(url: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks, as long as they come at a pace at which they will end some day."""
    began, received = time.monotonic(), 0
    for chunk in chunks:
        received += len(chunk)
        yield chunk
        now = time.monotonic()
        if now - began > _PACE_SECONDS:
            if received < _PACE_BYTES:
                raise ExternalError(
                    f"{redact(url)}: {received} bytes in {_PACE_SECONDS:g} seconds, given up",
                    hint="run the same command again; it goes on from there",
                )
            began, received = now, 0


def _pause(attempt: int, retry_after: str | None) -> float:
    if retry_after is not None and retry_after.isdecimal():
        return min(float(retry_after), _LONGEST_PAUSE_SECONDS)
    return min(_FIRST_PAUSE_SECONDS * 2.0**attempt, _LONGEST_PAUSE_SECONDS)


def _unreachable(url: str, error: httpx.RequestError) -> ExternalError:
    return ExternalError(
        f"{redact(url)}: {type(error).__name__}: {error}",
        hint="check the network and the proxy settings, then run the same command again",
    )
