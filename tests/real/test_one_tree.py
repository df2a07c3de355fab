"""The assembled environment is the one that uv installs from the same lock."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from builder import process

from .builds import base_layout, spark_build, unpack

pytestmark = [pytest.mark.real("index", "umoci")]

# A compiled package, console scripts, a program as a script, data files, a header.
_PACKAGES = "[numpy, pygments, ruff, jupyterlab-pygments, greenlet]"
_INSTALLER_MARKS = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}
_VENV_MARKS = {"pyvenv.cfg", ".gitignore", ".lock", "CACHEDIR.TAG", "lib64"}


def test_one_tree(tmp_path: Path) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    base_layout(tmp_path / "base", python)
    recipe = tmp_path / "tree.yaml"
    recipe.write_text(f"name: tree\ntarget: gb10\nbase: {{oci: ./base}}\npackages: {_PACKAGES}\n")
    # The base has no libraries, so verification ends with 1; the image is there all the same.
    assert spark_build(recipe, cache=tmp_path / "cache", cwd=tmp_path).returncode == 1
    ours = unpack(tmp_path / "build" / "tree" / "oci", tmp_path / "root") / "opt" / "venv"
    theirs = tmp_path / "theirs"
    uv = find_uv_bin()
    process.run([uv, "venv", "--no-config", "--python", sys.executable, str(theirs)])
    made = {path.name for path in (theirs / "bin").iterdir()}
    scripts = made - {"python", "python3", f"python{python}"}
    argv = [uv, "pip", "sync", "--no-config", "--python", str(theirs / "bin" / "python")]
    argv += ["--python-platform", "aarch64-manylinux_2_39"]
    process.run([*argv, str(tmp_path / "pylock.tree-gb10.toml")])

    marks = _INSTALLER_MARKS | _VENV_MARKS | scripts
    assert tree(ours, marks, str(ours)) == tree(theirs, marks, str(theirs))


def tree(venv: Path, marks: set[str], own: str) -> dict[str, tuple[int, object]]:
    """Path → executable bits and content; what names the venv's own place is made alike."""
    found: dict[str, tuple[int, object]] = {}
    for path in sorted(venv.rglob("*")):
        name = str(path.relative_to(venv))
        if path.name in marks or name.startswith("bin/python") or not path.is_file():
            continue
        content: object = path.read_bytes()
        if path.name == "RECORD":
            content = record(path, marks)
        elif isinstance(content, bytes) and content.startswith(b"#!"):
            content = content.replace(own.encode(), b"/opt/venv")
        found[name] = (path.stat().st_mode & 0o111, content)
    return found


def record(path: Path, marks: set[str]) -> set[str]:
    """The lines of a RECORD, without the installer's own; scripts without hash and size.

    A script's first line names the place of its environment, so its hash differs.
    """
    lines = set()
    for line in path.read_text().splitlines():
        name = line.split(",")[0]
        if Path(name).name not in marks:
            lines.add(name if "/bin/" in name else line)
    return lines
