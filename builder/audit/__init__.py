"""Judge a lock without downloading it: facts are read in place, the law is `policy.yaml`.

    audit(lock, ...)  facts of every wheel, cached by hash, and one verdict over them
    explain(rule)     what a rule means
    rule_dict(rule)   the same as JSON-ready values

Nothing that is read is ever run.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from builder.audit.facts import Access, WheelFacts, load_facts, read_wheel, save_facts
from builder.audit.judge import Allowed, count_findings, count_known, judge
from builder.audit.policy import explain, load_policy, rule_dict
from builder.audit.subject import Subject, SubjectWheel, read_subject, subject_of
from builder.context import Context
from builder.elf import Known
from builder.errors import ExternalError, Finding
from builder.http import Http
from builder.lock.base.torch_version import TORCH_VERSION_FILE
from builder.lock.model import Lock, LockedFile
from builder.lock.store import Store
from builder.pool import threads
from builder.progress import format_count, format_size
from builder.remote import Source, WheelError, open_local, open_remote

__all__ = ["Report", "Subject", "audit", "explain", "read_subject", "rule_dict", "subject_of"]

FORMAT = 1
"""The version of `Report.as_dict`; goes up when a key changes its meaning or goes away."""

_WHEELS_AT_ONCE = 6
_REQUESTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an audit found, and how much it had to read for it.

    `facts` are in the lock's order; `bytes_read` counts what this run brought over the network,
    so it is 0 where all facts were cached.
    """

    subject: Subject
    cuda_major: int
    findings: tuple[Finding, ...]
    allowed: tuple[Allowed, ...]
    facts: tuple[WheelFacts, ...]
    bytes_read: int

    @property
    def size_bytes(self) -> int:
        """The size of all wheels together."""
        return sum(facts.size_bytes for facts in self.facts)

    @property
    def unknown_torches(self) -> tuple[str, ...]:
        """Filenames of torches that do not say, and of which the lock does not, which CUDA."""
        if self.subject.torch is not None:
            return ()
        torches = (facts for facts in self.facts if facts.filename.startswith("torch-"))
        return tuple(facts.filename for facts in torches if facts.torch is None)

    @property
    def summary(self) -> str:
        """One line: what was found, from how much, and how much is not known."""
        counts = count_known(self.facts)
        unknown = counts[Known.UNKNOWN]
        others = format_count(len(self.subject.others), "package")
        without = f", {others} without a wheel" if self.subject.others else ""
        without += ", torch's CUDA not known" if self.unknown_torches else ""
        return (
            f"{count_findings(self.findings)} in {format_count(len(self.facts), 'wheel')}, "
            f"{format_count(sum(counts.values()), 'binary', 'binaries')} "
            f"({unknown} not known){without}; "
            f"{format_size(self.bytes_read)} of {format_size(self.size_bytes)} read"
        )

    def as_dict(self) -> dict[str, object]:
        """The report as JSON-ready values.

        Top level: `format`, `source`, `platform`, `cuda`, `findings`, `allowed`, `not_read`
        (packages without a wheel), `unknown` (ELF files of which only the machine is known, and
        the `torch/version.py` of a torch that does not say which CUDA it was built for),
        `wheels` and `counts`. `counts.elf` has a number for each `Known`.
        """
        return {
            "format": FORMAT,
            "source": self.subject.source,
            "platform": self.subject.platform,
            "cuda": self.cuda_major,
            "findings": [finding.as_dict() for finding in self.findings],
            "allowed": [allowed.as_dict() for allowed in self.allowed],
            "not_read": [
                {"name": other.name, "version": other.version, "kind": other.kind}
                for other in self.subject.others
            ],
            "unknown": [
                {"wheel": facts.filename, "file": file.path}
                for facts in self.facts
                for file in facts.files
                if file.facts.known == Known.UNKNOWN
            ]
            + [
                {"wheel": filename, "file": TORCH_VERSION_FILE} for filename in self.unknown_torches
            ],
            "wheels": [_facts_as_dict(facts) for facts in self.facts],
            "counts": {
                "wheels": len(self.facts),
                "not_read": len(self.subject.others),
                "elf": count_known(self.facts),
                "size_bytes": self.size_bytes,
                "bytes_read": self.bytes_read,
            },
        }


def audit(
    lock: Lock | Subject,
    *,
    cuda_major: int,
    exclude: Sequence[str],
    http: Http,
    store: Store,
    context: Context,
    deep: bool = False,
) -> Report:
    """Read the facts of every wheel and judge them; `exclude` are names that must not be there.

    `deep` reads every ELF file whole. Raises ExternalError where a wheel cannot be read and its
    facts are not known from an earlier run.
    """
    subject = subject_of(lock) if isinstance(lock, Lock) else lock
    reader = _Reader(http, store, context, deep=deep)
    facts, bytes_read = reader.read_all(subject.wheels)
    verdict = judge(
        subject,
        {item.filename: item for item in facts},
        load_policy(),
        cuda_major=cuda_major,
        exclude=exclude,
    )
    return Report(
        subject=subject,
        cuda_major=cuda_major,
        findings=verdict.findings,
        allowed=verdict.allowed,
        facts=facts,
        bytes_read=bytes_read,
    )


class _Reader:
    """Brings the facts of wheels: from the cache, the store, or the network, in this order."""

    def __init__(self, http: Http, store: Store, context: Context, *, deep: bool) -> None:
        self._http, self._store, self._context, self._deep = http, store, context, deep

    def read_all(self, wheels: Sequence[SubjectWheel]) -> tuple[tuple[WheelFacts, ...], int]:
        """The facts of `wheels` in their order, and the bytes that came over the network."""
        cached = {wheel.filename: self._load(wheel) for wheel in wheels}
        wanted = [wheel for wheel in wheels if cached[wheel.filename] is None]
        total = sum(wheel.size or 0 for wheel in wanted)
        read: dict[str, WheelFacts] = {}
        # Two pools: what waits in the first for a request in the second never blocks it.
        with (
            self._context.progress.task("audit", total) as advance,
            threads(_REQUESTS_AT_ONCE) as requests,
            threads(_WHEELS_AT_ONCE) as readers,
        ):
            tasks = [readers.submit(self._read, wheel, requests) for wheel in wanted]
            for wheel, task in zip(wanted, tasks, strict=True):
                read[wheel.filename] = task.result()
                self._save(wheel, read[wheel.filename])
                advance(wheel.size or 0)
        facts = tuple(cached[wheel.filename] or read[wheel.filename] for wheel in wheels)
        fetched = (item for item in read.values() if item.access != Access.LOCAL)
        return facts, sum(item.bytes_read for item in fetched)

    def _load(self, wheel: SubjectWheel) -> WheelFacts | None:
        if wheel.sha256 is None:
            return None
        kept = load_facts(self._context.cache, wheel.sha256, deep=self._deep, url=wheel.url)
        # The same file by another name says other tags.
        return kept if kept is not None and kept.filename == wheel.filename else None

    def _save(self, wheel: SubjectWheel, facts: WheelFacts) -> None:
        if wheel.sha256 is not None:
            url = wheel.url if facts.access == Access.RANGES else None
            save_facts(self._context.cache, wheel.sha256, facts, url=url)

    def _read(self, wheel: SubjectWheel, requests: Executor) -> WheelFacts:
        path = wheel.path or self._stored(wheel)
        if path is not None:
            with open_local(path, wheel.filename) as local:
                if wheel.path is not None:  # the store checked its own on arrival
                    _check_hash(wheel, local)
                return read_wheel(wheel.filename, local, requests, deep=self._deep)
        if wheel.url is None:
            raise ExternalError(f"{wheel.label}: the lock names neither a URL nor a path")
        remote = open_remote(wheel.filename, self._http, wheel.url)
        _check_hash(wheel, remote)
        return read_wheel(wheel.filename, remote, requests, deep=self._deep)

    def _stored(self, wheel: SubjectWheel) -> Path | None:
        if wheel.sha256 is None or wheel.size is None:
            return None
        return self._store.find(
            LockedFile(url=wheel.url or "", sha256=wheel.sha256, size=wheel.size)
        )


def _check_hash(wheel: SubjectWheel, source: Source) -> None:
    """WheelError where the whole file is at hand and is another one than the lock says."""
    found = None if wheel.sha256 is None else source.sha256()
    if found != wheel.sha256 and found is not None:
        raise WheelError(
            f"{source.label}: has sha256 {found}, the lock says {wheel.sha256}",
            hint="the file was replaced, or the lock is wrong: lock anew",
        )


def _facts_as_dict(facts: WheelFacts) -> dict[str, object]:
    return {
        "filename": facts.filename,
        "access": str(facts.access),
        "deep": facts.deep,
        "size_bytes": facts.size_bytes,
        "bytes_read": facts.bytes_read,
        "elf": count_known([facts]),
    }
