"""On a base like NGC's, torch is the base's: locked, built, run, and tried to be replaced."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder import process

from .bases import IMAGE, SITE, TORCH, NgcBase, torch_wheel
from .builds import build, spark_build, unpack
from .emulated import Container
from .standins import StandIns
from .standins.network import PYTORCH_HOST
from .standins.ngc import LAYERS_HOST
from .standins.server import Request
from .standins.wheels import pack_wheel

pytestmark = [
    pytest.mark.real("aarch64-linux-gnu-gcc", "docker-registry", "emulation", "git", "index"),
    pytest.mark.real("mmdebstrap", "openssl", "skopeo", "umoci"),
]

_RECIPE = f"""\
name: ngc
target: gb10
base: {{image: "{IMAGE}"}}
torch: {{from: base}}
exclude: [flash-attn]
"""
# All of them require torch, and nothing that the base's does not meet; the base's packaging is
# older than what is asked for, and goes second.
_PACKAGES = "packages: [accelerate, lion-pytorch, rotary-embedding-torch, packaging>=25]\n"
_CHANNEL = "/whl/test/cu130"
_CHANNEL_URL = f"https://{PYTORCH_HOST}{_CHANNEL}"
_VENV_SITE = "opt/venv/lib/python3.13/site-packages"
_MIRRORS = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_GUARDED = ("torch", "transformer-engine", "flash-attn")
_LOOK = """\
import importlib.metadata, importlib.util, json, torch
dists = {(dist.version, str(dist._path.parent)) for dist in importlib.metadata.distributions()
         if dist.name == "torch"}
print(json.dumps({"origin": importlib.util.find_spec("torch").origin, "which": torch.which(),
                  "module": torch.__version__, "dists": sorted(dists),
                  "packaging": importlib.metadata.version("packaging")}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image built on the base, and its files unpacked."""

    lock_file: Path
    layout: Path
    root: Path
    asked: Sequence[Request]

    @property
    def lock(self) -> dict[str, Any]:
        return tomllib.loads(self.lock_file.read_text())

    @property
    def container(self) -> Container:
        return Container.of(self.layout, self.root)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def built(
    standins: StandIns, ngc_base: NgcBase, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Built]:
    """The recipe's image, from a registry that asks for patience and whose tokens run out."""
    folder = tmp_path_factory.mktemp("ngc-image")
    recipe = folder / "ngc.yaml"
    recipe.write_text(_RECIPE + _PACKAGES)
    standins.ngc.throttled, standins.ngc.uses = 1, 3
    begun = len(standins.server.requests)
    try:
        build(recipe, cache=cache, cwd=folder, env=standins.environ)
        assert standins.ngc.throttled == 0
    finally:
        standins.ngc.throttled, standins.ngc.uses = 0, None
    layout = folder / "build" / "ngc" / "oci"
    lock = folder / "pylock.ngc-gb10.toml"
    root = unpack(layout, folder / "root")
    asked = standins.server.requests[begun:]
    yield Built(asked=asked, lock_file=lock, layout=layout, root=root)
    shutil.rmtree(root)


def tree(folder: Path) -> dict[str, str]:
    """Every file below, and its hash; what Python compiles when it runs is not among them."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def torches(root: Path) -> dict[str, str]:
    """Every file of every torch in an image, wherever it lies, and its hash."""
    places = [
        place
        for top in ("opt", "root", "usr", "home")
        for pattern in ("torch", "torch-*.dist-info")
        for place in root.glob(f"{top}/**/{pattern}")
        if place.is_dir()
    ]
    return {
        f"{place.relative_to(root)}/{name}": digest
        for place in places
        for name, digest in tree(place).items()
    }


def test_the_lock_names_base_and_torch(built: Built, ngc_base: NgcBase) -> None:
    own = built.lock["tool"]["spark-build"]
    assert own["base"]["image"] == IMAGE
    assert (own["base"]["index"], own["base"]["digest"]) == (ngc_base.index, ngc_base.manifest)
    assert own["torch"]["origin"] == "base"
    assert (own["torch"]["version"], own["torch"]["module"]) == (TORCH, TORCH)
    assert own["torch"]["cuda"] == "13.0"
    assert own["guard"]["packages"]["torch"] == TORCH
    assert set(_GUARDED) <= own["guard"]["packages"].keys()
    shadowed = {shadow["name"]: shadow["base"] for shadow in own["guard"]["shadows"]}
    assert shadowed["packaging"] == "24.2"
    names = {package["name"] for package in built.lock["packages"]}
    assert {"accelerate", "lion-pytorch", "rotary-embedding-torch", "packaging"} <= names
    assert not names & {*_GUARDED, "sympy", "networkx", "einops"}


def test_a_token_that_ran_out_was_asked_for_again_and_stayed_where_it_belongs(
    built: Built,
) -> None:
    assert len([request for request in built.asked if request.path == "/proxy_auth"]) > 1
    layers = [request for request in built.asked if request.host == LAYERS_HOST]
    assert layers
    assert not any("authorization" in request.headers for request in layers)


def test_the_bases_packages_stay_byte_for_byte(built: Built, ngc_base: NgcBase) -> None:
    base = tree(ngc_base.site)
    assert tree(built.root / SITE) == base
    assert torches(built.root) == torches(ngc_base.root)
    assert {f"{SITE}/{name}" for name in base if name.startswith("torch/")} < set(
        torches(built.root)
    )


def test_one_torch_is_on_the_path(built: Built) -> None:
    seen = json.loads(built.container.run("python3", "-c", _LOOK).stdout)
    assert seen["origin"] == f"/{SITE}/torch/__init__.py"
    assert (seen["which"], seen["module"]) == ("base", TORCH)
    assert seen["dists"] == [[TORCH, f"/{SITE}"]]
    assert seen["packaging"] != "24.2"


def test_the_bases_commands_run_in_the_environment(built: Built) -> None:
    assert built.container.run("torchrun", "a").stdout == "torchrun base a\n"


@pytest.mark.parametrize(
    ("package", "requirement"),
    [("torchvision==0.26.0", "torch==2.11.0"), ("compressed-tensors==0.20.0", "torch>=2.10.0")],
)
def test_an_unmet_requirement_is_refused(
    package: str,
    requirement: str,
    ngc_base: NgcBase,
    standins: StandIns,
    cache: Path,
    tmp_path: Path,
) -> None:
    recipe = tmp_path / "ngc.yaml"
    recipe.write_text(f"{_RECIPE}packages: [{package}]\n")
    done = spark_build("lock", recipe, cache=cache, cwd=tmp_path, env=standins.environ)
    assert done.returncode == 3
    error, _, hint = done.stderr.partition("\nhint: ")
    assert requirement in error
    assert "accept" in hint
    assert not (tmp_path / "pylock.ngc-gb10.toml").exists()


def test_what_the_hint_says_is_accepted(
    ngc_base: NgcBase, standins: StandIns, cache: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "ngc.yaml"
    text = f"{_RECIPE}packages: [torchvision==0.26.0]\n"
    recipe.write_text(text)
    arguments = ("lock", recipe)
    refused = spark_build(*arguments, cache=cache, cwd=tmp_path, env=standins.environ)
    lines = [line[6:] for line in refused.stderr.splitlines() if line.startswith("hint: ")]
    hint = "\n".join(lines[lines.index("accept:") :])
    recipe.write_text(text + hint.replace("WHY IT WILL DO", "only its transforms are used"))
    done = spark_build(*arguments, cache=cache, cwd=tmp_path, env=standins.environ)
    assert done.returncode == 0, done.stderr
    lock = tomllib.loads((tmp_path / "pylock.ngc-gb10.toml").read_text())
    names = {package["name"] for package in lock["packages"]}
    assert "torchvision" in names
    assert "torch" not in names
    [line] = lock["tool"]["spark-build"]["guard"]["accepted"]
    assert "torch==2.11.0" in line
    assert "only its transforms are used" in line


@pytest.fixture(scope="module")
def channel(standins: StandIns, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One of PyTorch's own indexes, with a newer torch and what requires exactly that one."""
    folder = tmp_path_factory.mktemp("torch") / "build"
    wheels = [
        torch_wheel("2.11.0+cu130", "index", "13.0", folder),
        pack_wheel(
            "torchvision",
            "0.26.0+cu130",
            {"torchvision/__init__.py": b""},
            requires=["torch==2.11.0"],
        ),
    ]
    standins.pytorch.add_index(_CHANNEL, dict(wheels))
    return _CHANNEL_URL


def reaching(container: Container, standins: StandIns) -> Container:
    """The container with the way to the stand-ins, and an index mirror of this host's."""
    bundle = container.root / "etc" / "bundle.crt"
    shutil.copy(standins.bundle, bundle)
    environ = {name: value for name, value in standins.environ.items() if "PROXY" in name.upper()}
    environ |= dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT"), "/etc/bundle.crt")
    environ |= {name: os.environ[name] for name in _MIRRORS if name in os.environ}
    return container.having(**environ, PIP_DISABLE_PIP_VERSION_CHECK="1")


def copy_of(root: Path, folder: Path) -> Path:
    """A root file system to be spoilt."""
    copy = folder / "root"
    process.run(["cp", "-a", str(root), str(copy)])
    return copy


def which_torch(container: Container) -> str:
    return container.run("python3", "-c", "import torch; print(torch.which())").stdout.strip()


def test_installs_in_the_container_leave_torch_alone(
    built: Built, channel: str, standins: StandIns
) -> None:
    container = reaching(built.container, standins)
    before = torches(built.root)
    # Plain `torch` is met by what is there, so these work; the packages are from the real index.
    for command in (
        ("pip", "install", "ema-pytorch"),
        ("uv", "pip", "install", "-U", "torch-einops-utils"),
    ):
        done = container.run(*command, check=False)
        assert done.returncode == 0, done.stderr
        assert f"torch {TORCH}" in done.stderr
    # pip refuses; uv installs what was asked for, and leaves torch out.
    refused = container.run("pip", "install", "--index-url", channel, "torchvision", check=False)
    assert refused.returncode != 0
    assert "torch==2.11.0" in refused.stdout + refused.stderr
    taken = container.run(
        "uv", "pip", "install", "-U", "--index-url", channel, "torchvision", "torch"
    )
    assert "torchvision==0.26.0" in taken.stderr
    assert torches(built.root) == before
    assert json.loads(container.run("python3", "-c", _LOOK).stdout)["dists"] == [
        [TORCH, f"/{SITE}"]
    ]
    assert which_torch(container) == "base"


@pytest.mark.parametrize(
    "command", [("pip", "install", "--index-url"), ("uv", "pip", "install", "-U", "--index-url")]
)
def test_the_same_installs_replace_an_unguarded_torch(
    command: Sequence[str], ngc_base: NgcBase, channel: str, standins: StandIns, tmp_path: Path
) -> None:
    """On the base itself; without its constraint, which uv does not look at anyway."""
    root = copy_of(ngc_base.root, tmp_path)
    container = reaching(Container.of(ngc_base.layout, root), standins)
    container = container.having(
        PIP_CONSTRAINT="", UV_SYSTEM_PYTHON="1", UV_BREAK_SYSTEM_PACKAGES="1"
    )
    if command[0] == "uv":
        dry = container.run("uv", "pip", "install", "-U", "--dry-run", "torch-einops-utils")
        assert f"- torch=={TORCH}" in dry.stderr
    container.run(*command, channel, "torchvision")
    assert which_torch(container) == "index"
    assert torches(root) != torches(ngc_base.root)
    shutil.rmtree(root)


def test_verify_tells_of_a_torch_that_was_forced_in(
    built: Built, channel: str, standins: StandIns, cache: Path, tmp_path: Path
) -> None:
    root = copy_of(built.root, tmp_path)
    container = reaching(Container.of(built.layout, root), standins)
    around = ("env", "-u", "UV_EXCLUDE", "-u", "UV_OVERRIDE", "-u", "UV_CONSTRAINT")
    container.run(
        *around,
        "uv",
        "--no-config",
        "pip",
        "install",
        "--no-deps",
        "--index-url",
        channel,
        "torch==2.11.0",
    )
    assert which_torch(container) == "index"
    committed = container.commit(built.layout, tmp_path / "committed", f"{_VENV_SITE}/torch*")
    done = spark_build(
        "verify", committed, "--lock", built.lock_file, "--json", cache=cache, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "torch-replaced" in {finding["rule"] for finding in json.loads(done.stdout)["findings"]}
