"""Wheels as entries: the tree that an installer gives, or a refusal, whatever the file is."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.engines.wheel import Entry, Wheel
from builder.oci.layer import LayerError, LayerWriter, sort_key
from builder.plan import Venv
from tests.builders import WheelText, record_hash

VENV = Venv(prefix="/opt/venv", python="3.13", interpreter="/usr/bin/python3.13")
SITE = "lib/python3.13/site-packages"
INFO = f"{SITE}/demo-1.0.dist-info"
MAIN = "[console_scripts]\ndemo = demo.cli:main\n"


def layer_of(path: Path, filename: str | None = None) -> dict[str, tuple[int, bytes]]:
    """Path → mode and bytes, read back from a layer of the wheel's entries."""
    out = io.BytesIO()
    writer = LayerWriter(out)
    with Wheel(path, filename or path.name) as wheel:
        entries = {entry.path: entry for entry in wheel.entries(VENV)}
        for name in sorted(entries, key=sort_key):
            wheel.write(entries[name], writer, name)
    writer.close()
    found = {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(out.getvalue()))) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found[member.name] = (member.mode, content.read())
            assert entries[member.name].sha256 == sha256(found[member.name][1])
            assert entries[member.name].size == member.size
    assert found.keys() == entries.keys()
    return found


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entries_of(path: Path) -> list[Entry]:
    with Wheel(path, path.name) as wheel:
        return wheel.entries(VENV)


def refusal(path: Path, filename: str | None = None) -> str:
    """Why the wheel is refused, on opening or on writing it."""
    with pytest.raises(LayerError) as caught:
        layer_of(path, filename)
    assert (filename or path.name) in caught.value.message
    return caught.value.message


def rezip(tmp_path: Path, members: dict[str, bytes] | list[tuple[str, bytes]]) -> Path:
    """A ZIP of just these members, RECORD or not."""
    pairs = members.items() if isinstance(members, dict) else members
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in pairs:
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def test_files_go_to_site_packages_with_their_modes(tmp_path: Path) -> None:
    files = {
        "demo/__init__.py": b"",
        "demo/tool": b"\x7fELF" + bytes(3000),
        "demo/data.txt": b"text " * 1000,
        "space/part/one.py": b"1",
    }
    wheel = WheelText(files=files, modes={"demo/tool": 0o775, "demo/data.txt": 0o600})
    found = layer_of(wheel.write(tmp_path))
    expected = {f"{SITE}/{name}": (0o644, data) for name, data in files.items()}
    expected[f"{SITE}/demo/tool"] = (0o755, files["demo/tool"])
    for name in ("METADATA", "WHEEL"):
        expected[f"{INFO}/{name}"] = (0o644, wheel.members()[f"demo-1.0.dist-info/{name}"])
    assert {name: found[name] for name in found if name != f"{INFO}/RECORD"} == expected


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_every_way_of_packing_gives_the_same_files(tmp_path: Path, method: int) -> None:
    files = {"demo/a.py": b"x = 1\n" * 500, "demo/empty": b"", "demo/large": bytes(200_000)}
    found = layer_of(WheelText(files=files, method=method).write(tmp_path))
    assert {name: found[f"{SITE}/{name}"][1] for name in files} == files


def test_the_data_folder_goes_by_scheme(tmp_path: Path) -> None:
    """As uv and pip lay it out; PEP 427, "The .data directory"."""
    data = "My_Pkg-1.0.data"
    wheel = WheelText(
        name="My_Pkg",
        files={
            f"{data}/purelib/pure.py": b"p",
            f"{data}/platlib/plat/x.so": b"\x7fELF",
            f"{data}/headers/sub/h.h": b"h",
            f"{data}/data/share/man/man1/x.1": b"#!python",
            f"{data}/data/etc/x": b"e",
            f"{data}/scripts/python-script": b"#!python -u\nprint(1)\n",
            f"{data}/scripts/gui-script": b"#!pythonw\r\nprint(2)\n",
            f"{data}/scripts/only-line": b"#!python",
            f"{data}/scripts/shell": b"#!/bin/sh\n",
            f"{data}/scripts/binary": b"\x7fELF" + bytes(9000),
            f"{data}/scripts/tiny": b"#!",
        },
    )
    found = layer_of(wheel.write(tmp_path))
    shebang = b"#!/opt/venv/bin/python\n"
    expected = {
        f"{SITE}/pure.py": (0o644, b"p"),
        f"{SITE}/plat/x.so": (0o644, b"\x7fELF"),
        "include/site/python3.13/my-pkg/sub/h.h": (0o644, b"h"),
        "share/man/man1/x.1": (0o644, b"#!python"),
        "etc/x": (0o644, b"e"),
        "bin/python-script": (0o755, shebang + b"print(1)\n"),
        "bin/gui-script": (0o755, shebang + b"print(2)\n"),
        "bin/only-line": (0o755, shebang),
        "bin/shell": (0o755, b"#!/bin/sh\n"),
        "bin/binary": (0o755, b"\x7fELF" + bytes(9000)),
        "bin/tiny": (0o755, b"#!"),
    }
    assert {path: entry for path, entry in found.items() if ".dist-info/" not in path} == expected


@pytest.mark.parametrize(
    "name", ["demo-1.0.data/unknown/x", "demo-1.0.data/x", "demo-1.0.data/scripts/"]
)
def test_an_unknown_scheme_is_refused(tmp_path: Path, name: str) -> None:
    path = WheelText(files={name.rstrip("/"): b"x"}).write(tmp_path)
    assert "unknown scheme" in refusal(path)


def test_entry_points_become_scripts(tmp_path: Path) -> None:
    text = (
        "[console_scripts]\ndemo = demo.cli:main\nDemo.Obj-2=demo:app.run [extra,other]\n"
        "# a comment\n\n[gui_scripts]\ndemo-gui = demo : gui\n[other.group]\nx = not:a:script\n"
    )
    found = layer_of(WheelText(entry_points=text).write(tmp_path))
    scripts = {path: entry for path, entry in found.items() if path.startswith("bin/")}
    assert scripts.keys() == {"bin/demo", "bin/Demo.Obj-2", "bin/demo-gui"}
    assert {mode for mode, _ in scripts.values()} == {0o755}
    assert scripts["bin/demo"][1].decode() == (
        "#!/opt/venv/bin/python\n"
        "# -*- coding: utf-8 -*-\n"
        "import sys\n"
        "from demo.cli import main\n"
        'if __name__ == "__main__":\n'
        '    if sys.argv[0].endswith("-script.pyw"):\n'
        "        sys.argv[0] = sys.argv[0][:-11]\n"
        '    elif sys.argv[0].endswith(".exe"):\n'
        "        sys.argv[0] = sys.argv[0][:-4]\n"
        "    sys.exit(main())\n"
    )
    assert b"from demo import app\n" in scripts["bin/Demo.Obj-2"][1]
    assert b"sys.exit(app.run())" in scripts["bin/Demo.Obj-2"][1]
    for _, script in scripts.values():
        compile(script, "script", "exec")


@pytest.mark.parametrize(
    "line",
    [
        "demo = demo.cli",
        "demo = :main",
        "demo = demo:",
        "demo = demo.cli:main; import os",
        "demo = demo.1:main",
        "demo = demo cli:main",
        "../demo = demo.cli:main",
        "a/b = demo.cli:main",
        ".. = demo.cli:main",
    ],
)
def test_an_entry_point_that_is_none_is_refused(tmp_path: Path, line: str) -> None:
    path = WheelText(entry_points=f"[console_scripts]\n{line}\n").write(tmp_path)
    assert "entry point" in refusal(path)


@pytest.mark.parametrize(
    "text", ["no section\n", "[console_scripts]\nnot a pair\n", "[x\n", "\xff"]
)
def test_entry_points_that_cannot_be_read_are_refused(tmp_path: Path, text: str) -> None:
    members = WheelText(entry_points=text).members()
    if text == "\xff":
        members["demo-1.0.dist-info/entry_points.txt"] = b"\xff"
    assert "not a readable wheel" in refusal(rezip(tmp_path, members))


def test_an_entry_point_goes_before_a_script_and_after_data(tmp_path: Path) -> None:
    """As with uv: the generated script replaces the shipped one, a file of `data` stays."""
    files = {"demo-1.0.data/scripts/demo": b"#!/bin/sh\nold\n"}
    found = layer_of(WheelText(files=files, entry_points=MAIN).write(tmp_path))
    assert b"from demo.cli import main" in found["bin/demo"][1]
    files = {"demo-1.0.data/data/bin/demo": b"#!/bin/sh\nold\n"}
    found = layer_of(WheelText(files=files, entry_points=MAIN).write(tmp_path))
    assert found["bin/demo"] == (0o644, b"#!/bin/sh\nold\n")
    rows = csv.reader(io.StringIO(found[f"{INFO}/RECORD"][1].decode()))
    assert [row[0] for row in rows].count("../../../bin/demo") == 1


def test_the_same_script_for_console_and_gui_is_one(tmp_path: Path) -> None:
    text = f"{MAIN}[gui_scripts]\ndemo = demo:gui\n"
    assert b"import gui" in layer_of(WheelText(entry_points=text).write(tmp_path))["bin/demo"][1]


def test_the_record_is_true_sorted_and_relative(tmp_path: Path) -> None:
    wheel = WheelText(
        files={
            "demo/a,b.py": b"comma",
            'demo/quo"te.py': b"quote",
            "demo/ünï.py": b"text",
            "demo-1.0.data/data/share/x": b"x",
            "demo-1.0.data/scripts/run": b"#!python\nrun()\n",
        },
        entry_points=MAIN,
    )
    found = layer_of(wheel.write(tmp_path))
    text = found[f"{INFO}/RECORD"][1].decode()
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == sorted(rows)
    assert '"demo/a,b.py",' in text
    assert "\r" not in text
    recorded = {row[0]: row[1:] for row in rows}
    assert recorded.pop("demo-1.0.dist-info/RECORD") == ["", ""]
    site = [path.removeprefix(f"{SITE}/") for path in found]
    relative = {path if f"{SITE}/{path}" in found else f"../../../{path}": path for path in site}
    assert recorded.keys() == relative.keys() - {"demo-1.0.dist-info/RECORD"}
    for path, (digest, size) in recorded.items():
        data = found.get(f"{SITE}/{path}", found.get(path.removeprefix("../../../")))
        assert data is not None
        assert (digest, size) == (record_hash(data[1]), str(len(data[1])))


def test_what_varies_between_installers_is_not_made(tmp_path: Path) -> None:
    names = {entry.path.rpartition("/")[2] for entry in entries_of(WheelText().write(tmp_path))}
    assert names == {"METADATA", "RECORD", "WHEEL"}


def test_signatures_of_the_wheel_are_left_out_and_no_other_file(tmp_path: Path) -> None:
    files = {"demo-1.0.dist-info/RECORD.jws": b"{}", "demo/RECORD.jws": b"{}"}
    found = layer_of(WheelText(files=files).write(tmp_path))
    assert f"{SITE}/demo/RECORD.jws" in found
    assert f"{INFO}/RECORD.jws" not in found


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    "name", ["demo/a.py", "demo-1.0.data/scripts/run", "demo-1.0.dist-info/METADATA"]
)
def test_a_file_that_is_not_what_record_says_is_refused(
    tmp_path: Path, method: int, name: str
) -> None:
    files = {"demo/a.py": b"a" * 300, "demo-1.0.data/scripts/run": b"#!python\n" + b"r" * 300}
    true = WheelText(files=files)
    record = true.members()["demo-1.0.dist-info/RECORD"].decode()
    false = record.replace(record_hash(true.members()[name]), record_hash(b"other"))
    assert false != record
    path = WheelText(files=files, method=method, record=false).write(tmp_path)
    message = refusal(path)
    assert f"{name} has sha256 " in message
    assert sha256(b"other") in message


def record_of(*rows: str) -> str:
    wheel = WheelText(files={"demo/a.py": b"a"})
    own = wheel.members()["demo-1.0.dist-info/RECORD"].decode().splitlines(keepends=True)
    return "".join([line for line in own if "a.py" not in line] + [f"{row}\n" for row in rows])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("", "demo/a.py is not in its RECORD"),
        ("demo/a.py,,", "demo/a.py has no hash in its RECORD"),
        ("demo/a.py", "demo/a.py is not in its RECORD"),
        ("demo/a.py,sha512=abcd,1", "RECORD has sha512 for demo/a.py"),
        ("demo/a.py,md5=abcd,1", "RECORD has md5 for demo/a.py"),
        ("demo/a.py,sha256=,1", "demo/a.py has sha256"),
        ("demo/a.py,sha256=@@@@,1", "demo/a.py has sha256"),
        ("demo/a.py,sha256=abcde,1", "not a readable wheel"),
        ("demo/a.py,sha256=\N{SNOWMAN},1", "not a readable wheel"),
    ],
)
def test_a_record_without_a_true_line_for_every_file_is_refused(
    tmp_path: Path, row: str, reason: str
) -> None:
    wheel = WheelText(files={"demo/a.py": b"a"}, record=record_of(row))
    assert reason in refusal(wheel.write(tmp_path))


def test_a_record_that_is_no_text_is_refused(tmp_path: Path) -> None:
    members = WheelText().members() | {"demo-1.0.dist-info/RECORD": b"\xff\xfe"}
    assert "not a readable wheel" in refusal(rezip(tmp_path, members))


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/passwd", "a\\b", "..", "demo-1.0.data/data/../../x", "C:\\x"],
)
def test_a_name_that_leaves_the_environment_is_refused(tmp_path: Path, name: str) -> None:
    path = WheelText(files={name: b"x"}).write(tmp_path)
    assert "would leave the environment" in refusal(path)


@pytest.mark.parametrize("name", ["./x.py", "demo//x.py", "demo/./x.py"])
def test_a_name_that_is_not_clean_is_refused(tmp_path: Path, name: str) -> None:
    assert "not a clean" in _message(WheelText(files={name: b"x"}).write(tmp_path))


def _message(path: Path) -> str:
    with pytest.raises(LayerError) as caught:
        layer_of(path)
    return caught.value.message


def test_a_name_with_a_nul_is_refused(tmp_path: Path) -> None:
    wheel = WheelText(files={"demo/aXb": b"x"})
    path = wheel.write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"demo/aXb", b"demo/a\0b"))
    assert "would leave the environment" in refusal(path)


@pytest.mark.parametrize(
    "name", [".wh.numpy", "numpy/.wh..wh..opq", "demo-1.0.data/data/.wh.x/y", "a/.wh.b/"]
)
def test_a_name_that_would_delete_files_is_refused(tmp_path: Path, name: str) -> None:
    path = rezip(tmp_path, {**WheelText().members(), name: b""})
    assert f"{name!r} would delete files of the image" in refusal(path)


def test_an_entry_point_that_would_delete_files_is_refused(tmp_path: Path) -> None:
    wheel = WheelText(entry_points="[console_scripts]\n.wh.sh = demo:main\n")
    with pytest.raises(LayerError, match="would delete files"):
        layer_of(wheel.write(tmp_path))


LONG = "\n" * 5000


@pytest.mark.parametrize(
    ("wheel", "name"),
    [
        (WheelText(record=LONG), "demo-1.0.dist-info/RECORD"),
        (WheelText(entry_points=MAIN + LONG), "demo-1.0.dist-info/entry_points.txt"),
        (
            WheelText(files={"demo-1.0.data/scripts/x": b"#!python" + LONG.encode()}),
            "demo-1.0.data/scripts/x",
        ),
    ],
    ids=["record", "entry points", "script"],
)
def test_a_text_too_long_to_be_one_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: WheelText, name: str
) -> None:
    monkeypatch.setattr("builder.engines.wheel._TEXT_MAX_BYTES", 4000)
    assert f"{name} announces {len(wheel.members()[name])} bytes" in refusal(wheel.write(tmp_path))


def test_an_empty_name_is_refused(tmp_path: Path) -> None:
    assert refusal(rezip(tmp_path, {**WheelText().members(), "": b""}))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_comes_twice_is_refused(tmp_path: Path) -> None:
    members = [*WheelText(files={"demo/a.py": b"a"}).members().items(), ("demo/a.py", b"a")]
    assert "demo/a.py is in it twice" in refusal(rezip(tmp_path, members))


def test_two_members_for_one_place_are_refused(tmp_path: Path) -> None:
    files = {"demo/a.py": b"a", "demo-1.0.data/purelib/demo/a.py": b"b"}
    assert f"installs {SITE}/demo/a.py twice" in refusal(WheelText(files=files).write(tmp_path))


def test_folders_of_the_zip_are_passed_over(tmp_path: Path) -> None:
    members = [("demo/", b""), *WheelText(files={"demo/a.py": b"a"}).members().items()]
    assert f"{SITE}/demo/a.py" in layer_of(rezip(tmp_path, members))


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = WheelText(files={"demo/a.py": b"a" * 999}).write(tmp_path)
    data = bytearray(path.read_bytes())
    flags = data.index(b"PK\x01\x02") + 8
    data[flags] |= 1
    path.write_bytes(data)
    assert "demo/a.py is encrypted" in refusal(path)


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06", b"not a zip at all", bytes(1000)])
def test_what_is_no_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_bytes(data)
    assert "not a readable wheel" in refusal(path)


def test_a_wheel_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = WheelText(files={"demo/a.py": b"a" * 999}).write(tmp_path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 17):
        path.write_bytes(whole[:size])
        assert refusal(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"demo-1.0.dist-info": "demo-1.0.info"}, "exactly one .dist-info folder"),
        ({"demo-1.0.dist-info": "other-1.0.dist-info"}, "it has other-1.0.dist-info"),
        ({"demo-1.0.dist-info": "sub/demo-1.0.dist-info"}, "it has none"),
        ({"demo-1.0.dist-info/RECORD": "demo-1.0.dist-info/RECORDS"}, "has no demo-1.0.dist-info"),
    ],
)
def test_a_wheel_without_its_own_description_is_refused(
    tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    [(old, new)] = change.items()
    members = {name.replace(old, new): data for name, data in WheelText().members().items()}
    assert reason in refusal(rezip(tmp_path, members))


def test_two_descriptions_of_the_same_name_are_refused(tmp_path: Path) -> None:
    """Which of them was taken would depend on the order of a set."""
    members = WheelText().members() | WheelText(version="2.0").members()
    message = refusal(rezip(tmp_path, members))
    assert "demo-1.0.dist-info, demo-2.0.dist-info" in message


def test_a_foreign_description_beside_its_own_is_a_file_as_any_other(tmp_path: Path) -> None:
    files = {"other-2.0.dist-info/METADATA": b"x", "demo/_vendor/x-1.dist-info/METADATA": b"y"}
    found = layer_of(WheelText(files=files).write(tmp_path))
    assert f"{SITE}/other-2.0.dist-info/METADATA" in found


@pytest.mark.parametrize("filename", ["Demo-1.0-py3-none-any.whl", "demo-1.0-1-py3-none-any.whl"])
def test_the_description_is_found_by_its_normalised_name(tmp_path: Path, filename: str) -> None:
    assert layer_of(WheelText().write(tmp_path), filename)


def test_a_zip_behind_other_bytes_is_read(tmp_path: Path) -> None:
    path = WheelText(files={"demo/a.py": b"a" * 999}).write(tmp_path)
    expected = layer_of(path)
    path.write_bytes(b"#!/bin/sh\nprepended\n" + path.read_bytes())
    assert layer_of(path) == expected


def test_a_zip64_member_is_read(tmp_path: Path) -> None:
    wheel = WheelText(files={"demo/a.py": b"a" * 999})
    path = tmp_path / wheel.filename
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in wheel.members().items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data)
    assert layer_of(path)[f"{SITE}/demo/a.py"] == (0o644, b"a" * 999)


def test_a_local_header_with_more_in_it_is_passed_over(tmp_path: Path) -> None:
    """The extra field's length may differ between the two headers (APPNOTE.TXT 4.3.7)."""
    wheel = WheelText(files={"demo/a.py": b"a" * 999})
    path = tmp_path / wheel.filename
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in wheel.members().items():
            member = zipfile.ZipInfo(name)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.extra = struct.pack("<2H4s", 0xCAFE, 4, b"more")
            archive.writestr(member, data)
            member.extra = b""
    assert layer_of(path)[f"{SITE}/demo/a.py"] == (0o644, b"a" * 999)


def test_the_file_is_closed_whatever_happens(tmp_path: Path) -> None:
    """An open file would be a ResourceWarning, which is an error in these tests."""
    good = WheelText().write(tmp_path)
    with Wheel(good, good.name) as wheel:
        pass
    with pytest.raises(ValueError, match="closed"):
        wheel._file.read()
    bad = tmp_path / "bad-1.0-py3-none-any.whl"
    bad.write_bytes(b"x")
    refusal(bad)


FULL = WheelText(
    files={
        "demo/__init__.py": b"x = 1\n" * 40,
        "demo/empty": b"",
        "demo-1.0.data/scripts/run": b"#!python\nprint(1)\n",
    },
    entry_points=MAIN,
)


def try_to_install(folder: Path, data: bytes) -> None:
    path = folder / FULL.filename
    path.write_bytes(data)
    with suppress(LayerError):
        layer_of(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data())
def test_a_damaged_wheel_is_installed_or_refused_and_nothing_else(
    tmp_path: Path, data: st.DataObject
) -> None:
    whole = bytearray(FULL.zipped())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    try_to_install(tmp_path, bytes(whole))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.data())
def test_a_damaged_directory_is_read_or_refused_and_nothing_else(
    tmp_path: Path, data: st.DataObject
) -> None:
    """The same where it hurts most: in the ZIP's central directory and its end."""
    whole = bytearray(FULL.zipped())
    place = data.draw(st.integers(whole.index(b"PK\x01\x02"), len(whole) - 4))
    whole[place : place + 4] = data.draw(
        st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\1\0\0\0"])
    )
    try_to_install(tmp_path, bytes(whole))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.text(max_size=60), st.text(max_size=60))
def test_whatever_record_and_entry_points_say_is_answered(
    tmp_path: Path, record: str, points: str
) -> None:
    members = WheelText(entry_points=f"[console_scripts]\n{points}").members()
    record_name = "demo-1.0.dist-info/RECORD"
    members[record_name] += record.encode("utf-8", "replace")
    members["demo-1.0.dist-info/entry_points.txt"] = points.encode("utf-8", "replace")
    try_to_install(tmp_path, rezip(tmp_path, members).read_bytes())


def test_a_hash_is_read_in_both_base64_spellings(tmp_path: Path) -> None:
    """RECORD's hashes have no padding; some old tools wrote it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"a").digest()).decode()
    wheel = WheelText(files={"demo/a.py": b"a"}, record=record_of(f"demo/a.py,sha256={digest},1"))
    assert layer_of(wheel.write(tmp_path))
