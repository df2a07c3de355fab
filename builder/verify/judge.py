"""The verdict on an image by its facts alone: pure, and never about the GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.utils import canonicalize_name

from builder.audit.judge import Allowed, list_files, name_files
from builder.audit.policy import Allowance, CudaLibrary, Policy
from builder.elf import ElfFacts, Known
from builder.errors import Finding
from builder.lock.base.inventory import Inventory
from builder.lock.model import Lock
from builder.verify.distributions import SITE, Distribution, find_distributions, same_version
from builder.verify.loader import Loader, Met
from builder.verify.torch import judge_guard, judge_torch
from builder.verify.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What an image is judged against.

    `platform` as in `linux/arm64`; `prefix` is the virtual environment; without a `lock` its
    distributions and torch are not compared, and with one whose torch is the base's, `inventory`
    is what the image has outside the environment; without a `cuda_major` the newest one in the
    image counts. `config` is the image's config document.
    """

    platform: str
    prefix: str
    cuda_major: int | None
    lock: Lock | None
    exclude: Sequence[str]
    inventory: Inventory | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What is found, let pass and counted.

    `counts` speaks of ELF files (`elf`, `elf_unknown`), of what they need, a program's loader
    included (`needed`, of which `found`, `preloaded`, `driver`, `allowed`, `unmet`), and of
    `distributions`.
    """

    findings: list[Finding] = field(default_factory=list)
    allowed: list[Allowed] = field(default_factory=list)
    driver_libraries: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            (
                "elf",
                "elf_unknown",
                "needed",
                *(str(met) for met in Met),
                "driver",
                "allowed",
                "unmet",
                "distributions",
            ),
            0,
        )
    )


def judge(tree: Tree, policy: Policy, loader: Loader, expected: Expected) -> Verdict:
    """Judge a merged file system; findings come in the order of the rules in the law."""
    verdict = Verdict()
    machine = policy.platform(expected.platform).machine
    native = _sort_out(policy, loader.elfs, machine, expected.platform, verdict)
    _judge_needs(policy, loader, native, verdict)
    dists = tuple(find_distributions(tree))
    verdict.counts["distributions"] = len(dists)
    _judge_cuda(policy, native, dists, expected.cuda_major, verdict)
    # Only the virtual environment's: what a base brings was never installed by us.
    own = [dist for dist in dists if dist.site.startswith(f"{expected.prefix}/")]
    _judge_distributions(policy, own, expected, verdict)
    verdict.findings.extend(_judge_kept(policy, tree, own, expected))
    order = list(policy.rules)
    verdict.findings.sort(key=lambda finding: order.index(finding.rule))
    return verdict


def _sort_out(
    policy: Policy,
    elfs: Mapping[str, ElfFacts],
    machine: str,
    platform: str,
    verdict: Verdict,
) -> dict[str, ElfFacts]:
    """The files that the image's processor runs; others are findings, or data to it."""
    native: dict[str, ElfFacts] = {}
    foreign: dict[str, list[str]] = defaultdict(list)
    for path, facts in elfs.items():
        verdict.counts["elf"] += 1
        name = policy.machines.get(facts.machine)
        if facts.known is Known.UNKNOWN:
            verdict.counts["elf_unknown"] += 1
            verdict.unknown.append(path)
        elif name == machine:
            native[path] = facts
        elif name is not None and not _allow(policy, verdict, "wrong-architecture", path, name):
            foreign[name].append(path)
    for name, paths in foreign.items():
        message = f"{name_files(paths)} is for {name}, the image is for {platform}"
        evidence = {"machine": name, **list_files(paths)}
        verdict.findings.append(policy.finding("wrong-architecture", paths[0], message, evidence))
    return native


def _judge_needs(
    policy: Policy, loader: Loader, native: Mapping[str, ElfFacts], verdict: Verdict
) -> None:
    unmet: dict[str, list[str]] = defaultdict(list)
    for path, facts in native.items():
        interpreter = () if facts.interpreter is None else (facts.interpreter,)
        for library in (*facts.needed, *interpreter):
            verdict.counts["needed"] += 1
            met = _meet(policy, loader, path, library, verdict)
            verdict.counts[met] += 1
            if met == "unmet":
                unmet[library].append(path)
    for library, paths in unmet.items():
        message = f"{name_files(paths)} needs {library}, which is nowhere in the image"
        evidence = {"library": library, **list_files(paths)}
        verdict.findings.append(policy.finding("unmet-library", paths[0], message, evidence))


def _meet(policy: Policy, loader: Loader, path: str, library: str, verdict: Verdict) -> str:
    """Under which of the counts a need falls."""
    met = loader.meet(path, library)
    if met is not None:
        return str(met)
    if policy.is_driver(library):
        verdict.driver_libraries.add(library)
        return "driver"
    return "allowed" if _allow(policy, verdict, "unmet-library", path, library) else "unmet"


def _judge_cuda(
    policy: Policy,
    native: Mapping[str, ElfFacts],
    dists: Sequence[Distribution],
    target_major: int | None,
    verdict: Verdict,
) -> None:
    """One CUDA runtime: no file needs or is a library of another major, no package is for one."""
    users: dict[CudaLibrary, list[str]] = defaultdict(list)
    for path, facts in native.items():
        for library in policy.cuda_libraries(facts):
            users[library].append(path)
    openly = (library.major for library in users if not library.private)
    major = target_major or max(openly, default=None)
    if major is None:
        return
    for library, paths in users.items():
        if library.major != major:
            _judge_cuda_library(policy, library, paths, major, verdict)
    for dist in dists:
        _judge_cuda_package(policy, dist, major, verdict)


def _judge_cuda_library(
    policy: Policy, library: CudaLibrary, paths: Sequence[str], major: int, verdict: Verdict
) -> None:
    rule = "bundled-cuda-runtime" if library.private else "cuda-runtime-mismatch"
    left = [
        path
        for path in paths
        if not _allow(policy, verdict, "cuda-runtime-mismatch", path, library.soname)
    ]
    if left:
        message = f"{name_files(left)} needs or is {library.soname}, the target has CUDA {major}"
        evidence = {"library": library.soname, "cuda": library.major, **list_files(left)}
        verdict.findings.append(policy.finding(rule, left[0], message, evidence))


def _judge_cuda_package(policy: Policy, dist: Distribution, major: int, verdict: Verdict) -> None:
    other = policy.cuda_package_major(dist.name)
    rule, what = "cuda-runtime-mismatch", f"CUDA {other} package"
    if other is None or other == major:
        return
    allowance = policy.allowance(rule, package=dist.name, library=what)
    if allowance is not None:
        _note(verdict, rule, dist.label, what, allowance)
        return
    message = f"{dist.label} is a package for CUDA {other}, the target has CUDA {major}"
    evidence: dict[str, object] = {"cuda": other, "path": dist.path}
    verdict.findings.append(policy.finding(rule, dist.label, message, evidence))


def _judge_distributions(
    policy: Policy, own: Sequence[Distribution], expected: Expected, verdict: Verdict
) -> None:
    excluded = {canonicalize_name(name) for name in expected.exclude}
    for dist in own:
        if dist.name in excluded:
            message = f"{dist.label}: the recipe excludes it, the image has it"
            evidence: dict[str, object] = {"path": dist.path}
            verdict.findings.append(
                policy.finding("excluded-package", dist.label, message, evidence)
            )
    if expected.lock is not None:
        for subject, message in _compare(own, expected.lock):
            verdict.findings.append(policy.finding("lock-mismatch", subject, message, {}))


def _judge_kept(
    policy: Policy, tree: Tree, own: Sequence[Distribution], expected: Expected
) -> Iterator[Finding]:
    """Torch and what keeps it, as the lock says."""
    lock = expected.lock
    if lock is not None:
        site = f"{expected.prefix}/lib/python{lock.python}/site-packages"
        yield from judge_torch(policy, tree, own, lock, inventory=expected.inventory, site=site)
        yield from judge_guard(policy, tree, expected.config, lock, expected.prefix)


def _compare(own: Sequence[Distribution], lock: Lock) -> Iterator[tuple[str, str]]:
    locked = {canonicalize_name(wheel.name): wheel.version for wheel in lock.wheels}
    for dist in own:
        version = locked.get(dist.name)
        if version is None:
            yield dist.label, f"{dist.label} is in the image and not in the lock"
        elif not same_version(dist.version, version):
            yield dist.label, f"{dist.label} is in the image, the lock has {version}"
    present = {dist.name for dist in own}
    for name in sorted(locked.keys() - present):
        label = f"{name} {locked[name]}"
        yield label, f"{label} is in the lock and not in the image"


def _allow(policy: Policy, verdict: Verdict, rule: str, path: str, what: str) -> bool:
    """Whether an allowance covers this, by the path below site-packages."""
    match = SITE.fullmatch(path)
    inside = match["rest"] if match else path.lstrip("/")
    allowance = policy.allowance(rule, package=None, path=inside, library=what)
    if allowance is None:
        return False
    _note(verdict, rule, path, what, allowance)
    return True


def _note(verdict: Verdict, rule: str, subject: str, what: str, allowance: Allowance) -> None:
    verdict.allowed.append(Allowed(rule=rule, subject=subject, what=what, allowance=allowance))
