"""Plans made by hand, for the tests of whatever lays a Plan out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builder.lock.model import (
    Base,
    DebianBase,
    LockedDeb,
    LockedGit,
    LockedWheel,
    OciBase,
    RegistryBase,
)
from builder.plan import (
    Config,
    CopyFile,
    InstallWheels,
    Plan,
    Symlink,
    Venv,
    WriteFile,
)

LOCK = "pylock.demo-gb10.toml"

DEBIAN = DebianBase(
    suite="trixie",
    debs=(
        LockedDeb(
            name="python3",
            version="3.13.5-1",
            architecture="arm64",
            url="https://index.example/debian/python3_3.13.5-1_arm64.deb",
            sha256="a" * 64,
            size=28_000,
        ),
    ),
)

OCI = OciBase(path="./base-layout", digest=f"sha256:{'b' * 64}")

REGISTRY = RegistryBase(
    image="registry.example/nvidia/pytorch:25.11-py3",
    index=f"sha256:{'d' * 64}",
    digest=f"sha256:{'e' * 64}",
    size=9_000_000_000,
)

GIT = LockedGit(
    name="vllm", url="https://git.example/vllm", ref="v0.13.0", commit="f" * 40, version="0.13.0"
)

WHEEL = LockedWheel(
    name="numpy",
    version="2.3.0",
    url="https://index.example/numpy-2.3.0-cp313-cp313-manylinux_2_28_aarch64.whl",
    sha256="c" * 64,
    size=14_000_000,
)

# Everything that has a meaning in a Dockerfile, a shell or Apptainer's templates.
ODD = (
    """say "hi" it's $HOME ${HOME:-x} `id` $(id)""",
    """\\ \\\\ \\" ends with a backslash\\""",
    "{{ name }} {{{ name }}} ${{ secrets.X }} {% x %} {# y #}",
    "# no comment",
    "%post",
    " spaces at both ends ",
    "ünï çödé 漢字 \N{NO-BREAK SPACE}",
    "",
    "a=b,c;d|e&f<g>h*i?j[k]!l~m^n",
    "<<EOF",
)


def make_plan(base: Base = DEBIAN, **config: Any) -> Plan:
    """A plan with every kind of step; `config` changes the settings."""
    settings: dict[str, Any] = {
        "path": "/opt/venv/bin",
        "env": {"VIRTUAL_ENV": "/opt/venv", "HF_HOME": "/data/hf"},
        "labels": {"org.opencontainers.image.title": "demo"},
        "entrypoint": ("python", "/opt/app/serve.py"),
    }
    venv = Venv(prefix="/opt/venv", python="3.13", interpreter="/usr/bin/python3.13")
    return Plan(
        name="demo",
        target="gb10",
        platform="linux/arm64",
        base=base,
        venv=venv,
        builder=(
            WriteFile(path="/opt/venv/pyvenv.cfg", text="home = /usr/bin\n"),
            Symlink(path="/opt/venv/bin/python", target="/usr/bin/python3.13"),
            Symlink(path="/opt/venv/bin/python3", target="python"),
            InstallWheels(wheels=(WHEEL,), lock_filename=LOCK),
        ),
        runtime=(
            CopyFile(source="serve.py", name="files/0", path="/opt/app/serve.py", mode=0o755),
            WriteFile(path="/etc/demo.conf", text="x\n"),
            Symlink(path="/usr/local/bin/serve", target="/opt/app/serve.py"),
        ),
        config=Config(**{**settings, **config}),
    )


def odd_plan(base: Base = DEBIAN) -> Plan:
    """A plan whose every free value tries to leave its place."""
    return make_plan(
        base,
        env={f"V{number}": text for number, text in enumerate(ODD)},
        labels={f"org.example.l{number}": text for number, text in enumerate(ODD)},
        entrypoint=("printf", *ODD),
        cmd=ODD,
        workdir="/opt/app",
        user="1000:1000",
        ports=(8000, 8001),
    )


def bare_plan() -> Plan:
    """A plan without anything that can be left out."""
    return replace(make_plan(env={}, labels={}, entrypoint=()), builder=(), runtime=())


def registry_plan() -> Plan:
    """On a base of a registry, with folders of the builder stage beside the environment."""
    plan = make_plan(REGISTRY)
    step = WriteFile(path="/opt/spark-build/guard/wrapper", text="#!/bin/sh\n", mode=0o755)
    kept = ("/opt/venv", "/opt/spark-build/guard")
    return replace(plan, builder=(*plan.builder, step), kept=kept, compiled=(GIT,))


PLANS = {
    "debian": make_plan(),
    "oci": make_plan(OCI, user="1000", cmd=("--help",)),
    "registry": registry_plan(),
    "odd": odd_plan(),
    "bare": bare_plan(),
}
