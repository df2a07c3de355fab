"""The built-in engine: an image put together from wheels and .debs, with nothing run.

No daemon, no root, no emulation, on any host. The base comes first, then one layer for each large
wheel and one for all small ones, files of the recipe last. The same lock gives the same digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import assert_never

from builder.context import Context
from builder.engines.base import Built
from builder.engines.config import image_config
from builder.engines.debian.rootfs import layout_key, write_rootfs
from builder.engines.layers import LayerCache, MadeLayer
from builder.engines.wheel import INSTALL_VERSION, Entry, Wheel
from builder.errors import ExternalError, Finding, MissingError, UsageError
from builder.lock.base.image import stored_image
from builder.lock.model import (
    DebianBase,
    LockedDeb,
    LockedFile,
    LockedWheel,
    OciBase,
    RegistryBase,
)
from builder.lock.store import Store
from builder.oci.blobs import BlobCache
from builder.oci.image import (
    LAYOUT_MARK,
    MAX_LAYERS,
    Image,
    LayerBlob,
    digest_of_file,
    holds,
    read_layout,
    write_layout,
)
from builder.oci.layer import LayerError, LayerWriter, sort_key
from builder.plan import CopyFile, InstallWheels, Plan, Symlink, Venv, WriteFile
from builder.pool import threads
from builder.progress import Advance
from builder.scratch import publish, scratch_folder

_LARGE_WHEEL_BYTES = 64 << 20
_JOBS = 2  # inflating and hashing let go of the interpreter; more threads than that gain little
_OWN_LAYER_VERSION = 2
_ACROSS = "two of the packages, or one of them and the recipe,"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A layer that we add, its line of history, and how many wheels are in it."""

    layer: MadeLayer
    history: str
    wheels: int = 0


class Assembler:
    """The engine; every file that the plan names must be in `store` already."""

    name = "assemble"

    def __init__(self, store: Store, context: Context) -> None:
        self._store = store
        self._context = context
        self._blobs = BlobCache(context.cache)
        self._cache = LayerCache(context.cache, self._blobs)

    def missing(self) -> Finding | None:
        """Nothing beyond Python is needed."""
        return None

    def check(self, plan: Plan) -> None:
        """See `Engine.check`: nothing is run, so nothing can be compiled."""
        if plan.compiled:
            named = ", ".join(f"{git.name} at {git.commit}" for git in plan.compiled)
            raise MissingError(
                f"{plan.name}: packages that are compiled ({named}) need an engine that runs steps "
                "inside the image; this version has none",
                hint="take a wheel of the package, or leave it out",
            )

    def build(self, plan: Plan, sources: Path, destination: Path) -> Built:
        """See `Engine.build`; MissingError for a plan with packages that must be compiled."""
        self.check(plan)
        _refuse_own_base(plan, sources, destination)
        base = self._base_image(plan, sources)
        parts = [*self._debian(plan), *self._wheels(plan), self._own(plan, sources)]
        _refuse_conflicts(part.layer for part in parts)
        image = self._image(plan, base, parts)
        if not holds(destination, image, self._blobs.is_sound):
            with scratch_folder(self._context.cache) as folder:
                write_layout(image, folder / "oci")
                publish(folder / "oci", destination, self._context.cache, mark=LAYOUT_MARK)
        written = [part for part in parts if part.layer.written]
        return Built(
            image=image,
            engine=self.name,
            layout=destination,
            layers_written=len(written),
            wheels_read=sum(part.wheels for part in written),
        )

    def _image(self, plan: Plan, base: Image | None, parts: Sequence[_Part]) -> Image:
        below: tuple[LayerBlob, ...] = () if base is None else base.layers
        layers = (*below, *(part.layer.blob for part in parts))
        if len(layers) > MAX_LAYERS:
            raise UsageError(
                f"{plan.name}: {len(layers)} layers, and engines stack {MAX_LAYERS} at most",
                hint="take a base with fewer layers",
            )
        config = image_config(
            plan,
            base=None if base is None else base.config,
            added=[(part.layer.blob.diff_id, part.history) for part in parts],
            epoch=self._context.epoch,
        )
        return Image(config=config, layers=layers)

    def _base_image(self, plan: Plan, sources: Path) -> Image | None:
        """The base as an image, its layers whole and checked; None for one of .debs."""
        match plan.base:
            case DebianBase():
                return None
            case OciBase():
                image = read_layout(sources / plan.base.path, plan.platform)
                return replace(image, layers=tuple(map(self._blobs.adopt, image.layers)))
            case RegistryBase():
                image = stored_image(plan.base, self._store)
                return replace(image, layers=tuple(map(self._stored_layer, image.layers)))
            case _:
                assert_never(plan.base)

    def _stored_layer(self, layer: LayerBlob) -> LayerBlob:
        """A layer of the store as it lies there, or copied out of a folder that is the user's."""
        if not layer.path.is_relative_to(self._context.cache):
            return self._blobs.adopt(layer)
        if not self._blobs.is_sound(layer):
            layer.path.unlink(missing_ok=True)
            raise ExternalError(
                f"{layer.digest}: this layer of the base was damaged in the cache, and is removed",
                hint="run the same command again; it is fetched anew",
            )
        return layer

    def _debian(self, plan: Plan) -> list[_Part]:
        if not isinstance(plan.base, DebianBase):
            return []
        debs = plan.base.debs
        key = {"rootfs": layout_key(), "debs": [deb.sha256 for deb in debs]}
        with self._checking(debs):
            layer = self._cache.layer(key, partial(self._write_debian, debs=debs))
        return [_Part(layer=layer, history=f"debian {plan.base.suite}, {len(debs)} packages")]

    def _write_debian(self, writer: LayerWriter, debs: Sequence[LockedDeb]) -> Mapping[str, str]:
        with scratch_folder(self._context.cache) as folder:
            write_rootfs(writer, [(deb, self._store.get(deb)) for deb in debs], folder)
        return {}

    def _wheels(self, plan: Plan) -> list[_Part]:
        """One layer for each large wheel, one for all others; two are made at a time."""
        groups = wheel_groups(plan)
        total = sum(wheel.size for group in groups for wheel in group)
        with (
            self._context.progress.task("assemble", total) as advance,
            threads(_JOBS) as pool,
        ):
            return list(pool.map(partial(self._wheel_part, plan.venv, advance), groups))

    def _wheel_part(self, venv: Venv, advance: Advance, group: Sequence[LockedWheel]) -> _Part:
        key = {
            "install": INSTALL_VERSION,
            "wheels": [wheel.sha256 for wheel in group],
            "prefix": venv.prefix,
            "python": venv.python,
            "site": venv.site,
        }
        write = partial(self._write_wheels, venv=venv, group=group)
        names = ", ".join(f"{wheel.name} {wheel.version}" for wheel in group)
        with self._checking(group):
            layer = self._cache.layer(key, write, advance)
        return _Part(layer=layer, history=names, wheels=len(group))

    @contextmanager
    def _checking(self, files: Sequence[LockedFile]) -> Iterator[None]:
        """Where a layer cannot be made of `files`, see first whether the cache is to blame."""
        try:
            yield
        except (LayerError, ExternalError):
            for file in files:
                self._remove_damaged(file)
            raise

    def _remove_damaged(self, file: LockedFile) -> None:
        path = self._store.find(file)
        if path is not None and digest_of_file(path) != f"sha256:{file.sha256}":
            path.unlink()
            raise ExternalError(
                f"{file.filename}: was damaged in the cache, and is removed from there",
                hint="run the same command again; it is fetched anew",
            ) from None

    def _write_wheels(
        self, writer: LayerWriter, venv: Venv, group: Sequence[LockedWheel]
    ) -> Mapping[str, str]:
        """All entries of a group of wheels as one sorted layer."""
        with ExitStack() as stack:
            placed: dict[str, tuple[Wheel, Entry]] = {}
            for locked in group:
                wheel = stack.enter_context(Wheel(self._store.get(locked), locked.filename))
                for entry in wheel.entries(venv):
                    _place(placed, wheel, entry)
            prefix = venv.prefix.lstrip("/")
            folders = _folders(placed, prefix)
            for path in sorted([*folders, *(f"{prefix}/{name}" for name in placed)], key=sort_key):
                if path in folders:
                    writer.directory(path)
                    continue
                wheel, entry = placed[path.removeprefix(f"{prefix}/")]
                wheel.write(entry, writer, path)
            return {f"{prefix}/{name}": entry.sha256 for name, (_, entry) in placed.items()}

    def _own(self, plan: Plan, sources: Path) -> _Part:
        """The last layer: what the recipe writes, copies and links, and the venv's own files."""
        steps = [
            step for step in (*plan.builder, *plan.runtime) if not isinstance(step, InstallWheels)
        ]
        files = {step.path.lstrip("/"): _own_file(step, sources) for step in steps}
        prefix = plan.venv.prefix.lstrip("/")
        inside = [
            path.removeprefix(f"{prefix}/") for path in files if path.startswith(f"{prefix}/")
        ]
        key = {
            "own": _OWN_LAYER_VERSION,
            "folders": sorted(_folders(inside, prefix)),
            "files": {path: [file.mode, file.target, file.sha256] for path, file in files.items()},
        }
        write = partial(_write_own, files=files, folders=_folders(inside, prefix))
        return _Part(layer=self._cache.layer(key, write), history=f"files of {plan.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnFile:
    """A file's bytes and mode, or a symbolic link's `target`."""

    data: bytes = b""
    mode: int = 0o644
    target: str | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def _refuse_own_base(plan: Plan, sources: Path, destination: Path) -> None:
    """The image must not go where its base lies: the next build would take it for the base."""
    if not isinstance(plan.base, OciBase):
        return
    base, destination = (sources / plan.base.path).resolve(), destination.resolve()
    if destination in (base, *base.parents):
        raise UsageError(
            f"{plan.name}: the base is {base}, and the image would replace it",
            hint="copy the base to another folder, or give the image another name",
        )


def _own_file(step: WriteFile | Symlink | CopyFile, sources: Path) -> _OwnFile:
    match step:
        case WriteFile():
            return _OwnFile(data=step.text.encode(), mode=step.mode)
        case Symlink():
            return _OwnFile(target=step.target)
        case CopyFile():
            return _OwnFile(data=_user_file(sources / step.source), mode=step.mode)
        case _:
            assert_never(step)


def _user_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be copied into the image: {error.strerror}") from None


def _write_own(
    writer: LayerWriter, files: Mapping[str, _OwnFile], folders: Iterable[str]
) -> Mapping[str, str]:
    owned = set(folders)
    for path in sorted([*owned, *files], key=sort_key):
        if path in owned:
            writer.directory(path)
        elif (target := files[path].target) is not None:
            writer.symlink(path, target)
        else:
            writer.file(path, files[path].data, files[path].mode)
    return {
        path: file.sha256 if file.target is None else f"link to {file.target}"
        for path, file in files.items()
    }


def wheel_groups(plan: Plan) -> list[tuple[LockedWheel, ...]]:
    """The plan's wheels as they share layers: each large one alone, the small ones together last.

    One layer a large wheel, because images that differ in small packages then share the rest;
    few layers in all, because NGC's bases bring up to 100 of the 127 that can be stacked.
    """
    wheels = [
        wheel for step in plan.builder if isinstance(step, InstallWheels) for wheel in step.wheels
    ]
    large: list[tuple[LockedWheel, ...]] = [
        (wheel,) for wheel in wheels if wheel.size >= _LARGE_WHEEL_BYTES
    ]
    small = tuple(wheel for wheel in wheels if wheel.size < _LARGE_WHEEL_BYTES)
    return [*large, small] if small else large


def _place(placed: dict[str, tuple[Wheel, Entry]], wheel: Wheel, entry: Entry) -> None:
    """Take an entry up; a path that another wheel has is fine where the bytes are the same."""
    other = placed.setdefault(entry.path, (wheel, entry))
    if (other[1].sha256, other[1].mode) != (entry.sha256, entry.mode):
        raise _conflict(entry.path, f"{other[0].filename} and {wheel.filename}")


def _refuse_conflicts(layers: Iterable[MadeLayer]) -> None:
    """The same, across layers: a later layer must not change what an earlier wheel installed."""
    seen: dict[str, str] = {}
    for layer in layers:
        for path, sha256 in layer.files.items():
            if seen.setdefault(path, sha256) != sha256:
                raise _conflict(path, _ACROSS)
    if clash := seen.keys() & _above(seen):
        raise _conflict(min(clash), _ACROSS)


def _above(paths: Iterable[str]) -> set[str]:
    """Every folder that one of `paths` lies in."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _conflict(path: str, owners: str) -> LayerError:
    return LayerError(
        f"{path}: {owners} install different files there",
        hint="one of the packages has to go, or another version of it be taken",
    )


def _folders(names: Iterable[str], prefix: str) -> set[str]:
    """The venv's folder and every folder below it that `names` (relative to it) need."""
    parents = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    return {prefix} | {f"{prefix}/{parent}" for parent in parents if parent != "."}
