"""A registry in this process: the distribution API with tokens, a CDN, and requests kept."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx

from builder.http import Http
from builder.oci.image import CONFIG, INDEX, LAYER_GZIP, MANIFEST, canonical_json
from builder.oci.reference import parse_reference
from builder.oci.registry import Registry

REALM = "https://tokens.example/token"
CDN = "cdn.example"
BEARER = f'Bearer realm="{REALM}",service="the service"'
BASIC = 'Basic realm="here"'
NAME = "nvidia/cuda"
CUDA = parse_reference(f"registry.example/{NAME}:13")
ROOT = f"https://registry.example/v2/{NAME}"
PING = "GET https://registry.example/v2/"
ARM, AMD = "linux/arm64", "linux/amd64"

Answer = httpx.Response
Handler = Callable[[httpx.Request], Answer]


def registry(handler: Handler, environ: dict[str, str] | None = None, **settings: Any) -> Registry:
    """The client under test, before this server."""
    transport = httpx.MockTransport(handler)
    http = Http(environ or {}, transport=transport, sleep=lambda seconds: None, **settings)
    return Registry(http, environ or {})


def logged_in(folder: Path, name: str = CUDA.registry, **entry: str) -> dict[str, str]:
    """An environment with one login, for the registry `name`: `entry`, else that of `ME`."""
    path = folder / "auth.json"
    entry = entry or {"username": "me", "password": "canary-password"}
    path.write_text(json.dumps({"auths": {name: entry}}))
    return {"REGISTRY_AUTH_FILE": str(path), "HOME": str(folder)}


def always(status: int, **settings: Any) -> Handler:
    return lambda request: httpx.Response(status, **settings)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


ME = basic("me", "canary-password")


def descriptor(data: bytes, media_type: str, **further: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data), **further}


@dataclass(kw_only=True)
class FakeRegistry:
    """Answers for all hosts of the example domain; `requests` are those that came, in order.

    `challenge` is None where anybody may come in. `logins` are the Authorization values that get
    a token (or in, with Basic); the empty one lets anonymous readers. `first` are answered before
    anything else, one to a request whose method and path match its pattern.
    """

    challenge: str | None = BEARER
    challenges_of_repositories: str | None = None
    logins: frozenset[str] = frozenset({""})
    refresh_tokens: frozenset[str] = frozenset()
    expires_in: int | None = None
    redirects: bool = False
    states_digests: bool = True
    answers_heads: bool = True
    page: int = 0
    first: list[tuple[str, Handler]] = field(default_factory=list)
    documents: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    made: int = 0
    uploads: int = 0
    requests: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> Answer:
        self.requests.append(request)
        line = f"{request.method} {request.url}"
        for number, (pattern, answer) in enumerate(self.first):
            if re.search(pattern, line):
                del self.first[number]
                return answer(request)
        if str(request.url).startswith(REALM):
            return self._token(request)
        if request.url.host == CDN:
            assert "authorization" not in request.headers
            return self._part(request, self.blobs[NAME, request.url.path.removeprefix("/")])
        return self._enter(request)

    def lines(self) -> list[str]:
        """Method and URL of every request, without queries."""
        return [f"{one.method} {str(one.url).partition('?')[0]}" for one in self.requests]

    def store(self, data: bytes, name: str = NAME) -> str:
        self.blobs[name, digest_of(data)] = data
        return digest_of(data)

    def store_manifest(
        self, document: Mapping[str, Any], tag: str | None = None, name: str = NAME
    ) -> bytes:
        data = canonical_json(document)
        media_type = document.get("mediaType", MANIFEST)
        for reference in filter(None, (tag, digest_of(data))):
            self.documents[name, reference] = media_type, data
        return data

    def store_image(
        self,
        layers: Iterable[bytes] = (b"layer",),
        *,
        tag: str | None = None,
        config: Mapping[str, Any] | None = None,
        config_type: str = CONFIG,
        layer_type: str = LAYER_GZIP,
        media_type: str = MANIFEST,
        **platform: str,
    ) -> bytes:
        """An image by its manifest; what it says of itself is the platform, linux/arm64."""
        layers = tuple(layers)
        document = {
            "os": "linux",
            "architecture": "arm64",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(data) for data in layers]},
            **platform,
            **(config or {}),
        }
        raw = canonical_json(document)
        for data in (raw, *layers):
            self.store(data)
        manifest = {
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": descriptor(raw, config_type),
            "layers": [descriptor(data, layer_type) for data in layers],
        }
        return self.store_manifest(manifest, tag)

    def store_index(self, *entries: Mapping[str, Any], tag: str | None = None) -> bytes:
        document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(entries)}
        return self.store_manifest(document, tag)

    def _token(self, request: httpx.Request) -> Answer:
        asked = {key: value[0] for key, value in parse_qs(request.url.query.decode()).items()}
        if request.method == "POST":
            asked = {key: value[0] for key, value in parse_qs(request.content.decode()).items()}
            allowed = asked["refresh_token"] in self.refresh_tokens
        else:
            allowed = request.headers.get("authorization", "") in self.logins
        if not allowed:
            return httpx.Response(401, json={"errors": [{"code": "UNAUTHORIZED"}]})
        self.made += 1
        token = f"canary-token-{self.made}"
        self.tokens[token] = asked["scope"]
        key = "access_token" if request.method == "POST" else "token"
        ends = {} if self.expires_in is None else {"expires_in": self.expires_in}
        return httpx.Response(200, json={key: token, **ends})

    def _enter(self, request: httpx.Request) -> Answer:
        path = request.url.path
        challenge = self.challenge
        found = re.fullmatch(r"/v2/(?:(.+)/(manifests|blobs|tags)/(.*))?", path)
        assert found, path
        if found[1] and self.challenges_of_repositories:
            challenge = self.challenges_of_repositories
        if challenge and not self._is_let_in(request, challenge, found[1]):
            errors = {"errors": [{"code": "UNAUTHORIZED", "message": str(request.headers)}]}
            return httpx.Response(401, headers={"WWW-Authenticate": challenge}, json=errors)
        if not found[1]:
            return httpx.Response(200)
        answers = {"manifests": self._manifest, "blobs": self._blob, "tags": self._tags}
        return answers[found[2]](request, found[1], found[3])

    def _is_let_in(self, request: httpx.Request, challenge: str, name: str | None) -> bool:
        sent = request.headers.get("authorization", "")
        if challenge.startswith("Basic"):
            return sent in self.logins
        scope = self.tokens.get(sent.removeprefix("Bearer "), "")
        _, _, rest = scope.partition(":")
        repository, _, actions = rest.rpartition(":")
        needed = "pull" if request.method in {"GET", "HEAD"} else "push"
        return bool(scope) and repository == name and needed in actions.split(",")

    def _manifest(self, request: httpx.Request, name: str, reference: str) -> Answer:
        if request.method == "PUT":
            media_type = request.headers["content-type"]
            for key in (reference, digest_of(request.content)):
                self.documents[name, key] = media_type, request.content
            headers = {"Docker-Content-Digest": digest_of(request.content)}
            return httpx.Response(201, headers=headers)
        if request.method == "HEAD" and not self.answers_heads:
            return httpx.Response(405)
        if (name, reference) not in self.documents:
            known = any(repository == name for repository, _ in self.documents)
            code = "MANIFEST_UNKNOWN" if known else "NAME_UNKNOWN"
            return httpx.Response(404, json={"errors": [{"code": code}]})
        media_type, data = self.documents[name, reference]
        headers = {"Content-Type": media_type}
        if self.states_digests:
            headers["Docker-Content-Digest"] = digest_of(data)
        return httpx.Response(200, headers=headers, content=data)

    def _blob(self, request: httpx.Request, name: str, rest: str) -> Answer:
        if rest.startswith("uploads/"):
            return self._upload(request, name)
        data = self.blobs.get((name, rest))
        if data is None:
            return httpx.Response(404, json={"errors": [{"code": "BLOB_UNKNOWN"}]})
        if self.redirects:
            return httpx.Response(307, headers={"Location": f"https://{CDN}/{rest}?signed=canary"})
        return self._part(request, data)

    def _part(self, request: httpx.Request, data: bytes) -> Answer:
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        if asked is None:
            return httpx.Response(200, stream=httpx.ByteStream(data))
        start = int(asked[1])
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        return httpx.Response(206, headers=headers, stream=httpx.ByteStream(data[start:]))

    def _upload(self, request: httpx.Request, name: str) -> Answer:
        if request.method == "POST":
            self.uploads += 1
            place = f"/v2/{name}/blobs/uploads/{self.uploads}?state=some"
            return httpx.Response(202, headers={"Location": place})
        [digest] = parse_qs(request.url.query.decode())["digest"]
        assert request.headers["content-length"] == str(len(request.content))
        if digest_of(request.content) != digest:
            return httpx.Response(400, json={"errors": [{"code": "DIGEST_INVALID"}]})
        self.blobs[name, digest] = request.content
        return httpx.Response(201)

    def _tags(self, request: httpx.Request, name: str, rest: str) -> Answer:
        tags = [tag for repository, tag in self.documents if repository == name and ":" not in tag]
        asked = parse_qs(request.url.query.decode())
        start = tags.index(asked["last"][0]) + 1 if "last" in asked else 0
        shown = tags[start : start + self.page] if self.page else tags[start:]
        headers = {}
        if start + len(shown) < len(tags):
            headers["Link"] = f'</v2/{name}/tags/list?n={self.page}&last={shown[-1]}>; rel="next"'
        body = json.dumps({"name": name, "tags": shown or None}).encode()
        return httpx.Response(200, headers=headers, content=body)
