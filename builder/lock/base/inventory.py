"""What a base image holds: its Python and glibc, its Python packages, its torch.

All of it is told from the image's layers, as `contents` reads them; nothing of the image is run.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.errors import LockError
from builder.lock.base.contents import LIBC, read_contents
from builder.lock.base.metadata import (
    parse_constraints,
    parse_egg_requires,
    parse_metadata,
    parse_scripts,
)
from builder.lock.base.torch_version import (
    TORCH_VERSION_FILE,
    TorchVersion,
    is_torch_file,
    parse_torch_version,
    torch_digest,
)
from builder.lock.base.tree import FileFacts, Tree
from builder.lock.model import TorchIdentity
from builder.oci.image import Image
from builder.progress import Progress

_PYTHON = re.compile(r"python(3\.\d{1,3})", re.ASCII)
_TORCH_INFO = re.compile(r"torch(?:-[^/]*)?\.(?:dist|egg)-info")
_PIP_CONSTRAINT = "/etc/pip/constraint.txt"  # where NVIDIA's images keep it


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A Python package of the base.

    `name` is normalised (PEP 503), `version` as its metadata spells it, `folder` the package folder
    (`site-packages`) that it lies in. `requires` are its Requires-Dist lines, `scripts` its console
    scripts (name → `module:function`). `links_torch` says that a library or program of it needs one
    of torch's, so that it works with this torch only.
    """

    name: str
    version: str
    folder: str
    requires: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)
    links_torch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a base holds; paths are absolute.

    `python` is X.Y and `interpreter` its path, both None where there is none; `glibc` is 2.N.
    `sites` are the interpreter's package folders in the order of `sys.path`, whether they are there
    or not; `distributions` what Python sees in them: of several of one name, the first on the path.
    `torch` is the one that it imports, without `module` and `cuda` where they are not said in the
    usual way; `torches` has a path for every torch that is there, of which there may be one only.
    `constraints` are the lines of pip's constraint file.
    """

    python: str | None
    interpreter: str | None
    glibc: str
    sites: tuple[str, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    torch: TorchIdentity | None = None
    torches: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()


def take_inventory(image: Image, cache: Path, progress: Progress | None = None) -> Inventory:
    """What the layers of `image` hold; what each says is kept under `cache`, by its digest.

    Raises LockError where there is no glibc, or a torch with a file whose content no layer has,
    ExternalError for a layer that is broken or does not match its digest.
    """
    tree = Tree(read_contents(image.layers, cache, progress or Progress()))
    interpreter = _interpreter(tree)
    inventory = Inventory(
        python=None if interpreter is None else interpreter.version,
        interpreter=None if interpreter is None else interpreter.path,
        glibc=_glibc(tree),
        constraints=tuple(_constraints(image.config, tree)),
    )
    return inventory if interpreter is None else _with_packages(inventory, interpreter, tree)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interpreter:
    """`version` is X.Y."""

    path: str
    version: str
    sites: tuple[str, ...]


def _interpreter(tree: Tree) -> _Interpreter | None:
    """/usr/local goes before /usr, as it does on PATH; then the newest."""
    for prefix in ("/usr/local", "/usr"):
        matches = [_PYTHON.fullmatch(name) for name in tree.names(f"{prefix}/bin")]
        versions = [match[1] for match in matches if match and tree.has(f"{prefix}/bin/{match[0]}")]
        if versions:
            version = max(versions, key=lambda text: int(text.partition(".")[2]))
            return _located(prefix, version, tree)
    return None


def _located(prefix: str, version: str, tree: Tree) -> _Interpreter:
    """Where an interpreter looks for packages, in the order of its `site.getsitepackages`.

    One that was built for /usr/local, as in the `python` images, has CPython's own order (Lib/
    site.py). Debian's and Ubuntu's (patch distutils-install-layout.diff) has `dist-packages`, that
    of /usr/local first. Fedora's and Red Hat's (patch 00251) has lib64 before lib, in /usr/local
    before /usr; it is known by its standard library in lib64.
    """
    python = f"python{version}"
    if prefix == "/usr/local":
        sites = [f"{prefix}/lib/{python}/site-packages"]
    elif tree.has(f"/usr/lib64/{python}/os.py"):
        places = ("/usr/local/lib64", "/usr/local/lib", "/usr/lib64", "/usr/lib")
        sites = [f"{place}/{python}/site-packages" for place in places]
    else:
        folders = (f"local/lib/{python}", "lib/python3", f"lib/{python}")
        sites = [f"/usr/{folder}/dist-packages" for folder in folders]
    return _Interpreter(path=f"{prefix}/bin/{python}", version=version, sites=tuple(sites))


def _glibc(tree: Tree) -> str:
    """2.N, of the C library where the loader looks for it."""
    libraries = (facts for path, facts in tree.walk() if LIBC.fullmatch(path))
    found = [int(facts.text.partition(".")[2]) for facts in libraries if facts.text is not None]
    if not found:
        raise LockError(
            "the base has no libc.so.6 of GNU's, which manylinux wheels need (PEP 600)",
            hint="take a base with glibc, such as Debian or Ubuntu",
        )
    return f"2.{max(found)}"


def _constraints(config: Mapping[str, Any], tree: Tree) -> Iterator[str]:
    """The lines of the files that PIP_CONSTRAINT names, of NVIDIA's where it is not set."""
    named = image_environment(config).get("PIP_CONSTRAINT", _PIP_CONSTRAINT)
    for path in named.split():
        yield from parse_constraints(tree.text(path) or "")


def image_environment(config: Mapping[str, Any]) -> dict[str, str]:
    """The variables that an image's config document sets (image-spec, config.md, "Env")."""
    entries = (config.get("config") or {}).get("Env") or []
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


def _with_packages(inventory: Inventory, interpreter: _Interpreter, tree: Tree) -> Inventory:
    found = [item for site in interpreter.sites for item in _distributions(site, tree)]
    seen = {item.name: item for item in reversed(found)}
    return replace(
        inventory,
        sites=interpreter.sites,
        distributions=tuple(seen[name] for name in sorted(seen)),
        torch=_torch(seen["torch"], tree) if "torch" in seen else None,
        torches=tuple(path for site in interpreter.sites for path in _torches(site, tree)),
    )


def _distributions(site: str, tree: Tree) -> Iterator[Distribution]:
    linking = {path for path, facts in tree.walk(site) if facts.links_torch}
    for name in tree.names(site):
        if name.endswith((".dist-info", ".egg-info")):
            found = _distribution(site, f"{site}/{name}", tree, linking)
            if found is not None:
                yield found


def _distribution(site: str, info: str, tree: Tree, linking: set[str]) -> Distribution | None:
    """What `info`, a dist-info folder or an egg-info folder or file, describes."""
    texts = (tree.text(path) for path in (f"{info}/METADATA", f"{info}/PKG-INFO", info))
    metadata = parse_metadata(next((text for text in texts if text is not None), ""))
    if metadata is None:
        return None
    return Distribution(
        name=metadata.name,
        version=metadata.version,
        folder=site,
        requires=metadata.requires or parse_egg_requires(tree.text(f"{info}/requires.txt") or ""),
        scripts=parse_scripts(tree.text(f"{info}/entry_points.txt") or ""),
        links_torch=bool(linking) and _owns_any(info, metadata.name, tree, linking),
    )


def _owns_any(info: str, name: str, tree: Tree, paths: Iterable[str]) -> bool:
    """Whether one of `paths` belongs to a package: by its RECORD, else by its top-level names."""
    record = tree.text(f"{info}/RECORD")
    if record is not None:
        recorded = {posixpath.normpath(line) for line in record.splitlines()}
        return not recorded.isdisjoint(paths)
    listed = tree.text(f"{info}/top_level.txt") or name.replace("-", "_")
    tops = set(listed.split())
    return any(path.partition("/")[0].partition(".")[0] in tops for path in paths)


def _torch(distribution: Distribution, tree: Tree) -> TorchIdentity:
    site = distribution.folder
    version = _torch_version(site, tree)
    files = ((path, facts) for path, facts in tree.walk(site) if is_torch_file(path))
    return TorchIdentity(
        origin="base",
        version=distribution.version,
        module=None if version is None else version.module,
        cuda=None if version is None else version.cuda,
        folder=f"{site}/torch",
        sha256=torch_digest({path: _content(path, facts) for path, facts in files}),
    )


def _torch_version(site: str, tree: Tree) -> TorchVersion | None:
    """None where torch does not say it in the way that PyTorch's own builds do."""
    text = tree.text(f"{site}/{TORCH_VERSION_FILE}")
    try:
        return None if text is None else parse_torch_version(text)
    except LockError:
        return None


def _content(path: str, facts: FileFacts) -> str:
    """What `torch_digest` takes for a file or link."""
    if facts.sha256 is not None:
        return facts.sha256
    if facts.link is not None:
        return f"-> {facts.link}"
    raise LockError(
        f"{path}: a file of the base's torch whose content its layers do not hold",
        hint="the image is damaged; pull or build it again",
    )


def _torches(site: str, tree: Tree) -> list[str]:
    """A path for each torch in a package folder: its metadata, or else the package itself."""
    names = tree.names(site)
    described = [f"{site}/{name}" for name in names if _TORCH_INFO.fullmatch(name)]
    return described or [f"{site}/torch" for name in names if name == "torch"]
