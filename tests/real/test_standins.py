"""The stand-ins are what they pretend to be, by tools that know the real ones."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from builder import process
from builder.process import Completed

from .bases import IMAGE, TORCH, NgcBase
from .emulated import Container
from .standins import StandIns
from .standins.ngc import HOST, LAYERS_HOST, USER
from .standins.wheels import pack_wheel

pytestmark = [
    pytest.mark.real("aarch64-linux-gnu-gcc", "docker-registry", "emulation", "git", "index"),
    pytest.mark.real("mmdebstrap", "openssl", "skopeo"),
]

_PRIVATE = f"docker://{HOST}/nvidia/internal:1"


def run(standins: StandIns, *argv: str | Path, check: bool = True) -> Completed:
    environ = {**os.environ, **standins.environ}
    return process.run([*map(str, argv)], env=environ, check=check, timeout_seconds=120)


def test_skopeo_copies_from_nvcr(standins: StandIns, ngc_base: NgcBase, tmp_path: Path) -> None:
    begun = len(standins.server.requests)
    run(standins, "skopeo", "copy", "--insecure-policy", f"docker://{IMAGE}", "--override-arch",
        "arm64", "--override-os", "linux", f"dir:{tmp_path}")  # fmt: skip
    seen = standins.server.requests[begun:]
    layers = [request for request in seen if request.host == LAYERS_HOST]
    assert layers
    assert not any("authorization" in request.headers for request in layers)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert len(manifest["layers"]) == 3


def test_index_names_an_attestation_too(standins: StandIns, ngc_base: NgcBase) -> None:
    index = json.loads(run(standins, "skopeo", "inspect", "--raw", f"docker://{IMAGE}").stdout)
    platforms = [entry["platform"]["architecture"] for entry in index["manifests"]]
    assert platforms == ["arm64", "unknown"]
    assert index["manifests"][0]["digest"] == ngc_base.manifest


def test_private_repositories_want_the_key(standins: StandIns, ngc_base: NgcBase) -> None:
    inspect = ("skopeo", "inspect", "--raw")
    assert run(standins, *inspect, _PRIVATE, check=False).returncode != 0
    for user, key in ((USER, "nvapi-wrong"), ("somebody", standins.ngc.key)):
        refused = run(standins, *inspect, "--creds", f"{user}:{key}", _PRIVATE, check=False)
        assert refused.returncode != 0
    run(standins, *inspect, "--creds", f"{USER}:{standins.ngc.key}", _PRIVATE)


def test_git_and_uv_meet_them_and_the_real_network(standins: StandIns, tmp_path: Path) -> None:
    files = {"README": "a repository\n", "src/a.py": "A = 1\n"}
    commit = standins.github.add("example/small", files, "v1.0")
    url = "https://github.com/example/small"
    listed = run(standins, "git", "ls-remote", url, "refs/tags/v1.0").stdout
    assert listed.split() == [commit, "refs/tags/v1.0"]
    run(standins, "git", "clone", "--quiet", "--depth=1", "--branch=v1.0", url, tmp_path / "clone")
    assert (tmp_path / "clone/src/a.py").read_text() == "A = 1\n"

    name, data = pack_wheel("standing-in", "1.0", {"standing_in.py": b""}, requires=["packaging"])
    standins.pytorch.add_index("/whl/test", {name: data})
    argv = [find_uv_bin(), "pip", "install", "--no-config", "--python", sys.executable]
    argv += ["--index", "https://download.pytorch.org/whl/test", "--target", str(tmp_path / "site")]
    run(standins, *argv, "standing-in")
    assert (tmp_path / "site/standing_in.py").exists()
    assert (tmp_path / "site/packaging/__init__.py").exists()


def test_the_base_runs_and_says_which_torch(ngc_base: NgcBase) -> None:
    code = "import torch, transformer_engine, flash_attn; print(torch.which(), torch.__version__)"
    container = Container.of(ngc_base.layout, ngc_base.root)
    assert container.run("python3", "-c", code).stdout == f"base {TORCH}\n"
