"""The store: every file whole, by its hash and once, whatever the server and other runs do."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder.errors import ExternalError, OfflineError, UsageError
from builder.http import Http
from builder.lock import store
from builder.lock.model import LockedFile
from builder.lock.store import Store, _locked
from builder.oci.image import digest_of_file
from builder.progress import Progress
from tests.builders import FAR_URL, FileServer

DATA = bytes(range(256)) * 200
SHA256 = hashlib.sha256(DATA).hexdigest()
FILE = LockedFile(url=f"{FAR_URL}/x-1.0-py3-none-any.whl", sha256=SHA256, size=len(DATA))
PATH = "/packages/x-1.0-py3-none-any.whl"
Handler = Callable[[httpx.Request], httpx.Response]


class Counting(Progress):
    """Counts what is announced and what is done."""

    def __init__(self) -> None:
        self.total = 0
        self.done = 0

    @contextmanager
    def task(self, label: str, total_bytes: int) -> Iterator[Counting]:
        self.total += total_bytes
        yield self

    def __call__(self, size_bytes: int) -> None:
        self.done += size_bytes


def serving(data: bytes = DATA, **settings: Any) -> FileServer:
    return FileServer(files={PATH: data}, **settings)


def http_of(server: Handler, *, offline: bool = False) -> Http:
    return Http(
        {}, offline=offline, transport=httpx.MockTransport(server), sleep=lambda seconds: None
    )


def fetch(cache: Path, server: Handler, *files: LockedFile) -> int:
    counting = Counting()
    with http_of(server) as http:
        received = Store(cache).fetch(files or (FILE,), http, counting, "fetch")
    assert counting.done == counting.total
    return received


def refusal(cache: Path, server: Handler, file: LockedFile = FILE) -> ExternalError:
    with pytest.raises(ExternalError) as caught:
        fetch(cache, server, file)
    return caught.value


def stored(cache: Path) -> dict[str, bytes]:
    """Every file below the store, parts too."""
    files = [path for path in (cache / "files").rglob("*") if path.is_file()]
    return {str(path.relative_to(cache / "files")): path.read_bytes() for path in files}


WHOLE = {f"{SHA256[:2]}/{SHA256}": DATA}
PART = f"{SHA256[:2]}/{SHA256}.part"


def leave_part(cache: Path, data: bytes) -> None:
    part = cache / "files" / PART
    part.parent.mkdir(parents=True)
    part.write_bytes(data)


def vendored(folder: Path, data: bytes = DATA) -> Path:
    """A vendor folder with `data` in the place of FILE."""
    path = folder / "files" / SHA256[:2] / SHA256
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def ranges(server: FileServer) -> list[str | None]:
    return [request.headers.get("range") for request in server.requests]


def test_a_file_is_fetched_once_and_is_read_only(tmp_path: Path) -> None:
    server = serving()
    store = Store(tmp_path)
    assert store.find(FILE) is None
    assert store.missing([FILE, FILE]) == (FILE,)
    assert fetch(tmp_path, server) == len(DATA)
    assert stored(tmp_path) == WHOLE
    assert store.get(FILE).stat().st_mode & 0o777 == 0o444
    assert fetch(tmp_path, server) == 0
    assert len(server.requests) == 1
    assert store.missing([FILE]) == ()


def test_a_file_named_twice_is_fetched_once(tmp_path: Path) -> None:
    server = serving()
    assert fetch(tmp_path, server, FILE, replace(FILE), FILE) == len(DATA)
    assert len(server.requests) == 1


def test_many_files_come_together(tmp_path: Path) -> None:
    contents = {f"/packages/{number}.whl": bytes([number]) * number * 100 for number in range(20)}
    files = [
        LockedFile(
            url=f"https://files.example{path}",
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
        )
        for path, data in contents.items()
    ]
    received = fetch(tmp_path, FileServer(files=contents), *files)
    assert received == sum(map(len, contents.values()))
    assert {Store(tmp_path).get(file).read_bytes() for file in files} == set(contents.values())


def test_an_escaped_name_is_asked_for_as_it_stands(tmp_path: Path) -> None:
    path = "/packages/torch-2.9.0%2Bcu130-x.whl"
    server = FileServer(files={path: DATA})
    file = replace(FILE, url=f"https://files.example{path}")
    assert fetch(tmp_path, server, file) == len(DATA)
    assert server.requests[0].url.raw_path.decode() == path


def test_a_break_is_resumed_where_it_was(tmp_path: Path) -> None:
    server = serving(breaks=[20_000, 7_000, None])
    assert fetch(tmp_path, server) == len(DATA)
    assert stored(tmp_path) == WHOLE
    assert ranges(server) == [None, "bytes=20000-", "bytes=27000-"]


def test_a_break_on_a_server_without_ranges_starts_over_and_loses_nothing(tmp_path: Path) -> None:
    server = serving(ranges=False, breaks=[20_000, 30_500, None])
    assert fetch(tmp_path, server) == 20_000 + 30_500 + len(DATA)
    assert stored(tmp_path) == WHOLE


def test_what_breaks_off_again_and_again_leaves_its_part_for_the_next_run(tmp_path: Path) -> None:
    server = serving(breaks=[1000, 1000, 1000])
    assert "connection reset" in refusal(tmp_path, server).message
    assert stored(tmp_path) == {PART: DATA[:3000]}
    server = serving()
    assert fetch(tmp_path, server) == len(DATA) - 3000
    assert ranges(server) == ["bytes=3000-"]
    assert stored(tmp_path) == WHOLE


def test_breaks_do_not_count_where_much_comes_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_PROGRESS_BYTES", 5000)
    server = serving(breaks=[1000, 6000, 1000, 6000, 1000, None])
    assert fetch(tmp_path, server) == len(DATA)
    assert stored(tmp_path) == WHOLE


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_the_part_of_a_killed_run_is_resumed(tmp_path: Path) -> None:
    """A child of ours is killed while it fetches; its lock goes with it."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:

            def body() -> Iterator[bytes]:
                yield DATA[:30_000]
                os.write(writes, b"x")  # what came before is written by now
                signal.pause()

            fetch(tmp_path, lambda request: httpx.Response(200, content=body()))
        finally:
            os._exit(1)
    os.close(writes)
    assert os.read(reads, 1) == b"x"
    os.close(reads)
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    [(name, part)] = stored(tmp_path).items()
    assert (name, part) == (PART, DATA[:30_000])
    server = serving()
    assert fetch(tmp_path, server) == len(DATA) - len(part)
    assert stored(tmp_path) == WHOLE


def test_a_whole_part_needs_no_request(tmp_path: Path) -> None:
    leave_part(tmp_path, DATA)
    server = serving()
    assert fetch(tmp_path, server) == 0
    assert server.requests == []
    assert stored(tmp_path) == WHOLE


@pytest.mark.parametrize("part", [b"x" * 100, DATA + b"more", b"x" * len(DATA)])
def test_a_part_of_something_else_is_thrown_away_once(tmp_path: Path, part: bytes) -> None:
    leave_part(tmp_path, part)
    server = serving()
    fetch(tmp_path, server)
    assert stored(tmp_path) == WHOLE
    assert ranges(server)[-1] is None


def test_another_file_than_the_locked_one_is_refused_after_one_fresh_start(tmp_path: Path) -> None:
    other = b"x" * len(DATA)
    server = serving(other)
    error = refusal(tmp_path, server)
    assert hashlib.sha256(other).hexdigest() in error.message
    assert SHA256 in error.message
    assert "--upgrade" in (error.hint or "")
    assert len(server.requests) == 2
    assert stored(tmp_path) == {}


def test_a_larger_file_is_refused_at_once(tmp_path: Path) -> None:
    server = serving(DATA + b"more")
    error = refusal(tmp_path, server)
    assert f"larger than the {len(DATA)} bytes locked" in error.message
    assert len(server.requests) == 1
    assert stored(tmp_path) == {}


def test_a_smaller_file_is_refused(tmp_path: Path) -> None:
    server = serving(DATA[:-1])
    error = refusal(tmp_path, server)
    assert "416" in error.message
    assert ranges(server) == [None, *[f"bytes={len(DATA) - 1}-"] * 2]
    server = serving(DATA[:-1], ranges=False)
    assert "ended after 51199 of 51200 bytes" in refusal(tmp_path, server).message


def test_a_range_from_further_on_is_refused(tmp_path: Path) -> None:
    leave_part(tmp_path, DATA[:100])

    def later(request: httpx.Request) -> httpx.Response:
        headers = {"Content-Range": f"bytes 200-{len(DATA) - 1}/{len(DATA)}"}
        return httpx.Response(206, headers=headers, content=DATA[200:])

    error = refusal(tmp_path, later)
    assert "sent from byte 200, not from 100" in error.message
    assert stored(tmp_path) == {PART: DATA[:100]}


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    server = serving(statuses=[503, 429])
    assert fetch(tmp_path, server) == len(DATA)
    assert len(server.requests) == 3


def test_the_files_that_came_before_stay(tmp_path: Path) -> None:
    fetch(tmp_path, serving())
    lost = LockedFile(url=f"{FAR_URL}/lost.whl", sha256="0" * 64, size=5)
    assert "404" in refusal(tmp_path, serving(), lost).message
    assert Store(tmp_path).get(FILE).read_bytes() == DATA


def test_offline_is_told_and_what_is_here_needs_no_network(tmp_path: Path) -> None:
    server = serving()
    with http_of(server, offline=True) as http, pytest.raises(OfflineError):
        Store(tmp_path).fetch([FILE], http, Progress(), "fetch")
    fetch(tmp_path, server)
    with http_of(server, offline=True) as http:
        assert Store(tmp_path).fetch([FILE], http, Progress(), "fetch") == 0


def test_a_file_that_was_cut_off_on_disk_is_fetched_again(tmp_path: Path) -> None:
    fetch(tmp_path, serving())
    path = Store(tmp_path).get(FILE)
    path.chmod(0o644)
    path.write_bytes(DATA[:10])
    assert Store(tmp_path).find(FILE) is None
    with pytest.raises(ExternalError, match="not in the cache any more"):
        Store(tmp_path).get(FILE)
    assert fetch(tmp_path, serving()) == len(DATA)
    assert stored(tmp_path) == WHOLE


def test_two_runs_that_want_the_same_file_fetch_it_once(tmp_path: Path) -> None:
    server = serving()
    with ThreadPoolExecutor(8) as pool:
        received = list(pool.map(lambda _: fetch(tmp_path, server), range(8)))
    assert sorted(received) == [0] * 7 + [len(DATA)]
    assert len(server.requests) == 1
    assert stored(tmp_path) == WHOLE


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_two_processes_that_want_the_same_file_leave_one_whole_file(tmp_path: Path) -> None:
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                fetch(tmp_path, serving())
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert stored(tmp_path) == WHOLE


def test_whoever_waits_for_a_part_that_is_taken_away_makes_one_of_his_own(tmp_path: Path) -> None:
    part = tmp_path / "x.part"
    waiting = threading.Event()

    def wait_for_it() -> bool:
        waiting.set()
        with _locked(part) as handle:
            return part.exists() and os.path.samestat(os.fstat(handle.fileno()), part.stat())

    with ThreadPoolExecutor(1) as pool, _locked(part):
        own = pool.submit(wait_for_it)
        waiting.wait(60)
        time.sleep(0.05)  # it has opened the part by now, or does so later and must cope too
        part.unlink()
    assert own.result(60)


def test_the_message_of_a_failure_holds_no_secret(tmp_path: Path) -> None:
    file = replace(FILE, url=f"{FAR_URL}/x-1.0-py3-none-any.whl?token=hush")
    data = b"x" * len(DATA)
    server = FileServer(files={f"{PATH}?token=hush": data})
    assert "hush" not in refusal(tmp_path, server, file).message


@pytest.mark.parametrize("sha256", ["../../evil", "", SHA256.upper(), SHA256 + "\n", "a/" * 32])
def test_a_hash_that_is_none_never_becomes_a_path(tmp_path: Path, sha256: str) -> None:
    with pytest.raises(UsageError, match="no sha256"):
        fetch(tmp_path, serving(), replace(FILE, sha256=sha256))
    assert not list(tmp_path.iterdir())


def test_a_vendored_file_is_used_where_it_lies(tmp_path: Path) -> None:
    path = vendored(tmp_path / "vendor")
    store = Store(tmp_path / "cache", [tmp_path / "absent", tmp_path / "vendor"])
    server = serving()
    with http_of(server) as http:
        assert store.fetch([FILE], http, Progress(), "fetch") == 0
    assert store.get(FILE) == path
    assert server.requests == []
    assert stored(tmp_path / "cache") == {}


def test_what_was_fetched_goes_before_what_is_vendored(tmp_path: Path) -> None:
    fetch(tmp_path / "cache", serving())
    vendored(tmp_path / "vendor", b"damaged")
    found = Store(tmp_path / "cache", [tmp_path / "vendor"]).get(FILE)
    assert found == tmp_path / "cache" / "files" / SHA256[:2] / SHA256


@pytest.mark.parametrize("data", [DATA[:-1], b"x" * len(DATA), b""])
def test_a_vendored_file_that_is_another_stops_the_run(tmp_path: Path, data: bytes) -> None:
    path = vendored(tmp_path / "vendor", data)
    store = Store(tmp_path / "cache", [tmp_path / "vendor"])
    server = serving()
    with http_of(server) as http, pytest.raises(ExternalError) as caught:
        store.fetch([FILE], http, Progress(), "fetch")
    assert str(path) in caught.value.message
    assert FILE.filename in caught.value.message
    assert server.requests == []


def test_a_vendored_file_is_hashed_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = vendored(tmp_path / "vendor")
    hashed: list[Path] = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return digest_of_file(path)

    monkeypatch.setattr("builder.oci.blobs.digest_of_file", counted)
    for _ in range(2):
        assert Store(tmp_path / "cache", [tmp_path / "vendor"]).find(FILE) == path
    assert hashed == [path]
    path.write_bytes(b"x" * len(DATA))
    with pytest.raises(ExternalError, match="not the file that it was"):
        Store(tmp_path / "cache", [tmp_path / "vendor"]).find(FILE)


def test_what_is_put_is_read_by_its_hash(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", [tmp_path / "vendor"])
    assert store.read(SHA256) is None
    assert store.put(DATA) == SHA256
    assert store.put(DATA) == SHA256
    assert store.read(SHA256) == DATA
    assert stored(tmp_path / "cache") == WHOLE
    assert store.get(FILE).stat().st_mode & 0o777 == 0o444


def test_a_file_is_taken_in_under_its_hash(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.write_bytes(DATA)
    store = Store(tmp_path / "cache")
    assert store.take(made) == LockedFile(url="", sha256=SHA256, size=len(DATA))
    assert stored(tmp_path / "cache") == WHOLE
    assert not made.exists()


def test_what_is_read_has_its_hash(tmp_path: Path) -> None:
    path = vendored(tmp_path / "vendor")
    store = Store(tmp_path / "cache", [tmp_path / "vendor"])
    assert store.read(SHA256) == DATA
    path.write_bytes(b"x")
    with pytest.raises(ExternalError, match="not the file that it was"):
        store.read(SHA256)
    cached = vendored(tmp_path / "cache", b"x")
    assert Store(tmp_path / "cache").read(SHA256) is None
    assert Store(tmp_path / "cache").put(DATA) == SHA256
    assert cached.read_bytes() == DATA
    with pytest.raises(UsageError, match="no sha256"):
        store.read("../../etc/passwd")
