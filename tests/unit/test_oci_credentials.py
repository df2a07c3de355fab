"""Logins: whose is taken, in which order, from which form; none is ever shown."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builder import process
from builder.errors import ExternalError, MissingError, UsageError
from builder.oci.credentials import Credential, IdentityToken, Keychain, Login
from builder.oci.reference import parse_reference
from builder.process import Completed

CUDA = parse_reference("nvcr.io/nvidia/cuda:13")
SECRET = "canary-secret"


def auth(user: str, password: str = SECRET) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def write(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def user_of(credential: Credential | None) -> str | None:
    assert credential is None or isinstance(credential, Login)
    return credential.username if credential else None


@dataclass
class Helper:
    """Stands for a helper program: what it prints, and what it was asked."""

    stdout: str = ""
    returncode: int = 0
    missing: bool = False
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    env: Mapping[str, str] | None = None

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_seconds: float | None = None,
        stdin: str | None = None,
        **settings: Any,
    ) -> Completed:
        assert timeout_seconds
        self.asked.append((" ".join(argv), stdin))
        self.env = env
        if self.missing:
            raise MissingError("no such file")
        assert not check
        return Completed(tuple(argv), self.returncode, self.stdout, SECRET)


def in_config(tmp_path: Path, document: Any) -> dict[str, str]:
    """An environment whose only login file is docker's, with this document."""
    write(tmp_path / "config.json", document)
    return {"DOCKER_CONFIG": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "none")}


def test_files_are_asked_in_podmans_order(tmp_path: Path) -> None:
    files = {
        "runtime": tmp_path / "run" / "containers" / "auth.json",
        "config": tmp_path / "config" / "containers" / "auth.json",
        "docker": tmp_path / "docker" / "config.json",
    }
    environ = {
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "DOCKER_CONFIG": str(tmp_path / "docker"),
        "HOME": str(tmp_path),
        "NGC_API_KEY": SECRET,
    }
    for user, path in files.items():
        write(path, {"auths": {"nvcr.io": auth(user)}})
    for user, path in files.items():
        found = Keychain(environ).find(CUDA)
        assert (user_of(found), found and found.source) == (user, str(path))
        path.unlink()
    found = Keychain(environ).find(CUDA)
    assert found == Login(source="NGC_API_KEY", username="$oauthtoken", password=SECRET)
    assert Keychain(environ).places(CUDA) == (*map(str, files.values()), "NGC_API_KEY")


def test_where_the_home_folder_alone_is_known(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert Keychain(environ).find(CUDA) is None
    write(tmp_path / ".docker" / "config.json", {"auths": {"nvcr.io": auth("docker")}})
    assert user_of(Keychain(environ).find(CUDA)) == "docker"
    write(tmp_path / ".config" / "containers" / "auth.json", {"auths": {"nvcr.io": auth("podman")}})
    assert user_of(Keychain(environ).find(CUDA)) == "podman"
    assert Keychain({}).places(CUDA)[0].startswith("/run/containers/")


def test_a_file_that_is_named_is_the_only_one(tmp_path: Path) -> None:
    write(tmp_path / ".docker" / "config.json", {"auths": {"nvcr.io": auth("docker")}})
    given = tmp_path / "given.json"
    environ = {"HOME": str(tmp_path), "REGISTRY_AUTH_FILE": str(given)}
    assert Keychain(environ).find(CUDA) is None
    write(given, {"auths": {"nvcr.io": auth("given")}})
    assert user_of(Keychain(environ).find(CUDA)) == "given"


def test_ngcs_variable_is_for_ngc_alone() -> None:
    keychain = Keychain({"NGC_API_KEY": f"{SECRET}\n"})
    found = keychain.find(CUDA)
    assert isinstance(found, Login)
    assert found.password == SECRET
    assert keychain.find(parse_reference("quay.io/nvidia/cuda")) is None
    assert "NGC_API_KEY" not in keychain.places(parse_reference("quay.io/nvidia/cuda"))
    assert Keychain({"NGC_API_KEY": " "}).find(CUDA) is None


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("nvcr.io/nvidia/cuda/base:1", "exact"),
        ("nvcr.io/nvidia/cuda:1", "exact"),
        ("nvcr.io/nvidia/pytorch:1", "namespace"),
        ("nvcr.io/nvidia-staging/x:1", "registry"),
        ("nvcr.io/x:1", "registry"),
        ("quay.io/nvidia/cuda:1", None),
        ("nvcr.io:443/nvidia/cuda:1", None),
    ],
)
def test_the_longest_namespace_counts(name: str, user: str | None, tmp_path: Path) -> None:
    auths = {
        "nvcr.io": auth("registry"),
        "nvcr.io/nvidia": auth("namespace"),
        "nvcr.io/nvidia/cuda": auth("exact"),
    }
    keychain = Keychain(in_config(tmp_path, {"auths": auths}))
    assert user_of(keychain.find(parse_reference(name))) == user


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("https://index.docker.io/v1/", "ubuntu"),
        ("index.docker.io", "ubuntu"),
        ("docker.io", "ubuntu"),
        ("docker.io/library", "ubuntu"),
        ("https://nvcr.io", "nvcr.io/nvidia/cuda"),
        ("http://nvcr.io/v2/", "nvcr.io/nvidia/cuda"),
        ("localhost:5000", "localhost:5000/x"),
    ],
)
def test_older_keys_are_known(key: str, name: str, tmp_path: Path) -> None:
    keychain = Keychain(in_config(tmp_path, {"auths": {key: auth("me")}}))
    assert user_of(keychain.find(parse_reference(name))) == "me"
    assert keychain.find(parse_reference("quay.io/library/ubuntu")) is None


def test_the_forms_of_an_entry(tmp_path: Path) -> None:
    def found(entry: Any) -> Credential | None:
        return Keychain(in_config(tmp_path, {"auths": {"nvcr.io": entry}})).find(CUDA)

    source = str(tmp_path / "config.json")
    login = Login(source=source, username="me", password="a:b")
    assert found(auth("me", "a:b")) == login
    assert found({"username": "me", "password": "a:b"}) == login
    token = IdentityToken(source=source, token=SECRET)
    assert found({**auth("me"), "identitytoken": SECRET}) == token
    assert found({}) is None
    assert found(None) is None
    assert found({"auth": None}) is None
    assert login.basic == "Basic " + base64.b64encode(b"me:a:b").decode()


def test_a_registrys_helper_goes_before_entries_and_the_common_one(tmp_path: Path) -> None:
    document = {
        "credHelpers": {"nvcr.io": "ngc", "quay.io": "quay"},
        "credsStore": "common",
        "auths": {"nvcr.io": auth("entry")},
    }
    environ = in_config(tmp_path, document)
    helper = Helper('{"ServerURL": "nvcr.io", "Username": "me", "Secret": "canary-secret"}')
    found = Keychain(environ, helper).find(CUDA)
    assert found == Login(source="docker-credential-ngc", username="me", password=SECRET)
    assert helper.asked == [("docker-credential-ngc get", "nvcr.io")]
    assert helper.env == environ


@pytest.mark.parametrize(
    ("name", "server"),
    [("ubuntu", "https://index.docker.io/v1/"), ("nvcr.io/nvidia/cuda", "nvcr.io")],
)
def test_the_common_helper_is_asked_where_no_entry_is(
    name: str, server: str, tmp_path: Path
) -> None:
    document = {"credsStore": "pass", "auths": {"nvcr.io": {}, "quay.io": auth("entry")}}
    helper = Helper('{"Username": "<token>", "Secret": "canary-secret"}')
    keychain = Keychain(in_config(tmp_path, document), helper)
    found = keychain.find(parse_reference(name))
    assert found == IdentityToken(source="docker-credential-pass", token=SECRET)
    assert helper.asked == [("docker-credential-pass get", server)]
    assert user_of(keychain.find(parse_reference("quay.io/x"))) == "entry"


def test_a_helper_without_a_login_is_no_failure(tmp_path: Path) -> None:
    environ = in_config(tmp_path, {"credsStore": "pass"})
    helper = Helper("credentials not found in native keychain\n", returncode=1)
    assert Keychain(environ, helper).find(CUDA) is None
    found = Keychain({**environ, "NGC_API_KEY": SECRET}, helper).find(CUDA)
    assert user_of(found) == "$oauthtoken"


def test_a_helper_that_is_not_there(tmp_path: Path) -> None:
    environ = in_config(tmp_path, {"credHelpers": {"nvcr.io": "desktop"}})
    with pytest.raises(MissingError, match="docker-credential-desktop: no such program") as caught:
        Keychain(environ, Helper(missing=True)).find(CUDA)
    assert str(tmp_path / "config.json") in (caught.value.hint or "")


@pytest.mark.parametrize(
    "helper",
    [
        Helper("canary-secret", returncode=1),
        Helper("canary-secret"),
        Helper('{"Username": "me"}'),
        Helper('["canary-secret"]'),
        Helper('{"Username": "me", "Secret": 1}'),
        Helper("[" * 100_000),
    ],
)
def test_a_helper_that_fails_is_told_without_its_words(helper: Helper, tmp_path: Path) -> None:
    environ = in_config(tmp_path, {"credsStore": "pass"})
    with pytest.raises(ExternalError, match="docker-credential-pass get") as caught:
        Keychain(environ, helper).find(CUDA)
    assert SECRET not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "-x", "a b", 1, ["x"], {"x": 1}])
def test_a_helper_is_a_programs_name(name: Any, tmp_path: Path) -> None:
    helper = Helper()
    environ = in_config(tmp_path, {"credHelpers": {"nvcr.io": name}})
    with pytest.raises(UsageError, match="not a program's name"):
        Keychain(environ, helper).find(CUDA)
    assert helper.asked == []


def test_a_real_helper_program_is_asked(tmp_path: Path) -> None:
    script = tmp_path / "docker-credential-here"
    script.write_text(
        "#!/bin/sh\nread -r server\n"
        'printf \'{"Username": "%s", "Secret": "%s"}\' "$server" "$1-$HIDDEN"\n'
    )
    script.chmod(0o755)
    environ = {
        **in_config(tmp_path, {"credsStore": "here"}),
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HIDDEN": SECRET,
    }
    found = Keychain(environ, process.run).find(CUDA)
    assert found == Login(
        source="docker-credential-here", username="nvcr.io", password=f"get-{SECRET}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "{canary-secret",
        '"canary-secret"',
        '["canary-secret"]',
        '{"auths": ["canary-secret"]}',
        '{"credHelpers": "canary-secret"}',
        '{"auths": {"nvcr.io": {"auth": "canary-secret"}}}',
        '{"auths": {"nvcr.io": {"auth": "Y2FuYXJ5LXNlY3JldA=="}}}',
        '{"auths": {"nvcr.io": {"auth": "/////w=="}}}',
        "[" * 100_000,
        "\x00",
    ],
)
def test_a_broken_file_is_named_without_its_content(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json") as caught:
        Keychain(in_config(tmp_path, text)).find(CUDA)
    shown = f"{caught.value} {caught.value.hint}"
    assert SECRET not in shown
    assert "Y2FuYXJ5" not in shown
    assert "log in again" in shown


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    environ = {"DOCKER_CONFIG": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "none")}
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        Keychain(environ).find(CUDA)
    (tmp_path / "config.json").rmdir()
    (tmp_path / "config.json").write_bytes(b'{"auths": "\xff"}')
    with pytest.raises(UsageError, match="not JSON"):
        Keychain(environ).find(CUDA)
    (tmp_path / "plain").touch()
    assert Keychain({"DOCKER_CONFIG": str(tmp_path / "plain")}).find(CUDA) is None


def test_no_repr_shows_a_secret() -> None:
    login = Login(source="file", username="canary-user", password=SECRET)
    token = IdentityToken(source="file", token=SECRET)
    keychain = Keychain({"NGC_API_KEY": SECRET})
    for value in (login, token, keychain, [login], {"x": token}):
        assert "canary" not in f"{value!r} {value}"
