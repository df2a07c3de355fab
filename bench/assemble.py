"""How long an arm64 image takes, wheels at hand: spark-build beside uv, tar and gzip.

spark-build makes every layer anew, the Debian base among them, and verifies the image; the other
installs the same lock into a folder and packs it as one compressed layer, with no base.
"""

from __future__ import annotations

import shlex
import sys
import sysconfig
import tempfile
from pathlib import Path

from uv import find_uv_bin

from bench import compare
from builder import process

_ROUNDS = 3
_RECIPE = """\
name: bench
target: gb10
base: {debian: {suite: trixie, packages: [python3, libstdc++6]}}
packages: [numpy, scipy, triton]
"""


def main() -> None:
    """Lock and fetch once, then compare in the same folder."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        (folder / "bench.yaml").write_text(_RECIPE, encoding="utf-8")
        build = [str(Path(sysconfig.get_path("scripts")) / "spark-build"), "bench.yaml"]
        build += ["--cache", "cache", "--quiet"]
        process.run(build, cwd=folder)
        commands = {
            "uv + tar + gzip": _shell(folder, _alternative()),
            "spark-build": _shell(folder, f"rm -rf cache/layers cache/blobs build; {_line(build)}"),
        }
        compare.report("assemble", compare.measure(commands, _ROUNDS))


def _alternative() -> str:
    """Install for the base's Python, whichever one runs this: so without the lock's own check."""
    lock = "grep -v ^requires-python pylock.bench-gb10.toml > pylock.toml"
    sync = [find_uv_bin(), "pip", "sync", "pylock.toml", "--no-config", "--quiet"]
    sync += ["--python", sys.executable, "--python-version", "3.13", "--target", "tree"]
    sync += ["--python-platform", "aarch64-manylinux_2_40", "--link-mode", "copy"]
    return f"rm -rf tree layer; {lock}; {_line(sync)} && tar -C tree -c . | gzip -6 > layer"


def _line(argv: list[str]) -> str:
    return shlex.join(argv)


def _shell(folder: Path, script: str) -> list[str]:
    return ["sh", "-ec", f"cd {shlex.quote(str(folder))}; {script}"]


if __name__ == "__main__":
    main()
