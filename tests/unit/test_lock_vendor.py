"""Vendoring: a folder or a registry holds all that locks name, and it comes back from there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from builder.context import Context
from builder.errors import ExternalError, UsageError
from builder.http import Http
from builder.lock.git import Git
from builder.lock.model import (
    DebianBase,
    Lock,
    LockedDeb,
    LockedFile,
    LockedGit,
    LockedWheel,
    RegistryBase,
)
from builder.lock.store import Store
from builder.lock.supply import Supply
from builder.lock.vendor import Vendored, bring, open_vendor, parse_place, vendor
from builder.oci.endpoint import UnknownImageError
from builder.oci.image import canonical_json, digest_hex, digest_of
from builder.oci.reference import Reference, parse_reference
from builder.oci.registry import Registry
from tests.builders import FileServer, demo_lock

WHEELS = {"a-1.0-py3-none-any.whl": b"wheel a" * 1000, "b-2.0%2Bcu130-py3-none-any.whl": b"b" * 99}
DEBS = {"libc6_2.41-12_arm64.deb": b"deb" * 500}
PLACE = parse_reference("registry.example/team/vendor:demo")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def url(name: str) -> str:
    return f"https://files.example/packages/{name}"


def wheel(name: str, version: str, filename: str) -> LockedWheel:
    data = WHEELS[filename]
    return LockedWheel(
        name=name, version=version, url=url(filename), sha256=sha256(data), size=len(data)
    )


def deb(filename: str) -> LockedDeb:
    name, version, _ = filename.split("_")
    data = DEBS[filename]
    return LockedDeb(
        name=name,
        version=version,
        architecture="arm64",
        url=url(filename),
        sha256=sha256(data),
        size=len(data),
    )


LOCK = demo_lock(
    wheel("a", "1.0", "a-1.0-py3-none-any.whl"),
    wheel("b", "2.0+cu130", "b-2.0%2Bcu130-py3-none-any.whl"),
    base=DebianBase(suite="trixie", debs=tuple(map(deb, DEBS))),
)


def server() -> FileServer:
    return FileServer(files={f"/packages/{name}": data for name, data in (WHEELS | DEBS).items()})


class MemoryRegistry(Registry):
    """One repository that is held in memory; a tag is its manifest's only name."""

    def __init__(self, http: Http) -> None:
        super().__init__(http, {})
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.pushed: list[str] = []

    def has_blob(self, reference: Reference, digest: str) -> bool:
        return digest in self.blobs

    def push_blob(self, reference: Reference, path: Path, digest: str, size: int) -> None:
        data = path.read_bytes()
        assert (digest_of(data), len(data)) == (digest, size)
        self.pushed.append(digest)
        self.blobs[digest] = data

    def push_manifest(self, reference: Reference, data: bytes, media_type: str) -> str:
        document = json.loads(data)
        assert document["mediaType"] == media_type
        for part in (document["config"], *document["layers"]):
            assert len(self.blobs[part["digest"]]) == part["size"]
        self.manifests[str(reference)] = data
        return digest_of(data)

    def get_manifest(self, reference: Reference) -> tuple[bytes, str]:
        try:
            data = self.manifests[str(reference)]
        except KeyError:
            raise UnknownImageError(f"{reference}: is not there") from None
        return data, json.loads(data)["mediaType"]

    def blob_url(self, reference: Reference, digest: str) -> str:
        return f"memory:{digest}"

    @contextmanager
    def stream(self, url: str, start: int = 0) -> Iterator[tuple[int, Iterator[bytes]]]:
        yield start, iter([self.blobs[url.removeprefix("memory:")][start:]])


@dataclass(kw_only=True)
class World:
    """The surroundings of one run: a cache, a server of files, a registry."""

    supply: Supply
    server: FileServer
    registry: MemoryRegistry

    def anew(self, cache: Path, *vendored: Path, files: FileServer | None = None) -> World:
        """Another host's run, with the same registry."""
        return world(cache, *vendored, files=files or server(), registry=self.registry)


def world(
    cache: Path,
    *vendored: Path,
    files: FileServer,
    registry: MemoryRegistry | None = None,
) -> World:
    http = Http({}, transport=httpx.MockTransport(files), sleep=lambda seconds: None)
    registry = registry or MemoryRegistry(http)
    supply = Supply(
        context=Context(environ={}, cache=cache),
        http=http,
        registry=registry,
        store=Store(cache, vendored),
    )
    return World(supply=supply, server=files, registry=registry)


@pytest.fixture
def here(tmp_path: Path) -> World:
    return world(tmp_path / "cache", files=server())


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def held(data: bytes) -> str:
    return f"files/{sha256(data)[:2]}/{sha256(data)}"


ALL = [*WHEELS.values(), *DEBS.values()]


def test_a_folder_holds_every_file_and_says_what_it_is(here: World, tmp_path: Path) -> None:
    folder = tmp_path / "vendor"
    done = vendor(LOCK, folder, supply=here.supply)
    size = sum(map(len, ALL))
    assert done == Vendored(files=3, size=size, new_files=3, new_size=size)
    assert done.summary == "3 files (8.6 kB), 3 of them new (8.6 kB)"
    found = contents(folder)
    index = json.loads(found.pop("vendor.json"))
    assert found == {held(data): data for data in ALL}
    assert index["format"] == 1
    assert [(item["kind"], item["name"], item["version"]) for item in index["files"]] == [
        ("deb", "libc6", "2.41-12"),
        ("wheel", "a", "1.0"),
        ("wheel", "b", "2.0+cu130"),
    ]
    assert index["files"][2] == {
        "kind": "wheel",
        "filename": "b-2.0+cu130-py3-none-any.whl",
        "sha256": LOCK.wheels[1].sha256,
        "size": 99,
        "name": "b",
        "version": "2.0+cu130",
    }


def test_a_build_finds_everything_there_without_the_network(here: World, tmp_path: Path) -> None:
    folder = tmp_path / "vendor"
    vendor(LOCK, folder, supply=here.supply)
    there = here.anew(tmp_path / "other", folder, files=FileServer(files={}))
    opened = open_vendor(folder, there.supply)
    assert opened.folder == folder
    assert bring(LOCK, opened, there.supply) == 0
    files = [*LOCK.wheels, *LOCK.base.debs] if isinstance(LOCK.base, DebianBase) else []
    assert (
        there.supply.store.fetch(files, there.supply.http, there.supply.context.progress, "") == 0
    )
    assert all(there.supply.store.get(file).is_relative_to(folder) for file in files)
    assert there.server.requests == []


def test_a_second_run_adds_nothing_and_needs_no_cache(here: World, tmp_path: Path) -> None:
    folder = tmp_path / "vendor"
    vendor(LOCK, folder, supply=here.supply)
    before = contents(folder)
    again = here.anew(tmp_path / "other", files=FileServer(files={}))
    done = vendor(LOCK, folder, supply=again.supply)
    assert (done.files, done.new_files, done.new_size) == (3, 0, 0)
    assert contents(folder) == before


def test_several_locks_share_a_folder_in_any_order(here: World, tmp_path: Path) -> None:
    one = replace(LOCK, wheels=LOCK.wheels[:1])
    two = replace(LOCK, wheels=LOCK.wheels[1:], base=DebianBase(suite="trixie", debs=()))
    for name, locks in {"x": (one, two), "y": (two, one)}.items():
        for lock in locks:
            vendor(lock, tmp_path / name, supply=here.supply)
    assert contents(tmp_path / "x") == contents(tmp_path / "y")
    assert len(json.loads((tmp_path / "x" / "vendor.json").read_text())["files"]) == 3


def test_a_run_that_was_cut_off_goes_on(here: World, tmp_path: Path) -> None:
    folder = tmp_path / "vendor"
    lost = here.anew(tmp_path / "other", files=FileServer(files={}))
    with pytest.raises(ExternalError, match="404"):
        vendor(LOCK, folder, supply=lost.supply)
    with pytest.raises(ExternalError, match="404"):
        vendor(LOCK, folder, supply=lost.supply)
    assert open_vendor(folder, here.supply).files == ()
    assert vendor(LOCK, folder, supply=here.supply).new_files == 3


def test_a_file_that_was_deleted_there_comes_again(here: World, tmp_path: Path) -> None:
    folder = tmp_path / "vendor"
    vendor(LOCK, folder, supply=here.supply)
    before = contents(folder)
    (folder / held(ALL[0])).unlink()
    assert vendor(LOCK, folder, supply=here.supply).new_files == 1
    assert contents(folder) == before


def test_what_is_not_a_vendor_folder_is_left_alone(here: World, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("words")
    with pytest.raises(UsageError, match="holds something else"):
        vendor(LOCK, folder, supply=here.supply)
    with pytest.raises(UsageError, match="is not a folder"):
        vendor(LOCK, folder / "thesis.txt", supply=here.supply)
    assert contents(folder) == {"thesis.txt": b"words"}
    assert here.server.requests == []
    with pytest.raises(UsageError, match="nothing is vendored there"):
        open_vendor(folder, here.supply)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 2, "files": []}', '{"format": 1, "files": [{"kind": "wheel"}]}']
)
def test_an_index_that_is_none_of_ours_is_refused(text: str, here: World, tmp_path: Path) -> None:
    (tmp_path / "vendor.json").write_text(text)
    for act in (
        lambda: open_vendor(tmp_path, here.supply),
        lambda: vendor(LOCK, tmp_path, supply=here.supply),
    ):
        with pytest.raises(UsageError, match=r"not a vendor\.json that this spark-build reads"):
            act()
    assert (tmp_path / "vendor.json").read_text() == text


def test_a_damaged_cache_does_not_get_into_a_folder(here: World, tmp_path: Path) -> None:
    store = here.supply.store
    store.fetch(list(LOCK.wheels), here.supply.http, here.supply.context.progress, "")
    damaged = store.get(LOCK.wheels[1])
    damaged.chmod(0o644)
    damaged.write_bytes(b"x" * 99)
    with pytest.raises(ExternalError, match="cannot be filled from the cache") as caught:
        vendor(LOCK, tmp_path / "vendor", supply=here.supply)
    assert str(damaged.name) in caught.value.message
    assert held(WHEELS["b-2.0%2Bcu130-py3-none-any.whl"]) not in contents(tmp_path / "vendor")


def test_a_registry_holds_the_same_as_one_artifact(here: World, tmp_path: Path) -> None:
    done = vendor(LOCK, PLACE, supply=here.supply)
    manifest = here.registry.manifests[str(PLACE)]
    assert done.digest == digest_of(manifest)
    assert done.summary.endswith(f", {done.digest}")
    document = json.loads(manifest)
    assert document["artifactType"] == "application/vnd.spark-build.vendor.v1"
    assert document["config"] == {
        "mediaType": "application/vnd.oci.empty.v1+json",
        "digest": digest_of(b"{}"),
        "size": 2,
        "data": "e30=",
    }
    vendor(LOCK, tmp_path / "folder", supply=here.supply)
    title = "org.opencontainers.image.title"
    pulled = {
        layer["annotations"][title]: here.registry.blobs[layer["digest"]]
        for layer in document["layers"]
    }
    assert pulled == contents(tmp_path / "folder")


def test_what_a_registry_has_is_not_sent_again(here: World, tmp_path: Path) -> None:
    one = replace(LOCK, wheels=LOCK.wheels[:1])
    first = vendor(one, PLACE, supply=here.supply)
    here.registry.pushed.clear()
    other = here.anew(tmp_path / "other")
    second = vendor(LOCK, PLACE, supply=other.supply)
    assert (first.new_files, second.new_files, second.new_size) == (2, 1, 99)
    document = json.loads(here.registry.manifests[str(PLACE)])
    assert sorted(here.registry.pushed) == sorted(
        [f"sha256:{LOCK.wheels[1].sha256}", document["layers"][0]["digest"]]
    )
    third = vendor(one, PLACE, supply=here.supply)
    assert third.digest == second.digest


def test_a_build_takes_everything_from_the_registry(here: World, tmp_path: Path) -> None:
    vendor(LOCK, PLACE, supply=here.supply)
    there = here.anew(tmp_path / "other", files=FileServer(files={}))
    opened = open_vendor(PLACE, there.supply)
    assert opened.folder is None
    assert bring(LOCK, opened, there.supply) == sum(map(len, ALL))
    assert there.supply.store.missing(LOCK.wheels) == ()
    assert bring(LOCK, opened, there.supply) == 0


def test_an_image_in_a_registry_is_not_taken_for_vendored_files(here: World) -> None:
    image = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": [{}]}
    here.registry.manifests[str(PLACE)] = canonical_json(image)
    for act in (
        lambda: open_vendor(PLACE, here.supply),
        lambda: vendor(LOCK, PLACE, supply=here.supply),
    ):
        with pytest.raises(UsageError, match="is not an artifact of vendored files"):
            act()
    assert here.registry.pushed == []


def test_nothing_is_pushed_to_a_digest(here: World) -> None:
    with pytest.raises(UsageError, match="to a digest"):
        vendor(LOCK, PLACE.with_digest(digest_of(b"")), supply=here.supply)


def based() -> tuple[Lock, dict[str, bytes]]:
    """A lock on a registry's image, and the image's blobs."""
    config, layer = b'{"os": "linux"}', b"layer" * 300
    parts = [{"digest": digest_of(data), "size": len(data)} for data in (config, layer)]
    manifest = canonical_json({"config": parts[0], "layers": parts[1:]})
    base = RegistryBase(
        image="registry.example/cuda:13.0",
        index=digest_of(b"index"),
        digest=digest_of(manifest),
        size=len(layer),
    )
    return replace(LOCK, base=base), {digest_of(data): data for data in (manifest, config, layer)}


@pytest.mark.parametrize("place", ["folder", PLACE])
def test_the_blobs_of_a_base_come_along_and_back(
    place: str | Reference, here: World, tmp_path: Path
) -> None:
    lock, blobs = based()
    here.registry.blobs.update(blobs)
    files = [
        LockedFile(url=f"memory:{digest}", sha256=digest_hex(digest), size=len(data))
        for digest, data in blobs.items()
    ]
    where = tmp_path / place if isinstance(place, str) else place
    done = vendor(lock, where, supply=here.supply, blobs=files)
    assert done.files == 5
    folders = [where] if isinstance(where, Path) else []
    there = here.anew(tmp_path / "other", *folders, files=FileServer(files={}))
    bring(lock, open_vendor(where, there.supply), there.supply)
    for digest, data in blobs.items():
        assert there.supply.store.read(digest_hex(digest)) == data


@pytest.mark.parametrize("place", ["folder", PLACE])
def test_a_commit_is_kept_as_a_bundle_and_made_once(
    place: str | Reference, here: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles = iter([b"first bundle", b"another pack of the same commit"])

    def write(client: Git, git: LockedGit, destination: Path) -> None:
        destination.write_bytes(next(bundles))

    monkeypatch.setattr(Git, "write_bundle", write)
    git = LockedGit(name="pkg", url="https://git.example/pkg", ref="main", commit="a" * 40)
    lock = replace(LOCK, gits=(git,))
    where = tmp_path / place if isinstance(place, str) else place
    assert vendor(lock, where, supply=here.supply).files == 4
    other = here.anew(tmp_path / "other")
    assert vendor(lock, where, supply=other.supply).new_files == 0
    vendored = open_vendor(where, here.supply)
    file = vendored.bundle("a" * 40)
    assert file is not None
    assert here.supply.store.get(file).read_bytes() == b"first bundle"
    assert vendored.bundle("b" * 40) is None
    if isinstance(where, Path):
        (where / held(b"first bundle")).unlink()
        assert vendor(lock, where, supply=other.supply).new_files == 1
        [kept] = [kept for kept in open_vendor(where, here.supply).files if kept.kind == "git"]
        assert kept.sha256 == sha256(b"another pack of the same commit")


@pytest.mark.parametrize("place", ["folder", PLACE])
def test_a_commit_comes_out_of_its_bundle_where_it_is_not_here_yet(
    place: str | Reference, here: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[bytes] = []

    def write(client: Git, git: LockedGit, destination: Path) -> None:
        destination.write_bytes(b"bundle")

    def read(client: Git, path: Path, git: LockedGit) -> Path:
        restored.append(path.read_bytes())
        return path

    monkeypatch.setattr(Git, "write_bundle", write)
    monkeypatch.setattr(Git, "read_bundle", read)
    git = LockedGit(name="pkg", url="https://git.example/pkg", ref="main", commit="a" * 40)
    lock = replace(LOCK, gits=(git,))
    where = tmp_path / place if isinstance(place, str) else place
    vendor(lock, where, supply=here.supply)
    folders = [where] if isinstance(where, Path) else []
    there = here.anew(tmp_path / "other", *folders, files=FileServer(files={}))
    bring(lock, open_vendor(where, there.supply), there.supply)
    assert restored == [b"bundle"]
    monkeypatch.setattr(Git, "fetch", lambda self, url, commit: tmp_path)
    bring(lock, open_vendor(where, there.supply), there.supply)
    assert restored == [b"bundle"]


def test_a_place_is_a_folder_or_a_name_in_a_registry() -> None:
    assert parse_place("oci://registry.example/team/vendor:demo") == PLACE
    assert parse_place("vendor/x") == Path("vendor/x")
    with pytest.raises(UsageError):
        parse_place("oci://Not A Name")


def test_what_is_no_place_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("old:folder").mkdir()
    for text in ("old:folder/x", "./127.0.0.1:5000/x"):
        assert parse_place(text) == Path(text)
    with pytest.raises(UsageError, match="has an empty name"):
        parse_place("")
    with pytest.raises(UsageError, match="file: is a file"):
        parse_place("file")
    with pytest.raises(UsageError, match="neither a folder") as caught:
        parse_place("127.0.0.1:5000/x:1")
    assert caught.value.hint is not None
    assert "oci://127.0.0.1:5000/x:1 " in caught.value.hint
    with pytest.raises(UsageError) as caught:
        parse_place("https://me:canary@registry.example/x")
    assert "canary" not in f"{caught.value.message}{caught.value.hint}"


def test_the_index_depends_on_the_files_only(here: World, tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    vendor(LOCK, places[0], supply=here.supply)
    backwards = replace(LOCK, wheels=LOCK.wheels[::-1])
    vendor(backwards, places[1], supply=here.supply)
    assert contents(places[0]) == contents(places[1])


def test_a_file_that_was_changed_there_is_not_taken_for_kept(here: World, tmp_path: Path) -> None:
    folder = tmp_path / "vendor"
    vendor(LOCK, folder, supply=here.supply)
    before, path = contents(folder), folder / held(ALL[0])
    path.chmod(0o644)
    path.write_bytes(b"X" * len(ALL[0]))
    with pytest.raises(ExternalError, match="not the file that it was") as caught:
        vendor(LOCK, folder, supply=here.supply)
    assert str(path) in caught.value.message
    path.unlink()
    assert vendor(LOCK, folder, supply=here.supply).new_files == 1
    assert contents(folder) == before


def test_an_index_that_is_a_pipe_is_not_waited_for(here: World, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "vendor.json")
    with pytest.raises(UsageError, match="is not a regular file"):
        open_vendor(tmp_path, here.supply)
