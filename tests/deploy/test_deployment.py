"""Units, Compose file and chart: read by the tools that they are for, and of options that exist."""

import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from dlog.cli.app import app
from tests.bookie.processes import START_S_MAX, bookie

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
TOOLS: Final = ROOT / "build" / "tools"
UNITS: Final = sorted((DEPLOY / "systemd").glob("*.service"))
CHART: Final = DEPLOY / "helm" / "dlog"
KUBERNETES: Final = "1.31"
EXPOSURE_MAX: Final = 2.0
COMMANDS: Final = (
    ("bookie", "start"),
    ("bookie", "ready"),
    ("autorecovery", "start"),
    ("janitor", "run"),
    ("init",),
    ("tls", "init"),
    ("tls", "issue"),
)


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is not here (make deploy-tools)")
    return found


def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"the module {name} is not here (make deploy-tools)")


def output(*command: object) -> str:
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_option_in_what_is_deployed_is_one_of_a_command() -> None:
    known = {"--build", "--rm", "--reload", "--set", "--now", "--no-cache-dir"}
    known |= {
        "--require-hashes",
        "--no-deps",
        "--no-build-isolation",
        "--system",
        "--uid",
        "--create-home",
        "--home-dir",
        "--help",
        "--from",
    }  # of other programs
    for words in COMMANDS:
        shown = CliRunner().invoke(app, [*words, "--help"]).output
        known |= set(re.findall(r"--[a-z-]+", shown))
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix not in (".json", ".yml"):
            named = re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text(encoding="utf-8"))
            assert set(named) <= known, path


@pytest.mark.integration
def test_units_are_right_and_let_their_programs_do_little(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    own = Path(sys.executable).with_name("dlog")
    assert len(UNITS) == 4
    units = []
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8")
        assert text.count("/opt/dlog/bin/dlog ") == 1
        units.append(tmp_path / unit.name)
        units[-1].write_text(text.replace("/opt/dlog/bin/dlog", str(own)))
    assert output(analyze, "verify", "--man=no", *units) == ""
    for unit_path in units:
        told = output(analyze, "security", "--offline=true", "--no-pager", unit_path)
        level = re.search(r"Overall exposure level for \S+: ([\d.]+)", told)
        assert level is not None
        assert float(level[1]) < EXPOSURE_MAX, told


def test_others_reach_the_bookie_of_the_unit_and_of_the_example_beside_it() -> None:
    unit = (DEPLOY / "systemd" / "dlog-bookie.service").read_text(encoding="utf-8")
    guide = (DEPLOY / "README.md").read_text(encoding="utf-8")
    [started, changed] = re.findall(r"^ExecStart=.*bookie start .*$", unit + guide, re.MULTILINE)
    assert started.endswith(" --host 0.0.0.0 --advertise %H")
    assert changed.endswith(" --host 0.0.0.0 --advertise %H")


@pytest.mark.integration
def test_a_supervisor_hears_of_a_bookie_when_it_is_registered_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "n"))
        supervisor.settimeout(START_S_MAX)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        with bookie(f"file://{tmp_path}/metadata", tmp_path / "b") as process:
            assert supervisor.recv(100) == b"READY=1"
            process.ready()
            process.stop()
            assert supervisor.recv(100) == b"STOPPING=1"


@pytest.mark.integration
def test_the_compose_file_is_one_and_has_a_whole_cluster() -> None:
    path = DEPLOY / "container" / "compose.yaml"
    found = json.loads(output(tool("compose-spec"), "-format", "json", path))
    services = found["services"]
    assert services.keys() >= {
        *(f"zk{number}" for number in (1, 2, 3)),
        *(f"bookie-{number}" for number in (1, 2, 3)),
        "init",
        "autorecovery",
        "console",
    }
    for name in ("bookie-1", "autorecovery"):
        assert "init" in services[name]["depends_on"]
    ids = [services["zk2"]["environment"]["ZOO_MY_ID"], services["bookie-2"]["command"][3]]
    assert ids == [2, "--id=bookie-2"]


def rendered(*values: str) -> list[dict[str, Any]]:
    yaml = module("yaml")
    options = [f"--set={value}" for value in ("uri=zk://a:2181/d", *values)]
    told = output(tool("helm"), "template", "r", CHART, f"--kube-version={KUBERNETES}.0", *options)
    return [each for each in yaml.safe_load_all(told) if each]


@pytest.mark.integration
@pytest.mark.parametrize("secured", [False, True])
def test_the_chart_renders_to_objects_that_kubernetes_knows(*, secured: bool) -> None:
    schemas = module("kubernetes_validate")
    values = ("tls.secretName=t", "authSecret=a", "bookies.journal.storageClass=fast")
    objects = rendered(*(values if secured else ()))
    kinds = {(each["kind"], each["metadata"]["name"]) for each in objects}
    assert kinds == {
        ("Service", "r-bookie"),
        ("PodDisruptionBudget", "r-bookie"),
        ("StatefulSet", "r-bookie"),
        ("Deployment", "r-autorecovery"),
        ("Deployment", "r-janitor"),
        ("Deployment", "r-console"),
        ("Job", "r-init"),
    }
    for each in objects:
        schemas.validate(each, KUBERNETES, strict=True)
    [bookies] = [each["spec"] for each in objects if each["kind"] == "StatefulSet"]
    [container] = bookies["template"]["spec"]["containers"]
    waits = container["lifecycle"]["preStop"]["exec"]["command"]
    assert waits == ["dlog", "bookie", "ready", "--replicated", "--wait", "10m"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment.get("DLOG_TLS") == ("required" if secured else None)
    assert ("exec" in container["readinessProbe"]) is secured
    [journal, ledgers] = [each["spec"] for each in bookies["volumeClaimTemplates"]]
    assert journal.get("storageClassName") == ("fast" if secured else None)
    assert "storageClassName" not in ledgers


@pytest.mark.integration
def test_the_chart_wants_to_be_told_its_namespace() -> None:
    helm = tool("helm")
    done = subprocess.run(
        [helm, "template", "r", str(CHART), "--kube-version=1.31.0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "uri is needed" in done.stderr
