"""Where a package comes from, of the sources that its recipe lists: the first one that works.

A source that is not there (a URL that answers 404, an index without the version, a ref that was
deleted) gives way to the next one, and the lock says why. One that contradicts the recipe (another
package's wheel, another version, another platform) is an error, whether it would be reached or not.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder import process
from builder.document import Where
from builder.errors import ExternalError, LockError, MissingError, OfflineError
from builder.http import RefusedError, phrase, redact, redact_urls
from builder.lock.git import Git, shown
from builder.lock.model import ChosenSource, LockedGit, Refusal, url_filename
from builder.lock.platforms import marker_holds, markers, wheel_version
from builder.lock.project import Project, read_project
from builder.lock.supply import Supply
from builder.lock.uv import Question, compile_lock
from builder.lock.wheels import KEEP, Upgrade
from builder.process import Runner
from builder.recipe import LoadedRecipe, Source, requirements
from builder.recipe.fields import canonical_requirement, pinned_version
from builder.scratch import scratch_folder

_ERROR_NAME = re.compile(r"^[A-Z]\w+(?:Error|Timeout|Exception): ")
_C_LINE = re.compile(r" \(_ssl\.c:\d+\)")
_BECAUSE = re.compile(r"Because (?P<text>.+?), we can conclude")
_OURS = re.compile(r" and (?:spark-build-recipe|your project) depends on .*")
_CAUSE = re.compile(r"(?:cause|Caused by): (?P<text>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where one package comes from: exactly one of `wheel` (a URL), `index` (a name) and `git`."""

    name: str
    chosen: ChosenSource
    wheel: str | None = None
    index: str | None = None
    git: LockedGit | None = None


def choose(
    loaded: LoadedRecipe,
    *,
    platform: str,
    python: str,
    glibc: str,
    supply: Supply,
    settings: Mapping[str, Any] | None = None,
    earlier: Sequence[LockedGit] = (),
    upgrade: Upgrade = KEEP,
    run: Runner = process.run,
) -> tuple[Choice, ...]:
    """One choice for each package under `sources` that the platform has a use for, in name order.

    `settings` are those of the resolution in uv's words. A ref that is in `earlier`, of the same
    URL, stays at its commit there, `upgrade` apart. Raises LockError where no source of a package
    works, with each one's reason, and where a source contradicts the recipe; MissingError where
    the last hope is a repository, and git is not installed; OfflineError.
    """
    sources = _Sources(
        loaded=loaded,
        platform=platform,
        python=python,
        glibc=glibc,
        supply=supply,
        settings=settings or {},
        earlier={(git.name, git.url, git.ref): git.commit for git in earlier},
        upgrade=upgrade,
        run=run,
    )
    return tuple(sources.choose())


class _UnusableError(Exception):
    """A source that is not there, and why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Package:
    """One package under `sources`, there called `key`, and what is required of it."""

    name: str
    requirement: Requirement
    key: str
    sources: tuple[Source, ...]

    def at(self, *further: str | int) -> Where:
        """Its place in the recipe, or one below it."""
        return ("sources", self.key, *further)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    loaded: LoadedRecipe
    platform: str
    python: str
    glibc: str
    supply: Supply
    settings: Mapping[str, Any]
    earlier: Mapping[tuple[str, str, str], str]
    upgrade: Upgrade
    run: Runner

    def choose(self) -> Iterator[Choice]:
        packages = list(self._packages())
        for package in packages:
            for number, source in enumerate(package.sources):
                if source.wheel is not None:
                    self._check_wheel(package, source.wheel, package.at(number, "wheel"))
        if packages and self.supply.context.offline:
            raise OfflineError(
                self._told(packages[0].at(), "would have to be looked for, and the run is offline"),
                hint="run `spark-build lock RECIPE` once without --offline",
            )
        for package in packages:
            yield self._first(package)

    def _packages(self) -> Iterator[_Package]:
        recipe = self.loaded.recipe
        for key in sorted(recipe.sources, key=canonicalize_name):
            requirement = self._required(canonicalize_name(key))
            if requirement is not None:
                yield _Package(
                    name=canonicalize_name(key),
                    requirement=requirement,
                    key=key,
                    sources=recipe.sources[key],
                )

    def _required(self, name: str) -> Requirement | None:
        """All that the recipe requires of a package in one; None where it is for other targets."""
        recipe = self.loaded.recipe
        texts = [*requirements(recipe), *map(canonical_requirement, recipe.build_after_torch)]
        stated = [found for found in map(Requirement, texts) if found.name == name]
        here = markers(self.platform, self.python)
        fitting = [found for found in stated if marker_holds(found.marker, here)]
        if stated and not fitting:
            return None
        required = Requirement(name)
        for found in fitting:
            required.extras |= found.extras
            required.specifier &= found.specifier
        return required

    def _check_wheel(self, package: _Package, url: str, at: Where) -> None:
        """Raises LockError where the wheel's name (PEP 427) says that it is another one."""
        filename = url_filename(url)
        try:
            version = wheel_version(
                filename,
                package.name,
                platform=self.platform,
                python=self.python,
                glibc=self.glibc,
            )
        except LockError as error:
            raise self._refusal(at, error.message, hint=error.hint) from None
        self._check_version(package, version, at, filename)

    def _first(self, package: _Package) -> Choice:
        refused: list[Refusal] = []
        for number, source in enumerate(package.sources):
            words = _words(source)
            try:
                git = self._try(package, source, package.at(number))
            except _UnusableError as error:
                refused.append(Refusal(source=words, reason=str(error)))
            except MissingError:
                if source.git is None or number == len(package.sources) - 1:
                    raise
                refused.append(Refusal(source=words, reason="git is not installed on this host"))
            else:
                chosen = ChosenSource(name=package.name, source=words, refused=tuple(refused))
                return Choice(
                    name=package.name,
                    chosen=chosen,
                    wheel=source.wheel,
                    index=source.index,
                    git=git,
                )
            self.supply.context.progress.note(f"{package.name}: not {words}: {refused[-1].reason}")
        lines = [f"  {refusal.source}: {refusal.reason}" for refusal in refused]
        raise self._refusal(
            package.at(),
            "\n".join([f"no source of {package.name} works:", *lines]),
            hint="correct one of them, or add one that has the package",
        )

    def _try(self, package: _Package, source: Source, at: Where) -> LockedGit | None:
        """What the repository has to say, nothing where it is a wheel or an index that works."""
        if source.git is not None:
            return self._try_git(package, source, source.git, at)
        if source.wheel is not None:
            self._try_wheel(source.wheel)
        if source.index is not None:
            self._try_index(package, source.index)
        return None

    def _try_wheel(self, url: str) -> None:
        try:
            self.supply.http.size(url)
        except ExternalError as error:
            raise _UnusableError(_http_reason(error, url)) from None

    def _try_index(self, package: _Package, index: str) -> None:
        entry = {"name": index, "url": self.loaded.recipe.index_url(index), "explicit": True}
        question = Question(
            dependencies=(str(package.requirement),),
            platform=self.platform,
            python=self.python,
            glibc=self.glibc,
            tool={"index": [entry], "sources": {package.name: {"index": index}}},
            settings=self.settings,
            flags=("--no-deps", "--quiet"),
        )
        try:
            with scratch_folder(self.supply.context.cache) as folder:
                compile_lock(question, folder, context=self.supply.context, run=self.run)
        except (LockError, ExternalError) as error:
            raise _UnusableError(_uv_reason(error.message)) from None

    def _try_git(self, package: _Package, source: Source, url: str, at: Where) -> LockedGit:
        ref = source.ref or "HEAD"
        folder = posixpath.normpath(source.subdirectory) if source.subdirectory else None
        try:
            commit = self._earlier(package, url, ref) or self._git.find_commit(url, ref)
            project = self._read_project(url, commit, folder, source.requirements)
            version = self._git_version(package, project, at)
            requires = project.requires_with(sorted(package.requirement.extras))
        except ExternalError as error:
            raise _UnusableError(_one_line(error.message.removeprefix(f"{shown(url)}: "))) from None
        return LockedGit(
            name=package.name,
            url=url,
            ref=ref,
            commit=commit,
            version=version,
            subdirectory=folder,
            requires=requires,
        )

    @property
    def _git(self) -> Git:
        return Git(self.supply.context, self.run)

    def _read_project(
        self, url: str, commit: str, folder: str | None, files: Sequence[str]
    ) -> Project:
        git = self._git
        repository = git.fetch(url, commit)
        if folder and not git.has_folder(repository, commit, folder):
            raise ExternalError(f"there is no folder `{folder}` at {commit[:12]}")
        return read_project(
            lambda path: git.read(repository, commit, path), folder=folder or "", files=files
        )

    def _earlier(self, package: _Package, url: str, ref: str) -> str | None:
        moves = self.upgrade.moves(package.name)
        return None if moves else self.earlier.get((package.name, url, ref))

    def _git_version(self, package: _Package, project: Project, at: Where) -> str | None:
        """Its own version, else the one that the recipe pins; LockError where they disagree."""
        if project.name is not None and project.name != package.name:
            raise self._refusal(at, f"what is there is {project.name}, not {package.name}")
        self._check_python(package, project, at)
        if project.version is None:
            pinned = pinned_version(package.requirement)
            return None if pinned is None else str(Version(pinned))
        try:
            version = Version(project.version)
        except InvalidVersion:
            raise self._refusal(at, f"`{project.version}` is not a version (PEP 440)") from None
        self._check_version(package, version, at, f"{package.name} {version}")
        return str(version)

    def _check_python(self, package: _Package, project: Project, at: Where) -> None:
        try:
            pythons = SpecifierSet(project.requires_python or "")
        except InvalidSpecifier:
            return  # its build will say so
        if not pythons.contains(f"{self.python}.0", prereleases=True):
            raise self._refusal(
                at,
                f"{package.name} requires Python {pythons}, the base has {self.python}",
                hint="take another ref, or another base",
            )

    def _check_version(self, package: _Package, version: Version, at: Where, what: str) -> None:
        if not package.requirement.specifier.contains(version, prereleases=True):
            raise self._refusal(
                at,
                f"{what} is not what `{package.requirement}` asks for",
                hint=f"change the source, or what is required of {package.name}",
            )

    def _refusal(self, at: Where, message: str, *, hint: str | None = None) -> LockError:
        return LockError(self._told(at, message), hint=hint)

    def _told(self, at: Where, message: str) -> str:
        return str(self.loaded.document.problem(at, message))


def _words(source: Source) -> str:
    if source.wheel is not None:
        return f"wheel {redact(source.wheel)}"
    if source.index is not None:
        return f"index {source.index}"
    return f"git {shown(source.git or '')}@{source.ref}"


def _http_reason(error: ExternalError, url: str) -> str:
    if isinstance(error, RefusedError):
        return f"the server answered {phrase(error.status)}"
    text = _C_LINE.sub("", error.message.removeprefix(f"{redact(url)}: "))
    return _one_line(_ERROR_NAME.sub("the server cannot be reached: ", text))


def _uv_reason(message: str) -> str:
    """What uv gives as the reason, in one line and without our project's name."""
    because = _BECAUSE.search(_one_line(message))
    causes = [match["text"] for match in _CAUSE.finditer(message)]
    text = _OURS.sub("", because["text"]) if because else "; ".join(causes[-1:]) or message
    return redact_urls(_one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())
