"""The image's config document: the base's, with what the plan says on top (OCI config.md). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from builder.plan import DEFAULT_PATH, Config, Plan


def image_config(
    plan: Plan,
    *,
    base: Mapping[str, Any] | None,
    added: Sequence[tuple[str, str]],
    epoch: int,
) -> dict[str, Any]:
    """The whole config document.

    `base` is the base image's, None where there is none; `added` has, for each further layer, its
    diff_id and its line of history; `epoch` is seconds since 1970 and speaks here only.
    """
    base = base or {}
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    rootfs = base.get("rootfs", {"diff_ids": []})
    os_name, _, architecture = plan.platform.partition("/")
    history = [{"created": created, "created_by": f"spark-build: {line}"} for _, line in added]
    return {
        **base,
        "architecture": architecture,
        "os": os_name,
        "created": created,
        "config": _settings(plan.config, base.get("config") or {}),
        "rootfs": {
            "type": "layers",
            "diff_ids": [*rootfs["diff_ids"], *(diff_id for diff_id, _ in added)],
        },
        "history": [*(base.get("history") or []), *history],
    }


def _settings(config: Config, base: Mapping[str, Any]) -> dict[str, Any]:
    settings = {
        **base,
        "Env": _env(config, base.get("Env") or []),
        "Labels": {**(base.get("Labels") or {}), **config.labels},
    }
    if config.entrypoint:
        settings["Entrypoint"] = list(config.entrypoint)
        settings.pop("Cmd", None)  # a base's arguments are for the base's entry point
    if config.cmd:
        settings["Cmd"] = list(config.cmd)
    if config.workdir is not None:
        settings["WorkingDir"] = config.workdir
    if config.user is not None:
        settings["User"] = config.user
    if config.ports:
        ports: dict[str, dict[str, str]] = {f"{port}/tcp": {} for port in config.ports}
        settings["ExposedPorts"] = {**(base.get("ExposedPorts") or {}), **ports}
    return settings


def _env(config: Config, base: Sequence[str]) -> list[str]:
    """The base's variables with ours merged in by name; the base's order, then ours."""
    merged = dict(entry.partition("=")[::2] for entry in base)
    merged["PATH"] = f"{config.path}:{merged.get('PATH') or DEFAULT_PATH}"
    merged.update(config.env)
    return [f"{name}={value}" for name, value in merged.items()]
