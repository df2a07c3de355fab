"""The assembler: the same image from any cache, nothing made twice, nothing made over."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder.context import Context
from builder.engines import assemble
from builder.engines.assemble import Assembler, wheel_groups
from builder.engines.base import Built, Engine
from builder.errors import ExternalError, MissingError, UsageError
from builder.http import Http
from builder.lock.model import (
    DebianBase,
    LockedDeb,
    LockedGit,
    LockedWheel,
    OciBase,
    RegistryBase,
)
from builder.lock.store import Store
from builder.oci.image import LAYER_GZIP, MAX_LAYERS, Image, holds, read_layout, write_layout
from builder.oci.layer import LayerError, LayerWriter
from builder.plan import Config, CopyFile, InstallWheels, Plan, Symlink, Venv, WriteFile
from builder.progress import Advance, Progress
from tests.builders import FileServer, WheelText, base_layout, image_of, locked, write_layer

VENV = Venv(prefix="/opt/venv", python="3.13", interpreter="/usr/bin/python3.13")
SITE = "opt/venv/lib/python3.13/site-packages"
NOISE = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(200))

ALPHA = WheelText(
    name="alpha",
    files={"alpha/__init__.py": b"a = 1\n", "space/alpha.py": b"1", "space/shared.txt": b"same"},
    entry_points="[console_scripts]\nalpha = alpha:main\n",
    method=zipfile.ZIP_STORED,
)
BETA = WheelText(
    name="beta",
    files={"beta.py": b"b = 2\n", "space/beta.py": b"2", "space/shared.txt": b"same"},
    method=zipfile.ZIP_STORED,
)
LARGE = WheelText(
    name="large", files={"large/data": NOISE, "space/large.py": b"3"}, method=zipfile.ZIP_STORED
)
WHEELS = (ALPHA, BETA, LARGE)

LIMIT = 5000
"""Stands in for the size from which a wheel has a layer of its own; LARGE is above it."""


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "_LARGE_WHEEL_BYTES", LIMIT)


def stock(cache: Path, wheels: Iterable[WheelText]) -> Store:
    """A store with these wheels in it."""
    store = Store(cache)
    server = FileServer(files={f"/packages/{wheel.filename}": wheel.zipped() for wheel in wheels})
    with Http({}, transport=httpx.MockTransport(server)) as http:
        store.fetch([locked(wheel) for wheel in wheels], http, Progress(), "fetch")
    return store


def plan_of(wheels: Sequence[WheelText] = WHEELS, **changes: Any) -> Plan:
    install = InstallWheels(
        wheels=tuple(locked(wheel) for wheel in wheels), lock_filename="pylock.demo-gb10.toml"
    )
    plan = Plan(
        name="demo",
        target="gb10",
        platform="linux/arm64",
        base=OciBase(path="base", digest="sha256:" + "0" * 64),
        venv=VENV,
        builder=(
            WriteFile(path="/opt/venv/pyvenv.cfg", text="home = /usr/bin\n"),
            Symlink(path="/opt/venv/bin/python", target="/usr/bin/python3.13"),
            install,
        ),
        runtime=(
            CopyFile(source="serve.py", name="files/0", path="/opt/app/serve.py", mode=0o755),
        ),
        config=Config(path="/opt/venv/bin", env={"A": "1"}, entrypoint=("python",)),
    )
    return replace(plan, **changes)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    base_layout(folder / "base", config={"Env": ["PATH=/usr/bin", "B=2"], "Cmd": ["bash"]})
    (folder / "serve.py").write_text("print('hello')\n")
    return folder


class Workshop:
    """A cache, the wheels in it, and builds with them."""

    def __init__(self, folder: Path, sources: Path, context: Context) -> None:
        self.sources = sources
        self.context = replace(context, cache=folder / "cache")
        self.layout = folder / "out" / "oci"
        self.wheels: tuple[WheelText, ...] = WHEELS

    def build(self, plan: Plan | None = None) -> Built:
        store = stock(self.context.cache, self.wheels)
        return Assembler(store, self.context).build(plan or plan_of(), self.sources, self.layout)


@pytest.fixture
def workshop(tmp_path: Path, sources: Path, context: Context) -> Workshop:
    return Workshop(tmp_path / "one", sources, context)


def tree(built: Built) -> dict[str, tarfile.TarInfo]:
    """Path → the entry of the uppermost layer that has it; the base is left out."""
    found: dict[str, tarfile.TarInfo] = {}
    for layer in built.image.layers[1:]:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer.path.read_bytes()))) as archive:
            found |= {member.name: member for member in archive}
    return found


def content(built: Built, path: str) -> bytes:
    for layer in reversed(built.image.layers):
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer.path.read_bytes()))) as archive:
            if path in archive.getnames() and (file := archive.extractfile(path)):
                return file.read()
    raise AssertionError(f"{path} is not in the image")


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_it_is_an_engine_that_lacks_nothing(workshop: Workshop) -> None:
    engine: Engine = Assembler(Store(workshop.context.cache), workshop.context)
    assert (engine.name, engine.missing()) == ("assemble", None)


def test_the_image_has_the_base_then_large_wheels_then_small_then_files(workshop: Workshop) -> None:
    built = workshop.build()
    assert (len(built.image.layers), built.layers_written, built.wheels_read) == (4, 3, 3)
    assert built.engine == "assemble"
    history = [entry["created_by"] for entry in built.image.config["history"]]
    assert history == [
        "layer 0",
        "spark-build: large 1.0",
        "spark-build: alpha 1.0, beta 1.0",
        "spark-build: files of demo",
    ]
    base = read_layout(workshop.sources / "base", "linux/arm64")
    assert built.image.layers[0].digest == base.layers[0].digest
    assert read_layout(built.layout, "linux/arm64").digest == built.image.digest


def test_the_tree_is_that_of_an_environment(workshop: Workshop) -> None:
    built = workshop.build()
    found = tree(built)
    assert {path for path, member in found.items() if not member.isdir()} == {
        "opt/venv/pyvenv.cfg",
        "opt/venv/bin/python",
        "opt/venv/bin/alpha",
        "opt/app/serve.py",
        *(f"{SITE}/{name}" for name in ("alpha/__init__.py", "beta.py", "large/data")),
        *(f"{SITE}/space/{name}" for name in ("alpha.py", "beta.py", "large.py", "shared.txt")),
        *(
            f"{SITE}/{name}-1.0.dist-info/{file}"
            for name in ("alpha", "beta", "large")
            for file in ("METADATA", "WHEEL", "RECORD")
        ),
        f"{SITE}/alpha-1.0.dist-info/entry_points.txt",
    }
    folders = {path for path, member in found.items() if member.isdir()}
    assert folders >= {"opt/venv", "opt/venv/bin", SITE, f"{SITE}/space"}
    assert not folders & {"opt", "opt/app", "usr"}  # the base's, or made by whoever unpacks
    assert found["opt/venv/bin/python"].linkname == "/usr/bin/python3.13"
    assert found["opt/app/serve.py"].mode == 0o755
    assert content(built, "opt/app/serve.py") == b"print('hello')\n"
    assert content(built, "opt/venv/pyvenv.cfg") == b"home = /usr/bin\n"


def test_the_config_is_the_bases_with_ours_on_top(workshop: Workshop) -> None:
    config = workshop.build().image.config
    assert config["config"]["Env"] == ["PATH=/opt/venv/bin:/usr/bin", "B=2", "A=1"]
    assert config["config"]["Entrypoint"] == ["python"]
    assert "Cmd" not in config["config"]
    assert len(config["history"]) == len(config["rootfs"]["diff_ids"]) == 4
    assert config["created"] == "1970-01-01T00:00:00Z"


def test_the_digest_is_what_it_always_was(workshop: Workshop) -> None:
    """Over stored entries, so that no compressor has a say; see test_oci_layer.py."""
    assert workshop.build().image.digest == (
        "sha256:c17c9ddd7720a6e7b6dc7996c5027efed93e6aa491e0f7aba70618e73331d8ea"
    )


def test_two_caches_give_the_same_image_bit_for_bit(
    tmp_path: Path, workshop: Workshop, sources: Path, context: Context
) -> None:
    other = Workshop(tmp_path / "two", sources, context)
    other.wheels = tuple(reversed(WHEELS))
    first, second = workshop.build(), other.build()
    assert first.image.digest == second.image.digest
    assert files_below(first.layout) == files_below(second.layout)


def test_the_epoch_is_in_the_config_only(workshop: Workshop) -> None:
    first = workshop.build()
    workshop.context = replace(workshop.context, epoch=1_700_000_000)
    second = workshop.build()
    assert second.image.config["created"] == "2023-11-14T22:13:20Z"
    assert first.image.layers == second.image.layers
    assert second.layers_written == 0
    assert first.image.digest != second.image.digest
    assert read_layout(workshop.layout, "linux/arm64").digest == second.image.digest


def test_the_second_run_writes_no_layer_and_reads_no_wheel(workshop: Workshop) -> None:
    first = workshop.build()
    inode = (workshop.layout / "index.json").stat().st_ino
    shutil.rmtree(workshop.context.cache / "files")
    again = Assembler(Store(workshop.context.cache), workshop.context).build(
        plan_of(), workshop.sources, workshop.layout
    )
    assert (again.layers_written, again.wheels_read) == (0, 0)
    assert again.image.digest == first.image.digest
    assert (workshop.layout / "index.json").stat().st_ino == inode


def test_a_change_of_the_recipes_files_makes_the_last_layer_only(workshop: Workshop) -> None:
    first = workshop.build()
    (workshop.sources / "serve.py").write_text("print('changed')\n")
    second = workshop.build()
    assert (second.layers_written, second.wheels_read) == (1, 0)
    assert second.image.layers[:-1] == first.image.layers[:-1]
    assert content(second, "opt/app/serve.py") == b"print('changed')\n"


def test_images_that_differ_in_small_wheels_share_the_large_ones(workshop: Workshop) -> None:
    first = workshop.build()
    second = workshop.build(plan_of((ALPHA, LARGE)))
    assert (second.layers_written, second.wheels_read) == (1, 1)
    assert second.image.layers[1] == first.image.layers[1]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_layer_that_is_gone_is_made_anew_and_is_the_same(workshop: Workshop, number: int) -> None:
    first = workshop.build()
    first.image.layers[number].path.unlink()
    again = workshop.build()
    assert again.layers_written == 1
    assert again.image == first.image
    assert again.image.layers[number].path.exists()


@pytest.mark.parametrize(
    "damage", ["blob gone", "blob cut", "blob changed", "index gone", "folder gone", "a file"]
)
def test_a_damaged_output_is_written_anew(workshop: Workshop, damage: str) -> None:
    first = workshop.build()
    expected = files_below(first.layout)
    blob = first.layout / "blobs" / "sha256" / first.image.layers[1].digest.removeprefix("sha256:")
    match damage:
        case "blob gone":
            blob.unlink()
        case "blob cut":
            data = blob.read_bytes()
            blob.unlink()
            blob.write_bytes(data[:-1])
        case "blob changed":  # the cache's file too, which is the same one
            data = blob.read_bytes()
            blob.chmod(0o644)
            blob.write_bytes(data[:-1] + b"x")
            os.utime(blob, ns=(1, 1))
        case "index gone":
            (first.layout / "index.json").unlink()
        case "folder gone":
            shutil.rmtree(first.layout)
        case "a file":
            shutil.rmtree(first.layout)
            first.layout.write_text("in the way")
    again = workshop.build()
    assert again.layers_written == (damage == "blob changed")
    assert files_below(again.layout) == expected


def test_a_folder_that_is_no_layout_is_left_alone(workshop: Workshop) -> None:
    workshop.layout.mkdir(parents=True)
    (workshop.layout / "thesis").write_text("precious")
    with pytest.raises(UsageError, match="holds something else"):
        workshop.build()
    assert files_below(workshop.layout) == {"thesis": b"precious"}


def test_a_base_of_links_to_blobs_is_taken(workshop: Workshop) -> None:
    """As deduplicating stores keep them."""
    blobs = workshop.sources / "base" / "blobs" / "sha256"
    for path in list(blobs.iterdir()):
        target = workshop.sources / path.name
        path.rename(target)
        path.symlink_to(f"../../../{path.name}")
    built = workshop.build()
    shutil.rmtree(workshop.sources / "base")
    assert not any(path.is_symlink() for path in built.layout.rglob("*"))
    assert holds(built.layout, built.image)


@pytest.mark.parametrize("inside", ["", "deeper/base"])
def test_an_image_never_replaces_its_own_base(workshop: Workshop, inside: str) -> None:
    base = workshop.layout / inside
    base.parent.mkdir(parents=True)
    shutil.copytree(workshop.sources / "base", base)
    (workshop.sources / "link").symlink_to(workshop.layout)
    before = files_below(workshop.layout)
    path = f"link/{inside}".rstrip("/")
    with pytest.raises(UsageError, match="the image would replace it"):
        workshop.build(plan_of(base=OciBase(path=path, digest="sha256:" + "0" * 64)))
    assert files_below(workshop.layout) == before


def test_another_image_replaces_the_one_that_was_there_whole(workshop: Workshop) -> None:
    workshop.build()
    (workshop.layout / "left-over").write_text("x")
    second = workshop.build(plan_of((BETA,)))
    assert not (workshop.layout / "left-over").exists()
    assert len(files_below(second.layout)) == 2 + 2 + 3  # marks, documents, layers


def test_a_wheel_that_is_not_in_the_store_is_named(workshop: Workshop) -> None:
    workshop.wheels = (ALPHA, BETA)
    with pytest.raises(ExternalError, match=r"large-1\.0-py3-none-any\.whl: not in the cache"):
        workshop.build()
    assert not workshop.layout.exists()


CLASH = WheelText(name="clash", files={"space/shared.txt": b"other"}, method=zipfile.ZIP_STORED)
LARGE_CLASH = replace(CLASH, files={"space/shared.txt": NOISE})


@pytest.mark.parametrize("clash", [CLASH, LARGE_CLASH], ids=["same layer", "another layer"])
def test_two_wheels_with_different_files_at_one_path_are_refused(
    workshop: Workshop, clash: WheelText
) -> None:
    workshop.wheels = (ALPHA, clash)
    with pytest.raises(LayerError, match=r"space/shared\.txt") as caught:
        workshop.build(plan_of(workshop.wheels))
    assert "one of the packages has to go" in (caught.value.hint or "")
    assert not workshop.layout.exists()


def test_the_same_file_with_other_modes_is_refused_in_one_layer(workshop: Workshop) -> None:
    clash = replace(CLASH, files={"space/shared.txt": b"same"}, modes={"space/shared.txt": 0o755})
    workshop.wheels = (ALPHA, clash)
    with pytest.raises(LayerError, match=r"alpha-1\.0.* and clash-1\.0"):
        workshop.build(plan_of(workshop.wheels))


@pytest.mark.parametrize("padding", [b"", NOISE], ids=["same layer", "another layer"])
def test_a_file_where_another_wheel_has_a_folder_is_refused(
    workshop: Workshop, padding: bytes
) -> None:
    clash = replace(CLASH, files={"space": b"a file", "clash.bin": padding})
    workshop.wheels = (ALPHA, clash)
    with pytest.raises(LayerError, match="site-packages/space"):
        workshop.build(plan_of(workshop.wheels))


def test_a_file_of_the_recipe_over_one_of_a_wheel_is_refused(workshop: Workshop) -> None:
    copy = CopyFile(source="serve.py", name="files/0", path=f"/{SITE}/beta.py")
    with pytest.raises(LayerError, match="or one of them and the recipe"):
        workshop.build(plan_of(runtime=(copy,)))


@pytest.mark.parametrize("source", ["absent.py", "base", "serve.py/x"])
def test_a_file_that_cannot_be_copied_is_named(workshop: Workshop, source: str) -> None:
    copy = CopyFile(source=source, name="files/0", path="/opt/app/x")
    with pytest.raises(UsageError, match="cannot be copied into the image") as caught:
        workshop.build(plan_of(runtime=(copy,)))
    assert str(workshop.sources / source) in caught.value.message


def test_a_wheel_that_was_changed_is_refused_and_leaves_nothing(workshop: Workshop) -> None:
    bad = replace(ALPHA, record="alpha/__init__.py,sha256=AAAA,1\n")
    workshop.wheels = (bad,)
    with pytest.raises(LayerError):
        workshop.build(plan_of((bad,)))
    assert not workshop.layout.exists()
    assert not (workshop.context.cache / "layers").exists()


@pytest.mark.parametrize("at", [100, -100], ids=["content", "directory"])
def test_a_wheel_that_was_damaged_in_the_cache_is_fetched_anew(workshop: Workshop, at: int) -> None:
    store = stock(workshop.context.cache, WHEELS)
    path = store.get(locked(LARGE))
    good = path.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 255
    path.chmod(0o644)
    path.write_bytes(bad)
    with pytest.raises(ExternalError, match="was damaged in the cache") as caught:
        workshop.build()
    assert LARGE.filename in caught.value.message
    assert not path.exists()
    assert workshop.build().wheels_read
    assert path.read_bytes() == good


def test_a_package_that_was_damaged_in_the_cache_is_removed(workshop: Workshop) -> None:
    deb = replace(DEBS[0], sha256=hashlib.sha256(b"good").hexdigest(), size=4)
    path = workshop.context.cache / "files" / deb.sha256[:2] / deb.sha256
    path.parent.mkdir(parents=True)
    path.write_bytes(b"evil")
    with pytest.raises(ExternalError, match="was damaged in the cache"):
        workshop.build(plan_of((), base=DebianBase(suite="trixie", debs=(deb,))))
    assert not path.exists()
    path.write_bytes(b"good")
    with pytest.raises(ExternalError, match="not a whole Debian package"):
        workshop.build(plan_of((), base=DebianBase(suite="trixie", debs=(deb,))))
    assert path.exists()


@pytest.mark.parametrize("path", ["bin/python", "bin/python/x"])
@pytest.mark.parametrize("data", [b"", b"x"])
def test_a_link_of_the_recipe_over_what_a_wheel_has_is_refused(
    workshop: Workshop, path: str, data: bytes
) -> None:
    wheel = WheelText(name="odd", files={f"odd-1.0.data/data/{path}": data})
    workshop.wheels = (wheel,)
    with pytest.raises(LayerError, match=r"^opt/venv/bin/python: .* install different files"):
        workshop.build(plan_of(workshop.wheels))


def deep_base(folder: Path, layers: int) -> None:
    layer = write_layer(folder / "deep-layer", lambda writer: writer.file("a", b""))
    shutil.rmtree(folder / "base")
    write_layout(image_of([layer] * layers), folder / "base")


def test_more_layers_than_engines_stack_are_refused(workshop: Workshop) -> None:
    deep_base(workshop.sources, MAX_LAYERS - 3)
    assert len(workshop.build().image.layers) == MAX_LAYERS
    deep_base(workshop.sources, MAX_LAYERS - 2)
    with pytest.raises(UsageError, match="128 layers, and engines stack 127"):
        workshop.build()


def test_a_base_layer_that_was_changed_is_refused(workshop: Workshop) -> None:
    base = read_layout(workshop.sources / "base", "linux/arm64")
    path = base.layers[0].path
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1] + b"x")
    with pytest.raises(UsageError, match="not what its name says"):
        workshop.build()


def test_without_wheels_and_files_there_is_one_layer_of_ours(workshop: Workshop) -> None:
    built = workshop.build(plan_of((), runtime=()))
    assert len(built.image.layers) == 2
    assert tree(built).keys() == {
        "opt/venv",
        "opt/venv/bin",
        "opt/venv/bin/python",
        "opt/venv/pyvenv.cfg",
    }


DEBS = tuple(
    LockedDeb(
        name=name,
        version="1",
        architecture="arm64",
        url=f"https://debs.example/{name}_1_arm64.deb",
        sha256=hashlib.sha256(name.encode()).hexdigest(),
        size=1,
    )
    for name in ("libc6", "python3")
)


def test_a_debian_base_is_the_lowest_layer_and_made_once(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[str]] = []

    def write(writer: LayerWriter, debs: Sequence[tuple[LockedDeb, Path]], workdir: Path) -> None:
        assert workdir.is_dir()
        written.append([deb.name for deb, _ in debs])
        writer.file("etc/os-release", b"ID=debian\n")

    monkeypatch.setattr(assemble, "write_rootfs", write)
    monkeypatch.setattr(Store, "get", lambda store, file: Path("/unused"))
    plan = plan_of((), base=DebianBase(suite="trixie", debs=DEBS))
    first, again = workshop.build(plan), workshop.build(plan)
    assert written == [["libc6", "python3"]]
    assert (first.layers_written, again.layers_written) == (2, 0)
    history = [entry["created_by"] for entry in first.image.config["history"]]
    assert history[0] == "spark-build: debian trixie, 2 packages"
    assert content(first, "etc/os-release") == b"ID=debian\n"
    workshop.build(replace(plan, base=DebianBase(suite="trixie", debs=DEBS[:1])))
    monkeypatch.setattr(assemble, "layout_key", lambda: "other rules")
    workshop.build(plan)
    assert written[1:] == [["libc6"], ["libc6", "python3"]]


def sized(name: str, size: int) -> LockedWheel:
    return replace(locked(ALPHA), name=name, size=size)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([1], [["0"]]),
        ([1, 2, 3], [["0", "1", "2"]]),
        ([LIMIT, 1, LIMIT + 1, 2], [["0"], ["2"], ["1", "3"]]),
        ([LIMIT - 1, LIMIT], [["1"], ["0"]]),
    ],
)
def test_large_wheels_have_layers_of_their_own(sizes: list[int], groups: list[list[str]]) -> None:
    wheels = tuple(sized(str(number), size) for number, size in enumerate(sizes))
    install = InstallWheels(wheels=wheels, lock_filename="pylock.toml")
    found = wheel_groups(plan_of(builder=(install,)))
    assert [[wheel.name for wheel in group] for group in found] == groups


class Counting(Progress):
    def __init__(self) -> None:
        self.done = 0

    @contextmanager
    def task(self, label: str, total_bytes: int) -> Iterator[Advance]:
        def advance(size_bytes: int) -> None:
            self.done += size_bytes

        yield advance


def test_progress_counts_what_is_made(workshop: Workshop) -> None:
    counting = Counting()
    workshop.context = replace(workshop.context, progress=counting)
    built = workshop.build()
    assert counting.done == sum(layer.size for layer in built.image.layers[1:3])
    workshop.build()
    assert counting.done == sum(layer.size for layer in built.image.layers[1:3])


def test_no_document_of_the_image_names_this_host(workshop: Workshop) -> None:
    built = workshop.build()
    text = built.image.config_bytes + built.image.manifest_bytes
    assert str(workshop.sources).encode() not in text


# ── a base in a registry ─────────────────────────────────────────────────────────────────────────

_DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def stored_base(workshop: Workshop, store: Store) -> RegistryBase:
    """The layout's image as a registry with Docker's media types has it, brought into `store`."""
    image = read_layout(workshop.sources / "base", "linux/arm64")
    manifest = image.manifest_bytes.replace(LAYER_GZIP.encode(), _DOCKER_LAYER.encode())
    store.put(image.config_bytes)
    for layer in image.layers:
        store.put(layer.path.read_bytes())
    digest = f"sha256:{store.put(manifest)}"
    return RegistryBase(image="registry.example/base:1", index=digest, digest=digest, size=1)


def from_registry(workshop: Workshop, store: Store, base: RegistryBase) -> Built:
    plan = plan_of(base=base)
    return Assembler(store, workshop.context).build(plan, workshop.sources, workshop.layout)


def test_a_base_in_a_registry_gives_the_same_image_as_in_a_layout(workshop: Workshop) -> None:
    first = workshop.build().image
    store = stock(workshop.context.cache, WHEELS)
    second = from_registry(workshop, store, stored_base(workshop, store)).image
    assert second.digest == first.digest
    assert {layer.media_type for layer in second.layers} == {LAYER_GZIP}


def test_a_base_that_is_not_in_the_store_is_named(workshop: Workshop) -> None:
    store = stock(workshop.context.cache, WHEELS)
    base = replace(stored_base(workshop, store), digest=f"sha256:{'1' * 64}")
    with pytest.raises(ExternalError, match="1111: a blob of the base, not in the cache"):
        from_registry(workshop, store, base)


def layer_in(folder: Path, image: Image) -> Path:
    return next(folder.rglob(image.layers[0].digest.removeprefix("sha256:")))


def test_a_damaged_layer_in_the_cache_goes_away(workshop: Workshop) -> None:
    store = stock(workshop.context.cache, WHEELS)
    base = stored_base(workshop, store)
    held = read_layout(workshop.sources / "base", "linux/arm64")
    place = layer_in(workshop.context.cache / "files", held)
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.chmod(0o644)
    place.write_bytes(data)
    with pytest.raises(ExternalError, match="this layer of the base was damaged in the cache"):
        from_registry(workshop, store, base)
    assert not place.exists()


def test_a_vendored_layer_is_copied_and_stays_the_users(workshop: Workshop, tmp_path: Path) -> None:
    stock(workshop.context.cache, WHEELS)
    vendor = tmp_path / "vendor"
    base = stored_base(workshop, Store(vendor))
    store = Store(workshop.context.cache, [vendor])
    image = from_registry(workshop, store, base).image
    kept = layer_in(vendor, image)
    assert not kept.samefile(layer_in(workshop.layout, image))
    assert kept.read_bytes() == layer_in(workshop.layout, image).read_bytes()


def test_what_must_be_compiled_is_refused_before_anything_is_made(workshop: Workshop) -> None:
    git = LockedGit(name="vllm", url="https://git.example/vllm", ref="v1", commit="c" * 40)
    with pytest.raises(MissingError, match=r"\(vllm at c{40}\) need an engine that runs steps"):
        workshop.build(plan_of(compiled=(git,)))
    assert not workshop.layout.exists()
