"""What each verb does: options into calls, results onto stdout. No logic of its own.

The environment and the working directory are read here and handed down.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from packaging.utils import canonicalize_name, is_normalized_name

from builder import audit as audits
from builder import pipeline, recipe, render, upkeep
from builder.cli.output import print_findings, print_json, print_lines, print_outcome, verdict
from builder.context import Context
from builder.errors import ExternalError, Finding, FindingsError, Severity, UsageError, worst
from builder.http import Http
from builder.lock import Locked, Upgrade
from builder.lock.changes import diff as diffs
from builder.lock.changes import diff_text
from builder.lock.model import Lock
from builder.lock.pylock import read_lock
from builder.lock.shelf import INDEX as VENDOR_INDEX
from builder.lock.store import Store
from builder.lock.vendor import parse_place
from builder.oci.image import read_layout
from builder.pipeline import Job
from builder.plan import TARGET_LABEL
from builder.progress import PlainProgress, Progress, TerminalProgress
from builder.scratch import write_whole
from builder.targets import Target, find_target, load_targets
from builder.verify import verify

_EXIT_FINDINGS = 1
_DEFAULT_TARGET = "gb10"


def run(arguments: argparse.Namespace) -> int:
    """Run the verb that was asked for; returns the exit code."""
    return _VERBS[arguments.verb](arguments)


def _build(arguments: argparse.Namespace) -> int:
    context = _context(arguments)
    chosen = pipeline.jobs(arguments.recipe, only=arguments.target, folder=arguments.build_dir)
    outcomes = []
    for job in chosen:
        try:
            outcome = pipeline.build(
                job,
                context=context,
                upgrade=_upgrade(arguments, frozen=arguments.locked),
                frozen=arguments.locked,
                deep=arguments.deep,
                vendored=_vendored(arguments, job),
            )
        except FindingsError as error:
            _print_refusal(arguments, job, error)
            raise
        outcomes.append(outcome)
        if not arguments.json:
            print_outcome(outcome)
    if arguments.json:
        print_json({"images": [outcome.as_dict() for outcome in outcomes]})
    return 0


def _print_refusal(arguments: argparse.Namespace, job: Job, error: FindingsError) -> None:
    """The findings that stopped a build; the error itself is told by `main`."""
    if arguments.json:
        findings = [finding.as_dict() for finding in error.findings]
        print_json(
            {"name": job.loaded.recipe.name, "target": job.target.name, "findings": findings}
        )
    else:
        print_findings(error.findings)


def _lock(arguments: argparse.Namespace) -> int:
    context = _context(arguments)
    results = []
    for job in pipeline.jobs(arguments.recipe, only=arguments.target, folder=Path()):
        locked = _lock_one(job, context, arguments)
        result: dict[str, object] = {"path": str(locked.path), "written": locked.written}
        if arguments.check:  # what had drifted would have been raised
            result["drift"] = None if context.offline else []
        results.append(result)
        if not arguments.json:
            print(locked.path)
    if arguments.json:
        print_json({"locks": results})
    return 0


def _lock_one(job: Job, context: Context, arguments: argparse.Namespace) -> Locked:
    upgrade = _upgrade(arguments, frozen=arguments.check)
    with pipeline.connect(job, context) as supply:
        if arguments.check:
            return upkeep.check(job, supply)
        return pipeline.lock(job, supply, upgrade=upgrade)


def _audit(arguments: argparse.Namespace) -> int:
    if arguments.explain is not None:
        return _explain(arguments)
    if not arguments.inputs:
        raise UsageError("audit: nothing to read", hint="name a pylock.toml, or --explain RULE")
    context = _context(arguments)
    reports = []
    with Http(context.environ, offline=context.offline) as http:
        for path in arguments.inputs:
            report = _audit_one(path, arguments, context, http)
            reports.append(report)
            context.progress.stage("audit", f"{path}: {report.summary}")
    findings = [finding for report in reports for finding in report.findings]
    if arguments.json:
        print_json({"reports": [report.as_dict() for report in reports]})
    else:
        print_findings(findings)
    return _code(findings)


def _explain(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(audits.rule_dict(arguments.explain))
    else:
        print(audits.explain(arguments.explain), end="")
    return 0


def _audit_one(
    path: Path, arguments: argparse.Namespace, context: Context, http: Http
) -> audits.Report:
    asked = find_target(arguments.target or _DEFAULT_TARGET)
    subject = audits.read_subject(path, platform=asked.platform)
    target = find_target(arguments.target or subject.target or _DEFAULT_TARGET)
    if target.platform != subject.platform:
        raise UsageError(
            f"{path}: the lock is for {subject.platform}, {target.name} is {target.platform}",
            hint="leave --target out, or lock the recipe for that target",
        )
    return audits.audit(
        subject,
        cuda_major=target.cuda.major,
        exclude=arguments.exclude,
        http=http,
        store=Store(context.cache),
        context=context,
        deep=arguments.deep,
    )


def _render(arguments: argparse.Namespace) -> int:
    context = _context(arguments)
    [job] = _single(pipeline.jobs(arguments.recipe, only=arguments.target, folder=Path()))
    with pipeline.connect(job, context) as supply:
        locked = pipeline.lock(job, supply, frozen=arguments.locked)
    plan = pipeline.plan(job, locked.lock)
    texts: Mapping[str, Callable[..., str]] = {
        "containerfile": render.containerfile,
        "apptainer": render.apptainer,
    }
    return _print_text(arguments, texts[arguments.format](plan), context)


def _print_text(arguments: argparse.Namespace, text: str, context: Context) -> int:
    """Onto stdout, as JSON if asked, or whole into the file that was named."""
    if arguments.output is not None:
        write_whole(arguments.output, text.encode(), context.cache)
    elif arguments.json:
        print_json({"format": arguments.format, "text": text})
    else:
        print(text, end="")
    return 0


def _single(jobs: list[Job]) -> list[Job]:
    if len(jobs) != 1:
        names = ", ".join(job.target.name for job in jobs)
        raise UsageError(
            f"the recipe has several targets: {names}", hint="choose one with --target NAME"
        )
    return jobs


def _verify(arguments: argparse.Namespace) -> int:
    context = _context(arguments)
    lock = None if arguments.lock is None else read_lock(arguments.lock)
    image = read_layout(arguments.image, _verify_platform(arguments, lock))
    stated = () if lock is None else lock.inputs.get("exclude", ())
    exclude = tuple(map(str, stated)) if isinstance(stated, list) else ()
    report = verify(image, lock=lock, exclude=exclude, context=context)
    context.progress.stage("verify", report.summary)
    if arguments.json:
        print_json({"image": image.digest, **report.as_dict()})
    else:
        print_findings(report.findings)
        print(f"{arguments.image}: {image.digest}")
        print(f"  static checks {verdict(report.findings)}, device checks {report.device}")
    return _code(report.findings)


def _verify_platform(arguments: argparse.Namespace, lock: Lock | None) -> str:
    """That of the target which was named, else of the lock, else of what the image says it is."""
    asked = None if arguments.target is None else find_target(arguments.target)
    if lock is not None:
        if asked is not None and asked.name != lock.target:
            raise UsageError(
                f"{arguments.lock}: the lock is for {lock.target}, not for {asked.name}",
                hint="leave --target out, or name the lock for that target",
            )
        return lock.platform
    return (asked or _labelled_target(arguments.image) or find_target(_DEFAULT_TARGET)).platform


def _labelled_target(layout: Path) -> Target | None:
    """The target that the image in `layout` was made for, as far as it says so."""
    targets = load_targets()
    for platform in dict.fromkeys(target.platform for target in targets.values()):
        try:
            image = read_layout(layout, platform)
        except UsageError:  # none for this platform
            continue
        labels = image.config.get("config", {}).get("Labels") or {}
        target = targets.get(str(labels.get(TARGET_LABEL)))
        if target is not None and target.platform == platform:
            return target
    return None


def _diff(arguments: argparse.Namespace) -> int:
    difference = diffs.compare(read_lock(arguments.old), read_lock(arguments.new))
    if arguments.json:
        print_json(diffs.as_dict(difference))
    elif arguments.format == "markdown":
        print(diff_text.markdown(difference), end="")
    else:
        print_lines(diff_text.lines(difference))
    return 0


def _base(arguments: argparse.Namespace) -> int:
    context = _context(arguments)
    target = find_target(arguments.target)
    if Path(arguments.image).is_dir():
        raise UsageError(
            f"{arguments.image} is a folder; base reads images in registries",
            hint="for an image of that name write its registry too: docker.io/library/NAME",
        )
    try:
        known = upkeep.base(arguments.image, target, context=context, layers=arguments.layers)
    except ExternalError:
        _print_tabled(arguments)
        raise
    if arguments.json:
        print_json(known.as_dict())
    else:
        print_lines(known.lines())
        print_findings(known.findings)
    return _code(known.findings)


def _print_tabled(arguments: argparse.Namespace) -> None:
    """What is known all the same where a registry did not answer."""
    tabled = upkeep.tabled(arguments.image)
    if tabled is not None and arguments.json:
        print_json(tabled.as_dict())
    elif tabled is not None:
        print_lines(tabled.lines())


def _bump(arguments: argparse.Namespace) -> int:
    context = _context(arguments)
    chosen = pipeline.jobs(arguments.recipe, only=arguments.target, folder=Path())
    bump = upkeep.bump(chosen, context)
    if not bump.changes:
        admitted = " that the audit admits" if bump.refused else ""
        context.progress.stage("bump", f"every pin is at the newest{admitted} already")
    elif arguments.write:
        upkeep.write_bump(bump, arguments.recipe, context)
        command = f"spark-build lock {shlex.quote(str(arguments.recipe))}"
        context.progress.stage("bump", f"now: {command}")
    if arguments.json:
        print_json(bump.as_dict())
    else:
        print(bump.diff, end="")
    return 0


def _vendor(arguments: argparse.Namespace) -> int:
    context = _context(arguments)
    place = parse_place(arguments.to)
    results = []
    for job in pipeline.jobs(arguments.recipe, only=arguments.target, folder=Path()):
        with pipeline.connect(job, context) as supply:
            kept = upkeep.vendor(job, supply, place, frozen=arguments.locked)
        results.append({"target": job.target.name, **asdict(kept)})
        if not arguments.json:
            print(f"{arguments.to}: {kept.summary}")
    if arguments.json:
        print_json({"place": arguments.to, "vendored": results})
    else:
        command = f"spark-build {shlex.quote(str(arguments.recipe))}"
        offline = " --offline" if isinstance(place, Path) else ""  # a registry has to be asked
        print(f"build with: {command} --vendor {shlex.quote(arguments.to)}{offline}")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    context = _context(arguments)
    chosen = pipeline.jobs(arguments.recipe, only=arguments.target, folder=Path())
    text = upkeep.export(chosen, arguments.format, context, frozen=arguments.locked)
    return _print_text(arguments, text, context)


def _schema(_: argparse.Namespace) -> int:
    print_json(recipe.schema())
    return 0


_VERBS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "build": _build,
    "lock": _lock,
    "audit": _audit,
    "render": _render,
    "verify": _verify,
    "diff": _diff,
    "base": _base,
    "bump": _bump,
    "vendor": _vendor,
    "export": _export,
    "schema": _schema,
}


def _context(arguments: argparse.Namespace) -> Context:
    return Context(
        environ=dict(os.environ),
        cache=arguments.cache or _cache_folder(os.environ),
        offline=arguments.offline,
        epoch=_epoch(os.environ),
        progress=_progress(arguments),
    )


def _cache_folder(environ: Mapping[str, str]) -> Path:
    """SPARK_BUILD_CACHE, else where the XDG base directory specification has caches."""
    if named := environ.get("SPARK_BUILD_CACHE"):
        return Path(named)
    if caches := environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "spark-build"
    try:
        return Path.home() / ".cache" / "spark-build"
    except RuntimeError:  # no HOME, and no entry in passwd
        raise UsageError(
            "there is no home folder to keep the cache in", hint="name a folder: --cache DIR"
        ) from None


def _epoch(environ: Mapping[str, str]) -> int:
    text = environ.get("SOURCE_DATE_EPOCH") or "0"
    epoch = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
    if not 0 <= epoch < 1 << 33:
        raise UsageError(f"SOURCE_DATE_EPOCH={text!r}: not a number of seconds since 1970")
    return epoch


def _vendored(arguments: argparse.Namespace, job: Job) -> list[str]:
    """The places that were named, else the folder `vendor` beside the recipe if it is one."""
    if arguments.vendor is not None:
        return list(arguments.vendor)
    beside = job.loaded.folder / "vendor"
    return [str(beside)] if (beside / VENDOR_INDEX).is_file() else []


def _progress(arguments: argparse.Namespace) -> Progress:
    if arguments.quiet:
        return Progress()
    return TerminalProgress(sys.stderr) if sys.stderr.isatty() else PlainProgress(sys.stderr)


def _upgrade(arguments: argparse.Namespace, *, frozen: bool) -> Upgrade:
    if frozen and (arguments.upgrade or arguments.upgrade_package):
        raise UsageError(
            "a lock that must not change cannot be upgraded", hint="give one of the two"
        )
    for name in arguments.upgrade_package:
        if not is_normalized_name(canonicalize_name(name)):
            raise UsageError(
                f"--upgrade-package {name!r}: not the name of a package",
                hint="write the version in the recipe; -P takes a name",
            )
    return Upgrade(every=arguments.upgrade, packages=tuple(arguments.upgrade_package))


def _code(findings: Iterable[Finding]) -> int:
    return _EXIT_FINDINGS if worst(findings) is Severity.ERROR else 0
