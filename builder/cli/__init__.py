"""The command line: verbs and options here, what they do in `commands`, how it looks in `output`.

Nothing heavy is imported before the arguments are known to be good, so `--help` is quick.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from builder import __version__
from builder.errors import BuilderError
from builder.progress import printable

_EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h
_EXIT_EXTERNAL = 5
_EXIT_INTERRUPTED = 130
_EXIT_PIPE = 141  # what a shell shows for a program that SIGPIPE ended
_DESCRIPTION = "Short YAML recipes into proven container images for NVIDIA Blackwell on aarch64."
_EPILOG = """\
example:
  spark-build recipes/quickstart.yaml

`spark-build RECIPE` is the same as `spark-build build RECIPE`.

exit codes:
  0 good   1 findings say no   2 usage or recipe   3 lock unresolvable or stale
  4 engine or host missing   5 tool or network failed   70 our bug   130 interrupted
"""


def entry() -> NoReturn:
    """The console script: `main`, then out at once, whatever threads are still waiting."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    # A stream that the caller closed is None; it must not become the next file that is opened.
    sys.stdout, sys.stderr = (_open_stream(stream) for stream in (sys.stdout, sys.stderr))
    code = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):  # a full disk behind `>`, say
                code = code or _EXIT_EXTERNAL
    os._exit(code)


def _open_stream(stream: TextIO | None) -> TextIO:
    """A stream that takes any text, whatever the locale; what nobody reads goes nowhere."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else list(argv))
        # Imported late: it brings pydantic, httpx and jinja2, which `--help` does not need.
        commands = importlib.import_module("builder.cli.commands")
        return int(commands.run(arguments))
    except SystemExit as stop:  # argparse, after --help or a wrong option
        return stop.code if isinstance(stop.code, int) else 2
    except BrokenPipeError:  # of stdout: progress does not raise it
        return _EXIT_PIPE
    except BaseException as error:  # noqa: BLE001  (each is told to the user, none is lost)
        return _tell(*_explained(error))


def _explained(error: BaseException) -> tuple[str, str | None, int]:
    """Message, hint and exit code for whatever ended the run."""
    match error:
        case BuilderError():
            return error.message, error.hint, error.exit_code
        case KeyboardInterrupt():
            return "interrupted", "the same command goes on where it was", _EXIT_INTERRUPTED
        case OSError():
            return str(error), "check free space and permissions", _EXIT_EXTERNAL
        case _:
            traceback.print_exception(error)
            return "this is a bug in spark-build", "report it with the lines above", _EXIT_BUG


def _tell(message: str, hint: str | None, code: int) -> int:
    try:
        print(f"error: {printable(message)}", file=sys.stderr)
        for line in (hint or "").splitlines():
            print(f"hint: {printable(line)}", file=sys.stderr)
    except BrokenPipeError:  # nobody reads it; the code says it all the same
        pass
    return code


def parse(argv: list[str]) -> argparse.Namespace:
    """The options as values; SystemExit after --help, and with 2 where they are wrong."""
    parser, verbs = _parser()
    first = next((word for word in argv if not word.startswith("-")), None)
    if first is not None and first not in verbs:
        if first.isalpha() and not Path(first).exists():
            meant = difflib.get_close_matches(first, verbs, n=1)
            also = f"; did you mean {meant[0]}?" if meant else ""
            parser.error(f"no verb and no recipe is called {first!r}{also}")
        # `spark-build RECIPE`: options may stand before it, all of them are build's.
        argv = ["build", *argv]
    arguments = parser.parse_args(argv)
    if arguments.verb is None:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    return arguments


def _parser() -> tuple[argparse.ArgumentParser, frozenset[str]]:
    parser = argparse.ArgumentParser(
        prog="spark-build",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"spark-build {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for add in _ADD:
        add(verbs)
    return parser, frozenset(verbs.choices)


_Verbs = argparse._SubParsersAction  # noqa: SLF001  (argparse has no public name for it)


def _verb(
    verbs: _Verbs[argparse.ArgumentParser], name: str, text: str, example: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    common = parser.add_argument_group("common options")
    common.add_argument("--json", action="store_true", help="print the result as JSON")
    common.add_argument("--quiet", "-q", action="store_true", help="show no progress")
    return parser


def _work_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--offline", action="store_true", help="never use the network")
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="where wheels and layers are kept (default: ~/.cache/spark-build)",
    )


def _recipe_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="the recipe's file")
    parser.add_argument("--target", metavar="NAME", help="only this one of the recipe's targets")
    _work_options(parser)


def _locked_option(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description} Locks first where the recipe has changed."
    parser.add_argument("--locked", action="store_true", help="fail if the lock would change")


def _lock_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--upgrade", "-U", action="store_true", help="let every package move to its newest version"
    )
    parser.add_argument(
        "--upgrade-package",
        "-P",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="let this package move (repeatable)",
    )


def _add_build(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    parser = _verb(
        verbs,
        "build",
        "lock, audit, render, build and verify a recipe",
        "spark-build build recipes/quickstart.yaml --locked",
    )
    _recipe_options(parser)
    _lock_options(parser)
    parser.add_argument("--locked", action="store_true", help="fail if the lock would change")
    parser.add_argument("--deep", action="store_true", help="audit every ELF file whole")
    parser.add_argument(
        "--vendor",
        action="append",
        metavar="PLACE",
        help="take files from this folder, or oci://REF, first (default: vendor/ beside the "
        "recipe, where `spark-build vendor` made one; repeatable)",
    )
    parser.add_argument(
        "--build-dir",
        type=Path,
        default=Path("build"),
        metavar="DIR",
        help="where build/<name>/ goes (default: build)",
    )


def _add_lock(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    parser = _verb(
        verbs,
        "lock",
        "resolve a recipe into pylock.<name>-<target>.toml beside it",
        "spark-build lock recipes/quickstart.yaml --upgrade-package numpy",
    )
    _recipe_options(parser)
    _lock_options(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; say what changed since: the recipe, the base's tag, files that are "
        "gone, replaced or yanked (with --offline the recipe alone is looked at)",
    )


def _add_audit(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    parser = _verb(
        verbs,
        "audit",
        "say what a lock will do on the GPU, without downloading it",
        "spark-build audit pylock.quickstart-gb10.toml --target gb10",
    )
    parser.add_argument("inputs", nargs="*", type=Path, metavar="INPUT", help="a pylock.toml")
    parser.add_argument(
        "--target", metavar="NAME", help="judge for this GPU (default: the lock's own, else gb10)"
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="a package that must not be there (repeatable)",
    )
    parser.add_argument("--deep", action="store_true", help="read every ELF file whole")
    parser.add_argument("--explain", metavar="RULE", help="say what a rule means")
    _work_options(parser)


def _add_render(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    parser = _verb(
        verbs,
        "render",
        "print a recipe as a Containerfile or an Apptainer definition",
        "spark-build render recipes/quickstart.yaml --format apptainer",
    )
    _recipe_options(parser)
    _locked_option(parser)
    parser.add_argument(
        "--format",
        choices=("containerfile", "apptainer"),
        default="containerfile",
        help="what to print (default: containerfile)",
    )
    parser.add_argument("--output", "-o", type=Path, metavar="FILE", help="write it there instead")


def _add_verify(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    parser = _verb(
        verbs,
        "verify",
        "check an image without running it",
        "spark-build verify build/quickstart/oci --lock recipes/pylock.quickstart-gb10.toml",
    )
    parser.add_argument("image", type=Path, metavar="IMAGE", help="the folder of an OCI layout")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="also compare it with this lock")
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="the GPU it is for (default: the lock's own, else the image's, else gb10)",
    )
    _work_options(parser)


def _add_schema(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    _verb(
        verbs,
        "schema",
        "print the JSON Schema of recipes",
        "spark-build schema > recipe.schema.json",
    )


def _add_diff(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    parser = _verb(
        verbs,
        "diff",
        "say what differs between two locks, the weightiest first",
        "spark-build diff old/pylock.quickstart-gb10.toml pylock.quickstart-gb10.toml",
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="a lock")
    parser.add_argument("new", type=Path, metavar="NEW", help="another lock")
    parser.add_argument(
        "--format",
        choices=("text", "markdown"),
        default="text",
        help="text for a terminal, markdown for a pull request (default: text)",
    )


def _add_base(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    parser = _verb(
        verbs,
        "base",
        "show what is known of a base image, and from where",
        "spark-build base nvcr.io/nvidia/pytorch:25.11-py3",
    )
    parser.add_argument("image", metavar="IMAGE", help="an image in a registry")
    parser.add_argument(
        "--target", metavar="NAME", default="gb10", help="the GPU it is for (default: gb10)"
    )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="read its layers too, which fetches them: its torch and every package it has",
    )
    _work_options(parser)


def _add_bump(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    parser = _verb(
        verbs,
        "bump",
        "move a recipe's exact pins and its base's tag to the newest that pass the audit",
        "spark-build bump recipes/quickstart.yaml --write",
    )
    _recipe_options(parser)
    parser.add_argument(
        "--write",
        action="store_true",
        help="change the recipe, instead of printing the diff (which `patch -p1 -d FOLDER` takes, "
        "FOLDER being the recipe's)",
    )


def _add_vendor(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    parser = _verb(
        verbs,
        "vendor",
        "keep every file that a recipe's lock names, so that a build needs no network",
        "spark-build vendor recipes/quickstart.yaml --to vendor",
    )
    _recipe_options(parser)
    _locked_option(parser)
    parser.add_argument(
        "--to", required=True, metavar="PLACE", help="a folder, or oci://REF in a registry"
    )


def _add_export(verbs: _Verbs[argparse.ArgumentParser]) -> None:
    parser = _verb(
        verbs,
        "export",
        "print a recipe for other tools: pyproject.toml, requirements.txt, pylock.toml",
        "spark-build export recipes/quickstart.yaml --format pyproject",
    )
    _recipe_options(parser)
    _locked_option(parser)
    parser.add_argument(
        "--format",
        choices=("pyproject", "requirements", "pylock"),
        required=True,
        help="pyproject: what is asked for, as uv's project settings; the others: the lock",
    )
    parser.add_argument("--output", "-o", type=Path, metavar="FILE", help="write it there instead")


_ADD = (
    _add_build,
    _add_lock,
    _add_audit,
    _add_render,
    _add_verify,
    _add_diff,
    _add_base,
    _add_bump,
    _add_vendor,
    _add_export,
    _add_schema,
)
