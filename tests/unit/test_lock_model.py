"""Lock files: what is written is read back, and what is not ours or was changed is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.pylock import Pylock

from builder.errors import LockError
from builder.lock.model import (
    ChosenSource,
    DebianBase,
    Lock,
    LockedDeb,
    LockedFile,
    LockedGit,
    LockedWheel,
    OciBase,
    RegistryBase,
    plain,
)
from builder.lock.platforms import markers, wheel_tags
from builder.lock.pylock import _digest, parse_lock, read_lock, write_lock

WHEELS = (
    LockedWheel(
        name="numpy",
        version="2.3.4",
        url="https://files.example/numpy-2.3.4-cp313-cp313-manylinux_2_28_aarch64.whl",
        sha256="a" * 64,
        size=14_000_000,
    ),
    LockedWheel(
        name="torch",
        version="2.9.0+cu130",
        url="https://files.example/whl/torch-2.9.0%2Bcu130-cp313-cp313-manylinux_2_28_aarch64.whl",
        sha256="b" * 64,
        size=2_000_000_000,
    ),
)
DEB = LockedDeb(
    name="libc6",
    version="2.41-12+deb13u1",
    architecture="arm64",
    url="https://debs.example/pool/main/g/glibc/libc6_2.41-12+deb13u1_arm64.deb",
    sha256="c" * 64,
    size=2_700_000,
)
LOCK = Lock(
    name="demo",
    target="gb10",
    platform="linux/arm64",
    python="3.13",
    interpreter="/usr/bin/python3.13",
    glibc="2.41",
    base=DebianBase(suite="trixie", debs=(DEB,)),
    wheels=WHEELS,
    inputs={"requirements": ["numpy", "torch==2.9.0"], "base": {"debian": {"suite": "trixie"}}},
    tools={"uv": "0.9.8"},
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
SHA256 = st.text("0123456789abcdef", min_size=64, max_size=64)
SIZES = st.integers(0, 10**11)
VERSIONS = st.sampled_from(["1", "2.9.0", "1!2.0", "1.0rc1", "2.9.0+cu130", "0.13.1.post2"])
NAMES = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+){0,2}", fullmatch=True)


@st.composite
def a_wheel(draw: st.DrawFn) -> LockedWheel:
    name, version = draw(NAMES), draw(VERSIONS)
    stem = f"{name.replace('-', '_')}-{version.replace('+', '%2B').replace('!', '%21')}"
    url = f"https://files.example/{stem}-py3-none-any.whl"
    return LockedWheel(name=name, version=version, url=url, sha256=draw(SHA256), size=draw(SIZES))


@st.composite
def a_deb(draw: st.DrawFn) -> LockedDeb:
    return LockedDeb(
        name=draw(TEXTS),
        version=draw(TEXTS),
        architecture=draw(st.sampled_from(["arm64", "all"])),
        url="https://debs.example/" + draw(NAMES),
        sha256=draw(SHA256),
        size=draw(SIZES),
    )


BASES = st.one_of(
    st.builds(OciBase, path=TEXTS, digest=SHA256.map("sha256:{}".format)),
    st.builds(DebianBase, suite=TEXTS, debs=st.lists(a_deb(), max_size=3).map(tuple)),
)
LOCKS = st.builds(
    Lock,
    name=NAMES,
    target=st.sampled_from(["gb10", "rtx-pro-x86"]),
    platform=st.sampled_from(["linux/arm64", "linux/amd64"]),
    python=st.sampled_from(["3.11", "3.13"]),
    interpreter=st.sampled_from(["/usr/bin/python3.13", "/opt/py+3/bin/python"]),
    glibc=st.sampled_from(["2.36", "2.41"]),
    base=BASES,
    wheels=st.lists(a_wheel(), max_size=4).map(tuple),
    inputs=st.dictionaries(TEXTS, VALUES, max_size=4),
    tools=st.dictionaries(TEXTS, TEXTS, max_size=2),
)


@settings(max_examples=30)
@given(LOCKS)
def test_what_is_written_is_read_back(lock: Lock) -> None:
    text = write_lock(lock)
    again = parse_lock(text, source="x")
    assert again == lock
    assert write_lock(again) == text
    assert _stated_digest(again) == _digest(tomllib.loads(text))


def _stated_digest(lock: Lock) -> str:
    return str(tomllib.loads(write_lock(lock))["tool"]["spark-build"]["digest"])


def test_the_same_lock_is_the_same_bytes() -> None:
    same = replace(LOCK, inputs=plain(LOCK.inputs), tools=dict(LOCK.tools))
    assert write_lock(same) == write_lock(LOCK)


def test_every_field_has_its_part_in_the_digest() -> None:
    changes: list[dict[str, Any]] = [
        {"name": "other"},
        {"target": "thor"},
        {"platform": "linux/amd64"},
        {"python": "3.12"},
        {"interpreter": "/usr/local/bin/python3.13"},
        {"glibc": "2.39"},
        {"base": OciBase(path="base", digest="sha256:" + "d" * 64)},
        {"base": DebianBase(suite="trixie", debs=(replace(DEB, size=1),))},
        {"wheels": WHEELS[:1]},
        {"wheels": (WHEELS[0], replace(WHEELS[1], sha256="e" * 64))},
        {"inputs": {}},
        {"tools": {}},
    ]
    digests = {_stated_digest(replace(LOCK, **change)) for change in [{}, *changes]}
    assert len(digests) == len(changes) + 1


def test_the_file_is_a_standard_lock_that_selects_exactly_its_wheels() -> None:
    pylock = Pylock.from_dict(tomllib.loads(write_lock(LOCK)))
    environment = markers("linux/arm64", "3.13")
    tags = wheel_tags("linux/arm64", "3.13", "2.41")
    chosen = [source for _, source in pylock.select(environment=environment, tags=tags)]
    assert [getattr(source, "url", None) for source in chosen] == [wheel.url for wheel in WHEELS]
    assert [dict(getattr(source, "hashes", {})) for source in chosen] == [
        {"sha256": wheel.sha256} for wheel in WHEELS
    ]
    assert [package.name for package in pylock.packages] == ["numpy", "torch"]


@pytest.mark.parametrize(("platform", "python"), [("linux/amd64", "3.13"), ("linux/arm64", "3.12")])
def test_another_platform_or_python_is_refused_by_the_file_itself(
    platform: str, python: str
) -> None:
    pylock = Pylock.from_dict(tomllib.loads(write_lock(LOCK)))
    with pytest.raises(Exception, match="does not satisfy"):
        list(pylock.select(environment=markers(platform, python), tags=[]))


@pytest.mark.parametrize(
    ("url", "filename"),
    [
        ("https://files.example/a/x-1.whl", "x-1.whl"),
        ("https://files.example/torch-2.9.0%2Bcu130-x.whl", "torch-2.9.0+cu130-x.whl"),
        ("https://files.example/torch-2.9.0%2bcu130-x.whl", "torch-2.9.0+cu130-x.whl"),
        ("https://files.example/x-1%212.0-py3.whl", "x-1!2.0-py3.whl"),
        ("https://files.example/x-1.whl?token=secret", "x-1.whl"),
        ("https://files.example/x-1.whl#sha256=abc/def", "x-1.whl"),
        ("https://files.example/a%2F..%2Fx-1.whl", "x-1.whl"),
    ],
)
def test_a_file_is_called_by_the_end_of_its_url(url: str, filename: str) -> None:
    assert LockedFile(url=url, sha256="a" * 64, size=1).filename == filename


def refusal(text: str) -> str:
    with pytest.raises(LockError) as caught:
        parse_lock(text, source="recipes/pylock.demo-gb10.toml")
    assert caught.value.message.startswith("recipes/pylock.demo-gb10.toml: ")
    assert "spark-build lock RECIPE" in (caught.value.hint or "")
    return caught.value.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("size = 14000000", "size = 14000001"),
        ("a" * 64, "f" * 64),
        ("trixie", "bookworm"),
        ('"linux/arm64"', '"linux/amd64"'),
        ('uv = "0.9.8"', 'uv = "0.9.9"'),
        ("[tool.spark-build]", "[tool.other]\n[tool.spark-build]"),
    ],
)
def test_a_change_by_hand_is_noticed(old: str, new: str) -> None:
    text = write_lock(LOCK)
    assert old in text
    assert "changed by hand" in refusal(text.replace(old, new, 1))


@pytest.mark.parametrize("text", ["# a comment\n", "\n", "[packages.tool]\nx = 1\n"])
def test_a_harmless_addition_is_a_change_by_hand_too(text: str) -> None:
    assert "changed by hand" in refusal(f"{write_lock(LOCK)}{text}")


def test_a_checkout_with_other_line_ends_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / LOCK.filename
    path.write_bytes(write_lock(LOCK).replace("\n", "\r\n").encode())
    assert read_lock(path) == LOCK


def resigned(change: Callable[[dict[str, Any]], object]) -> str:
    """A lock with a change and the digest that fits it: what a bug or an attacker would write."""
    document = tomllib.loads(write_lock(LOCK))
    change(document)
    if isinstance(document.get("tool", {}).get("spark-build"), dict):
        document["tool"]["spark-build"]["digest"] = _digest(document)
    return tomli_w.dumps(document)


def ours(document: dict[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = document["tool"]["spark-build"]
    return table


def test_another_format_is_named() -> None:
    message = refusal(resigned(lambda document: ours(document).update(format=99)))
    assert "written in format 99" in message


@pytest.mark.parametrize("table", [None, {}, {"spark-build": 7}, {"uv": {}}, "text"])
def test_a_lock_of_another_tool_is_told_from_ours(table: Any) -> None:
    def change(document: dict[str, Any]) -> None:
        document["tool"] = table
        if table is None:
            del document["tool"]

    document = tomllib.loads(write_lock(LOCK))
    change(document)
    assert "not a lock that spark-build wrote" in refusal(tomli_w.dumps(document))


@pytest.mark.parametrize(
    "text", ["", "x", "[", "a = 1\na = 2", 'lock-version = "9.0"', "x = " + "[" * 20_000]
)
def test_what_is_no_lock_at_all_is_refused(text: str) -> None:
    assert "not a lock that spark-build wrote" in refusal(text)


KEYS = ["name", "target", "platform", "python", "interpreter", "glibc", "tools", "inputs", "base"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [None, 7, [], True], ids=["absent", "int", "list", "bool"])
def test_a_missing_key_or_a_wrong_type_is_refused(key: str, value: object) -> None:
    def change(document: dict[str, Any]) -> None:
        ours(document)[key] = value
        if value is None:
            del ours(document)[key]

    assert key in refusal(resigned(change))


EVIL_HASHES = ["../../../etc/cron.d/x", "A" * 64, "a" * 63, "", "a" * 64 + "/", 7]


@pytest.mark.parametrize("sha256", EVIL_HASHES, ids=repr)
def test_a_hash_that_is_none_never_becomes_a_path(sha256: object) -> None:
    def in_wheel(document: dict[str, Any]) -> None:
        document["packages"][0]["wheels"][0]["hashes"]["sha256"] = sha256

    def in_deb(document: dict[str, Any]) -> None:
        ours(document)["base"]["debs"][0]["sha256"] = sha256

    assert "not a lock that spark-build wrote" in refusal(resigned(in_wheel))
    assert "not a lock that spark-build wrote" in refusal(resigned(in_deb))


@pytest.mark.parametrize(
    "change",
    [
        lambda lock: ours(lock)["base"].update(debs="libc6"),
        lambda lock: ours(lock)["base"].update(debs=["libc6"]),
        lambda lock: ours(lock)["base"].update(debs={"name": "libc6"}),
        lambda lock: ours(lock)["base"]["debs"][0].update(size=-1),
        lambda lock: ours(lock)["base"]["debs"][0].pop("url"),
        lambda lock: ours(lock)["base"].pop("suite"),
        lambda lock: ours(lock)["base"].pop("debs"),
        lambda lock: ours(lock).update(base={"path": "base", "digest": "sha256:../x"}),
        lambda lock: ours(lock).update(gits={"numpy": "text"}),
        lambda lock: ours(lock).update(torch={"origin": "elsewhere", "version": "1"}),
        lambda lock: ours(lock).update(platform="linux/riscv64"),
        lambda lock: lock.update(packages="numpy"),
        lambda lock: lock["packages"][0].pop("wheels"),
        lambda lock: lock["packages"][0].pop("version"),
        lambda lock: lock["packages"][0].update(name="Not_Normalised"),
        lambda lock: lock["packages"][0]["wheels"].append(lock["packages"][1]["wheels"][0]),
        lambda lock: lock["packages"][0]["wheels"][0].pop("url"),
        lambda lock: lock["packages"][0]["wheels"][0].pop("size"),
        lambda lock: lock["packages"][0]["wheels"][0].update(size=-1),
        lambda lock: lock["packages"][0]["wheels"][0].update(hashes={"md5": "a"}),
        lambda lock: lock["packages"][0]["wheels"][0].pop("hashes"),
        lambda lock: lock["packages"][0].update(wheels=[], archive={"url": "https://x.example/a"}),
        lambda lock: lock.pop("created-by"),
    ],
)
def test_a_lock_that_says_something_else_is_refused(
    change: Callable[[dict[str, Any]], object],
) -> None:
    assert "not a lock that spark-build wrote" in refusal(resigned(change))


@given(st.binary(max_size=200))
def test_other_text_is_refused_and_nothing_else(data: bytes) -> None:
    refusal(data.decode("utf-8", "replace"))


def test_a_lock_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / LOCK.filename
    assert path.name == "pylock.demo-gb10.toml"
    path.write_text(write_lock(LOCK))
    assert read_lock(path) == LOCK


@pytest.mark.parametrize("kind", ["absent", "folder", "not text"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pylock.demo-gb10.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "not text":
        path.write_bytes(b"\xff\xfe")
    with pytest.raises(LockError, match="pylock") as caught:
        read_lock(path)
    assert str(path) in caught.value.message


def test_plain_values_are_as_toml_gives_them_back() -> None:
    value = {"a": (1, [("x",)]), "b": None, "c": {"d": None, "e": "f"}}
    assert plain(value) == {"a": [1, [["x"]]], "c": {"e": "f"}}
    assert tomllib.loads(tomli_w.dumps(plain(value))) == plain(value)


def test_contents_are_the_same_from_anywhere() -> None:
    def moved(file: Any) -> Any:
        return replace(file, url=file.url.replace("https://", "https://mirror.example/"))

    assert isinstance(LOCK.base, DebianBase)
    elsewhere = replace(
        LOCK,
        base=replace(LOCK.base, debs=tuple(map(moved, LOCK.base.debs))),
        wheels=tuple(map(moved, LOCK.wheels)),
        tools={"uv": "0.0.1"},
    )
    assert elsewhere.contents == LOCK.contents
    assert _stated_digest(elsewhere) != _stated_digest(LOCK)


def test_contents_change_with_any_hash() -> None:
    wheel, *others = LOCK.wheels
    changed = replace(LOCK, wheels=(replace(wheel, sha256="0" * 64), *others))
    assert changed.contents != LOCK.contents
    assert replace(LOCK, python="3.12").contents != LOCK.contents
    empty = DebianBase(suite="trixie", debs=())
    assert replace(LOCK, base=empty).contents != LOCK.contents


@pytest.mark.parametrize(
    "change",
    [
        {"interpreter": "../../x"},
        {"interpreter": "/usr/../x"},
        {"interpreter": "/usr/bin/python\nRUN evil"},
        {"python": "3.1111"},
        {"glibc": "zz"},
        {"glibc": "2.9999"},
        {"target": "../x"},
    ],
)
def test_what_becomes_a_path_or_a_line_is_checked(change: dict[str, Any]) -> None:
    """Even where somebody made the digest fit."""
    with pytest.raises(LockError, match=f": {next(iter(change))}: "):
        parse_lock(write_lock(replace(LOCK, **change)), source="pylock.x.toml")


GIT = LockedGit(name="trl", url="https://git.example/trl", ref="v1.0", commit="c" * 40)
REGISTRY = RegistryBase(
    image="registry.example/x:1", index=f"sha256:{'a' * 64}", digest=f"sha256:{'b' * 64}", size=1
)


@pytest.mark.parametrize(
    "change",
    [
        *({"gits": (replace(GIT, url=text),)} for text in ("--upload-pack=x", "https://a\nRUN x")),
        *({"gits": (replace(GIT, ref=text),)} for text in ("-x", "v1\0", "v 1", "")),
        *({"gits": (replace(GIT, subdirectory=text),)} for text in ("/etc", "a/../../b", "a\nb")),
        *(
            {"sources": (ChosenSource(name="numpy", source=text),)}
            for text in ("", "elsewhere x", "index ../../x", "index A b", "git https://a@v1")
        ),
        {"base": replace(REGISTRY, index="latest")},
        {"base": replace(REGISTRY, size=-1)},
    ],
)
def test_what_would_leave_its_place_is_refused(change: dict[str, Any]) -> None:
    assert "not a lock that spark-build wrote" in refusal(write_lock(replace(LOCK, **change)))


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(LockError, match="is larger than 64 MiB"):
        read_lock(Path("/dev/zero"))
