"""Plans as text: layout by golden files, and no value that leaves its place."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import BuilderError
from builder.plan import CopyFile, Plan, Symlink, WriteFile
from builder.render import ContextFile, apptainer, containerfile, context_files
from tests.conftest import Golden
from tests.plans import LOCK, OCI, PLANS, bare_plan, make_plan, odd_plan


@pytest.mark.parametrize("name", PLANS)
def test_the_layout_is_the_golden_one(name: str, golden: Golden) -> None:
    golden.check(f"{name}.Containerfile", containerfile(PLANS[name]))
    golden.check(f"{name}.def", apptainer(PLANS[name]))


def test_the_context_holds_what_both_texts_name() -> None:
    plan = make_plan()
    assert context_files(plan) == (
        ContextFile(name="base.tar.gz", kind="base"),
        ContextFile(name="uv", kind="uv"),
        ContextFile(name="texts/0", kind="text", text="home = /usr/bin\n"),
        ContextFile(name=LOCK, kind="lock"),
        ContextFile(name="files/0", kind="file", source="serve.py"),
        ContextFile(name="texts/5", kind="text", text="x\n"),
    )
    assert context_files(make_plan(OCI))[0].kind == "uv"
    assert [file.name for file in context_files(bare_plan())] == ["base.tar.gz", "uv"]
    for text in (containerfile(plan), apptainer(plan)):
        for file in context_files(plan):
            assert f" {file.name} " in text


# ── reading a Containerfile back ─────────────────────────────────────────────────────────────────


def instructions(text: str) -> list[tuple[str, str]]:
    """Keyword and arguments, by the Dockerfile reference: "Format", "Escape"."""
    found = []
    pending = ""
    for line in text.split("\n"):
        if not line.strip() or (not pending and line.startswith("#")):
            continue
        if re.search(r"(^|[^\\])\\[ \t]*$", line):
            pending += line.rstrip()[:-1]
            continue
        keyword, _, arguments = (pending + line).strip().partition(" ")
        found.append((keyword, arguments.strip()))
        pending = ""
    assert not pending
    return found


def expand(word: str, variables: Mapping[str, str]) -> str:
    """One word as BuildKit's shell lexer reads it; what is not allowed here fails."""
    result, quote, rest = "", "", iter(word)
    for char in rest:
        if char == "\\":
            following = next(rest)
            result += following if not quote or following in '"$\\' else char + following
        elif char == quote:
            quote = ""
        elif char in "\"'" and not quote:
            assert char == '"'
            quote = char
        elif char == "$":
            result += variable(rest, variables)
        else:
            assert quote or not char.isspace()
            result += char
    assert not quote
    return result


def variable(rest: Iterator[str], variables: Mapping[str, str]) -> str:
    assert next(rest) == "{"
    name, _, default = "".join(iter(lambda: next(rest), "}")).partition(":-")
    return variables.get(name) or default


def settings(text: str) -> dict[str, object]:
    """What the last stage of a Containerfile sets."""
    env: dict[str, str] = {}
    labels: dict[str, str] = {}
    found: dict[str, object] = {"ENV": env, "LABEL": labels, "EXPOSE": []}
    stage = [*instructions(text)]
    start = max(index for index, (keyword, _) in enumerate(stage) if keyword == "FROM")
    for keyword, arguments in stage[start + 1 :]:
        if keyword in ("ENV", "LABEL"):
            name, _, value = arguments.partition("=")
            (env if keyword == "ENV" else labels)[name] = expand(value, env)
        elif keyword in ("ENTRYPOINT", "CMD"):
            found[keyword] = tuple(json.loads(arguments))
        elif keyword == "EXPOSE":
            found["EXPOSE"] = [*_list(found["EXPOSE"]), int(arguments)]
        elif keyword in ("WORKDIR", "USER"):
            found[keyword] = expand(arguments, env)
        else:
            assert keyword in ("COPY", "RUN")
    return found


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def expected(plan: Plan) -> dict[str, object]:
    config = plan.config
    path = f"{config.path}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    values = {
        "ENV": {"PATH": path, **config.env},
        "LABEL": dict(config.labels),
        "EXPOSE": list(config.ports),
        "ENTRYPOINT": config.entrypoint,
        "CMD": config.cmd,
        "WORKDIR": config.workdir,
        "USER": config.user,
    }
    kept = {"ENV", "LABEL", "EXPOSE"}
    return {key: value for key, value in values.items() if value or key in kept}


TEXTS = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))
    | st.sampled_from('\\\\""\'$`#{}% =<'),
    max_size=12,
)
ENVS = st.dictionaries(st.from_regex(r"[A-OQ-Z_][A-Z0-9_]{0,3}", fullmatch=True), TEXTS, max_size=4)
LABELS = st.dictionaries(st.from_regex(r"[a-z]{1,3}(\.[a-z]{1,3})?", fullmatch=True), TEXTS)
WORDS = st.lists(TEXTS, max_size=4).map(tuple)


@given(ENVS, LABELS, WORDS, WORDS)
def test_a_containerfile_gives_back_every_value(
    env: dict[str, str], labels: dict[str, str], entrypoint: tuple[str, ...], cmd: tuple[str, ...]
) -> None:
    plan = make_plan(env=env, labels=labels, entrypoint=entrypoint, cmd=cmd)
    text = containerfile(plan)
    assert settings(text) == expected(plan)
    added = len(env) + len(labels) + bool(entrypoint) + bool(cmd)
    bare = containerfile(make_plan(env={}, labels={}, entrypoint=()))
    assert len(instructions(text)) == len(instructions(bare)) + added


def test_odd_values_are_given_back_with_all_else() -> None:
    assert settings(containerfile(odd_plan())) == expected(odd_plan())


# ── reading a definition file back ───────────────────────────────────────────────────────────────


def sections(text: str) -> list[tuple[str, list[str]]]:
    """The header and sections of each stage, as Apptainer's parser splits them."""
    assert not re.search(r"\{\{\s*\w+\s*\}\}", text), "Apptainer would replace this"
    found: list[tuple[str, list[str]]] = []
    for line in text.split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        if line.lower().startswith("bootstrap:"):
            found.append(("header", [line]))
        elif line.split()[0].startswith("%"):
            found.append((line, []))
        else:
            found[-1][1].append(line.strip())
    return found


def last(text: str, section: str) -> list[str]:
    return [lines for name, lines in sections(text) if name == section][-1]


def exported(lines: list[str]) -> dict[str, str]:
    words = [shlex.split(line) for line in lines]
    assert all(word[0] == "export" and len(word) == 2 for word in words)
    return {word[1].partition("=")[0]: word[1].partition("=")[2] for word in words}


def labelled(text: str) -> dict[str, str]:
    """%labels, and what %post appends to the file of labels; values are trimmed by Apptainer."""
    lines = last(text, "%labels")
    for line in last(text, "%post"):
        if line.startswith("printf"):
            _, form, label, arrow, file = shlex.split(line)
            assert (form, arrow, file) == ("%s\\n", ">>", "${APPTAINER_LABELS}")
            lines = [*lines, label]
    pairs = [line.partition(" ") for line in lines]
    return {name: value.strip() for name, _, value in pairs}


SECTIONS = [
    *("header", "%setup", "%files", "%post"),
    *("header", "%setup", "%files from builder", "%files", "%post"),
    *("%environment", "%labels", "%runscript", "%test"),
]


@given(ENVS, LABELS, WORDS, WORDS)
def test_a_definition_file_gives_back_every_value(
    env: dict[str, str], labels: dict[str, str], entrypoint: tuple[str, ...], cmd: tuple[str, ...]
) -> None:
    text = apptainer(make_plan(env=env, labels=labels, entrypoint=entrypoint, cmd=cmd))
    assert [name for name, _ in sections(text)] == SECTIONS
    variables = exported(last(text, "%environment"))
    assert variables.pop("PATH").startswith("/opt/venv/bin:${PATH")
    assert variables == env
    assert labelled(text) == {name: value.strip() for name, value in labels.items()}
    script = last(text, "%runscript")
    assert shlex.split(script[-1]) == ["exec", *entrypoint, "$@"]
    if cmd:
        assert shlex.split(script[0])[7:] == list(cmd)


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────

BREAKS = ["a\nb", "a\rb", "a\0b", "a\tb", "a\x85b", "a\u2028b", "a\ud800b"]


@pytest.mark.parametrize("text", BREAKS)
@pytest.mark.parametrize("place", ["env", "labels", "entrypoint", "cmd"])
def test_a_line_break_is_refused_in_every_place(place: str, text: str) -> None:
    config: dict[str, Any] = {place: {"a": text} if place in ("env", "labels") else (text,)}
    plan = make_plan(**config)
    for render in (containerfile, apptainer):
        with pytest.raises(BuilderError, match="line break or a control character"):
            render(plan)


@pytest.mark.parametrize(
    "plan",
    [
        make_plan(env={"A B": "x"}),
        make_plan(env={"A=B": "x"}),
        make_plan(workdir="/a b"),
        make_plan(workdir="/a$b"),
        make_plan(path="/opt/venv/bin\n"),
        replace(make_plan(), name="a\nRUN x"),
        replace(make_plan(), target="x y"),
        replace(make_plan(), runtime=(WriteFile(path='/a"b', text=""),)),
        replace(make_plan(), runtime=(CopyFile(source="a", name="--from=x", path="/a"),)),
        replace(make_plan(), runtime=(Symlink(path="/a", target="b;c"),)),
        replace(make_plan(OCI), base=replace(OCI, digest="sha256:x\nRUN y")),
    ],
)
def test_what_needs_no_odd_sign_may_have_none(plan: Plan) -> None:
    for render in (containerfile, apptainer):
        with pytest.raises(BuilderError, match=r"cannot stand|not the name of a variable"):
            render(plan)


@pytest.mark.parametrize("text", ["a b", 'a"b', "a=b", "a\N{NO-BREAK SPACE}"])
def test_the_name_of_a_label_is_one_word(text: str) -> None:
    with pytest.raises(BuilderError, match="cannot stand"):
        containerfile(make_plan(labels={text: "x"}))
