"""Whether torch is still the one that was built with, by the layers of images made on the spot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builder.context import Context
from builder.errors import Finding, Severity
from builder.guard import BIN, FOLDER, guard_environment, guard_files
from builder.lock.base.inventory import take_inventory
from builder.lock.model import Guard, Lock, TorchIdentity
from builder.oci.image import Image, LayerBlob
from builder.verify import verify
from tests.builders import (
    NGC_SITE,
    NGC_TORCH,
    Content,
    WheelText,
    demo_lock,
    image_of,
    installed,
    locked,
    ngc_layer,
    ngc_torch,
    write_tar,
)

VENV = "opt/venv/lib/python3.12/site-packages"
TRITON = WheelText(name="triton", version="3.5.0", files={"triton/__init__.py": b""})
STOCK = WheelText(name="torch", version="2.13.0", files={"torch/__init__.py": b""})


class Shipyard:
    """A base with a torch, and images on top of it."""

    def __init__(self, folder: Path, context: Context) -> None:
        self._folder = folder
        self._context = context
        self._layers = 0
        self.base = [
            self.layer(ngc_layer()),
            self.layer({**installed(ngc_torch(), NGC_SITE), **installed(TRITON, NGC_SITE)}),
        ]
        found = take_inventory(image_of(self.base), context.cache)
        assert found.torch is not None
        guard = Guard(packages={"torch": NGC_TORCH, "triton": "3.5.0"})
        self.lock = replace(lock_of(found.torch), guard=guard)
        self.venv: Mapping[str, Content] = {"opt/venv/bin/python": b""}

    def layer(self, entries: Mapping[str, Content]) -> LayerBlob:
        self._layers += 1
        return write_tar(self._folder / f"layer{self._layers}", entries)

    def findings(
        self,
        *above: Mapping[str, Content],
        lock: Lock | None = None,
        base: Sequence[LayerBlob] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Finding]:
        """What is found in the base with the guard's own files, and `above` on top of them."""
        lock = lock or self.lock
        files = {file.path.lstrip("/"): file.text.encode() for file in guard_files(lock)}
        settings = {"PATH": f"{BIN}:/opt/venv/bin:/usr/bin", **guard_environment(lock)}
        layers = [*(self.base if base is None else base), self.layer({**self.venv, **files})]
        image: Image = image_of(
            [*layers, *map(self.layer, above)],
            config={"Env": [f"{name}={value}" for name, value in (env or settings).items()]},
        )
        return list(verify(image, context=self._context, lock=lock, cuda_major=13).findings)


def lock_of(torch: TorchIdentity, *wheels: WheelText) -> Lock:
    return demo_lock(*map(locked, wheels), python="3.12", torch=torch)


@pytest.fixture
def shipyard(tmp_path: Path, context: Context) -> Shipyard:
    return Shipyard(tmp_path, context)


def said(findings: Sequence[Finding], rule: str = "torch-replaced") -> list[str]:
    return [finding.message for finding in findings if finding.rule == rule]


def test_an_untouched_image_has_nothing_to_be_said_of(shipyard: Shipyard) -> None:
    assert shipyard.findings() == []
    cache = {f"{NGC_SITE}/torch/__pycache__/version.cpython-312.pyc": b"1"}
    assert shipyard.findings(cache) == []


LABEL = f"torch {NGC_TORCH}"
SECOND = "/usr/lib/python3/dist-packages/torch-2.13.0.dist-info"


@pytest.mark.parametrize(
    ("above", "message"),
    [
        (
            {f"{NGC_SITE}/torch/lib/libtorch_cuda.so": b"another"},
            f"/{NGC_SITE}/torch: files of the base's torch were changed, added or removed",
        ),
        (
            {f"{NGC_SITE}/torch/.wh.version.py": b""},
            f"/{NGC_SITE}/torch: files of the base's torch were changed, added or removed",
        ),
        (
            {f"{NGC_SITE}/.wh.torch-{NGC_TORCH}.dist-info": b""},
            f"{LABEL} of the base is gone from /{NGC_SITE}/torch",
        ),
        (
            {
                f"{NGC_SITE}/.wh.torch-{NGC_TORCH}.dist-info": b"",
                **installed(STOCK, NGC_SITE),
            },
            f"{LABEL} was in /{NGC_SITE}/torch, now 2.13.0 is in /{NGC_SITE}/torch",
        ),
        (
            installed(STOCK, "usr/lib/python3/dist-packages"),
            f"the image has more than one torch: /{NGC_SITE}/torch-{NGC_TORCH}.dist-info, {SECOND}",
        ),
        (
            {f"{VENV}/torch/__init__.py": b""},
            f"/{VENV}/torch is taken in place of the base's torch",
        ),
        (
            {f"{NGC_SITE}/.wh.triton-3.5.0.dist-info": b""},
            "triton: the base had 3.5.0, the image has none",
        ),
    ],
)
def test_whatever_replaces_the_bases_torch_is_an_error(
    shipyard: Shipyard, above: Mapping[str, Content], message: str
) -> None:
    findings = shipyard.findings(above)
    assert said(findings) == [message]
    assert {finding.severity for finding in findings} == {Severity.ERROR}


def test_what_was_installed_over_the_bases_own_is_named(shipyard: Shipyard) -> None:
    findings = shipyard.findings({**installed(STOCK, VENV), **installed(TRITON, VENV)})
    assert said(findings) == [
        f"/{VENV}/torch-2.13.0.dist-info is taken in place of the base's torch",
        f"/{VENV}/triton-3.5.0.dist-info is taken in place of the base's triton",
    ]
    assert said(findings, "lock-mismatch") != []


WHEEL_TORCH = TorchIdentity(origin="wheel", version="2.13.0", cuda="13.0")


@pytest.mark.parametrize(
    ("wheels", "messages"),
    [
        ([STOCK], []),
        ([], ["torch: the lock has 2.13.0, the image has none"]),
        (
            [replace(STOCK, version="2.13.0+cpu")],
            ["torch: the lock has 2.13.0, the image has 2.13.0+cpu"],
        ),
        (
            [STOCK, replace(STOCK, version="2.12.0")],
            ["torch: the lock has 2.13.0, the image has 2.12.0, 2.13.0"],
        ),
    ],
)
def test_the_environment_has_the_locked_torch_once(
    shipyard: Shipyard, wheels: Sequence[WheelText], messages: list[str]
) -> None:
    lock = lock_of(WHEEL_TORCH, STOCK)
    files = {path: data for wheel in wheels for path, data in installed(wheel, VENV).items()}
    base = [shipyard.layer(ngc_layer())]
    assert said(shipyard.findings(files, lock=lock, base=base)) == messages


def test_what_keeps_torch_is_missed_where_it_is_gone(shipyard: Shipyard) -> None:
    findings = shipyard.findings({f"{FOLDER[1:]}/.wh.exclude.txt": b"", "etc/uv/.wh.uv.toml": b""})
    assert said(findings, "guard-removed") == [
        f"{FOLDER}/exclude.txt, /etc/uv/uv.toml: gone, and with it what keeps torch"
    ]
    assert [finding.severity for finding in findings] == [Severity.WARNING]


def test_variables_that_lead_elsewhere_are_named(shipyard: Shipyard) -> None:
    wanted = {"PATH": f"{BIN}:/opt/venv/bin", **guard_environment(shipyard.lock)}
    for changed, named in (
        ({}, []),
        ({"PIP_CONSTRAINT": "", "UV_EXCLUDE": "/x"}, ["PIP_CONSTRAINT", "UV_EXCLUDE"]),
        ({"PATH": "/opt/venv/bin:/usr/bin"}, ["PATH"]),
        ({"PATH": f"/opt/venv/bin:{BIN}"}, ["PATH"]),
        ({"PATH": f"/mine:{BIN}:/opt/venv/bin"}, []),
    ):
        findings = shipyard.findings(env={**wanted, **changed})
        assert [finding.evidence["settings"] for finding in findings] == ([named] if named else [])
