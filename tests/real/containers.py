"""A folder that is laid out as an image's `/opt` and `/etc`, with real pip and uv in it.

The guard's files and variables are those that a Plan has; only the places that they name begin
with the folder. Torch is a stand-in of a few bytes, and so is all that requires it.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from uv import find_uv_bin

from builder import process
from builder.lock.model import Guard, Lock, LockedWheel, OciBase, TorchIdentity
from builder.plan import Plan, Symlink, WriteFile, make_plan
from builder.process import Completed
from builder.recipe import load_recipe
from tests.builders import WheelText

PIP = "26.3"
NGC = "2.10.0a0+b558c986e8.nv25.11"
"""The torch of nvcr.io/nvidia/pytorch:25.11-py3."""

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_STOCK = ("2.8.0", "2.9.1", "2.10.0", "2.10.0+cpu", "2.11.0", "2.11.0+cpu")

Kind = Literal["wheel", "base"]


def torch_wheel(version: str) -> WheelText:
    """A torch of which only name and version matter."""
    text = f"__version__ = {version!r}\ncuda = '13.0'\n".encode()
    return WheelText(
        name="torch", version=version, files={"torch/__init__.py": b"", "torch/version.py": text}
    )


def shop(folder: Path, requirements: Iterable[str]) -> dict[str, str]:
    """Wheels for `--find-links`: stock torches, and a package for each of the requirements.

    Returns the package's name by the requirement.
    """
    for version in _STOCK:
        torch_wheel(version).write(folder)
    names = {}
    for number, requirement in enumerate(requirements):
        names[requirement] = f"asks{number}"
        WheelText(name=f"asks{number}", requires=(requirement,)).write(folder)
    return names


@dataclass(frozen=True, kw_only=True)
class Container:
    """The folder `root`: `/opt/venv` with pip, and torch in it (`wheel`) or below it (`base`)."""

    root: Path
    kind: Kind
    links: Path
    version: str

    @property
    def venv(self) -> Path:
        return self.root / "opt" / "venv"

    @property
    def system(self) -> Path:
        """The package folder of the Python below the environment."""
        return self.root / "usr" / "lib" / f"python{PYTHON}" / "site-packages"

    def make(self) -> None:
        """Lay it out, without a guard."""
        python = _system_python(self.root / "usr")
        venv = [find_uv_bin(), "venv", "--no-config", "-q", "-p", str(python)]
        seeing = ["--system-site-packages"] if self.kind == "base" else []
        process.run([*venv, *seeing, str(self.venv)])
        uv_pip = [find_uv_bin(), "pip", "install", "--no-config", "-q", "--no-deps"]
        uv_pip += ["--python", str(self.venv / "bin" / "python")]
        process.run([*uv_pip, f"pip=={PIP}"])
        wheel = torch_wheel(self.version).write(self.root / "base")
        if self.kind == "base":
            uv_pip += ["--target", str(self.system)]
        process.run([*uv_pip, str(wheel)])

    def guard(self) -> dict[str, str]:
        """Write what the plan says, and return the image's variables."""
        plan = self._plan()
        for step in (*plan.builder, *plan.runtime):
            if isinstance(step, WriteFile):
                path = self._inside(step.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)  # it may be a link to a file that others have
                path.write_text(self._moved(step.text))
                path.chmod(step.mode)
            elif isinstance(step, Symlink) and not step.path.startswith("/opt/venv/bin/python"):
                path = self._inside(step.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(self._moved(step.target))
        env = {name: self._moved(value) for name, value in plan.config.env.items()}
        return {**self.plain(), **env, "PATH": f"{self._moved(plan.config.path)}:{self._path()}"}

    def plain(self) -> dict[str, str]:
        """The variables of an image without a guard; nothing of the caller's is let in."""
        return {
            "PATH": f"{self.venv}/bin:{self._path()}",
            "HOME": str(self.root / "home"),
            "VIRTUAL_ENV": str(self.venv),
            "XDG_CONFIG_DIRS": str(self.root / "etc"),  # where uv looks for what is /etc/uv
            "UV_CACHE_DIR": str(self.root.parent / "uv-cache"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def install(self, env: dict[str, str], *argv: str) -> Completed:
        """Run an install that finds its packages in `links` only."""
        at = argv.index("install") + 1
        offline = ("--no-index", "--find-links", str(self.links))
        return self.run(env, *argv[:at], *offline, *argv[at:])

    def run(self, env: dict[str, str], *argv: str) -> Completed:
        """Run a program by its name, as the PATH in `env` has it."""
        found = shutil.which(argv[0], path=env["PATH"])
        return process.run([found or argv[0], *argv[1:]], env=env, cwd=self.links, check=False)

    def torches(self) -> list[str]:
        """The versions of all torches: those of the environment, then the base's."""
        sites = [self.venv / "lib" / f"python{PYTHON}" / "site-packages", self.system]
        found = [info for site in sites for info in sorted(site.glob("torch-*.dist-info"))]
        return [info.name.removeprefix("torch-").removesuffix(".dist-info") for info in found]

    def report(self, env: dict[str, str]) -> Completed:
        argv = [f"{self.venv}/bin/python", f"{self.root}/opt/spark-build/guard/report.py"]
        return process.run(argv, env=env, check=False)

    def _plan(self) -> Plan:
        recipe = self.root / "recipe.yaml"
        recipe.write_text("name: demo\ntarget: gb10\nbase: {oci: base}\ntorch: {from: base}\n")
        folder = f"/usr/lib/python{PYTHON}/site-packages/torch"
        torch = TorchIdentity(
            origin=self.kind,
            version=self.version,
            module=self.version,
            cuda="13.0",
            folder=folder if self.kind == "base" else None,
            sha256="0" * 64,
        )
        url = "https://index.example/torch.whl"
        wheel = LockedWheel(name="torch", version=self.version, url=url, sha256="0" * 64, size=1)
        lock = Lock(
            name="demo",
            target="gb10",
            platform="linux/arm64",
            python=PYTHON,
            interpreter="/usr/bin/python3",
            glibc="2.39",
            base=OciBase(path="base", digest="sha256:" + "0" * 64),
            wheels=() if self.kind == "base" else (wheel,),
            inputs={},
            torch=torch,
            guard=Guard(packages={"torch": self.version}),
        )
        return make_plan(load_recipe(recipe).recipe, lock)

    def _inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _moved(self, text: str) -> str:
        """The text with the places of an image led into the folder."""
        for place in ("/opt/venv", "/opt/spark-build", "/usr/bin\n", "/usr/lib/"):
            text = text.replace(place, f"{self.root}{place}")
        return text

    def _path(self) -> str:
        return f"{Path(find_uv_bin()).parent}:/usr/bin:/bin"


def _system_python(prefix: Path) -> Path:
    """A Python of its own with an empty package folder, made of the one that runs the tests."""
    real = Path(sysconfig.get_path("stdlib"))
    library = prefix / "lib" / f"python{PYTHON}"
    (library / "site-packages").mkdir(parents=True)
    for entry in real.iterdir():
        if entry.name not in ("site-packages", "EXTERNALLY-MANAGED"):
            (library / entry.name).symlink_to(entry)
    for shared in Path(sys.base_prefix, "lib").glob("libpython*"):
        (prefix / "lib" / shared.name).symlink_to(shared)
    (prefix / "bin").mkdir()
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    return Path(shutil.copy(base, prefix / "bin" / f"python{PYTHON}"))
