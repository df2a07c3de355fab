"""What is audited: our own locks, and those that uv and pip write."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from builder.audit.subject import Subject, SubjectOther, read_subject, subject_of
from builder.errors import LockError, UsageError
from builder.lock.model import Guard, LockedGit, LockedWheel, TorchIdentity
from builder.lock.pylock import write_lock
from tests.builders import demo_lock

_HASH = "a" * 64
_HEAD = 'lock-version = "1.0"\ncreated-by = "uv"\nrequires-python = ">=3.13"\n'


def _file(name: str, hashes: str = f'sha256 = "{_HASH}"', more: str = "") -> str:
    return f'{{ url = "https://files.example/{name}", hashes = {{ {hashes} }}{more} }}'


def _package(name: str, *, version: str = "1.0", body: str) -> str:
    return f'[[packages]]\nname = "{name}"\nversion = "{version}"\n{body}\n'


def _read(folder: Path, *packages: str, head: str = _HEAD, **target: str) -> Subject:
    path = folder / "pylock.toml"
    path.write_text(head + "".join(packages))
    return read_subject(path, **target)


def _wheels(*names: str) -> str:
    return f"wheels = [{', '.join(_file(name) for name in names)}]"


def test_our_own_lock(tmp_path: Path) -> None:
    wheel = LockedWheel(
        name="vllm",
        version="0.13.0+cu130",
        url="https://files.example/vllm-0.13.0%2Bcu130-cp38-abi3-manylinux_2_35_aarch64.whl",
        sha256=_HASH,
        size=10,
    )
    lock = demo_lock(wheel)
    path = tmp_path / lock.filename
    path.write_text(write_lock(lock))
    subject = read_subject(path)
    assert subject == subject_of(lock)
    assert (subject.target, subject.source) == ("gb10", "pylock.demo-gb10.toml")
    (only,) = subject.wheels
    assert only.filename == "vllm-0.13.0+cu130-cp38-abi3-manylinux_2_35_aarch64.whl"
    assert (only.label, only.sha256, only.hashed) == ("vllm 0.13.0+cu130", _HASH, True)


def test_our_own_lock_on_a_base_with_torch() -> None:
    """What the base keeps is known, and what has no wheel is there to be counted."""
    torch = TorchIdentity(origin="base", version="2.10.0a0", cuda="13.0", sha256="a" * 64)
    lock = demo_lock(
        gits=(LockedGit(name="vllm", url="https://git.example/v", ref="v1", commit="c" * 40),),
        torch=torch,
        guard=Guard(packages={"torch": "2.10.0a0", "Triton": "3.5.0"}),
    )
    subject = subject_of(lock)
    assert subject.others == (SubjectOther(name="vllm", version=None, kind="vcs", hashed=True),)
    assert (subject.torch, subject.kept) == (torch, {"torch": "2.10.0a0", "triton": "3.5.0"})
    assert subject_of(replace(lock, torch=replace(torch, origin="wheel"))).kept == {}


def test_a_lock_of_ours_that_was_changed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LockError):
        _read(tmp_path, "[tool.spark-build]\nname = 'x'\n")


def test_of_several_wheels_the_one_for_the_platform_is_taken(tmp_path: Path) -> None:
    names = (
        "demo-1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "demo-1.0-cp313-cp313-manylinux_2_28_aarch64.whl",
        "demo-1.0-py3-none-any.whl",
    )
    package = _package("demo", body=_wheels(*names))
    for platform, name in (("linux/arm64", names[1]), ("linux/amd64", names[0])):
        (wheel,) = _read(tmp_path, package, platform=platform).wheels
        assert wheel.filename == name
    (wheel,) = _read(tmp_path, package, python="3.14").wheels
    assert wheel.filename == names[2]


def test_where_no_wheel_fits_the_first_is_judged(tmp_path: Path) -> None:
    name = "demo-1.0-cp313-cp313-win_amd64.whl"
    (wheel,) = _read(tmp_path, _package("demo", body=_wheels(name))).wheels
    assert wheel.filename == name


def test_packages_of_other_platforms_are_left_out(tmp_path: Path) -> None:
    body = "marker = \"sys_platform == 'win32'\"\n" + _wheels("demo-1.0-py3-none-any.whl")
    assert _read(tmp_path, _package("demo", body=body)).wheels == ()


def test_what_has_no_wheel_is_told(tmp_path: Path) -> None:
    sdist = _package("one", body=f"sdist = {_file('one-1.0.tar.gz')}")
    commit = f'vcs = {{ type = "git", url = "https://git.example", commit-id = "{"0" * 40}" }}'
    subject = _read(
        tmp_path,
        sdist,
        _package("two", body=commit),
        _package("three", body='directory = { path = "." }'),
    )
    assert [(other.name, other.kind, other.hashed) for other in subject.others] == [
        ("one", "sdist", True),
        ("two", "vcs", True),
        ("three", "directory", True),
    ]


@pytest.mark.parametrize(
    ("hashes", "hashed", "sha256"),
    [
        (f'sha256 = "{_HASH}"', True, _HASH),
        ('sha512 = "b"', True, None),
        ('md5 = "c"', False, None),
        ("", False, None),
    ],
)
def test_hashes(*, hashes: str, hashed: bool, sha256: str | None, tmp_path: Path) -> None:
    body = f"wheels = [{_file('demo-1.0-py3-none-any.whl', hashes)}]"
    (wheel,) = _read(tmp_path, _package("demo", body=body)).wheels
    assert (wheel.hashed, wheel.sha256) == (hashed, sha256)


def test_a_source_without_a_hash(tmp_path: Path) -> None:
    body = 'sdist = { url = "https://files.example/demo-1.0.tar.gz" }'
    (other,) = _read(tmp_path, _package("demo", body=body)).others
    assert not other.hashed


def test_wheels_on_disk(tmp_path: Path) -> None:
    name = "demo-1.0-py3-none-any.whl"
    relative = f'wheels = [{{ path = "dist/{name}", hashes = {{ sha256 = "{_HASH}" }} }}]'
    (wheel,) = _read(tmp_path, _package("demo", body=relative)).wheels
    assert (wheel.path, wheel.url) == (tmp_path / "dist" / name, None)
    absolute = f'wheels = [{{ url = "file:///srv/{name}", hashes = {{ sha256 = "{_HASH}" }} }}]'
    (wheel,) = _read(tmp_path, _package("demo", body=absolute)).wheels
    assert wheel.path == Path("/srv") / name


@pytest.mark.parametrize(
    "text", ["[[packages]]\nname = 3\n", "packages = 4\n", "= nothing", "a = " + "9" * 5000]
)
def test_what_is_no_pylock(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pylock.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"pylock\.toml: not a"):
        read_subject(path)


def test_a_lock_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_subject(tmp_path / "pylock.toml")


@pytest.mark.parametrize("sha256", ["../../evil", "", "a" * 63, "A" * 64])
def test_a_hash_that_is_none_is_refused(sha256: str, tmp_path: Path) -> None:
    wheel = _file("demo-1.0-py3-none-any.whl", f'sha256 = "{sha256}"')
    with pytest.raises(UsageError, match=r"demo: .* is no sha256"):
        _read(tmp_path, _package("demo", body=f"wheels = [{wheel}]"))


@pytest.mark.parametrize("requires", ["===foo", ">=3.999999999", ">=4000", ">=3.1000"])
def test_a_python_that_there_is_not(requires: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="requires-python"):
        _read(tmp_path, head=_HEAD.replace(">=3.13", requires) + "packages = []\n")


def test_a_table_of_tools_that_is_none_is_passed_over(tmp_path: Path) -> None:
    assert _read(tmp_path, head=f"tool = 5\n{_HEAD}packages = []\n").wheels == ()


@pytest.mark.parametrize("depth", [300, 5000])
def test_nesting_without_end(depth: int, tmp_path: Path) -> None:
    deep = f"deep = {'[' * depth}{']' * depth}\n"
    with contextlib.suppress(UsageError):
        _read(tmp_path, head=f"{_HEAD}packages = []\n{deep}")


def test_a_url_that_is_none(tmp_path: Path) -> None:
    body = 'wheels = [{ url = "https://[/demo-1.0-py3-none-any.whl", hashes = { md5 = "a" } }]'
    with pytest.raises(UsageError):
        _read(tmp_path, _package("demo", body=body))
