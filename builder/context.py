"""What a run takes from its surroundings, read once in `cli` and handed down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.progress import Progress

PROXY_VARIABLES = frozenset(
    {
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    }
)
"""What programs that use the network find the way out by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The surroundings of one run.

    `environ` is the caller's environment; `cache` the folder of everything that can be had again
    (wheels, layers, facts); `epoch` is SOURCE_DATE_EPOCH in seconds since 1970, 0 where unset
    (https://reproducible-builds.org/specs/source-date-epoch/).
    """

    environ: Mapping[str, str]
    cache: Path
    offline: bool = False
    epoch: int = 0
    progress: Progress = field(default_factory=Progress)
