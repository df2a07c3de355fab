"""nvcr.io: a real registry behind NVIDIA's way of asking who one is.

As the real one was seen to behave: the challenge names a realm and nothing else
(google/go-containerregistry#728); public repositories give a token to anyone, private ones to the
user `$oauthtoken` with an API key; once a token has run out, the challenge names another realm
that has no anonymous tokens (NVIDIA/nvidia-container-toolkit#1945); layers are on another host,
behind a signed URL.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlencode

from .server import Request, Response, Site

HOST = "nvcr.io"
LAYERS_HOST = "xfiles.ngc.nvidia.com"
RENEWAL_HOST = "authn.nvidia.com"
USER = "$oauthtoken"

_CHALLENGE = f'Bearer realm="https://{HOST}/proxy_auth"'
_RENEWAL = f'Bearer realm="https://{RENEWAL_HOST}/token",service="registry",error="invalid_token"'
_CHUNK_BYTES = 1 << 20
_OWN = frozenset({"Date", "Transfer-Encoding", "Connection"})
_PASSED = ("accept", "range", "if-none-match")


@dataclass(slots=True)
class Ngc:
    """The front of the registry that listens on `port` of loopback.

    `uses` is how many requests a token is good for, without limit where None; the next `throttled`
    requests for manifests are answered 429.
    """

    port: int
    key: str = field(default_factory=lambda: f"nvapi-{secrets.token_hex(20)}", repr=False)
    private: frozenset[str] = frozenset({"nvidia/internal"})
    uses: int | None = None
    throttled: int = 0
    _tokens: dict[str, str] = field(default_factory=dict)
    _used: dict[str, int] = field(default_factory=dict)
    _signature: str = field(default_factory=secrets.token_urlsafe)

    @property
    def sites(self) -> dict[str, Site]:
        return {HOST: self._front, LAYERS_HOST: self._layers, RENEWAL_HOST: _renew}

    def _front(self, request: Request) -> Response:
        if request.path == "/proxy_auth":
            return self._token(request)
        if not request.path.startswith("/v2/"):
            return Response(status=404)
        refused = self._refusal(request)
        if refused is not None:
            return refused
        repository, kind, rest = _parts(request.path)
        if kind == "manifests" and self.throttled:
            self.throttled -= 1
            return Response(status=429, headers={"Retry-After": "1"})
        if kind == "blobs":
            query = urlencode({"Signature": self._signature})
            where = f"https://{LAYERS_HOST}/{repository}/{rest}?{query}"
            return Response(status=307, headers={"Location": where})
        return self._ask(request, request.target)

    def _token(self, request: Request) -> Response:
        """A token for the one repository that `scope` names, if it may be had."""
        kind, _, repository = request.query.get("scope", "").rpartition(":")[0].partition(":")
        user = request.headers.get("authorization")
        if kind != "repository" or (user is None and repository in self.private):
            return Response(status=401)
        if user is not None and user != self._basic:
            return Response(status=401)
        token = secrets.token_urlsafe(32)
        self._tokens[token] = repository
        body = json.dumps({"token": token, "expires_in": 600}).encode()
        return Response(headers={"Content-Type": "text/html"}, body=body)

    @property
    def _basic(self) -> str:
        return "Basic " + base64.b64encode(f"{USER}:{self.key}".encode()).decode()

    def _refusal(self, request: Request) -> Response | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        repository = self._tokens.get(token)
        if repository is None or (request.path != "/v2/" and _parts(request.path)[0] != repository):
            return Response(status=401, headers={"WWW-Authenticate": _CHALLENGE})
        self._used[token] = self._used.get(token, 0) + 1
        if self.uses is not None and self._used[token] > self.uses:
            return Response(status=401, headers={"WWW-Authenticate": _RENEWAL})
        return None

    def _layers(self, request: Request) -> Response:
        """The other host, which takes its own signature and nobody's credentials."""
        if "authorization" in request.headers:
            return Response(status=400, body=b"Only one auth mechanism allowed")
        if request.query.get("Signature") != self._signature:
            return Response(status=403)
        repository, _, digest = request.path.strip("/").rpartition("/")
        return self._ask(request, f"/v2/{repository}/blobs/{digest}")

    def _ask(self, request: Request, target: str) -> Response:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        passed = {name: value for name, value in request.headers.items() if name in _PASSED}
        connection.request(request.method, target, headers=passed)
        answer = connection.getresponse()
        headers = {name: value for name, value in answer.getheaders() if name not in _OWN}
        if request.method != "HEAD" and "Content-Length" in headers:
            body: bytes | Iterator[bytes] = _pass_on(connection, answer)
        else:
            body = answer.read()
            connection.close()
        return Response(status=answer.status, headers=headers, body=body)


def _pass_on(connection: HTTPConnection, answer: HTTPResponse) -> Iterator[bytes]:
    try:
        while data := answer.read(_CHUNK_BYTES):
            yield data
    finally:
        connection.close()


def _renew(request: Request) -> Response:
    return Response(status=401, body=b'{"error": "authentication is required"}')


def _parts(path: str) -> tuple[str, str, str]:
    """Repository, kind and name out of `/v2/REPOSITORY/(manifests|blobs|tags)/NAME`."""
    repository, kind, rest = (["", "", *path.removeprefix("/v2/").rsplit("/", 2)])[-3:]
    return repository, kind, rest
