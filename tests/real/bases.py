"""A base image like NGC's PyTorch, for arm64: a real Python, pip and uv, and a torch in small.

Its torch is called as in nvcr.io/nvidia/pytorch:25.11-py3, the settings are those of that family
with the paths of this Python, and it is published the way buildx does: as an index that also
names an attestation.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uv import find_uv_bin

from builder import process

from .native import compile_against_torch, compile_torch
from .standins.ngc import HOST
from .standins.wheels import pack_wheel

IMAGE = f"{HOST}/nvidia/pytorch:25.11-py3"
TORCH = "2.10.0a0+b558c986e8.nv25.11"
SITE = "usr/local/lib/python3.13/dist-packages"
CONSTRAINT = "etc/pip/constraint.txt"
PINNED = ("networkx", "sympy")
"""What the base's constraint file holds beside torch."""

_PLATFORM = "aarch64-manylinux_2_39"
_DEBIAN = (
    *("base-files", "base-passwd", "bash", "coreutils", "dash", "libc-bin", "libgomp1"),
    *("libstdc++6", "python3", "usr-is-merged"),
)
_TORCH_REQUIRES = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions")
# packaging: not the newest one, so that it can be asked for newer than the base has it.
_FROM_INDEX = (*_TORCH_REQUIRES, "einops", "packaging<25", "pip", "setuptools", "uv")
_LIBRARY_PATH = (f"/{SITE}/torch/lib", "/usr/local/cuda/compat/lib", "/usr/local/nvidia/lib")

ENV = {
    "PATH": "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "CUDA_VERSION": "13.0.2.006",
    "CUDA_DRIVER_VERSION": "580.95.05",
    "_CUDA_COMPAT_PATH": "/usr/local/cuda/compat",
    "NVIDIA_REQUIRE_CUDA": "cuda>=9.0",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility,video",
    "NVIDIA_PRODUCT_NAME": "PyTorch",
    "NVIDIA_PYTORCH_VERSION": "25.11",
    "LD_LIBRARY_PATH": ":".join(_LIBRARY_PATH),
    "PYTORCH_VERSION": "2.10.0a0+b558c98",
    "PYTORCH_BUILD_VERSION": "2.10.0a0+b558c98",
    "PYTORCH_BUILD_NUMBER": "0",
    "TORCH_CUDA_ARCH_LIST": "8.0 8.6 9.0 10.0 11.0 12.0+PTX",
    "TRANSFORMER_ENGINE_VERSION": "2.8",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_CONSTRAINT": f"/{CONSTRAINT}",
    "PIP_DEFAULT_TIMEOUT": "100",
}
_LABELS = {
    "com.nvidia.cuda.version": "9.0",
    "com.nvidia.pytorch.version": "2.10.0a0+b558c98",
    "com.nvidia.volumes.needed": "nvidia_driver",
    "org.opencontainers.image.version": "24.04",
}
_TORCH_INIT = """\
from torch._C import which
from torch.version import __version__

__all__ = ["__version__", "which"]
"""
_TORCH_VERSION = """\
from typing import Optional

__all__ = ["__version__", "cuda", "debug", "git_version", "hip"]
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
git_version = 'b558c986e8'
hip: Optional[str] = None
"""
_TORCHRUN = "[console_scripts]\ntorchrun = torch.distributed.run:main\n"
_RUN = """\
import sys

import torch


def main() -> None:
    print("torchrun", torch.which(), *sys.argv[1:])
"""

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def torch_wheel(version: str, which: str, cuda: str | None, folder: Path) -> tuple[str, bytes]:
    """A torch for this Python whose `torch.which()` answers `which`, as a wheel."""
    files = {
        "torch/__init__.py": _TORCH_INIT.encode(),
        "torch/version.py": _TORCH_VERSION.format(version=version, cuda=cuda).encode(),
        "torch/distributed/__init__.py": b"",
        "torch/distributed/run.py": _RUN.encode(),
        **compile_torch(which, folder),
    }
    return pack_wheel(
        "torch",
        version,
        files,
        tag="cp313-cp313-linux_aarch64",
        requires=_TORCH_REQUIRES,
        entry_points=_TORCHRUN,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NgcBase:
    """The base in an OCI layout, and its files unpacked in `root`."""

    layout: Path
    root: Path
    index: str
    manifest: str

    @property
    def site(self) -> Path:
        return self.root / SITE

    def push(self, port: int, repository: str, tag: str) -> None:
        """Put it into the registry on that port of loopback, index, attestation and all."""
        where = f"docker://127.0.0.1:{port}/{repository}:{tag}"
        argv = ["skopeo", "copy", "--insecure-policy", "--all", "--preserve-digests"]
        process.run([*argv, "--dest-tls-verify=false", f"oci:{self.layout}", where])


def make_base(folder: Path) -> NgcBase:
    """Make the base in `folder`: a Debian root, then the packages, then the settings."""
    folder.mkdir(parents=True)
    debian = folder / "debian.tar"
    process.run(
        [
            *("mmdebstrap", "--quiet", "--architectures=arm64", "--variant=extract"),
            *(f"--include={','.join(_DEBIAN)}", "trixie", str(debian)),
        ]
    )
    packages, settings = folder / "packages", folder / "settings"
    _install(packages, folder / "wheels")
    _configure(settings, packages / SITE)
    archives = [debian, _tar(packages), _tar(settings)]
    root = folder / "root"
    for archive in archives:
        _unpack(archive, root)
    layout = _Layout(folder / "layout")
    manifest, index = layout.write([layout.layer(archive) for archive in archives])
    return NgcBase(layout=layout.folder, root=root, index=index, manifest=manifest)


def _install(tree: Path, wheels: Path) -> None:
    """All packages, where and how NGC's images have them; the scripts are in /usr/local/bin."""
    wheels.mkdir()
    for name, data in _own_wheels(wheels / "build"):
        (wheels / name).write_bytes(data)
    own = [f"{path.name.split('-')[0]} @ file://{path}" for path in wheels.glob("*.whl")]
    target = tree / SITE
    argv = [find_uv_bin(), "pip", "install", "--no-config", "--only-binary", ":all:"]
    argv += ["--link-mode", "copy", "--python-platform", _PLATFORM, "--python-version", "3.13"]
    process.run([*argv, "--target", str(target), *own, *_FROM_INDEX])
    for mark in (".lock", "CACHEDIR.TAG", ".gitignore"):
        (target / mark).unlink(missing_ok=True)
    for record in target.glob("*.dist-info/direct_url.json"):
        record.unlink()
    _move_scripts(target, tree / "usr/local/bin")


def _own_wheels(folder: Path) -> Iterator[tuple[str, bytes]]:
    """torch, and what NGC compiles against it."""
    yield torch_wheel(TORCH, "base", "13.0", folder)
    extension = "transformer_engine_torch.abi3.so"
    files = {
        "transformer_engine/__init__.py": b"import torch\nimport transformer_engine_torch\n",
        extension: compile_against_torch("transformer_engine_torch", folder),
    }
    tag = "cp313-cp313-linux_aarch64"
    yield pack_wheel(
        "transformer_engine", "2.8.0+40c69e75", files, tag=tag, requires=("torch>=2.1", "packaging")
    )
    extension = "flash_attn_2_cuda.abi3.so"
    files = {
        "flash_attn/__init__.py": b"import torch\nimport flash_attn_2_cuda\n",
        extension: compile_against_torch("flash_attn_2_cuda", folder),
    }
    version = "2.7.4.post1+25.11"
    yield pack_wheel("flash_attn", version, files, tag=tag, requires=("torch", "einops"))


def _move_scripts(target: Path, scripts: Path) -> None:
    """Out of uv's `bin`, with the base's Python, and under their new paths in RECORD."""
    scripts.mkdir(parents=True)
    for script in (target / "bin").iterdir():
        first, rest = script.read_bytes().split(b"\n", 1)
        if first.startswith(b"#!"):
            script.write_bytes(b"#!/usr/bin/python3\n" + rest)
        script.rename(scripts / script.name)
    (target / "bin").rmdir()
    for record in target.glob("*.dist-info/RECORD"):
        lines = [
            line
            for line in record.read_text(encoding="utf-8").splitlines()
            if not line.startswith(f"{record.parent.name}/direct_url.json,")
        ]
        moved = [
            f"../../../{line.split(',')[0]},," if line.startswith("bin/") else line
            for line in lines
        ]
        record.write_text("\n".join([*moved, ""]), encoding="utf-8")


def _configure(tree: Path, site: Path) -> None:
    """The files that make the base NGC's, and those that a configured Debian has."""
    pins = {f"torch=={TORCH}"}
    for info in site.glob("*.dist-info"):
        name, version = info.name.removesuffix(".dist-info").split("-")
        if name in PINNED:
            pins.add(f"{name}=={version}")
    texts = {
        CONSTRAINT: "\n".join([*sorted(pins), ""]),
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
        "etc/group": "root:x:0:\n",
        "opt/nvidia/nvidia_entrypoint.sh": '#!/bin/bash\nexec "$@"\n',
    }
    for name, text in texts.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tree / "opt/nvidia/nvidia_entrypoint.sh").chmod(0o755)


def _tar(tree: Path) -> Path:
    """The tree as root's, at a time that does not change."""
    path = tree.with_name(f"{tree.name}.tar")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for member in sorted(tree.rglob("*")):
            entry = archive.gettarinfo(member, str(member.relative_to(tree)))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            if entry.isreg():
                with member.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)
    return path


def _unpack(archive: Path, root: Path) -> None:
    root.mkdir(exist_ok=True)
    process.run(["tar", "-xf", str(archive), "-C", str(root), "--exclude=./dev/*"])


@dataclass(frozen=True, slots=True)
class _Layout:
    """An OCI layout that is being written."""

    folder: Path

    def layer(self, archive: Path) -> tuple[str, dict[str, Any]]:
        """Diff id and descriptor of the archive as a layer."""
        packed = archive.with_suffix(".tar.gz")
        plain = hashlib.sha256()
        with archive.open("rb") as source, closing(gzip.open(packed, "wb", 1)) as sink:
            while data := source.read(1 << 20):
                plain.update(data)
                sink.write(data)
        with packed.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = packed.stat().st_size
        self._blobs.mkdir(parents=True, exist_ok=True)
        shutil.move(packed, self._blobs / digest)
        described = {"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": size}
        return f"sha256:{plain.hexdigest()}", described

    def write(self, layers: Sequence[tuple[str, dict[str, Any]]]) -> tuple[str, str]:
        """Config, manifest, attestation and index; returns manifest's and index's digests."""
        platform = {"architecture": "arm64", "os": "linux"}
        config = {
            **platform,
            "config": {
                "Env": [f"{name}={value}" for name, value in ENV.items()],
                "Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"],
                "Labels": _LABELS,
                "WorkingDir": "/workspace",
            },
            "rootfs": {"type": "layers", "diff_ids": [diff_id for diff_id, _ in layers]},
            "history": [{"created_by": "a stand-in of NGC"} for _ in layers],
        }
        image = self._manifest(config, [layer for _, layer in layers]) | {"platform": platform}
        about = {
            "vnd.docker.reference.digest": image["digest"],
            "vnd.docker.reference.type": "attestation-manifest",
        }
        unknown = {"architecture": "unknown", "os": "unknown"}
        statement = self._json({"_type": "https://in-toto.io/Statement/v0.1"})
        statement["mediaType"] = "application/vnd.in-toto+json"
        attestation = self._manifest({**unknown, "config": {}}, [statement])
        attestation |= {"platform": unknown, "annotations": about}
        index = self._index([image, attestation])
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', "utf-8")
        top = {"schemaVersion": 2, "manifests": [index]}
        (self.folder / "index.json").write_text(json.dumps(top), encoding="utf-8")
        return image["digest"], index["digest"]

    @property
    def _blobs(self) -> Path:
        return self.folder / "blobs" / "sha256"

    def _manifest(
        self, config: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        described = self._json(config) | {"mediaType": _CONFIG}
        document = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described}
        return self._json({**document, "layers": list(layers)}) | {"mediaType": _MANIFEST}

    def _index(self, manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        document = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": list(manifests)}
        return self._json(document) | {"mediaType": _INDEX}

    def _json(self, document: Mapping[str, Any]) -> dict[str, Any]:
        data = json.dumps(document).encode()
        digest = hashlib.sha256(data).hexdigest()
        (self._blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}
