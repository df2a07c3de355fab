"""git as it is run here: a ref becomes a commit, a commit one repository, and that one file.

Nothing of what is fetched is checked out or run. Of the caller's settings those pass that reach a
server (git's own configuration with its credential helpers, ssh's agent, proxies, certificates);
git never asks at the terminal, follows no protocol that starts a program, and runs no hook.

A commit lies alone, without its history, in a bare repository at `git/<sha256 of the
URL>/<commit>` under the cache. Its submodules and what Git LFS keeps elsewhere are not in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder import process
from builder.context import PROXY_VARIABLES, Context
from builder.errors import ExternalError, MissingError, OfflineError, ToolError
from builder.http import redact, redact_urls
from builder.lock.model import LockedGit
from builder.process import Runner
from builder.scratch import publish, scratch_folder

LOCKED_REF = "refs/spark-build/locked"
"""What the one commit of a repository in the cache, and of a bundle, is called."""

_PASSES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"),
        *("SSH_AUTH_SOCK", "SSH_AGENT_PID", "NETRC"),
        *PROXY_VARIABLES,
        *("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_ASKPASS", "SSH_ASKPASS"),
        *("GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY", "GIT_SSL_NO_VERIFY"),
        *("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_COUNT"),
    }
)
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "gc.auto=0",  # it would go on in the background
    "maintenance.auto=false",
    "init.defaultBranch=main",
    "pack.threads=1",  # the same pack on every run
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
)
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.IGNORECASE)
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,63}", re.IGNORECASE)
_SAID = re.compile(r"^(?:fatal|error|remote): *(?:error: *)?(?P<text>\S.*)$", re.MULTILINE)
_NEEDS_MORE = ("unadvertised object", "not valid", "does not support shallow")
_NOT_THERE = "not our ref"
_SIGN_IN = "credentials come from git's own helpers, ~/.netrc or the ssh agent; git never asks here"
_ASK_SECONDS = 120.0
_FETCH_SECONDS = 1800.0
_FILE_BYTES = 1 << 20


class UnknownRefError(ExternalError):
    """The repository has no such tag or branch."""


@dataclass(frozen=True, slots=True)
class Git:
    """git in the surroundings of one run.

    Its methods raise MissingError where git is not installed, ExternalError where it fails.
    """

    context: Context
    run: Runner = process.run

    def find_commit(self, url: str, ref: str) -> str:
        """The commit that `ref` names: a tag, else a branch; a whole commit is taken as it is."""
        if _COMMIT.fullmatch(ref):
            return ref.lower()
        self._refuse_offline(url)
        # In git's own order (gitrevisions(7)); `^{}` is what an annotated tag points to.
        names = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"]
        names += [f"{ref}^{{}}", ref]
        listed = self._ask(url, "ls-remote", "--quiet", "--", url, *names)
        found = {name: commit for commit, _, name in _fields(listed)}
        for name in names:
            if name in found:
                return found[name]
        hint = "; a commit is named by all its 40 digits" if _SHORT_COMMIT.fullmatch(ref) else ""
        raise UnknownRefError(f"{shown(url)}: no tag or branch there is called `{ref}`{hint}")

    def has_commit(self, url: str, commit: str) -> bool:
        """Whether the server still has the commit; where it can filter, no file is fetched.

        One that gives out branches and tags only cannot be asked, and is believed to have it.
        """
        self._refuse_offline(url)
        options = ["--quiet", "--no-tags", "--no-recurse-submodules", "--depth=1"]
        with scratch_folder(self.context.cache) as folder:
            one = self._empty(folder / "one", commit)
            argv = [f"--git-dir={one}", "fetch", *options, "--filter=tree:0", "--", url, commit]
            try:
                self._start(argv, _FETCH_SECONDS)
            except ToolError as error:
                if _NOT_THERE in error.stderr:
                    return False
                if not any(words in error.stderr for words in _NEEDS_MORE):
                    raise self._failure(url, error) from None
        return True

    def fetch(self, url: str, commit: str) -> Path:
        """The repository in the cache that holds `commit`; it is brought there where it is not."""
        place = self._place(url, commit)
        if (place / "HEAD").is_file():
            return place
        self._refuse_offline(url)
        with scratch_folder(self.context.cache) as folder:
            one = self._empty(folder / "one", commit)
            try:
                self._bring(url, commit, one)
            except ToolError as error:
                if not any(words in error.stderr for words in _NEEDS_MORE):
                    raise self._failure(url, error) from None
                self._bring_by_way_of_all(url, commit, folder / "all", one)
            self._keep(one, url, commit)
        return place

    def read(self, repository: Path, commit: str, path: str) -> str | None:
        """The text of a file at a commit, None where there is no such file."""
        entry = self._entry(repository, commit, path)
        if entry is None or entry[1] == "tree":
            return None
        mode, kind, name, size = entry
        if kind != "blob" or mode == "120000":
            raise ExternalError(f"{path}: is no plain file there")
        if int(size) > _FILE_BYTES:
            raise ExternalError(f"{path}: is larger than {_FILE_BYTES >> 20} MiB")
        return self._inside(repository, "cat-file", "blob", name)

    def has_folder(self, repository: Path, commit: str, path: str) -> bool:
        """Whether there is a folder at `path` at that commit."""
        entry = self._entry(repository, commit, path)
        return entry is not None and entry[1] == "tree"

    def write_bundle(self, git: LockedGit, destination: Path) -> None:
        """Write the locked commit, without its history, as a git bundle to the file `destination`.

        A bundle (gitformat-bundle(5)) does not say where its history was cut off, so `git clone`
        and `git bundle verify` cannot use it. What takes the commit out of it, in an empty
        repository, is

            echo COMMIT > .git/shallow
            git fetch FILE refs/spark-build/locked
            git checkout COMMIT

        and git checks every object against the commit's hash. Raises OfflineError where the commit
        is not in the cache and the run is offline.
        """
        repository = self.fetch(git.url, git.commit)
        with scratch_folder(self.context.cache) as folder:
            path = folder / "bundle"
            self._inside(repository, "bundle", "create", "--quiet", str(path), LOCKED_REF)
            publish(path, destination, self.context.cache)

    def read_bundle(self, path: Path, git: LockedGit) -> Path:
        """Bring the locked commit out of the bundle at `path` into the cache; its repository there.

        Raises ExternalError where the commit is not in the bundle, or not whole.
        """
        with scratch_folder(self.context.cache) as folder:
            one = self._empty(folder / "one", git.commit)
            # A bundle does not say that its history is cut off: the receiver has to know.
            (one / "shallow").write_text(f"{git.commit}\n", encoding="ascii")
            try:
                self._bring(str(path.resolve()), LOCKED_REF, one, depth=())
                self._keep(one, git.url, git.commit)
            except ExternalError as error:
                raise ExternalError(
                    f"{path}: does not hold commit {git.commit} of {shown(git.url)} whole",
                    hint="delete the file; it is written anew from the repository",
                ) from error
        return self._place(git.url, git.commit)

    def _place(self, url: str, commit: str) -> Path:
        return self.context.cache / "git" / hashlib.sha256(url.encode()).hexdigest() / commit

    def _empty(self, path: Path, commit: str) -> Path:
        kind = ["--object-format=sha256"] if len(commit) == 64 else []
        self._start(["init", "--quiet", "--bare", "--template=", *kind, str(path)], _ASK_SECONDS)
        return path

    def _bring(
        self, source: str, name: str, repository: Path, *, depth: tuple[str, ...] = ("--depth=1",)
    ) -> None:
        options = ["--quiet", "--no-tags", "--no-recurse-submodules", *depth]
        argv = [f"--git-dir={repository}", "fetch", *options, "--", source, f"+{name}:{LOCKED_REF}"]
        self._start(argv, _FETCH_SECONDS)

    def _bring_by_way_of_all(self, url: str, commit: str, every: Path, one: Path) -> None:
        """From a server that gives branches and tags only: all of them, then the one commit."""
        self._empty(every, commit)
        names = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
        argv = [f"--git-dir={every}", "fetch", "--quiet", "--no-recurse-submodules", "--", url]
        try:
            self._start([*argv, *names], _FETCH_SECONDS)
            self._start([f"--git-dir={every}", "update-ref", LOCKED_REF, commit], _ASK_SECONDS)
            self._bring(every.resolve().as_uri(), LOCKED_REF, one)
        except ToolError as error:
            raise self._failure(url, error) from None

    def _keep(self, repository: Path, url: str, commit: str) -> None:
        """Move a repository to where it is looked for, once it holds what it is to hold."""
        if self._inside(repository, "rev-parse", "--verify", LOCKED_REF).strip() != commit:
            raise ExternalError(f"{shown(url)}: {commit} is not the id of a commit there")
        if self._inside(repository, "cat-file", "-t", commit).strip() != "commit":
            raise ExternalError(f"{shown(url)}: {commit} is not the id of a commit there")
        publish(repository, self._place(url, commit), self.context.cache, mark="HEAD")

    def _entry(self, repository: Path, commit: str, path: str) -> list[str] | None:
        """Mode, kind, id and size of what lies at `path` (git-ls-tree(1), "OUTPUT FORMAT")."""
        listed = self._inside(repository, "ls-tree", "-l", "-z", "--full-tree", commit, "--", path)
        for entry in listed.split("\0"):
            facts, _, name = entry.partition("\t")
            if name == path:
                return facts.split()
        return None

    def _inside(self, repository: Path, *arguments: str) -> str:
        return self._start([f"--git-dir={repository}", *arguments], _FETCH_SECONDS)

    def _ask(self, url: str, *arguments: str) -> str:
        try:
            return self._start(arguments, _ASK_SECONDS)
        except ToolError as error:
            raise self._failure(url, error) from None

    def _start(self, arguments: list[str] | tuple[str, ...], timeout_seconds: float) -> str:
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        try:
            done = self.run(
                ["git", *settings, *arguments],
                env=git_environment(self.context.environ),
                timeout_seconds=timeout_seconds,
            )
        except MissingError as error:
            raise MissingError(
                f"git cannot be run: {error.message}",
                hint="install git (`apt-get install git`, `dnf install git`)",
            ) from None
        return done.stdout

    def _failure(self, url: str, error: ToolError) -> ExternalError:
        return ExternalError(f"{shown(url)}: {_said(error.stderr)}", hint=_SIGN_IN)

    def _refuse_offline(self, url: str) -> None:
        if self.context.offline:
            raise OfflineError(
                f"{shown(url)} would have to be read, and the run is offline",
                hint="run once without --offline; what was fetched stays in the cache",
            )


def git_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the caller's environment that git may see, and what is set for it.

    The certificates that the rest of the program trusts (`SSL_CERT_FILE`) are git's too.
    """
    passed = {key: value for key, value in environ.items() if key in _PASSES or _setting(key)}
    for ours, gits in (("SSL_CERT_FILE", "GIT_SSL_CAINFO"), ("SSL_CERT_DIR", "GIT_SSL_CAPATH")):
        if ours in environ:
            passed.setdefault(gits, environ[ours])
    return passed | {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https:ssh:git:file",
        "GIT_LITERAL_PATHSPECS": "1",
        "LC_ALL": "C",  # its words are read
    }


def shown(url: str) -> str:
    """A repository's URL, fit for a message or a file."""
    return redact(url) if "://" in url and not url.startswith("ssh://") else url


def _setting(key: str) -> bool:
    return key.startswith(("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_"))


def _fields(listed: str) -> Iterator[tuple[str, str, str]]:
    return (line.partition("\t") for line in listed.splitlines())


def _said(stderr: str) -> str:
    """Git's own reason in one line, without what may be a secret in a URL."""
    if "terminal prompts disabled" in stderr:
        return "the server asks for credentials, as some do where there is no such repository"
    lines = [match["text"] for match in _SAID.finditer(stderr)] or stderr.split("\n")[-2:-1]
    text = "; ".join(dict.fromkeys(lines)) or "git gives no reason"
    return redact_urls(text)
