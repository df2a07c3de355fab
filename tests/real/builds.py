"""What the tests of whole builds share: the command, and looks into what it leaves."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from builder import process
from builder.oci.image import LAYER_GZIP, Image, LayerBlob, write_layout
from builder.oci.layer import LayerWriter
from builder.process import Completed

_EMULATED_SECONDS = 1500.0

ROOT = Path(__file__).resolve().parents[2]


def spark_build(
    *arguments: str | Path, cache: Path, cwd: Path, env: Mapping[str, str] | None = None
) -> Completed:
    """Run the command as a user does; whatever its status."""
    argv = [sys.executable, "-m", "builder", *map(str, arguments)]
    environ = {**os.environ, "SPARK_BUILD_CACHE": str(cache), **(env or {})}
    return process.run(argv, env=environ, cwd=cwd, check=False)


def build(
    recipe: Path, *options: str, cache: Path, cwd: Path, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Build `recipe`, which must work, and return the one image of the summary."""
    done = spark_build(recipe, "--json", *options, cache=cache, cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr
    [image] = json.loads(done.stdout)["images"]
    assert isinstance(image, dict)
    return image


def recipe_in(folder: Path, name: str) -> Path:
    """A copy of a shipped recipe, so that its lock lies in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(ROOT / "recipes" / f"{name}.yaml", folder))


def base_layout(folder: Path, python: str) -> Path:
    """An OCI layout for arm64 with just what a base is asked for: a Python X.Y and a glibc."""
    blob = folder.with_name("layer")
    with blob.open("wb") as file:
        writer = LayerWriter(file)
        writer.file(f"usr/bin/python{python}", b"", 0o755)
        writer.file("usr/lib/libc.so.6", b"\0GLIBC_2.17\0GLIBC_2.39\0")
        digest = writer.close()
    layer = LayerBlob(
        digest=digest.digest,
        diff_id=digest.diff_id,
        size=digest.size,
        media_type=LAYER_GZIP,
        path=blob,
    )
    rootfs = {"type": "layers", "diff_ids": [digest.diff_id]}
    config = {"architecture": "arm64", "os": "linux", "config": {}, "rootfs": rootfs}
    write_layout(Image(config=config, layers=(layer,)), folder)
    return folder


def unpack(layout: Path, bundle: Path) -> Path:
    """Unpack an OCI layout with umoci; returns the root file system."""
    process.run(
        ["umoci", "raw", "unpack", "--rootless", "--image", f"{layout}:latest", str(bundle)]
    )
    return bundle


def run_in(root: Path, *command: str) -> Completed:
    """Run a program in an unpacked image, emulated where it must be.

    Without /sys: it tells of the host's processors, and under emulation torch trips over them.
    """
    script = 'mount --rbind /dev "$0/dev" && mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"'
    argv = ["unshare", "--mount", "sh", "-c", script, str(root), *command]
    # QEMU's pointer authentication by the standard's cipher takes most of its time.
    env = {**os.environ, "QEMU_CPU": "max,pauth-impdef=on"}
    return process.run(argv, env=env, timeout_seconds=_EMULATED_SECONDS)


@contextmanager
def hollow_files(cache: Path) -> Iterator[None]:
    """Every fetched file as one of zeros, of its own size: whoever reads one gets it wrong."""
    files, kept = cache / "files", cache / "kept"
    files.rename(kept)
    try:
        for file in [path for path in kept.rglob("*") if path.is_file()]:
            hollow = files / file.relative_to(kept)
            hollow.parent.mkdir(parents=True, exist_ok=True)
            with hollow.open("wb") as handle:
                handle.truncate(file.stat().st_size)
        yield
    finally:
        shutil.rmtree(files)
        kept.rename(files)


def record_faults(root: Path) -> Iterator[str]:
    """Every line of every RECORD below `root` that is not true, and every file without a line."""
    listed = set()
    for record in root.glob("opt/venv/lib/python*/site-packages/*.dist-info/RECORD"):
        site = record.parent.parent
        for path, digest, size in csv.reader(record.read_text().splitlines()):
            file = Path(os.path.normpath(site / path))
            listed.add(file)
            if digest and not _is(file, digest, size):
                yield f"{record}: {path}"
    ours = {root / "opt/venv" / name for name in ("pip.conf", "pyvenv.cfg")}
    for file in (root / "opt/venv").rglob("*"):
        if file.is_file() and not file.is_symlink() and file not in listed | ours:
            yield f"{file}: in no RECORD"


def _is(file: Path, digest: str, size: str) -> bool:
    data = file.read_bytes()
    found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return (f"sha256={found}", str(len(data))) == (digest, size)
