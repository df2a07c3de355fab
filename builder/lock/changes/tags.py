"""Tags of base images: which other tags of a repository name a newer image of the same kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TAG = re.compile(r"(?P<prefix>v?)(?P<release>\d+(?:\.\d+)+)(?P<rest>(?:[^0-9].*)?)")
_CUDA = re.compile(r"(?<![a-z0-9])cuda(?P<version>\d+(?:\.\d+)*)")
_CUDA_REPOSITORY = re.compile(r"(?:.*/)?cuda")

_Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTag:
    """A tag taken apart: `13.0.2-base-ubuntu24.04` is release 13.0.2 of `-base-ubuntu24.04`.

    `release` and the version after `cuda`, if it has one, may move; `kind` holds all the rest,
    the distribution's release included, which is another base and not a newer one.
    """

    text: str
    kind: tuple[str, int, str]
    release: _Numbers
    cuda: _Numbers | None


def parse_tag(tag: str, repository: str) -> ParsedTag | None:
    """The tag's parts; None for a tag whose numbers name no release (`latest`, `py3`).

    In repositories called `cuda` the release is CUDA's (`nvidia/cuda`).
    """
    match = _TAG.fullmatch(tag)
    if match is None:
        return None
    release, rest = _numbers(match["release"]), match["rest"]
    named = _CUDA.search(rest)
    cuda = None if named is None else _numbers(named["version"])
    if cuda is None and _CUDA_REPOSITORY.fullmatch(repository):
        cuda = release
    kind = match["prefix"], len(release), _CUDA.sub("cuda", rest)
    return ParsedTag(text=tag, kind=kind, release=release, cuda=cuda)


def newer_tags(
    current: str, tags: tuple[str, ...], repository: str, *, cuda_major: int
) -> Iterator[str]:
    """Those of `tags` that name a newer image of `current`'s kind, the newest first.

    One that says by itself that it is of another CUDA major version is left out.
    """
    now = parse_tag(current, repository)
    if now is None:
        return
    parsed = [tag for text in tags if (tag := parse_tag(text, repository)) is not None]
    newer = [tag for tag in parsed if tag.kind == now.kind and _order(tag) > _order(now)]
    for tag in sorted(newer, key=_order, reverse=True):
        if tag.cuda is None or tag.cuda[0] == cuda_major:
            yield tag.text


def _order(tag: ParsedTag) -> tuple[_Numbers, _Numbers, str]:
    return tag.release, tag.cuda or (), tag.text


def _numbers(text: str) -> _Numbers:
    return tuple(map(int, text.split(".")))
