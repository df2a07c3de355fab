"""The verdict on a lock: pure; facts and law come in, findings go out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from builder.audit.facts import WheelFacts
from builder.audit.policy import Allowance, CudaLibrary, Policy
from builder.audit.subject import Subject, SubjectOther, SubjectWheel
from builder.elf import Known
from builder.errors import Finding, Severity

_FILES_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What would have been a finding, and the allowance that let it pass."""

    rule: str
    subject: str
    what: str
    allowance: Allowance

    def as_dict(self) -> dict[str, object]:
        """JSON-ready values, in a fixed key order."""
        return {
            "rule": self.rule,
            "subject": self.subject,
            "what": self.what,
            "reason": self.allowance.reason,
            "source": self.allowance.source,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the judge says: findings, and what was let pass."""

    findings: tuple[Finding, ...]
    allowed: tuple[Allowed, ...]


def judge(
    subject: Subject,
    facts: Mapping[str, WheelFacts],
    policy: Policy,
    *,
    cuda_major: int,
    exclude: Sequence[str],
) -> Verdict:
    """Judge every package of `subject`; `facts` are by the wheel's filename.

    Findings come in the order of the rules in the law, then in that of the lock.
    """
    bench = _Bench(subject, policy, cuda_major)
    for wheel in subject.wheels:
        bench.judge_wheel(wheel, facts[wheel.filename])
    bench.judge_lock({canonicalize_name(name) for name in exclude})
    order = list(policy.rules)
    findings = sorted(bench.findings, key=lambda finding: order.index(finding.rule))
    return Verdict(findings=tuple(findings), allowed=tuple(bench.allowed))


class _Bench:
    """One run of the judge: collects what is found."""

    def __init__(self, subject: Subject, policy: Policy, cuda_major: int) -> None:
        self._subject = subject
        self._policy = policy
        self._cuda = cuda_major
        self._machine = policy.platform(subject.platform).machine
        self.findings: list[Finding] = []
        self.allowed: list[Allowed] = []

    def judge_wheel(self, wheel: SubjectWheel, facts: WheelFacts) -> None:
        if canonicalize_name(wheel.name) == "torch":
            self._judge_torch(wheel, facts)
        self._judge_cuda(wheel, facts)
        self._judge_tags(wheel, facts)
        self._judge_machines(wheel, facts)

    def judge_lock(self, exclude: set[str]) -> None:
        packages: list[SubjectWheel | SubjectOther] = [*self._subject.wheels, *self._subject.others]
        for package in packages:
            label = f"{package.name} {package.version or ''}".strip()
            if canonicalize_name(package.name) in exclude:
                self._find("excluded-package", label, "the recipe excludes it, the lock has it", {})
            if (kept := self._subject.kept.get(canonicalize_name(package.name))) is not None:
                reason = f"the base's own {kept} stays, and the lock brings another one"
                self._find("torch-replaced", label, reason, {"kept": kept})
            if not package.hashed:
                self._find("unhashed", label, "the lock holds no strong hash for it", {})

    def _find(self, rule: str, label: str, reason: str, evidence: dict[str, object]) -> None:
        self.findings.append(self._policy.finding(rule, label, f"{label}: {reason}", evidence))

    def _judge_torch(self, wheel: SubjectWheel, facts: WheelFacts) -> None:
        """Which CUDA the torch was built for, by the lock's word or its own; else not known."""
        build = self._subject.torch or facts.torch
        if build is None:
            return
        cuda, module = build.cuda, build.module or wheel.version
        if cuda is None:
            reason = f"torch {module} was built without CUDA"
            self._find("cpu-only-torch", wheel.label, reason, {"module": module})
        elif cuda.partition(".")[0] != str(self._cuda):
            reason = f"was built for CUDA {cuda}, the target has CUDA {self._cuda}"
            self._find("cuda-runtime-mismatch", wheel.label, reason, {"cuda": cuda})

    def _judge_cuda(self, wheel: SubjectWheel, facts: WheelFacts) -> None:
        major = self._policy.cuda_package_major(wheel.name)
        if major is not None and major != self._cuda:
            # The package says it by its name; its files need not be counted up as well.
            if self._weigh("cuda-runtime-mismatch", wheel, [""], f"CUDA {major} package"):
                reason = f"is a package for CUDA {major}, the target has CUDA {self._cuda}"
                self._find("cuda-runtime-mismatch", wheel.label, reason, {"cuda": major})
            return
        own = frozenset(_private_copies(facts, self._policy))
        for library, named in self._foreign_libraries(facts).items():
            files = self._weigh("cuda-runtime-mismatch", wheel, named, library.soname)
            if files:
                bundled = (library.name, library.major) in own
                rule = "bundled-cuda-runtime" if bundled else "cuda-runtime-mismatch"
                self._find_library(rule, wheel, facts, library, files)

    def _find_library(
        self,
        rule: str,
        wheel: SubjectWheel,
        facts: WheelFacts,
        library: CudaLibrary,
        files: Sequence[str],
    ) -> None:
        users = [path for path in files if not self._is_copy(path, library)]
        what = f"{name_files(users)} needs" if users else f"{name_files(files)} is"
        whose = "its own copy of " if users and rule == "bundled-cuda-runtime" else ""
        reason = f"{what} {whose}{library.soname}, the target has CUDA {self._cuda}"
        evidence: dict[str, object] = {"library": library.soname, "cuda": library.major}
        evidence |= {**list_files(files), "known": _known(facts, files[0])}
        self._find(rule, wheel.label, reason, evidence)

    def _is_copy(self, path: str, library: CudaLibrary) -> bool:
        found = self._policy.cuda_library(path.rpartition("/")[2])
        return found is not None and (found.name, found.major) == (library.name, library.major)

    def _foreign_libraries(self, facts: WheelFacts) -> dict[CudaLibrary, list[str]]:
        """Libraries of another CUDA major, and the files that need or are them."""
        needs: dict[CudaLibrary, list[str]] = defaultdict(list)
        for file in facts.files:
            found = self._policy.cuda_libraries(file.facts)
            for name, major in dict.fromkeys((item.name, item.major) for item in found):
                if major != self._cuda:
                    needs[CudaLibrary(name, major)].append(file.path)
        return needs

    def _judge_tags(self, wheel: SubjectWheel, facts: WheelFacts) -> None:
        platforms = sorted({tag.rpartition("-")[2] for tag in facts.tags})
        if any(name == "any" or name.endswith(f"_{self._machine}") for name in platforms):
            return
        reason = f"the wheel is for {', '.join(platforms)}, the target is {self._subject.platform}"
        self._find("wrong-architecture", wheel.label, reason, {"platforms": platforms})

    def _judge_machines(self, wheel: SubjectWheel, facts: WheelFacts) -> None:
        foreign: dict[str, list[str]] = defaultdict(list)
        for file in facts.files:
            machine = self._policy.machines.get(file.facts.machine)
            if machine is not None and machine != self._machine:
                foreign[machine].append(file.path)
        for machine, named in foreign.items():
            if files := self._weigh("wrong-architecture", wheel, named, machine):
                reason = (
                    f"{name_files(files)} is for {machine}, the target is {self._subject.platform}"
                )
                evidence = {"machine": machine, **list_files(files)}
                self._find("wrong-architecture", wheel.label, reason, evidence)

    def _weigh(self, rule: str, wheel: SubjectWheel, files: Sequence[str], what: str) -> list[str]:
        """The files that no allowance covers; which ones were used is kept."""
        left: list[str] = []
        used: dict[str, Allowance] = {}
        for path in files:
            allowance = self._policy.allowance(rule, package=wheel.name, path=path, library=what)
            if allowance is None:
                left.append(path)
            else:
                used[allowance.reason] = allowance
        self.allowed.extend(
            Allowed(rule=rule, subject=wheel.label, what=what, allowance=allowance)
            for allowance in used.values()
        )
        return left


def _private_copies(facts: WheelFacts, policy: Policy) -> Iterator[tuple[str, int]]:
    """CUDA libraries that the wheel carries under names that only it uses."""
    for file in facts.files:
        library = policy.cuda_library(file.path.rpartition("/")[2])
        if library is not None and library.private:
            yield library.name, library.major


def _known(facts: WheelFacts, path: str) -> str:
    return str(next(file.facts.known for file in facts.files if file.path == path))


def name_files(files: Sequence[str]) -> str:
    """The first file, and how many more there are."""
    more = len(files) - 1
    return files[0] if not more else f"{files[0]} (and {more} more)"


def list_files(files: Sequence[str]) -> dict[str, object]:
    """Evidence: the files, not all where there are very many, and how many there are."""
    return {"files": list(files[:_FILES_NAMED]), "file_count": len(files)}


def count_known(facts: Iterable[WheelFacts]) -> dict[str, int]:
    """How many ELF files are known how far, over all wheels."""
    totals = dict.fromkeys((str(known) for known in Known), 0)
    for wheel in facts:
        for known in Known:
            totals[str(known)] += wheel.count(known)
    return totals


def count_findings(findings: Iterable[Finding]) -> str:
    """`1 error, 2 warnings`, or `no findings`."""
    counts = Counter(finding.severity for finding in findings)
    words = [
        f"{counts[severity]} {severity}{'s' if counts[severity] > 1 else ''}"
        for severity in Severity
        if counts[severity]
    ]
    return ", ".join(words) or "no findings"
