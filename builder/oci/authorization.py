"""What a registry asks before it lets anybody in, and what is answered.

A registry answers `GET /v2/` with challenges (RFC 9110 section 11.6.1). `Basic` wants the login
itself, `Bearer` a token for one repository, which another server makes: the protocols are
https://distribution.github.io/distribution/spec/auth/token/ and, for identity tokens, its
neighbour `oauth/`. No login or token is in a message or a `repr`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from builder.errors import ExternalError
from builder.http import Answer, Http, RefusedError, is_loopback, phrase, redact
from builder.oci.credentials import (
    NGC,
    NGC_USER,
    NGC_VARIABLE,
    Credential,
    IdentityToken,
    Keychain,
    Login,
)
from builder.oci.reference import Reference, hostname

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 section 5.6.2, "token"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_END = r"[ \t]*(?=,|\Z)"
_PARAMETER = rf"{_WORD}[ \t]*=[ \t]*(?:{_WORD}|{_QUOTED}){_END}"
_PARAMETER_PATTERN = re.compile(_PARAMETER, re.DOTALL)
_TOKEN68 = rf"([A-Za-z0-9._~+/-]+=*){_END}"
_CHALLENGE = re.compile(rf"({_WORD})(?: +(?:{_TOKEN68}|(?={_PARAMETER}))|{_END})", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t,]+")

_ANSWER_MAX_BYTES = 1 << 20
_LEAST_SECONDS = 60  # the protocol's default; less than that is never meant
_MARGIN_SECONDS = 10
_VISIBLE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way in; its scheme and the names of its parameters are in small letters."""

    scheme: str
    token68: str | None = None
    parameters: dict[str, str] = field(default_factory=dict)


def parse_challenges(value: str) -> tuple[Challenge, ...]:
    """The challenges in a WWW-Authenticate field, in order (RFC 9110 section 11.6.1).

    Several fields are one, joined by commas (section 5.3). Of a parameter that a challenge has
    twice the first counts. Raises ValueError for what the grammar does not allow.
    """
    found: list[Challenge] = []
    position = 0
    while position < len(value):
        if match := _SEPARATOR.match(value, position):
            pass
        elif (
            found and not found[-1].token68 and (match := _PARAMETER_PATTERN.match(value, position))
        ):
            name, _, text = match[0].partition("=")
            found[-1].parameters.setdefault(name.strip().lower(), _unquoted(text.strip(" \t")))
        elif match := _CHALLENGE.match(value, position):
            found.append(Challenge(match[1].lower(), match[2]))
        else:
            raise ValueError("not a list of challenges")
        position = match.end()
    return tuple(found)


def _unquoted(text: str) -> str:
    """What a quoted string stands for (RFC 9110 section 5.6.4)."""
    if not text.startswith('"'):
        return text
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class _TokenKey:
    """What a token is good for; never for another registry, whoever that says makes its tokens."""

    host: str
    realm: str
    service: str
    scope: str


@dataclass(frozen=True, slots=True)
class _Token:
    text: str = field(repr=False)
    ends: float


class Authority:
    """Answers challenges, for all threads of a run; tokens are kept as long as they hold."""

    def __init__(
        self, http: Http, keychain: Keychain, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._http = http
        self._keychain = keychain
        self._clock = clock
        self._tokens: dict[_TokenKey, _Token] = {}
        self._credentials: dict[tuple[str, str], Credential | None] = {}
        # Threads that start together share one token, and one question of a helper to the user.
        self._lock = threading.RLock()

    def sign(
        self,
        reference: Reference,
        actions: str,
        challenges: Iterable[Challenge],
        *,
        anew: bool = False,
    ) -> dict[str, str]:
        """The headers that let a request for the repository in; none where none are asked for.

        `actions` are `pull` or `pull,push`. With `anew`, a token that was kept is made again.
        """
        ways = {challenge.scheme: challenge for challenge in reversed(tuple(challenges))}
        if bearer := ways.get("bearer"):
            token = self._token(reference, actions, bearer, anew=anew)
            return {"Authorization": f"Bearer {token}"}
        credential = self._credential(reference) if "basic" in ways else None
        return {"Authorization": credential.basic} if isinstance(credential, Login) else {}

    def denial(self, reference: Reference, what: str) -> ExternalError:
        """What to tell where the registry does not let us in; `what` it answered."""
        credential = self._credential(reference)
        if credential is None:
            looked = ", ".join(self._keychain.places(reference)) or "no place: HOME is not set"
            hint = (
                "check the name, a registry may answer so for what does not exist; "
                f"no login was found in: {looked}\n{_remedy(reference)}"
            )
        else:
            hint = (
                f"the login out of {credential.source} is wrong, or not for this repository\n"
                f"{_remedy(reference)}"
            )
        return ExternalError(f"{reference}: {what}", hint=hint)

    def _credential(self, reference: Reference) -> Credential | None:
        key = reference.registry, reference.repository
        with self._lock:
            if key not in self._credentials:
                self._credentials[key] = self._keychain.find(reference)
            return self._credentials[key]

    def _token(
        self, reference: Reference, actions: str, challenge: Challenge, *, anew: bool
    ) -> str:
        asked = challenge.parameters
        key = _TokenKey(
            host=reference.host,
            realm=_realm(reference, asked.get("realm", "")),
            # NGC names neither of the two, and wants both.
            service=asked.get("service") or hostname(reference.host),
            scope=f"repository:{reference.repository}:{actions}",
        )
        with self._lock:
            token = self._tokens.get(key)
            if token is None or anew or token.ends <= self._clock():
                token = self._tokens[key] = self._make(reference, key)
            return token.text

    def _make(self, reference: Reference, key: _TokenKey) -> _Token:
        began = self._clock()
        answer = self._ask(key, self._credential(reference))
        if answer.status in {400, 401, 403}:
            what = f"{redact(key.realm)} makes no token for us: {phrase(answer.status)}"
            raise self.denial(reference, what)
        text, seconds = _read_token(key, answer)
        return _Token(text, began + seconds - _MARGIN_SECONDS)

    def _ask(self, key: _TokenKey, credential: Credential | None) -> Answer:
        wanted = {"service": key.service, "scope": key.scope}
        if isinstance(credential, IdentityToken):
            form = {
                "grant_type": "refresh_token",
                "client_id": "spark-build",
                "refresh_token": credential.token,
                **wanted,
            }
            return self._http.exchange(
                "POST",
                key.realm,
                {"Content-Type": "application/x-www-form-urlencoded"},
                content=urlencode(form).encode(),
                limit=_ANSWER_MAX_BYTES,
            )
        parts = urlsplit(key.realm)
        query = "&".join(filter(None, (parts.query, urlencode(wanted))))
        headers = {} if credential is None else {"Authorization": credential.basic}
        url = urlunsplit(parts._replace(query=query, fragment=""))
        return self._http.exchange("GET", url, headers, limit=_ANSWER_MAX_BYTES)


def _realm(reference: Reference, realm: str) -> str:
    """The token server's URL, if a login may be sent there; an open one only on this machine."""
    try:
        parts = urlsplit(realm)
        host = parts.hostname or ""
    except ValueError:
        parts, host = urlsplit(""), ""
    local = is_loopback(host) and is_loopback(hostname(reference.host))
    private = parts.scheme == "https" or (parts.scheme == "http" and local)
    if not host or not private or "@" in parts.netloc:
        raise ExternalError(
            f"{reference.host}: the registry has its tokens made at {redact(realm)!r}, "
            "which is no place to send a login to"
        )
    return realm


def _read_token(key: _TokenKey, answer: Answer) -> tuple[str, int]:
    """The token and for how many seconds it holds."""
    if answer.status != 200:
        raise RefusedError(key.realm, answer.status, answer.headers)
    try:
        found: Any = json.loads(answer.data)
    except (ValueError, RecursionError):
        found = None
    fields = found if isinstance(found, dict) else {}
    text, seconds = fields.get("token") or fields.get("access_token"), fields.get("expires_in")
    # Anything else would be quoted by whoever refuses to send it as a header.
    if not isinstance(text, str) or not _VISIBLE.fullmatch(text):
        raise ExternalError(f"{redact(key.realm)}: the server sends no token")
    return text, max(seconds, _LEAST_SECONDS) if isinstance(seconds, int) else _LEAST_SECONDS


def _remedy(reference: Reference) -> str:
    if reference.registry == NGC:
        return (
            f"set {NGC_VARIABLE} to an API key of NGC, or `podman login {NGC}` with the user "
            f"{NGC_USER} (just so) and the key as password"
        )
    return f"`podman login {reference.registry}` or `docker login` keeps a login"
