"""Who we are to a registry, as podman's and docker's own logins say.

Files and their order: containers-auth.json(5), "FORMAT", and podman-login(1); then docker's
`config.json`. Helper programs speak the protocol of
https://github.com/docker/docker-credential-helpers. ~/.netrc plays no part, as in those tools: it
knows hosts only, and a registry has its tokens made by another host than its own.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder import process
from builder.errors import ExternalError, MissingError, UsageError
from builder.oci.reference import DOCKER_HUB, HUB_NAMES, Reference
from builder.process import Runner

NGC = "nvcr.io"
NGC_VARIABLE = "NGC_API_KEY"
NGC_USER = "$oauthtoken"
"""The user of every API key, literally (NGC's user guide, "Accessing the Container Registry")."""

_HUB_KEY = "https://index.docker.io/v1/"  # docker's own key for Docker Hub
_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_SECONDS = 120.0  # it may ask the user for a passphrase
_TOKEN_USER = "<token>"  # noqa: S105  (the helpers' word for "the secret is an identity token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """User and password; `source` says where they are from, and is all that may be shown."""

    source: str
    username: str = field(repr=False)
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header (RFC 7617 section 2)."""
        pair = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityToken:
    """A token that is exchanged for others (OAuth2's refresh token); `source` as in `Login`."""

    source: str
    token: str = field(repr=False)


Credential = Login | IdentityToken


class Keychain:
    """The caller's logins. Nothing is read, and no helper asked, before one is needed."""

    def __init__(self, environ: Mapping[str, str], run: Runner = process.run) -> None:
        self._environ = environ
        self._run = run

    def find(self, reference: Reference) -> Credential | None:
        """The credential for a repository: the first file that has one, then NGC's variable.

        Raises UsageError for a broken file, MissingError for a helper that is not there; no
        message holds anything of a credential.
        """
        for path in self._files():
            if found := self._find_in_file(path, reference):
                return found
        key = self._environ.get(NGC_VARIABLE, "").strip()
        if key and reference.registry == NGC:
            return Login(source=NGC_VARIABLE, username=NGC_USER, password=key)
        return None

    def places(self, reference: Reference) -> tuple[str, ...]:
        """Where a credential for the repository is looked for, in order."""
        files = tuple(str(path) for path in self._files())
        return (*files, NGC_VARIABLE) if reference.registry == NGC else files

    def _files(self) -> Iterator[Path]:
        environ = self._environ
        if given := environ.get("REGISTRY_AUTH_FILE"):
            yield Path(given)
            return
        if runtime := environ.get("XDG_RUNTIME_DIR"):
            yield Path(runtime) / "containers" / "auth.json"
        else:
            yield Path(f"/run/containers/{os.getuid()}/auth.json")
        home = environ.get("HOME")
        if config := environ.get("XDG_CONFIG_HOME") or (home and f"{home}/.config"):
            yield Path(config) / "containers" / "auth.json"
        if docker := environ.get("DOCKER_CONFIG") or (home and f"{home}/.docker"):
            yield Path(docker) / "config.json"

    def _find_in_file(self, path: Path, reference: Reference) -> Credential | None:
        document = _load(path)
        helpers = _table(path, document, "credHelpers")
        for key, helper in helpers.items():
            if _registry_of(key) == reference.registry:
                return self._ask(path, helper, key)
        if found := _entry(path, _table(path, document, "auths"), reference):
            return found
        if store := document.get("credsStore"):
            server = _HUB_KEY if reference.registry == DOCKER_HUB else reference.registry
            return self._ask(path, store, server)
        return None

    def _ask(self, path: Path, helper: object, server: str) -> Credential | None:
        """What a helper program knows of `server`; its output is a secret."""
        if not isinstance(helper, str) or not _HELPER_NAME.fullmatch(helper):
            raise UsageError(f"{path}: the credential helper for {server} is not a program's name")
        program = f"docker-credential-{helper}"
        try:
            done = self._run(
                [program, "get"],
                env=self._environ,
                check=False,
                timeout_seconds=_HELPER_SECONDS,
                stdin=server,
            )
        except MissingError:
            raise MissingError(
                f"{program}: no such program, and {path} has the login of {server} kept by it",
                hint=f"install it, or take it out of {path} and log in again",
            ) from None
        if done.returncode == 0:
            return _answer_of_helper(program, done.stdout)
        if "credentials not found" in done.stdout:  # docker-credential-helpers, error.go
            return None
        raise ExternalError(
            f"{program} get: ended with status {done.returncode}, asked for the login of {server}",
            hint=f"`echo {server} | {program} get` shows why; what it prints is secret",
        )


def _answer_of_helper(program: str, text: str) -> Credential:
    try:
        answer = json.loads(text)
        username, secret = answer["Username"], answer["Secret"]
    except (ValueError, TypeError, KeyError, RecursionError):
        username = secret = None
    if not isinstance(username, str) or not isinstance(secret, str):
        raise ExternalError(f"{program} get: what it prints is no login")
    if username == _TOKEN_USER:
        return IdentityToken(source=program, token=secret)
    return Login(source=program, username=username, password=secret)


def _load(path: Path) -> Mapping[str, Any]:
    """The file's document, empty where there is no file; no message quotes it."""
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not JSON", hint=_log_in_again(path)) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not JSON", hint=_log_in_again(path)) from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: not a JSON object", hint=_log_in_again(path))
    return document


def _table(path: Path, document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = document.get(key) or {}
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {key} is not a JSON object", hint=_log_in_again(path))
    return table


def _entry(path: Path, auths: Mapping[str, Any], reference: Reference) -> Credential | None:
    """The entry of the longest namespace that the repository is in, then the registry's own."""
    parts = f"{reference.registry}/{reference.repository}".split("/")
    keys = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
    # Older logins were kept by a URL; the registry's name in it is what counts.
    keys += [key for key in auths if _registry_of(key) == reference.registry]
    for key in keys:
        if key in auths and (found := _decode(path, key, auths[key])):
            return found
    return None


def _registry_of(key: str) -> str | None:
    """The registry that a key names as a whole; None for a namespace within one."""
    is_url = "://" in key
    host, _, namespace = key.rpartition("://")[2].partition("/")
    if namespace and not is_url:
        return None
    return DOCKER_HUB if host in HUB_NAMES else host


def _decode(path: Path, key: str, entry: object) -> Credential | None:
    """What an entry of `auths` holds; an empty one says that a helper keeps it."""
    fields = entry if isinstance(entry, dict) else {}
    texts = {name: value for name, value in fields.items() if isinstance(value, str) and value}
    if token := texts.get("identitytoken"):
        return IdentityToken(source=str(path), token=token)
    if encoded := texts.get("auth"):
        try:
            pair = base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, ValueError):
            pair = ""
        username, colon, password = pair.partition(":")
        if not colon:
            raise UsageError(
                f"{path}: auths: the login of {key!r} cannot be read", hint=_log_in_again(path)
            )
        return Login(source=str(path), username=username, password=password.strip("\0"))
    if "username" in texts and "password" in texts:
        return Login(source=str(path), username=texts["username"], password=texts["password"])
    return None


def _log_in_again(path: Path) -> str:
    return f"mend {path}, or log in again: `podman login` and `docker login` write it anew"
