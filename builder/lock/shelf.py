"""The two places that files are vendored in, a folder and a registry, and their index.

A vendor folder holds `vendor.json`, which says what each file is, and the files where a `Store`
looks for them, `files/<first two hex digits>/<sha256>`. In a registry the same is one OCI artifact
(image-spec, `manifest.md`, "Guidelines for Artifact Usage") whose layers are these files, titled
with their paths: pulled by any OCI client that knows titles, it is such a folder again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from builder.errors import ExternalError, UsageError
from builder.lock.model import SHA256, LockedFile
from builder.lock.store import Store, damaged
from builder.lock.supply import Supply
from builder.oci.blobs import BlobCache
from builder.oci.endpoint import UnknownImageError
from builder.oci.image import MANIFEST, canonical_json, digest_hex, digest_of
from builder.oci.reference import Reference
from builder.pool import threads
from builder.progress import Advance
from builder.scratch import write_whole

ARTIFACT = "application/vnd.spark-build.vendor.v1"
"""The artifact's type; that of its layer `vendor.json` has `+json` after it."""

INDEX = "vendor.json"
"""The file by which a vendor folder is known, and that says what is in it."""

_FORMAT = 1
_FILE_TYPE = "application/octet-stream"
_EMPTY = b"{}"  # image-spec, manifest.md, "Guidance for an Empty Descriptor"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_TITLE = "org.opencontainers.image.title"
_JOBS = 4
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One vendored file: a wheel, a .deb, a blob of a base image, or a git bundle.

    `size` is in bytes; a bundle holds what a repository has at `commit`.
    """

    kind: Literal["blob", "deb", "git", "wheel"]
    filename: str
    sha256: Annotated[str, StringConstraints(pattern=rf"^{SHA256.pattern}$")]
    size: Annotated[int, Field(ge=0)]
    name: str | None = None
    version: str | None = None
    commit: str | None = None

    @property
    def file(self) -> LockedFile:
        """The file as a `Store` finds it; where it came from is not known any more."""
        return LockedFile(url="", sha256=self.sha256, size=self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    format: Literal[1]
    files: tuple[Kept, ...]


_INDEX_JSON = TypeAdapter(_Index)


class Shelf(Protocol):
    """A place that holds files by hash."""

    def index(self) -> tuple[Kept, ...] | None:
        """What is said to be there; None where nothing was ever vendored."""

    def claim(self) -> None:
        """Make the place ours; UsageError where it cannot be or is somebody else's."""

    def missing(self, files: Sequence[LockedFile]) -> tuple[LockedFile, ...]:
        """Those of the files that are not there, each once."""

    def add(self, files: Sequence[LockedFile]) -> None:
        """Take files out of the supply's store in; each appears whole or not at all."""

    def finish(self, kept: Sequence[Kept]) -> str | None:
        """Say what is there now, beside what was; the artifact's digest where it has one."""


def shelf_at(place: Path | Reference, supply: Supply) -> Shelf:
    """The folder or the artifact at `place`."""
    return _Folder(place, supply) if isinstance(place, Path) else _Artifact(place, supply)


def _index_text(earlier: Sequence[Kept], kept: Sequence[Kept]) -> bytes:
    """`vendor.json`: the same files always give the same bytes. A commit has one bundle."""
    commits = {item.commit for item in kept if item.commit is not None}
    files = [*(item for item in earlier if item.commit not in commits), *kept]
    entries = [
        {key: value for key, value in asdict(item).items() if value is not None}
        for item in sorted(set(files), key=lambda item: (item.kind, item.filename, item.sha256))
    ]
    text = json.dumps({"format": _FORMAT, "files": entries}, indent=2, ensure_ascii=False)
    return f"{text}\n".encode()


def _parse_index(data: bytes, shown: str) -> tuple[Kept, ...]:
    try:
        return _INDEX_JSON.validate_json(data).files
    except ValidationError:
        raise UsageError(
            f"{shown}: not a {INDEX} that this spark-build reads",
            hint="take the spark-build that wrote it, or vendor into another place",
        ) from None


class _Folder:
    def __init__(self, folder: Path, supply: Supply) -> None:
        self._folder, self._supply = folder, supply
        self._files = Store(folder)
        self._blobs = BlobCache(supply.context.cache)

    def index(self) -> tuple[Kept, ...] | None:
        path = self._folder / INDEX
        if path.exists() and not path.is_file():  # a pipe would keep us waiting
            raise UsageError(f"{path}: is not a regular file")
        try:
            return _parse_index(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None

    def claim(self) -> None:
        """The index comes first: by it a run that was cut off is known again."""
        folder = self._folder
        if os.path.lexists(folder) and not folder.is_dir():
            raise UsageError(f"{folder}: is not a folder", hint="name a folder")
        if (folder / INDEX).exists():
            return
        if folder.is_dir() and any(folder.iterdir()):
            raise UsageError(
                f"{folder}: holds something else than vendored files",
                hint="name an empty folder, a new one, or one that `vendor` made",
            )
        write_whole(folder / INDEX, _index_text((), ()), self._supply.context.cache)

    def missing(self, files: Sequence[LockedFile]) -> tuple[LockedFile, ...]:
        """ExternalError where another file lies in the place of one: others may write here too."""
        lost = self._files.missing(files)
        with threads(_JOBS) as pool:
            for task in [pool.submit(self._check, file) for file in {*files} - {*lost}]:
                task.result()
        return lost

    def _check(self, file: LockedFile) -> None:
        path = self._files.get(file)
        if not self._blobs.holds(path, f"sha256:{file.sha256}", file.size):
            raise damaged(path, file)

    def add(self, files: Sequence[LockedFile]) -> None:
        source = _Local({file.sha256: self._supply.store.get(file) for file in files})
        named = [LockedFile(url=file.sha256, sha256=file.sha256, size=file.size) for file in files]
        try:
            self._files.fetch(named, source, self._supply.context.progress, "vendor")
        except ExternalError as error:
            raise ExternalError(
                f"{self._folder}: cannot be filled from the cache: {error.message}",
                hint="a file of the cache is damaged; delete it, and run the same command again",
            ) from None

    def finish(self, kept: Sequence[Kept]) -> str | None:
        with _locked(self._folder):
            text = _index_text(self.index() or (), kept)
            write_whole(self._folder / INDEX, text, self._supply.context.cache)
        return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class _Local:
    """Files of this host as a source, by their sha256 in place of a URL."""

    def __init__(self, paths: dict[str, Path]) -> None:
        self._paths = paths

    @contextmanager
    def stream(self, url: str, start: int = 0) -> Iterator[tuple[int, Iterator[bytes]]]:
        with self._paths[url].open("rb") as file:
            file.seek(start)
            yield start, iter(partial(file.read, _READ_BYTES), b"")


class _Artifact:
    def __init__(self, reference: Reference, supply: Supply) -> None:
        self._reference, self._supply = reference, supply

    def index(self) -> tuple[Kept, ...] | None:
        try:
            manifest, _ = self._supply.registry.get_manifest(self._reference)
        except UnknownImageError:
            return None
        try:
            file = self._index_file(json.loads(manifest))
        except (ValueError, LookupError, TypeError):
            raise UsageError(
                f"oci://{self._reference}: is not an artifact of vendored files",
                hint="name another tag",
            ) from None
        supply = self._supply
        supply.store.fetch([file], supply.registry, supply.context.progress, "index")
        return _parse_index(supply.store.get(file).read_bytes(), f"oci://{self._reference}")

    def _index_file(self, manifest: Any) -> LockedFile:
        layer = manifest["layers"][0]
        if manifest["artifactType"] != ARTIFACT or layer["annotations"][_TITLE] != INDEX:
            raise ValueError("another kind of artifact")
        return LockedFile(
            url=self._supply.registry.blob_url(self._reference, layer["digest"]),
            sha256=digest_hex(layer["digest"]),
            size=int(layer["size"]),
        )

    def claim(self) -> None:
        if self._reference.digest is not None:
            raise UsageError(
                f"oci://{self._reference}: nothing can be pushed to a digest", hint="name a tag"
            )

    def missing(self, files: Sequence[LockedFile]) -> tuple[LockedFile, ...]:
        once = {file.sha256: file for file in files}.values()
        with threads(_JOBS) as pool:
            there = pool.map(self._has, once)
            return tuple(file for file, has in zip(once, there, strict=True) if not has)

    def add(self, files: Sequence[LockedFile]) -> None:
        size = sum(file.size for file in files)
        with self._supply.context.progress.task("push", size) as advance, threads(_JOBS) as pool:
            for task in [pool.submit(self._push, file, advance) for file in files]:
                task.result()

    def finish(self, kept: Sequence[Kept]) -> str | None:
        store = self._supply.store
        text = _index_text(self.index() or (), kept)
        index = LockedFile(url="", sha256=store.put(text), size=len(text))
        empty = LockedFile(url="", sha256=store.put(_EMPTY), size=len(_EMPTY))
        self.add(self.missing([index, empty]))
        files = _parse_index(text, str(self._reference))
        manifest = canonical_json(_manifest(index, files))
        return self._supply.registry.push_manifest(self._reference, manifest, MANIFEST)

    def _has(self, file: LockedFile) -> bool:
        return self._supply.registry.has_blob(self._reference, f"sha256:{file.sha256}")

    def _push(self, file: LockedFile, advance: Advance) -> None:
        path = self._supply.store.get(file)
        digest = f"sha256:{file.sha256}"
        self._supply.registry.push_blob(self._reference, path, digest, file.size)
        advance(file.size)


def _manifest(index: LockedFile, files: Iterable[Kept]) -> dict[str, Any]:
    sizes = {item.sha256: item.size for item in files}
    empty = {"mediaType": _EMPTY_TYPE, "digest": digest_of(_EMPTY), "size": len(_EMPTY)}
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": {**empty, "data": "e30="},
        "layers": [
            _layer(f"{ARTIFACT}+json", index.sha256, index.size, INDEX),
            *(
                _layer(_FILE_TYPE, sha256, size, f"files/{sha256[:2]}/{sha256}")
                for sha256, size in sorted(sizes.items())
            ),
        ],
    }


def _layer(media_type: str, sha256: str, size: int, title: str) -> dict[str, Any]:
    return {
        "mediaType": media_type,
        "digest": f"sha256:{sha256}",
        "size": size,
        "annotations": {_TITLE: title},
    }
