"""Units, Compose file and chart: read by the tools that they are for, and of options that exist."""

import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from dlog.cli.app import app
from ledger.security.certificates import Security, own_name
from ledger.security.settings import TlsMode, TlsSettings
from tests.bookie.processes import START_S_MAX, bookie
from tests.waiting import TEST_S

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
    ("console",),
    ("kafka", "start"),
    ("archiver", "run"),
    ("tls", "init"),
    ("tls", "issue"),
)
COMPONENTS: Final = (
    *("bookie", "autorecovery", "janitor", "console", "kafka", "archiver", "operator"),
)
EVERYTHING: Final = ("kafka.enabled=true", "archiver.enabled=true")
DIGEST: Final = f"sha256:{'0123456789abcdef' * 4}"


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
        [str(each) for each in command], capture_output=True, text=True, check=False, timeout=TEST_S
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
        "--build-arg",
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
    assert len(UNITS) == 6
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
        "kafka",
    }
    for name in ("bookie-1", "autorecovery", "kafka"):
        assert "init" in services[name]["depends_on"]
    ids = [services["zk2"]["environment"]["ZOO_MY_ID"], services["bookie-2"]["command"][3]]
    assert ids == [2, "--id-prefix=bookie-2"]
    mounted = {
        name: {each["source"]: each["target"] for each in service.get("volumes", ())}
        for name, service in services.items()
    }
    components = ("bookie-1", "bookie-2", "autorecovery", "console", "kafka")
    own = {name: f"{name}-tls" for name in components}
    for name, volume in {**own, "init": "operator-tls", "dlog": "operator-tls"}.items():
        if name in services:  # a profile that is not asked for is left out
            secret = [each for each in mounted[name] if each.endswith("-tls")]
            assert secret == [volume], "no other one's key"
            assert services[name]["environment"]["DLOG_TLS"] == "required"
    for name, service in services.items():
        image = service["image"]
        assert ":" in image.rpartition("/")[2], image
        assert not image.endswith(":latest"), name


def compose() -> Any:
    path = DEPLOY / "container" / "compose.yaml"
    return module("yaml").safe_load(path.read_text(encoding="utf-8"))["services"]


@pytest.mark.integration
def test_the_compose_file_issues_to_each_component_what_it_needs_and_keeps_no_authority(
    tmp_path: Path,
) -> None:
    services = compose()
    [_, option, script, name] = services["certificates"]["entrypoint"]
    issued = tmp_path / "issued"
    volumes = dict(each.split(":") for each in services["certificates"]["volumes"])
    for target in volumes.values():
        (issued / Path(target).name).mkdir(parents=True)
    script = script.replace("$$", "$").replace("/issued", str(issued))
    script = re.sub(r"[^\s\"]+(?=/authority)", str(tmp_path), script).replace("chown", ": chown")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(word: str) -> dict[Path, bytes]:
        subprocess.run(["sh", option, script, name, word], env=environment, check=True, timeout=300)
        return {path: path.read_bytes() for path in issued.rglob("*") if path.is_file()}

    first = run("once")
    assert run("once") == first
    assert {path.name for path in first} == {"ca.pem", "cert.pem", "key.pem", "token"}
    authority = (tmp_path / "authority" / "ca-key.pem").read_bytes()
    assert authority not in first.values()
    serving = {"bookie-1", "bookie-2", "bookie-3", "console", "kafka"}
    names = set()
    for place in issued.iterdir():
        ca, cert, key = (str(place / f"{each}.pem") for each in ("ca", "cert", "key"))
        settings = TlsSettings(mode=TlsMode.REQUIRED, ca=ca, cert=cert, key=key)
        security = Security(settings, serves=place.name in serving)
        names.add(own_name(security))
        lasts = datetime.fromtimestamp(security.certificate.expires_at, UTC) - datetime.now(UTC)
        assert lasts <= timedelta(days=90)
    bookies = {f"dns:bookie-{number}" for number in (1, 2, 3)}  # ids have a random part
    people = {"cn:autorecovery", "cn:operator", "uri:urn:dlog:console", "uri:urn:dlog:kafka"}
    assert names == bookies | people
    granted = set(re.findall(r"access grant (\S+)", services["init"]["entrypoint"][2]))
    assert granted == names, "each has what it needs from a grant"
    renewed = run("renew")
    assert renewed.keys() == first.keys()
    assert all(renewed[path] != first[path] for path in first)


def test_images_are_pinned_and_the_authority_is_not_mounted() -> None:
    recipe = (DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"^FROM (\S+)", recipe, re.MULTILINE)) == {"${PYTHON}"}
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert ":latest" not in text, path
            assert "ca-key.pem:" not in text, path


def rendered(*values: str) -> list[dict[str, Any]]:
    yaml = module("yaml")
    options = [f"--set={value}" for value in ("uri=zk://a:2181/d", *values)]
    told = output(tool("helm"), "template", "r", CHART, f"--kube-version={KUBERNETES}.0", *options)
    return [each for each in yaml.safe_load_all(told) if each]


@pytest.mark.integration
@pytest.mark.parametrize("secured", [False, True])
def test_the_chart_renders_to_objects_that_kubernetes_knows(*, secured: bool) -> None:
    schemas = module("kubernetes_validate")
    values = ("tls.enabled=true", "authSecret=a", "bookies.journal.storageClass=fast")
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
        ("NetworkPolicy", "r-bookie"),
        ("NetworkPolicy", "r-beside"),
    }
    for each in objects:
        schemas.validate(each, KUBERNETES, strict=True)  # Kubernetes has no Certificate itself
    [bookies] = [each["spec"] for each in of_kind(objects, "StatefulSet")]
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
@pytest.mark.parametrize("secured", [False, True])
def test_the_chart_has_gateways_that_clients_reach_by_their_names(*, secured: bool) -> None:
    schemas = module("kubernetes_validate")
    more = ("kafka.replicas=3", "kafka.extraArgs[0]=--scram", "archiver.credentialsSecret=s3")
    tls = ("tls.enabled=true",) if secured else ()
    objects = rendered(*EVERYTHING, *more, *tls)
    for each in objects:
        schemas.validate(each, KUBERNETES, strict=True)
    named = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in objects}
    gateways = named["StatefulSet", "r-kafka"]
    assert gateways["replicas"] == 3
    headless = named["Service", gateways["serviceName"]]
    assert headless["clusterIP"] == "None"
    bootstrap = named["Service", "r-kafka-bootstrap"]
    labels = gateways["template"]["metadata"]["labels"]
    [container] = gateways["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for service in (headless, bootstrap):
        assert service["selector"].items() <= labels.items()
        assert {each["targetPort"] for each in service["ports"]} <= ports.keys()
    assert container["args"] == [
        "kafka",
        "start",
        f"--listen=0.0.0.0:{ports['kafka']}",
        f"--advertise=$(POD_NAME).r-kafka.default.svc:{ports['kafka']}",
        "--metrics-host=0.0.0.0",
        f"--metrics-port={ports['metrics']}",
        "--scram",
    ]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"].get("scheme") == ("HTTPS" if secured else None)
    [archiver] = named["Deployment", "r-archiver"]["template"]["spec"]["containers"]
    assert archiver["args"][:2] == ["archiver", "run"]
    assert archiver["envFrom"] == [{"secretRef": {"name": "s3"}}]


def pods_of(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {
        each["metadata"]["name"].removeprefix("r-"): each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] in ("StatefulSet", "Deployment", "Job")
    }
    found["operator"] = found.pop("init")
    return found


@pytest.mark.integration
def test_each_component_of_the_chart_has_an_identity_of_its_own() -> None:
    issuer = ("tls.issuer.kind=Issuer", "tls.issuer.name=dlog", "roles.clients[0]=x509:CN=orders")
    objects = rendered("tls.enabled=true", "tls.secrets.console=elsewhere", *issuer, *EVERYTHING)
    pods = pods_of(objects)
    assert pods.keys() == set(COMPONENTS)
    wanted = {name: f"r-{name}-tls" for name in COMPONENTS} | {"console": "elsewhere"}
    for name, pod in pods.items():
        secrets = [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each]
        assert secrets == [wanted[name]], "and nobody else's"
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
    made = {each["spec"]["secretName"]: each["spec"] for each in of_kind(objects, "Certificate")}
    assert made.keys() == set(wanted.values())
    assert len({each["commonName"] for each in made.values()}) == len(COMPONENTS)
    for name, secret in wanted.items():
        serves = name not in ("console", "operator")
        assert ("server auth" in made[secret]["usages"]) is serves
        assert bool(made[secret].get("dnsNames")) is serves
        assert not made[secret].get("isCA")
    hosts = made[wanted["bookie"]]["dnsNames"]
    assert hosts == [f"r-bookie-{number}.r-bookie.default.svc" for number in range(3)]
    hosts = made[wanted["kafka"]]["dnsNames"]
    own = [f"r-kafka-{number}.r-kafka.default.svc" for number in range(2)]
    assert hosts == ["r-kafka-bootstrap.default.svc", "r-kafka-bootstrap", *own]
    [container] = pods["operator"]["containers"]
    roles = [each for each in container["args"] if "x509" in each]
    assert roles == [
        "--operator=x509:CN=r-operator",
        "--bookie=x509:CN=r-bookie",
        "--bookie=x509:CN=r-autorecovery",
        "--client=x509:CN=r-janitor",
        "--reader=x509:CN=r-console",
        "--client=x509:CN=r-kafka",
        "--client=x509:CN=r-archiver",
        "--client=x509:CN=orders",
    ]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


@pytest.mark.integration
def test_nobody_reaches_a_pod_of_the_chart_but_who_is_named() -> None:
    monitoring = "networkPolicy.metrics[0].namespaceSelector.matchLabels.name=monitoring"
    for values in ((), (monitoring,)):
        objects = rendered(*values)
        policies = {
            each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "NetworkPolicy")
        }
        bookie, beside = policies["r-bookie"], policies["r-beside"]
        assert bookie["policyTypes"] == beside["policyTypes"] == ["Ingress"]
        ports = [[port["port"] for port in each["ports"]] for each in bookie["ingress"]]
        scraped = ["metrics"] if values else []
        assert ports == [["clients", "operators"], ["clients"], *([scraped] if values else [])]
        own, clients = bookie["ingress"][:2]
        assert own["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "r"
        assert clients["from"] == [{"podSelector": {"matchLabels": {"dlog-client": "true"}}}]
        assert [each["ports"][0]["port"] for each in beside["ingress"]] == scraped
        objects = rendered("kafka.enabled=true", *values)
        [kafka] = [
            each["spec"]
            for each in of_kind(objects, "NetworkPolicy")
            if each["metadata"]["name"] == "r-kafka"
        ]
        others, clients, *metrics = kafka["ingress"]
        assert "ports" not in others, "a lifeline has any port"
        [peer] = others["from"]
        assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "kafka"
        assert [each["ports"][0]["port"] for each in (clients, *metrics)] == ["kafka", *scraped]
    assert not of_kind(rendered("networkPolicy.enabled=false"), "NetworkPolicy")


@pytest.mark.integration
def test_an_image_is_the_one_of_its_digest_or_of_the_charts_version() -> None:
    for values, image in (
        ((f"image.digest={DIGEST}", "image.repository=a.example/dlog"), f"a.example/dlog@{DIGEST}"),
        ((), "dlog:0.1.0"),
    ):
        for pod in pods_of(rendered(*values)).values():
            assert [each["image"] for each in pod["containers"]] == [image]


@pytest.mark.integration
def test_the_chart_wants_to_be_told_its_namespace() -> None:
    helm = tool("helm")
    done = subprocess.run(
        [helm, "template", "r", str(CHART), "--kube-version=1.31.0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_S,
    )
    assert done.returncode != 0
    assert "uri is needed" in done.stderr
