"""What we render, read by the real readers: values arrive as they were meant."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from builder import process
from builder.render import apptainer, containerfile
from tests.plans import ODD, odd_plan


def section(text: str, name: str) -> str:
    """The last section of that name."""
    body = text.rpartition(f"\n{name}\n")[2]
    return body.partition("\n%")[0]


@pytest.mark.real("sh")
def test_a_shell_reads_the_environment_as_meant(tmp_path: Path) -> None:
    script = tmp_path / "environment.sh"
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    body = section(apptainer(odd_plan()), "%environment")
    script.write_text(f"{body}\nexec '{sys.executable}' -c '{show}'\n", encoding="utf-8")
    env = {"PATH": "/usr/bin:/bin", "PYTHONUTF8": "1"}
    found = json.loads(process.run(["sh", str(script)], env=env).stdout)
    assert {name: found[name] for name in odd_plan().config.env} == odd_plan().config.env
    assert found["PATH"] == "/opt/venv/bin:/usr/bin:/bin"


@pytest.mark.real("sh")
@pytest.mark.parametrize("arguments", [(), ("a b", "$c")])
def test_a_shell_runs_the_command_as_meant(arguments: tuple[str, ...], tmp_path: Path) -> None:
    script = tmp_path / "runscript.sh"
    body = section(apptainer(odd_plan()), "%runscript").replace("cd /opt/app", "cd /")
    body = body.replace("exec printf", f"exec '{sys.executable}' '{tmp_path}/show.py'")
    script.write_text(body, encoding="utf-8")
    (tmp_path / "show.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    done = process.run(["sh", str(script), *arguments], env={"PYTHONUTF8": "1"})
    assert json.loads(done.stdout) == [*ODD, *(arguments or ODD)]


@pytest.mark.real("buildah")
def test_an_engine_reads_the_settings_as_meant(tmp_path: Path) -> None:
    """Buildah builds the settings of the last stage, which need no file and no command."""
    plan = odd_plan()
    lines = containerfile(plan).splitlines()
    kept = ("ENV ", "LABEL ", "EXPOSE ", "WORKDIR ", "USER ", "ENTRYPOINT ", "CMD ")
    last = max(index for index, line in enumerate(lines) if line.startswith("FROM "))
    text = ["FROM scratch", *(line for line in lines[last:] if line.startswith(kept))]
    (tmp_path / "Containerfile").write_text("\n".join(text) + "\n", encoding="utf-8")
    buildah = ["buildah", "--storage-driver=vfs", f"--root={tmp_path}/root"]
    buildah.append(f"--runroot={tmp_path}/run")
    process.run([*buildah, "build", "--isolation=chroot", "--tag=odd", str(tmp_path)])
    done = process.run([*buildah, "inspect", "--type=image", "odd"])
    config = json.loads(done.stdout)["OCIv1"]["config"]
    env = dict(entry.partition("=")[::2] for entry in config["Env"])
    assert {name: env[name] for name in plan.config.env} == plan.config.env
    assert env["PATH"].startswith("/opt/venv/bin:/usr/local/sbin:")
    assert {name: config["Labels"][name] for name in plan.config.labels} == plan.config.labels
    assert (tuple(config["Entrypoint"]), tuple(config["Cmd"])) == (("printf", *ODD), ODD)
    assert (config["WorkingDir"], config["User"]) == ("/opt/app", "1000:1000")
    assert sorted(config["ExposedPorts"]) == ["8000/tcp", "8001/tcp"]
