"""What several tests build: wheels with a true RECORD, layers, OCI layouts, servers."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from builder.lock.model import Lock, LockedWheel, OciBase
from builder.oci.image import LAYER_GZIP, Image, LayerBlob, digest_of, write_layout
from builder.oci.layer import LayerWriter

FAR_URL = "https://files.example/packages"


def record_hash(data: bytes) -> str:
    """A hash as RECORD states it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


@dataclass(frozen=True, kw_only=True)
class WheelText:
    """A wheel to be: `files` by name, `modes` where not 0644; RECORD is made, and made true."""

    name: str = "demo"
    version: str = "1.0"
    requires: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    entry_points: str | None = None
    method: int = zipfile.ZIP_DEFLATED
    record: str | None = None

    @property
    def stem(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def filename(self) -> str:
        return f"{self.stem}-py3-none-any.whl"

    def members(self) -> dict[str, bytes]:
        info = f"{self.stem}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n"
        metadata += "".join(f"Requires-Dist: {text}\n" for text in self.requires)
        wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        members = dict(self.files)
        members[f"{info}/METADATA"] = metadata.encode()
        members[f"{info}/WHEEL"] = wheel.encode()
        if self.entry_points is not None:
            members[f"{info}/entry_points.txt"] = self.entry_points.encode()
        members[f"{info}/RECORD"] = self._record(members, info).encode()
        return members

    def _record(self, members: Mapping[str, bytes], info: str) -> str:
        if self.record is not None:
            return self.record
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerows((name, record_hash(data), len(data)) for name, data in members.items())
        rows.writerow((f"{info}/RECORD", "", ""))
        return text.getvalue()

    def zipped(self) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name, data in self.members().items():
                member = zipfile.ZipInfo(name)
                member.compress_type = self.method
                member.external_attr = (0o100000 | self.modes.get(name, 0o644)) << 16
                archive.writestr(member, data)
        return out.getvalue()

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.filename
        path.write_bytes(self.zipped())
        return path


def locked(wheel: WheelText, *, size: int | None = None) -> LockedWheel:
    """The wheel as a lock names it; with `size`, it passes for one of that many bytes."""
    data = wheel.zipped()
    return LockedWheel(
        name=wheel.name,
        version=wheel.version,
        url=f"{FAR_URL}/{wheel.filename}",
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data) if size is None else size,
    )


def demo_lock(*wheels: LockedWheel, **changes: Any) -> Lock:
    """A lock of these wheels on a base in a layout; `changes` are its other fields."""
    fields: dict[str, Any] = {
        "name": "demo",
        "target": "gb10",
        "platform": "linux/arm64",
        "python": "3.13",
        "interpreter": "/usr/bin/python3.13",
        "glibc": "2.41",
        "base": OciBase(path="base", digest=f"sha256:{'0' * 64}"),
        "wheels": wheels,
        "inputs": {},
    }
    return Lock(**{**fields, **changes})


def write_layer(path: Path, write: Callable[[LayerWriter], object]) -> LayerBlob:
    """A layer in the file `path`, with the entries that `write` writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = LayerWriter(file)
        write(writer)
        digest = writer.close()
    return LayerBlob(
        digest=digest.digest,
        diff_id=digest.diff_id,
        size=digest.size,
        media_type=LAYER_GZIP,
        path=path,
    )


@dataclass(frozen=True)
class Hardlink:
    """A second name of the file at `target`, a path from the root."""

    target: str


Content = bytes | str | Hardlink | None
"""Of an entry in a tar: a file's bytes, a symbolic link's target, a hard link, or a folder."""


def write_tar(path: Path, entries: Mapping[str, Content]) -> LayerBlob:
    """A layer as others write it, in the order given: ours holds no whiteouts."""
    with tarfile.open(path, "w") as archive:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            match content:
                case bytes():
                    info.size = len(content)
                case str():
                    info.type, info.linkname = tarfile.SYMTYPE, content
                case Hardlink():
                    info.type, info.linkname = tarfile.LNKTYPE, content.target
                case None:
                    info.type = tarfile.DIRTYPE
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    raw = path.read_bytes()
    digest = digest_of(raw)
    return LayerBlob(digest=digest, diff_id=digest, size=len(raw), media_type=LAYER_GZIP, path=path)


def installed(wheel: WheelText, site: str, *, record: bool = True) -> dict[str, Content]:
    """The files of an installed wheel, in the package folder `site`, a path from the root."""
    return {
        f"{site}/{name}": data
        for name, data in wheel.members().items()
        if record or not name.endswith("/RECORD")
    }


NGC_SITE = "usr/local/lib/python3.12/dist-packages"
NGC_TORCH = "2.10.0a0+b558c986e8.nv25.11"


def ngc_torch(
    *, module: str = NGC_TORCH, version: str = NGC_TORCH, cuda: str | None = "13.0"
) -> WheelText:
    """A torch as NVIDIA's images have it, without its libraries."""
    text = (
        "from typing import Optional\n"
        "__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']\n"
        f"__version__ = {module!r}\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
        "git_version = '0123456789'\nhip: Optional[str] = None\n"
    )
    files = {"torch/__init__.py": b"", "torch/version.py": text.encode(), "functorch/x.py": b"x"}
    return WheelText(name="torch", version=version, files=files)


def ngc_layer() -> dict[str, Content]:
    """What an NGC-like base has besides its packages: Ubuntu's Python 3.12, and a glibc."""
    return {
        "usr/bin/python3.12": b"\x7fELF",
        "usr/bin/python3": "python3.12",
        "usr/lib/python3.12/os.py": b"",
        "usr/lib/aarch64-linux-gnu/libc.so.6": b"\0GLIBC_2.17\0GLIBC_2.39\0",
    }


def image_of(
    layers: Sequence[LayerBlob],
    *,
    architecture: str = "arm64",
    config: Mapping[str, Any] | None = None,
    **further: Any,
) -> Image:
    """An image of these layers; `config` is the part that the container runtime reads."""
    document = {
        "architecture": architecture,
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created_by": f"layer {number}"} for number, _ in enumerate(layers)],
        **further,
    }
    return Image(config=document, layers=tuple(layers))


def python_layer(writer: LayerWriter) -> None:
    """What a base is asked for: a Python and a glibc."""
    writer.file("usr/bin/python3.13", b"\x7fELF", 0o755)
    writer.file("usr/lib/aarch64-linux-gnu/libc.so.6", b"\0GLIBC_2.17\0GLIBC_2.41\0")


def base_layout(folder: Path, *, config: Mapping[str, Any] | None = None) -> Image:
    """A small base in an OCI layout at `folder`, as a user would have it."""
    layer = write_layer(folder.with_name(f"{folder.name}-layer"), python_layer)
    image = image_of([layer], config=config)
    write_layout(image, folder)
    return image


@dataclass
class FileServer:
    """Serves `files` by path, with ranges (RFC 9110 section 14), and keeps every request.

    `breaks` says after how many bytes each of the next bodies breaks off, None for never;
    `statuses` are answered first, one a request.
    """

    files: Mapping[str, bytes]
    ranges: bool = True
    breaks: list[int | None] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    requests: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.statuses:
            return httpx.Response(self.statuses.pop(0), headers=dict(self.headers))
        data = self.files.get(request.url.raw_path.decode())
        if data is None:
            return httpx.Response(404)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if asked is None or not self.ranges:
            return self._answer(200, data, {})
        start, end = int(asked[1]), int(asked[2] or len(data) - 1)
        if start >= len(data):
            return httpx.Response(416, headers={"Content-Range": f"bytes */{len(data)}"})
        shown = f"bytes {start}-{min(end, len(data) - 1)}/{len(data)}"
        return self._answer(206, data[start : end + 1], {"Content-Range": shown})

    def _answer(self, status: int, data: bytes, headers: Mapping[str, str]) -> httpx.Response:
        stop = self.breaks.pop(0) if self.breaks else None
        body = _Body(data, stop)
        length = {"Content-Length": str(len(data))}
        return httpx.Response(status, headers={**length, **headers}, stream=body)


class _Body(httpx.SyncByteStream):
    """A body in small chunks, which breaks off after `stop` bytes."""

    def __init__(self, data: bytes, stop: int | None) -> None:
        self._data, self._stop = data, stop

    def __iter__(self) -> Iterator[bytes]:
        end = len(self._data) if self._stop is None else self._stop
        for start in range(0, end, 1000):
            yield self._data[start : min(start + 1000, end)]
        if self._stop is not None:
            raise httpx.ReadError("connection reset")
