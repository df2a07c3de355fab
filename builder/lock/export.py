"""A recipe and its lock in the forms that other tools read.

`pyproject` is a project of uv's, `requirements` a requirements.txt with hashes, `pylock` the lock
without what is ours in it (PEP 751).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import tomli_w
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.errors import UsageError
from builder.lock.model import ChosenSource, Lock, LockedWheel
from builder.lock.platforms import MACHINES
from builder.lock.pylock import write_lock
from builder.oci.image import canonical_json
from builder.recipe import Recipe, requirements
from builder.recipe.fields import canonical_requirement, requirement_name

Form = Literal["pyproject", "requirements", "pylock"]

_Entry = Mapping[str, str]


def export(recipe: Recipe, locks: Sequence[Lock], form: Form) -> str:
    """The recipe, as `locks` (of its targets) answer it, in the text of that form.

    `pyproject` takes several locks, whose platforms its markers tell apart; the others take one.
    Raises UsageError where the form cannot say what the locks do.
    """
    if form == "pyproject":
        return _pyproject(recipe, locks)
    lock = _only(locks)
    return _pylock(lock) if form == "pylock" else _requirements(recipe, lock)


def _only(locks: Sequence[Lock]) -> Lock:
    if len(locks) != 1:
        names = ", ".join(lock.target for lock in locks)
        raise UsageError(
            f"this form is of one lock, and the recipe has {len(locks)}: {names}",
            hint="name one with --target",
        )
    return locks[0]


def _pylock(lock: Lock) -> str:
    document = tomllib.loads(write_lock(lock))
    del document["tool"]
    return tomli_w.dumps(document)


def _requirements(recipe: Recipe, lock: Lock) -> str:
    """Every wheel by hash; those that the default index does not give, by URL.

    An extra index in their stead would be asked for every other package too, and uv takes what it
    finds in the first one only.
    """
    if lock.gits:
        raise UsageError(
            f"{lock.gits[0].name} is compiled from git, and a requirements.txt with hashes cannot "
            "say that",
            hint="take --format pylock or --format pyproject",
        )
    elsewhere = {name for name, _ in _chosen(recipe, lock)}
    header = [
        f"# {lock.filename}: {lock.platform}, Python {lock.python}, glibc {lock.glibc}",
        "# pip install --no-deps --require-hashes -r THIS_FILE",
    ]
    lines = [_pin(wheel, by_url=wheel.name in elsewhere) for wheel in lock.wheels]
    return "\n".join([*header, *lines]) + "\n"


def _pin(wheel: LockedWheel, *, by_url: bool) -> str:
    what = f"{wheel.name} @ {wheel.url}" if by_url else f"{wheel.name}=={wheel.version}"
    return f"{what} \\\n    --hash=sha256:{wheel.sha256}"


def _pyproject(recipe: Recipe, locks: Sequence[Lock]) -> str:
    sources = _sources(recipe, locks)
    pythons = sorted({lock.python for lock in locks}, key=lambda text: int(text.split(".")[1]))
    first, last = pythons[0], int(pythons[-1].split(".")[1])
    project = {
        "name": recipe.name,
        "version": "0",
        "requires-python": f">={first},<3.{last + 1}",
        "dependencies": _dependencies(recipe, locks, sources),
    }
    named = {
        entry["index"] for entries in sources.values() for entry in entries if "index" in entry
    }
    indexes = [
        {"name": name, "url": recipe.index_url(name), "explicit": True} for name in sorted(named)
    ]
    settings = {**_settings(recipe, locks), "sources": sources, "index": indexes}
    uv = {key: value for key, value in settings.items() if value}
    return tomli_w.dumps({"project": project, **({"tool": {"uv": uv}} if uv else {})})


def _dependencies(
    recipe: Recipe, locks: Sequence[Lock], sources: Mapping[str, object]
) -> list[str]:
    """What the recipe asks for, on its platforms only.

    uv applies a source to what the project itself requires (its docs, "Dependency sources"), so
    whatever has one is named here.
    """
    texts = {*requirements(recipe), *map(canonical_requirement, recipe.build_after_torch)}
    texts |= sources.keys() - {requirement_name(text) for text in texts}
    marker = _marker([lock.platform for lock in locks])
    return [_marked(text, marker) for text in sorted(texts)]


def _marked(text: str, marker: str) -> str:
    requirement = Requirement(text)
    own = f"({requirement.marker}) and " if requirement.marker else ""
    requirement.marker = Marker(f"{own}{marker}")
    whole = str(requirement)
    return whole if "'" in whole else whole.replace('"', "'")  # which TOML need not escape


def _marker(platforms: Sequence[str]) -> str:
    machines = sorted({MACHINES[platform] for platform in platforms})
    either = " or ".join(f"platform_machine == '{machine}'" for machine in machines)
    return f"platform_system == 'Linux' and {either if len(machines) == 1 else f'({either})'}"


def _settings(recipe: Recipe, locks: Sequence[Lock]) -> dict[str, Any]:
    """`[tool.uv]` as the recipe was resolved; a torch of the base is kept out of the project."""
    guarded = {name for lock in locks if lock.uses_base_torch for name in lock.guard.packages}
    resolve = recipe.resolve
    return {
        "prerelease": None if resolve.prerelease == "if-necessary" else resolve.prerelease,
        "exclude-newer": resolve.exclude_newer,
        "exclude-dependencies": sorted({*map(canonicalize_name, recipe.exclude), *guarded}),
        "constraint-dependencies": sorted(map(canonical_requirement, resolve.constraints)),
        "override-dependencies": sorted(map(canonical_requirement, resolve.overrides)),
        "no-build-isolation-package": sorted(map(requirement_name, recipe.build_after_torch)),
    }


def _sources(recipe: Recipe, locks: Sequence[Lock]) -> dict[str, list[dict[str, str]]]:
    """`[tool.uv.sources]`: where each package comes from, on which platforms."""
    found: dict[str, dict[str, tuple[_Entry, Lock]]] = {}
    for lock in locks:
        for name, entry in _chosen(recipe, lock):
            first, other = found.setdefault(name, {}).setdefault(lock.platform, (entry, lock))
            if first != entry:
                raise UsageError(
                    f"{name} comes from one place for {other.target} and from another for "
                    f"{lock.target}, which no marker tells apart",
                    hint="name one of the two with --target",
                )
    return {name: _by_platform(entries) for name, entries in sorted(found.items())}


def _by_platform(entries: Mapping[str, tuple[_Entry, Lock]]) -> list[dict[str, str]]:
    """Each different entry once, with the marker of the platforms that it is for."""
    platforms: dict[bytes, list[str]] = {}
    for platform, (entry, _) in sorted(entries.items()):
        platforms.setdefault(canonical_json(entry), []).append(platform)
    return [{**entries[named[0]][0], "marker": _marker(named)} for named in platforms.values()]


def _chosen(recipe: Recipe, lock: Lock) -> Iterator[tuple[str, _Entry]]:
    """What comes from elsewhere than the default index, and from where, in uv's words.

    A source of a package that nothing asked for in the end is left out.
    """
    locked = {wheel.name for wheel in lock.wheels} | {git.name for git in lock.gits}
    for source in lock.sources:
        if source.name in locked:
            yield source.name, _entry(source, lock)
    index = None if recipe.torch is None else recipe.torch.index
    if index is not None and "torch" not in {source.name for source in lock.sources}:
        yield "torch", {"index": index}


def _entry(source: ChosenSource, lock: Lock) -> _Entry:
    if source.kind == "git":
        [git] = [git for git in lock.gits if git.name == source.name]
        inside = {} if git.subdirectory is None else {"subdirectory": git.subdirectory}
        return {"git": git.url, "rev": git.commit, **inside}
    if source.kind == "wheel":
        [url] = [wheel.url for wheel in lock.wheels if wheel.name == source.name]
        return {"url": url}
    return {"index": source.place}
