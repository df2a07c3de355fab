"""A base's torch held in place by the real uv, with real packages and an index of our own.

The versions on the index move; what is asserted is what must hold whatever they are.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from builder.context import Context
from builder.errors import LockError
from builder.http import Http
from builder.lock.acceptance import Resolution, resolve_on_base
from builder.lock.model import LockedWheel
from builder.lock.store import Store
from builder.lock.stubs import Stub
from builder.lock.wheels import KEEP, Request, Upgrade, pinned_files, resolve
from builder.recipe import Accept

pytestmark = [pytest.mark.real("index")]

TORCH = "2.10.0a0+b558c986e8.nv25.11"
BASE = (
    Stub(name="torch", version=TORCH, requires=("numpy", "sympy>=1.13.3"), pinned=True),
    Stub(name="triton", version="3.5.0+gitc817b9b6", pinned=True),
    Stub(name="mpmath", version="1.3.0", pinned=False),
    Stub(name="numpy", version="1.26.4", pinned=False),
    Stub(name="packaging", version="23.2", pinned=False),
    Stub(name="sympy", version="1.14.0", requires=("mpmath",), pinned=False),
)
REQUEST = Request(requirements=(), platform="linux/arm64", python="3.12", glibc="2.39")


def ask(
    context: Context,
    *requirements: str,
    accept: tuple[Accept, ...] = (),
    request: Request = REQUEST,
    earlier: tuple[LockedWheel, ...] = (),
    upgrade: Upgrade = KEEP,
) -> Resolution:
    with Http(context.environ) as http:
        return resolve_on_base(
            replace(request, requirements=requirements),
            BASE,
            accept,
            context=context,
            http=http,
            store=Store(context.cache),
            earlier=earlier,
            upgrade=upgrade,
        )


def versions(resolution: Resolution) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in resolution.wheels}


@pytest.mark.parametrize("package", ["accelerate", "torchmetrics"])
def test_a_package_that_the_bases_torch_satisfies_brings_no_torch(
    context: Context, package: str
) -> None:
    """Nor any other package that the base has and that will do."""
    found = ask(context, package)
    assert package in versions(found)
    assert versions(found).keys().isdisjoint({"torch", "triton", "numpy", "sympy", "mpmath"})
    assert all(wheel.url.startswith("https://") for wheel in found.wheels)
    assert not [name for name in versions(found) if name.startswith("nvidia-")]


def test_a_package_that_pins_another_torch_is_refused_with_what_to_write(context: Context) -> None:
    with pytest.raises(LockError, match=r"torch==2\.11\.0") as caught:
        ask(context, "torchvision==0.26.0")
    assert f"for torch the base has {TORCH}" in (caught.value.hint or "")
    assert "  - requires: torch==2.11.0\n    by: torchvision\n" in (caught.value.hint or "")


@pytest.mark.parametrize("prerelease", ["if-necessary", "disallow"])
def test_what_is_accepted_is_locked_without_torch(context: Context, prerelease: str) -> None:
    entry = Accept(requires="torch==2.11.0", by="torchvision", reason="Built here.")
    request = replace(REQUEST, settings={"prerelease": prerelease})
    found = ask(context, "torchvision==0.26.0", accept=(entry,), request=request)
    assert versions(found)["torchvision"] == "0.26.0"
    assert "torch" not in versions(found)
    assert found.accepted == (
        f"torchvision 0.26.0 requires torch==2.11.0; the base has {TORCH}: Built here.",
    )


def test_another_package_of_the_base_moves_only_where_it_must(context: Context) -> None:
    found = ask(context, "numpy>=2", "torchmetrics")
    assert int(versions(found)["numpy"].partition(".")[0]) >= 2
    assert versions(found).keys().isdisjoint({"torch", "sympy", "mpmath", "packaging"})
    again = ask(context, "torchmetrics", earlier=found.wheels)
    assert versions(again)["numpy"] == versions(found)["numpy"]
    fresh = ask(context, "torchmetrics", earlier=found.wheels, upgrade=Upgrade(every=True))
    assert "numpy" not in versions(fresh)
    moved = ask(context, "torchmetrics", upgrade=Upgrade(packages=("numpy",)))
    assert "numpy" in versions(moved)


def test_the_bases_word_goes_before_the_indexs_for_the_same_version(context: Context) -> None:
    """The index's numpy 2.1.0 has wheels of the best platform tag, and requires nothing."""
    base = Stub(name="numpy", version="2.1.0", requires=("six",), pinned=False)
    request = replace(REQUEST, requirements=("numpy==2.1.0",), stubs=(base,))
    with Http(context.environ) as http:
        found = resolve(request, context=context, http=http)
    assert [wheel.name for wheel in found] == ["six"]


def test_the_moment_that_a_recipe_stops_at_does_not_hide_the_base(context: Context) -> None:
    request = replace(REQUEST, settings={"exclude-newer": "2026-06-01T00:00:00Z"})
    assert "torch" not in versions(ask(context, "torchmetrics", request=request))


@dataclass
class Index:
    """A package index on loopback (PEP 691) of `demo`.

    `versions` has what each requires, `yanked` the reasons by version.
    """

    versions: Mapping[str, str]
    yanked: Mapping[str, str | bool] = field(default_factory=dict)

    def file(self, version: str) -> bytes:
        out = io.BytesIO()
        info = f"demo-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n"
        metadata += f"Requires-Dist: {self.versions[version]}\n"
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr(zipfile.ZipInfo(f"{info}/METADATA"), metadata)
            archive.writestr(zipfile.ZipInfo(f"{info}/WHEEL"), "Wheel-Version: 1.0\n")
        return out.getvalue()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        if path == "/simple/demo/":
            page = {"meta": {"api-version": "1.1"}, "name": "demo", "files": list(self._files())}
            return 200, "application/vnd.pypi.simple.v1+json", json.dumps(page).encode()
        if path.startswith("/files/demo-"):
            return 200, "application/octet-stream", self.file(path.split("-")[1])
        return 404, "text/plain", b""

    def _files(self) -> Iterator[dict[str, object]]:
        for version in self.versions:
            name = f"demo-{version}-py3-none-any.whl"
            digest = hashlib.sha256(self.file(version)).hexdigest()
            yield {
                "filename": name,
                "url": f"/files/{name}",
                "hashes": {"sha256": digest},
                "yanked": self.yanked.get(version, False),
            }


@contextmanager
def serve(served: Index) -> Iterator[str]:
    """Yield the URL of the index."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            status, kind, data = served.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


PINS = Index(
    versions={"1.0": "gone", "1.1": "gone", "1.2": "gone"},
    yanked={"1.1": "broken on arm64", "1.2": True},
)


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    with serve(PINS) as url:
        yield url


MET = ("", ">=2.8", ">2.9", "~=2.9", "==2.10.*", "<2.11,>=2.8", "<=2.10.0", ">=2.10.0a0", "!=2.9.0")
UNMET = (">=2.10", "==2.10.0", "~=2.10.0", "<2.10", "==2.9.1", ">2.10.0a0")
"""Which requirements an installed torch of that version meets, as pip and uv judge it."""

TABLE = {f"{number}.0": f"torch{text}" for number, text in enumerate((*MET, *UNMET))}


@pytest.fixture(scope="module")
def table() -> Iterator[str]:
    """Where an index is whose `demo` requires another line of the table in each version."""
    with serve(Index(TABLE)) as url:
        yield url


def asking(context: Context, index: str) -> Context:
    """A run with this index, and nothing kept of others that had its address."""
    own = {"UV_DEFAULT_INDEX": index, "UV_CACHE_DIR": str(context.cache / "uv")}
    return replace(context, environ={**os.environ, **own})


def ask_table(context: Context, table: str, version: str) -> Resolution:
    own = asking(context, table)
    with Http(own.environ) as http:
        return resolve_on_base(
            replace(REQUEST, requirements=(f"demo=={version}",)),
            [Stub(name="torch", version=TORCH, pinned=True)],
            (),
            context=own,
            http=http,
            store=Store(own.cache),
        )


@pytest.mark.parametrize("version", list(TABLE)[: len(MET)])
def test_what_the_bases_torch_meets_is_locked_without_it(
    context: Context, table: str, version: str
) -> None:
    assert versions(ask_table(context, table, version)) == {"demo": version}


@pytest.mark.parametrize("version", list(TABLE)[len(MET) :])
def test_what_the_bases_torch_does_not_meet_is_refused(
    context: Context, table: str, version: str
) -> None:
    with pytest.raises(LockError) as caught:
        ask_table(context, table, version)
    line = f"  - requires: {TABLE[version]}\n    by: demo\n"
    assert line in (caught.value.hint or "")


def test_pins_are_looked_up_as_the_index_serves_them_now(context: Context, index: str) -> None:
    own = asking(context, index)
    pins = [("demo", "1.0"), ("absent", "1.0"), ("demo", "9.9")]
    first, absent, newer = pinned_files(pins, REQUEST, context=own)
    [wheel] = first.wheels
    assert wheel.filename == "demo-1.0-py3-none-any.whl"
    assert wheel.sha256 == hashlib.sha256(PINS.file("1.0")).hexdigest()
    assert (first.yanked, first.missing) == (None, None)
    assert "absent" in (absent.missing or "")
    assert "demo==9.9" in (newer.missing or "")


@pytest.mark.parametrize(("version", "reason"), [("1.1", "broken on arm64"), ("1.2", "")])
def test_a_yanked_version_is_served_and_told(
    context: Context, index: str, version: str, reason: str
) -> None:
    own = asking(context, index)
    [found] = pinned_files([("demo", version)], REQUEST, context=own)
    assert found.yanked == reason
    assert len(found.wheels) == 1
    assert found.missing is None
