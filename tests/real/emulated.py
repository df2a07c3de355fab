"""An image's unpacked root file system as a container: its own settings, this host's network."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from builder import process
from builder.oci.image import (
    LAYER_GZIP,
    Image,
    LayerBlob,
    digest_of_file,
    read_layout,
    write_layout,
)
from builder.process import Completed

_PLATFORM = "linux/arm64"
_TIMEOUT_SECONDS = 600.0
# Without /sys: it tells of the host's processors, and under emulation torch trips over them.
_ENTER = 'mount --rbind /dev "$0/dev" && mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """`environ` is the image's, with what a test adds; nothing of the caller's gets in."""

    root: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: Path, root: Path) -> Self:
        """The image in an OCI layout, unpacked at `root`."""
        texts = read_layout(layout, _PLATFORM).config["config"].get("Env", [])
        return cls(root=root, environ=dict(text.split("=", 1) for text in texts))

    def having(self, **environ: str) -> Self:
        """The same container with further variables."""
        return type(self)(root=self.root, environ={**self.environ, **environ})

    def run(self, *command: str, check: bool = True) -> Completed:
        """Run a program as root, emulated where it must be."""
        (self.root / "dev").mkdir(exist_ok=True)
        argv = ["unshare", "--mount", "sh", "-c", _ENTER, str(self.root), *command]
        # QEMU's pointer authentication by the standard's cipher takes most of its time.
        environ = {"HOME": "/root", **self.environ, "QEMU_CPU": "max,pauth-impdef=on"}
        return process.run(argv, env=environ, check=check, timeout_seconds=_TIMEOUT_SECONDS)

    def commit(self, layout: Path, folder: Path, pattern: str) -> Path:
        """The image of `layout`, and one more layer of what `pattern` finds in the container."""
        image = read_layout(layout, _PLATFORM)
        packed = folder.with_name(f"{folder.name}.tar.gz")
        with tarfile.open(packed, "w:gz", compresslevel=1) as archive:
            for path in sorted(self.root.glob(pattern)):
                archive.add(path, str(path.relative_to(self.root)))
        with gzip.open(packed) as file:
            diff_id = f"sha256:{hashlib.sha256(file.read()).hexdigest()}"
        layer = LayerBlob(
            digest=digest_of_file(packed),
            diff_id=diff_id,
            size=packed.stat().st_size,
            media_type=LAYER_GZIP,
            path=packed,
        )
        rootfs = {"type": "layers", "diff_ids": [*image.config["rootfs"]["diff_ids"], diff_id]}
        history = [*image.config.get("history", []), {"created_by": "a container"}]
        config = {**image.config, "rootfs": rootfs, "history": history}
        write_layout(Image(config=config, layers=(*image.layers, layer)), folder)
        return folder
