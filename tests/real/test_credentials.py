"""No secret that a run is given comes out anywhere: not in its words, files, or argument lists."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder import process

from .bases import NgcBase
from .standins import StandIns
from .standins.network import FILES_HOST, INDEX_HOST
from .standins.ngc import HOST, USER
from .standins.wheels import pack_wheel

pytestmark = [
    pytest.mark.real("aarch64-linux-gnu-gcc", "docker-registry", "git", "index"),
    pytest.mark.real("mmdebstrap", "openssl", "skopeo"),
]

_FILE = "/team/notes-2.0-py3-none-any.whl"
_INDEX = "/simple"
_RECIPE = f"""\
name: private
target: gb10
base: {{image: {HOST}/nvidia/internal:1}}
torch: {{from: base}}
indexes: {{team: "https://{INDEX_HOST}{_INDEX}"}}
packages: [ledger, notes]
sources:
  ledger: [{{index: team}}]
  notes: [{{wheel: "https://{FILES_HOST}{_FILE}"}}]
"""
_LOOK_SECONDS = 0.02


@dataclass
class Watch:
    """Runs commands and keeps all that they say, and every argument list that is seen meanwhile."""

    folder: Path
    environ: Mapping[str, str]
    said: list[str] = field(default_factory=list)
    arguments: set[bytes] = field(default_factory=set)

    def run(self, *words: str | Path, **environ: str) -> int:
        """The status of `spark-build WORDS`; `environ` goes before what was set up."""
        argv = [sys.executable, "-m", "builder", *map(str, words)]
        with self._looking():
            done = process.run(argv, env={**self.environ, **environ}, cwd=self.folder, check=False)
        self.said += [done.stdout, done.stderr]
        return done.returncode

    @contextmanager
    def _looking(self) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._look, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _look(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_SECONDS):
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.arguments.add(place.read_bytes())
                except OSError:  # it has ended
                    continue


def spellings(secrets: Sequence[str]) -> list[bytes]:
    """Each secret as it is, and as Basic authentication and docker's files spell it."""
    pairs = [f"{user}:{secret}" for secret in secrets for user in (USER, "reader", "fetcher")]
    return [text.encode() for text in secrets] + [base64.b64encode(pair.encode()) for pair in pairs]


def publish(standins: StandIns) -> None:
    standins.index.files.statuses.clear()
    standins.files.files.statuses.clear()
    name, data = pack_wheel("ledger", "1.0", {"ledger.py": b"ENTRIES = []\n"})
    standins.index.files.add_index(_INDEX, {name: data})
    _, data = pack_wheel("notes", "2.0", {"notes.py": b"NOTES = []\n"})
    standins.files.files.pages[_FILE] = data


@pytest.fixture
def watch(standins: StandIns, ngc_base: NgcBase, tmp_path: Path) -> Watch:
    """A project of private things, with the three ways of signing in."""
    publish(standins)
    home = tmp_path / "home"
    home.mkdir()
    netrc = home / ".netrc"
    signed = standins.files
    netrc.write_text(f"machine {FILES_HOST} login {signed.user} password {signed.password}\n")
    netrc.chmod(0o600)
    work = tmp_path / "work"
    work.mkdir()
    (work / "private.yaml").write_text(_RECIPE)
    environ = {
        **os.environ,
        **standins.environ,
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "NETRC": str(netrc),
        "SPARK_BUILD_CACHE": str(work / "cache"),
        "UV_INDEX_TEAM_USERNAME": standins.index.user,
        "UV_INDEX_TEAM_PASSWORD": standins.index.password,
    }
    return Watch(folder=work, environ=environ)


def test_no_secret_comes_out(watch: Watch, standins: StandIns, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.mkdir()
    signed = base64.b64encode(f"{USER}:{standins.ngc.key}".encode()).decode()
    (docker / "config.json").write_text(json.dumps({"auths": {HOST: {"auth": signed}}}))
    recipe = watch.folder / "private.yaml"

    assert watch.run("lock", recipe) == 5  # the base is private, and nothing signs in there
    assert watch.run("lock", recipe, NGC_API_KEY=f"{standins.ngc.key}-wrong") == 5
    assert watch.run("lock", recipe, DOCKER_CONFIG=str(docker)) == 0
    lock = watch.folder / "pylock.private-gb10.toml"
    lock.unlink()
    with_key = {"NGC_API_KEY": standins.ngc.key}
    assert watch.run("lock", recipe, **with_key) == 0
    assert watch.run("build", recipe, "--json", **with_key) == 0
    assert watch.run("lock", recipe, "--check", **with_key) == 0
    assert watch.run("vendor", recipe, "--to", "kept", **with_key) == 0

    standins.files.files.statuses[_FILE] = 403
    for page in list(standins.index.files.pages):
        standins.index.files.statuses[page] = 403
    assert watch.run("lock", recipe, "--upgrade", **with_key) == 3
    assert watch.run("lock", recipe, "--check", **with_key) == 5
    assert watch.run("build", recipe, "--cache", "empty", **with_key) == 5

    secrets = spellings([standins.ngc.key, standins.index.password, standins.files.password])
    words = "\n".join(watch.said).encode()
    files = [path for path in watch.folder.rglob("*") if path.is_file()]
    assert [secret for secret in secrets if secret in words] == []
    assert [path for path in files if holds(path, secrets)] == []
    assert any(b"builder" in line and b"lock" in line for line in watch.arguments)
    assert [line for line in watch.arguments if holds_any(line, secrets)] == []


def test_each_host_gets_its_own(watch: Watch, standins: StandIns) -> None:
    begun = len(standins.server.requests)
    recipe = watch.folder / "private.yaml"
    assert watch.run("lock", recipe, NGC_API_KEY=standins.ngc.key) == 0
    sent = {
        (request.host, request.headers["authorization"])
        for request in standins.server.requests[begun:]
        if request.headers.get("authorization", "").startswith("Basic ")
    }
    key = base64.b64encode(f"{USER}:{standins.ngc.key}".encode()).decode()
    assert sent == {
        (HOST, f"Basic {key}"),
        (INDEX_HOST, standins.index.basic),
        (FILES_HOST, standins.files.basic),
    }


def holds(path: Path, secrets: Sequence[bytes]) -> bool:
    return holds_any(path.read_bytes(), secrets)


def holds_any(data: bytes, secrets: Sequence[bytes]) -> bool:
    return any(secret in data for secret in secrets)
