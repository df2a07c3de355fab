"""What a base holds, told from its layers: Python, glibc, packages, and which torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import ExternalError, LockError
from builder.lock.base.inventory import Distribution, Inventory, take_inventory
from builder.lock.base.torch_version import torch_digest
from builder.lock.model import TorchIdentity
from builder.oci.image import Image
from tests.binaries import Elf
from tests.builders import (
    NGC_SITE,
    NGC_TORCH,
    Content,
    Hardlink,
    WheelText,
    image_of,
    installed,
    ngc_layer,
    ngc_torch,
    python_layer,
    write_layer,
    write_tar,
)

GLIBC = b"\x7fELF\0GLIBC_2.17\0GLIBC_2.41\0GLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_2.4x\0"
LIBC = "usr/lib/aarch64-linux-gnu/libc.so.6"
PYTHON = "usr/bin/python3.13"
LOCAL = "usr/local/bin/python3.12"
DEBIAN = "usr/lib/python3/dist-packages"
EXTENSION = Elf(needed=["libtorch.so", "libc.so.6"]).write()


def image(
    tmp_path: Path, *layers: Mapping[str, Content], env: Sequence[str] = ("PATH=/bin",)
) -> Image:
    blobs = [
        write_tar(tmp_path / f"layer-{number}", entries) for number, entries in enumerate(layers)
    ]
    return image_of(blobs, config={"Env": list(env)})


def take(
    tmp_path: Path, *layers: Mapping[str, Content], env: Sequence[str] = ("PATH=/bin",)
) -> Inventory:
    return take_inventory(image(tmp_path, *layers, env=env), tmp_path / "cache")


def interpreter(tmp_path: Path, *layers: Mapping[str, Content]) -> str | None:
    return take(tmp_path, *layers, {LIBC: GLIBC}).interpreter


def ngc(tmp_path: Path, *layers: Mapping[str, Content]) -> Inventory:
    return take(tmp_path, ngc_layer(), *layers)


# Python and glibc


def test_the_shared_base_of_the_tests_is_told(tmp_path: Path) -> None:
    base = image_of([write_layer(tmp_path / "layer", python_layer)])
    found = take_inventory(base, tmp_path)
    assert (found.python, found.interpreter, found.glibc) == ("3.13", "/usr/bin/python3.13", "2.41")


def test_a_base_without_python_is_told(tmp_path: Path) -> None:
    assert take(tmp_path, {LIBC: GLIBC}) == Inventory(python=None, interpreter=None, glibc="2.41")


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ({PYTHON: b""}, PYTHON),
        ({PYTHON: "python3.13-real"}, PYTHON),
        ({PYTHON: None}, None),
        ({PYTHON: b"", "usr/bin/python3.9": b""}, PYTHON),
        ({"usr/bin/python3.9": b"", "usr/bin/python3.10": b""}, "usr/bin/python3.10"),
        ({PYTHON: b"", LOCAL: b""}, LOCAL),
        ({"usr/bin/python3": "python3.13"}, None),
        ({"usr/bin/python3.13-config": b""}, None),
        ({"usr/bin/python3.13t": b""}, None),
        ({"usr/bin/python3.\u0661": b""}, None),
        ({"usr/bin/python3.9999": b""}, None),
        ({"opt/usr/bin/python3.13": b""}, None),
    ],
)
def test_the_newest_python_is_taken_and_usr_local_first(
    tmp_path: Path, entries: Mapping[str, Content], found: str | None
) -> None:
    assert interpreter(tmp_path, entries) == (f"/{found}" if found else None)


@pytest.mark.parametrize(
    "whiteout",
    [
        "usr/bin/.wh.python3.13",
        "usr/bin/.wh..wh..opq",
        "usr/.wh.bin",
        ".wh.usr",
        ".wh..wh..opq",
    ],
)
def test_a_python_that_a_later_layer_takes_away_is_gone(tmp_path: Path, whiteout: str) -> None:
    assert interpreter(tmp_path, {PYTHON: b""}, {whiteout: b""}) is None
    found = interpreter(tmp_path, {PYTHON: b"", LOCAL: b""}, {whiteout: b""})
    assert found in (None, f"/{LOCAL}")


@pytest.mark.parametrize(
    "whiteout", ["usr/bin/.wh.python3.1", "usr/.wh.bi", "usr/local/.wh..wh..opq", "opt/.wh.usr"]
)
def test_whiteouts_of_other_paths_take_nothing_away(tmp_path: Path, whiteout: str) -> None:
    assert interpreter(tmp_path, {PYTHON: b""}, {whiteout: b""}) == f"/{PYTHON}"


def test_a_whiteout_hides_lower_layers_only(tmp_path: Path) -> None:
    """OCI layer.md, "Whiteouts": wherever in its layer it stands."""
    own: dict[str, Content] = {"usr/bin/python3.12": b"", "usr/bin/.wh..wh..opq": b""}
    assert interpreter(tmp_path, {PYTHON: b""}, own) == "/usr/bin/python3.12"
    again: dict[str, Content] = {PYTHON: b"", "usr/bin/.wh.python3.13": b""}
    assert interpreter(tmp_path, {PYTHON: b""}, again) == f"/{PYTHON}"


@pytest.mark.parametrize(
    ("entries", "glibc"),
    [
        ({"lib/x86_64-linux-gnu/libc.so.6": GLIBC}, "2.41"),
        ({"lib64/libc.so.6": "libc-2.28.so", "lib64/libc-2.28.so": b"\0GLIBC_2.28\0"}, "2.28"),
        ({LIBC: b"\0GLIBC_2.9\0GLIBC_2.39\0"}, "2.39"),
        ({LIBC: GLIBC, "usr/share/doc/libc.so.6": b"\0GLIBC_2.99\0"}, "2.41"),
        ({LIBC: GLIBC, "usr/x86_64-linux-gnu/lib/libc.so.6": b"\0GLIBC_2.99\0"}, "2.41"),
        ({LIBC: GLIBC + b"GLIBC_2.999999999\0"}, "2.41"),
        ({LIBC: GLIBC + b"GLIBC_2." + b"9" * 5000 + b"\0"}, "2.41"),
    ],
)
def test_the_glibc_is_the_newest_version_that_it_defines(
    tmp_path: Path, entries: Mapping[str, Content], glibc: str
) -> None:
    assert take(tmp_path, entries).glibc == glibc


def test_a_later_layers_glibc_counts(tmp_path: Path) -> None:
    assert take(tmp_path, {LIBC: GLIBC}, {LIBC: b"\0GLIBC_2.36\0"}).glibc == "2.36"


@pytest.mark.parametrize(
    "entries", [{}, {"lib/ld-musl-aarch64.so.1": b""}, {LIBC: b"no versions"}, {LIBC: "nowhere"}]
)
def test_a_base_without_glibc_is_refused(tmp_path: Path, entries: Mapping[str, Content]) -> None:
    with pytest.raises(LockError, match="PEP 600"):
        take(tmp_path, entries)


def test_a_layer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    base = image(tmp_path, {LIBC: GLIBC})
    base.layers[0].path.write_bytes(b"nonsense")
    with pytest.raises(ExternalError, match="layer-0"):
        take_inventory(base, tmp_path / "cache")


# Where packages lie


@pytest.mark.parametrize(
    ("entries", "sites"),
    [
        (
            {"usr/bin/python3.12": b"", "usr/lib/python3.12/os.py": b""},
            (
                "/usr/local/lib/python3.12/dist-packages",
                "/usr/lib/python3/dist-packages",
                "/usr/lib/python3.12/dist-packages",
            ),
        ),
        ({LOCAL: b""}, ("/usr/local/lib/python3.12/site-packages",)),
        (
            {"usr/bin/python3.9": b"", "usr/lib64/python3.9/os.py": b""},
            (
                "/usr/local/lib64/python3.9/site-packages",
                "/usr/local/lib/python3.9/site-packages",
                "/usr/lib64/python3.9/site-packages",
                "/usr/lib/python3.9/site-packages",
            ),
        ),
    ],
)
def test_where_an_interpreter_looks(
    tmp_path: Path, entries: Mapping[str, Content], sites: Sequence[str]
) -> None:
    assert take(tmp_path, {LIBC: GLIBC}, entries).sites == sites


# Distributions


def test_what_a_distribution_says(tmp_path: Path) -> None:
    wheel = WheelText(
        name="Torch_Demo",
        version="1.0",
        files={"demo/_c.so": EXTENSION},
        entry_points="[console_scripts]\ndemo = demo.cli:main\n",
    )
    entries = installed(wheel, NGC_SITE)
    metadata = entries[f"{NGC_SITE}/{wheel.stem}.dist-info/METADATA"]
    assert isinstance(metadata, bytes)
    further = (
        b"Requires-Dist: torch>=2\nRequires-Dist: a; extra == 'x'\nProvides-Extra: x\n\nText\n"
    )
    entries[f"{NGC_SITE}/{wheel.stem}.dist-info/METADATA"] = metadata + further
    assert ngc(tmp_path, entries).distributions == (
        Distribution(
            name="torch-demo",
            version="1.0",
            folder=f"/{NGC_SITE}",
            requires=("torch>=2", "a; extra == 'x'"),
            scripts={"demo": "demo.cli:main"},
            links_torch=True,
        ),
    )


def test_eggs_are_distributions_too(tmp_path: Path) -> None:
    info = b"Metadata-Version: 1.1\nName: %s\nVersion: 2\n"
    entries: dict[str, Content] = {
        f"{DEBIAN}/one-2.egg-info": info % b"one",
        f"{DEBIAN}/two-2.egg-info/PKG-INFO": info % b"two",
        f"{DEBIAN}/two-2.egg-info/requires.txt": b"one>=1\n[x]\nsix\n",
        f"{DEBIAN}/three-2.egg-info": b"nothing",
        f"{DEBIAN}/four-2.dist-info/RECORD": b"",
    }
    found = ngc(tmp_path, entries).distributions
    assert [(item.name, item.version, item.folder) for item in found] == [
        ("one", "2", f"/{DEBIAN}"),
        ("two", "2", f"/{DEBIAN}"),
    ]
    assert found[1].requires == ("one>=1", 'six ; extra == "x"')


def test_the_first_on_the_path_wins(tmp_path: Path) -> None:
    entries = {
        **installed(WheelText(version="1.0"), DEBIAN),
        **installed(WheelText(version="2.0"), NGC_SITE),
        **installed(WheelText(version="3.0"), "usr/lib/python3.12/dist-packages"),
        **installed(WheelText(version="4.0"), "usr/local/lib/python3.12/site-packages"),
        **installed(WheelText(version="5.0"), "usr/local/lib/python3.11/dist-packages"),
    }
    assert [item.version for item in ngc(tmp_path, entries).distributions] == ["2.0"]


def test_an_upgrade_in_a_later_layer_counts(tmp_path: Path) -> None:
    older, newer = (installed(WheelText(version=version), NGC_SITE) for version in ("1.0", "2.0"))
    gone: dict[str, Content] = {f"{NGC_SITE}/.wh.demo-1.0.dist-info": b""}
    assert [item.version for item in ngc(tmp_path, older, newer | gone).distributions] == ["2.0"]


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({"demo/_c.so": EXTENSION}, True),
        ({"demo/bin/tool": EXTENSION}, True),
        ({"_demo.cpython-312-aarch64-linux-gnu.so": EXTENSION}, True),
        ({"demo/_c.so": Elf(needed=["libc.so.6"]).write()}, False),
        ({"demo/__init__.py": b"import torch"}, False),
    ],
)
def test_what_is_compiled_against_torch(
    tmp_path: Path, files: Mapping[str, bytes], *, links: bool
) -> None:
    other = WheelText(name="other", files={"other/_c.so": EXTENSION, "shared/_d.so": EXTENSION})
    wheel = WheelText(files={**files, "shared/x.py": b""})
    entries = installed(wheel, NGC_SITE) | installed(other, NGC_SITE)
    found = ngc(tmp_path, entries).distributions
    assert [item.links_torch for item in found] == [links, True]


@pytest.mark.parametrize(
    ("listed", "path", "links"),
    [
        (None, "demo/_c.so", True),
        (None, "demo.cpython-312.so", True),
        (None, "demo_other/_c.so", False),
        (b"other\n_core\n", "_core.abi3.so", True),
        (b"other\n_core\n", "other/x/_c.so", True),
        (b"other\n_core\n", "demo/_c.so", False),
    ],
)
def test_without_a_record_the_top_level_names_tell(
    tmp_path: Path, listed: bytes | None, path: str, *, links: bool
) -> None:
    entries = installed(WheelText(), NGC_SITE, record=False)
    entries[f"{NGC_SITE}/{path}"] = EXTENSION
    if listed is not None:
        entries[f"{NGC_SITE}/demo-1.0.dist-info/top_level.txt"] = listed
    (found,) = ngc(tmp_path, entries).distributions
    assert found.links_torch is links


# Torch


def _digest(entries: Mapping[str, Content]) -> str:
    def value(content: Content) -> str:
        if isinstance(content, bytes):
            return hashlib.sha256(content).hexdigest()
        return f"-> {content}"

    site = f"{NGC_SITE}/"
    return torch_digest({path.removeprefix(site): value(it) for path, it in entries.items()})


def test_torchs_identity(tmp_path: Path) -> None:
    torch = ngc_torch(module="2.14.0a0+4f.nv26.08", version="2.14.0a0+4f.nv26.8.63802676")
    entries = installed(torch, NGC_SITE) | {f"{NGC_SITE}/torch/lib/libtorch.so.2": "libtorch.so"}
    further: dict[str, Content] = {
        f"{NGC_SITE}/torch/__pycache__/x.cpython-312.pyc": b"1",
        f"{NGC_SITE}/torchvision/__init__.py": b"1",
    }
    found = ngc(tmp_path, entries, further)
    assert found.torch == TorchIdentity(
        origin="base",
        version="2.14.0a0+4f.nv26.8.63802676",
        module="2.14.0a0+4f.nv26.08",
        cuda="13.0",
        folder=f"/{NGC_SITE}/torch",
        sha256=_digest(entries),
    )
    assert found.torches == (f"/{NGC_SITE}/torch-{torch.version}.dist-info",)


@pytest.mark.parametrize(
    "change",
    [
        {f"{NGC_SITE}/torch/__init__.py": b"changed"},
        {f"{NGC_SITE}/torch/new.py": b""},
        {f"{NGC_SITE}/torch/.wh.__init__.py": b""},
        {f"{NGC_SITE}/.wh.functorch": b""},
        {f"{NGC_SITE}/torch/__init__.py": "other.py"},
        {f"{NGC_SITE}/torch-{NGC_TORCH}.dist-info/INSTALLER": b"pip"},
        {f"{NGC_SITE}/functorch": "elsewhere"},
    ],
)
def test_any_change_of_torchs_files_is_another_torch(
    tmp_path: Path, change: Mapping[str, Content]
) -> None:
    entries = installed(ngc_torch(), NGC_SITE)
    before, after = ngc(tmp_path, entries).torch, ngc(tmp_path, entries, change).torch
    assert before is not None
    assert after is not None
    assert before.sha256 != after.sha256
    assert replace(before, sha256=after.sha256) == after


@pytest.mark.parametrize(
    "change",
    [
        {f"{NGC_SITE}/torch/__pycache__/y.pyc": b"1"},
        {f"{NGC_SITE}/torch/x.pyc": b"1"},
        {f"{NGC_SITE}/torchaudio/x.py": b"1"},
        {"opt/torch/x.py": b"1"},
    ],
)
def test_what_running_leaves_behind_is_no_change(
    tmp_path: Path, change: Mapping[str, Content]
) -> None:
    entries = installed(ngc_torch(), NGC_SITE)
    assert ngc(tmp_path, entries).torch == ngc(tmp_path, entries, change).torch


@pytest.mark.parametrize("text", [None, b"__version__ = made()\n"])
def test_a_torch_that_does_not_say_its_version(tmp_path: Path, text: bytes | None) -> None:
    entries = installed(ngc_torch(), NGC_SITE)
    change: dict[str, Content] = (
        {f"{NGC_SITE}/torch/.wh.version.py": b""}
        if text is None
        else {f"{NGC_SITE}/torch/version.py": text}
    )
    found = ngc(tmp_path, entries, change).torch
    assert found is not None
    assert (found.version, found.module, found.cuda) == (NGC_TORCH, None, None)


def test_a_torch_without_cuda(tmp_path: Path) -> None:
    found = ngc(tmp_path, installed(ngc_torch(cuda=None), NGC_SITE)).torch
    assert found is not None
    assert (found.module, found.cuda) == (NGC_TORCH, None)


def test_a_torch_whose_bytes_are_not_there_is_refused(tmp_path: Path) -> None:
    entries = installed(ngc_torch(), NGC_SITE)
    entries[f"{NGC_SITE}/torch/lost.so"] = Hardlink("nowhere")
    with pytest.raises(LockError, match=r"torch/lost\.so"):
        ngc(tmp_path, entries)


def test_all_torches_are_told(tmp_path: Path) -> None:
    entries = {
        **installed(ngc_torch(), NGC_SITE),
        **installed(ngc_torch(version="2.8.0"), NGC_SITE),
        **installed(ngc_torch(version="2.6.0"), DEBIAN),
        "usr/lib/python3.12/dist-packages/torch/__init__.py": b"",
        "opt/site-packages/torch/__init__.py": b"",
    }
    found = ngc(tmp_path, entries)
    assert found.torches == (
        f"/{NGC_SITE}/torch-{NGC_TORCH}.dist-info",
        f"/{NGC_SITE}/torch-2.8.0.dist-info",
        f"/{DEBIAN}/torch-2.6.0.dist-info",
        "/usr/lib/python3.12/dist-packages/torch",
    )
    assert found.torch is not None
    assert found.torch.folder == f"/{NGC_SITE}/torch"


# pip's constraints


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ((), ("torch==1", "a<2")),
        (("PIP_CONSTRAINT=/etc/pip/constraint.txt",), ("torch==1", "a<2")),
        (("PIP_CONSTRAINT=/opt/my-constraints.txt",), ("b==1",)),
        (("PIP_CONSTRAINT=/opt/my-constraints.txt /etc/pip/constraint.txt",), ("b==1", "torch==1")),
        (("PIP_CONSTRAINT=",), ()),
        (("PIP_CONSTRAINT=/nowhere.txt",), ()),
    ],
)
def test_constraints_are_those_that_pip_would_obey(
    tmp_path: Path, env: Sequence[str], found: Sequence[str]
) -> None:
    entries: dict[str, Content] = {
        "etc/pip/constraint.txt": "restricted_constraint.txt",
        "etc/pip/restricted_constraint.txt": b"torch==1 # kept\n\na<2\n",
        "opt/my-constraints.txt": b"b==1\n",
    }
    held = take(tmp_path, ngc_layer(), entries, env=env)
    assert held.constraints[: len(found)] == tuple(found)
    assert bool(held.constraints) == bool(found)
