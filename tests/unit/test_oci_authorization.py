"""Challenges are read as RFC 9110 writes them; tokens are asked for, kept, and never shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import BuilderError, ExternalError
from builder.http import Http, RefusedError
from builder.oci.authorization import Authority, Challenge, parse_challenges
from builder.oci.credentials import Keychain
from builder.oci.reference import parse_reference

from .fake_registry import (
    BASIC,
    BEARER,
    CUDA,
    ME,
    NAME,
    FakeRegistry,
    Handler,
    always,
    basic,
    logged_in,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        (" , ,", []),
        ("Basic", [Challenge("basic")]),
        ("Negotiate, Basic", [Challenge("negotiate"), Challenge("basic")]),
        ("Negotiate a87421==", [Challenge("negotiate", "a87421==")]),
        (
            'Bearer realm="https://nvcr.io/proxy_auth"',
            [Challenge("bearer", None, {"realm": "https://nvcr.io/proxy_auth"})],
        ),
        (
            'Bearer Realm = "https://a/t" ,service=registry , scope="repository:a/b:pull,push"',
            [
                Challenge(
                    "bearer",
                    None,
                    {
                        "realm": "https://a/t",
                        "service": "registry",
                        "scope": "repository:a/b:pull,push",
                    },
                )
            ],
        ),
        (  # the RFC's own example
            'Basic realm="simple", Newauth realm="apps", type=1, title="Login to \\"apps\\""',
            [
                Challenge("basic", None, {"realm": "simple"}),
                Challenge(
                    "newauth", None, {"realm": "apps", "type": "1", "title": 'Login to "apps"'}
                ),
            ],
        ),
        (
            'Negotiate abc=,, Bearer , realm="x"',
            [Challenge("negotiate", "abc="), Challenge("bearer", None, {"realm": "x"})],
        ),
        ("Bearer realm", [Challenge("bearer", "realm")]),  # a word by itself is a token68
        ("Bearer realm=, x", [Challenge("bearer", "realm="), Challenge("x")]),
        ("Bearer realm=x, realm=y", [Challenge("bearer", None, {"realm": "x"})]),
        ('Bearer realm=""', [Challenge("bearer", None, {"realm": ""})]),
    ],
)
def test_challenges_are_read(value: str, expected: list[Challenge]) -> None:
    assert parse_challenges(value) == tuple(expected)


@pytest.mark.parametrize(
    "value",
    [
        'realm="x"',
        'Bearer realm="x',
        'Bearer realm="x" service="y"',
        "Negotiate abc==, realm=x",
        "Basic realm=x y",
        "Bearer a b",
        "\N{SNOWMAN}",
        '"x"',
        "=",
    ],
)
def test_what_is_no_challenge_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="not a list of challenges"):
        parse_challenges(value)


_WORDS = st.from_regex(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,9}", fullmatch=True)
_TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"))
_NAMES = st.lists(_WORDS, max_size=4, unique_by=str.lower)


def quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


@st.composite
def written(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[str, tuple[Challenge, ...]]:
    """A field as the grammar allows it, and what it says."""
    parts: list[str] = []
    challenges: list[Challenge] = []
    space = st.sampled_from(["", " ", "\t", "  "])
    for _ in range(draw(st.integers(0, 3))):
        scheme = draw(_WORDS)
        token68 = draw(st.none() | st.from_regex(r"[A-Za-z0-9._~+/-]{1,9}={0,2}", fullmatch=True))
        parameters = {} if token68 else {name: draw(_WORDS | _TEXTS) for name in draw(_NAMES)}
        shown = [
            f"{name}{draw(space)}={draw(space)}"
            + (text if re.fullmatch(_WORD, text) and draw(st.booleans()) else quoted(text))
            for name, text in parameters.items()
        ]
        first = token68 or (shown[0] if shown else "")
        parts += [f"{scheme}{' ' * draw(st.integers(1, 2))}{first}".rstrip(), *shown[1:]]
        challenges.append(
            Challenge(
                scheme.lower(), token68, {name.lower(): text for name, text in parameters.items()}
            )
        )
    comma = st.sampled_from([",", ", ", " ,", "\t,,  "])
    return "".join(f"{part}{draw(comma)}" for part in parts), tuple(challenges)


_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"


@given(written())
def test_what_the_grammar_allows_is_understood(case: tuple[str, tuple[Challenge, ...]]) -> None:
    text, expected = case
    assert parse_challenges(text) == expected


@given(st.text(max_size=60) | st.from_regex(r'[Ba=", \\]{0,30}', fullmatch=True))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        found = parse_challenges(text)
    except ValueError:
        return
    assert all(one.scheme == one.scheme.lower() for one in found)


def test_a_long_field_takes_no_longer_than_it_is() -> None:
    with pytest.raises(ValueError, match="challenges"):
        parse_challenges("Bearer " + 'a="' + '\\"' * 50_000)
    assert len(parse_challenges("Bearer " + "a=b," * 20_000)) == 1


def authority(
    server: Handler,
    environ: dict[str, str] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Authority:
    http = Http({}, transport=httpx.MockTransport(server), sleep=lambda seconds: None)
    return Authority(http, Keychain(environ or {}), clock)


def asked(request: httpx.Request) -> dict[str, list[str]]:
    return parse_qs((request.url.query or request.content).decode())


def test_anonymous_readers_get_a_token_too() -> None:
    server = FakeRegistry()
    found = authority(server).sign(CUDA, "pull", parse_challenges(BEARER))
    assert found == {"Authorization": "Bearer canary-token-1"}
    [request] = server.requests
    assert "authorization" not in request.headers
    assert asked(request) == {"service": ["the service"], "scope": [f"repository:{NAME}:pull"]}


def test_a_bare_realm_is_given_service_and_scope() -> None:
    server = FakeRegistry(logins=frozenset({basic("$oauthtoken", "canary-key")}))
    cuda = parse_reference(f"nvcr.io/{NAME}:13")
    bare = parse_challenges('Bearer realm="https://tokens.example/token?team=a"')
    found = authority(server, {"NGC_API_KEY": "canary-key"}).sign(cuda, "pull", bare)
    assert found == {"Authorization": "Bearer canary-token-1"}
    [request] = server.requests
    assert asked(request) == {
        "team": ["a"],
        "service": ["nvcr.io"],
        "scope": [f"repository:{NAME}:pull"],
    }


def test_an_identity_token_is_exchanged(tmp_path: Path) -> None:
    server = FakeRegistry(refresh_tokens=frozenset({"canary-identity"}))
    environ = logged_in(tmp_path, identitytoken="canary-identity")
    found = authority(server, environ).sign(CUDA, "pull,push", parse_challenges(BEARER))
    assert found == {"Authorization": "Bearer canary-token-1"}
    [request] = server.requests
    assert request.method == "POST"
    assert asked(request) == {
        "grant_type": ["refresh_token"],
        "client_id": ["spark-build"],
        "refresh_token": ["canary-identity"],
        "service": ["the service"],
        "scope": [f"repository:{NAME}:pull,push"],
    }
    assert "canary" not in str(request.url)


def test_an_identity_token_goes_nowhere_else(tmp_path: Path) -> None:
    elsewhere = {"Location": "https://evil.example/token"}
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(307, headers=elsewhere)

    environ = logged_in(tmp_path, identitytoken="canary-identity")
    with pytest.raises(RefusedError, match="307"):
        authority(handler, environ).sign(CUDA, "pull", parse_challenges(BEARER))
    assert [request.url.host for request in requests] == ["tokens.example"]


def test_basic_wants_the_login_itself(tmp_path: Path) -> None:
    server = FakeRegistry()
    environ = logged_in(tmp_path)
    basics = parse_challenges(BASIC)
    assert authority(server, environ).sign(CUDA, "pull", basics) == {"Authorization": ME}
    assert authority(server).sign(CUDA, "pull", basics) == {}
    token = logged_in(tmp_path, identitytoken="canary-identity")
    assert authority(server, token).sign(CUDA, "pull", basics) == {}
    assert server.requests == []


def test_bearer_goes_before_basic_and_others_are_not_known(tmp_path: Path) -> None:
    server = FakeRegistry(logins=frozenset({ME}))
    both = parse_challenges(f"Negotiate, {BASIC}, {BEARER}, Bearer realm=second")
    environ = logged_in(tmp_path)
    found = authority(server, environ).sign(CUDA, "pull", both)
    assert found == {"Authorization": "Bearer canary-token-1"}
    assert authority(server, environ).sign(CUDA, "pull", parse_challenges("Negotiate")) == {}
    assert authority(server, environ).sign(CUDA, "pull", []) == {}


@pytest.mark.parametrize(
    ("expires_in", "holds"), [(None, 50.0), (10, 50.0), (300, 290.0), (3600, 3590.0)]
)
def test_a_token_is_kept_as_long_as_it_holds(expires_in: int | None, holds: float) -> None:
    now = [1000.0]
    server = FakeRegistry(expires_in=expires_in)
    one = authority(server, clock=lambda: now[0])
    challenges = parse_challenges(BEARER)

    def token() -> str:
        return one.sign(CUDA, "pull", challenges)["Authorization"].rpartition("-")[2]

    assert [token(), token()] == ["1", "1"]
    now[0] += holds - 1
    assert token() == "1"
    now[0] += 1
    assert [token(), token()] == ["2", "2"]
    assert one.sign(CUDA, "pull", challenges, anew=True)["Authorization"].endswith("-3")
    assert token() == "3"


def test_a_token_is_for_one_repository_and_purpose() -> None:
    server = FakeRegistry()
    one = authority(server)
    challenges = parse_challenges(BEARER)
    for name, actions in ((NAME, "pull"), (NAME, "pull,push"), ("other/x", "pull")):
        one.sign(parse_reference(f"registry.example/{name}"), actions, challenges)
    assert sorted(server.tokens.values()) == [
        f"repository:{NAME}:pull",
        f"repository:{NAME}:pull,push",
        "repository:other/x:pull",
    ]


def test_a_token_is_not_for_a_registry_that_only_names_the_same_realm(tmp_path: Path) -> None:
    server = FakeRegistry(logins=frozenset({ME, ""}))
    one = authority(server, logged_in(tmp_path))
    challenges = parse_challenges(BEARER)
    mine = one.sign(CUDA, "pull", challenges)
    evil = parse_reference(f"evil.example/{NAME}:13")
    assert one.sign(evil, "pull", challenges) != mine
    assert "authorization" not in server.requests[-1].headers


@pytest.mark.parametrize(
    "realm",
    [
        "http://tokens.example/token",
        "http://127.0.0.1:1/token",
        "ftp://tokens.example/",
        "https://",
        "/token",
        "https://me:canary@tokens.example/token",
        "https://[canary",
        "",
    ],
)
def test_no_login_is_sent_to_an_open_or_unknown_place(realm: str, tmp_path: Path) -> None:
    server = FakeRegistry(logins=frozenset({ME}))
    one = authority(server, logged_in(tmp_path))
    with pytest.raises(ExternalError, match="no place to send a login to") as caught:
        one.sign(CUDA, "pull", [Challenge("bearer", None, {"realm": realm})])
    assert server.requests == []
    assert "canary" not in f"{caught.value}{caught.value.hint}"


def test_this_machines_own_registry_may_have_its_tokens_made_here() -> None:
    handler = always(200, json={"token": "t"})
    here = parse_reference("localhost:5000/x:y")
    realm = {"realm": "http://127.0.0.1:1/token"}
    found = authority(handler).sign(here, "pull", [Challenge("bearer", None, realm)])
    assert found == {"Authorization": "Bearer t"}


@pytest.mark.parametrize(
    "content",
    [b"", b"canary", b"[]", b"{}", b'{"token": 1}', b'{"token": ""}', b"[" * 100_000]
    + [json.dumps({"token": f"canary{text}"}).encode() for text in ("\r\nX: y", " ", "\xff")],
)
def test_what_is_no_token_is_told_without_it(content: bytes) -> None:
    handler = always(200, content=content)
    with pytest.raises(ExternalError, match="the server sends no token") as caught:
        authority(handler).sign(CUDA, "pull", parse_challenges(BEARER))
    assert "canary" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("status", [404, 429, 500])
def test_a_token_server_that_fails(status: int) -> None:
    handler = always(status)
    with pytest.raises(RefusedError, match=f"tokens.example/token: the server answered {status}"):
        authority(handler).sign(CUDA, "pull", parse_challenges(BEARER))


def test_a_refused_login_is_named_by_where_it_is(tmp_path: Path) -> None:
    environ = logged_in(tmp_path)
    with pytest.raises(ExternalError, match=r"registry\.example/nvidia/cuda:13") as caught:
        authority(FakeRegistry(), environ).sign(CUDA, "pull", parse_challenges(BEARER))
    assert "401 Unauthorized" in caught.value.message
    hint = caught.value.hint or ""
    assert f"the login out of {tmp_path / 'auth.json'} is wrong" in hint
    assert "podman login registry.example" in hint
    assert "canary" not in f"{caught.value}{hint}"


def test_without_a_login_it_is_told_where_it_was_looked_for(tmp_path: Path) -> None:
    server = FakeRegistry(logins=frozenset())
    cuda = parse_reference(f"nvcr.io/{NAME}:13")
    environ = {"REGISTRY_AUTH_FILE": str(tmp_path / "absent.json")}
    with pytest.raises(BuilderError) as caught:
        authority(server, environ).sign(cuda, "pull", parse_challenges(BEARER))
    hint = caught.value.hint or ""
    assert f"no login was found in: {tmp_path / 'absent.json'}, NGC_API_KEY" in hint
    assert "set NGC_API_KEY" in hint
    assert "podman login nvcr.io` with the user $oauthtoken" in hint
