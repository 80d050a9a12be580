"""Tools of others at real gateways: `make kafka-compat`. Prints a table: tool, version, result.

Two gateways on a cluster of three bookies. kcat is Debian's, Kafka's own tools, Connect and Spark's
connector come by Maven; what is not here is said in its row. Exits with 1 if anything failed.

Call: python -m tests.integration.kafka_compat [ROW ...]
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from joserfc import jwt
from joserfc.jwk import ECKey

from benchmarks.peers.jars import PeerMissing, fetched
from benchmarks.peers.java import class_path, executable
from benchmarks.peers.kafka import VERSION, artifacts
from dlog import Log
from tests import clusters
from tests.dlog.kafka.gateway_processes import gateway_process

TOOL_S: Final = 240.0
COUNT: Final = 2_000
PARTITIONS: Final = 4
PACKAGE: Final = "org.apache.kafka.tools."
FLAGS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Failed(Exception):
    """A tool did not do what it does at Kafka's brokers."""

    said = ""


@dataclass
class Bench:
    uri: str
    bootstrap: str
    directory: Path
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def run(self, command: Sequence[str], *, says: str = "", stdin: str | None = None) -> str:
        """Return what *command* prints. Raises `Failed` if it fails, or does not match *says*."""
        try:
            done = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=TOOL_S,
                check=False,
                cwd=self.directory,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"no end within {TOOL_S:.0f} s: {error.stdout!r:.300}") from error
        said = done.stdout + done.stderr
        if done.returncode or (says and re.search(says, said) is None):
            what = " ".join(command[-8:])
            failure = Failed(f"{what}: exit code {done.returncode}: {said[-600:]}")
            failure.said = said
            raise failure
        return said

    def java(self, main: str, *arguments: str, says: str = "", stdin: str | None = None) -> str:
        jars = class_path(fetched(artifacts(VERSION)))
        command = [str(executable()), *FLAGS, "-cp", jars, PACKAGE + main]
        return self.run([*command, *arguments], says=says, stdin=stdin)

    def tool(self, main: str, *arguments: str, says: str = "", stdin: str | None = None) -> str:
        server = ("--bootstrap-server", self.bootstrap)
        return self.java(main, *server, *arguments, says=says, stdin=stdin)

    def file(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def topic(self, name: str, partitions: int = PARTITIONS) -> str:
        options = ("--topic", name, "--partitions", str(partitions))
        self.tool("TopicCommand", "--create", *options)
        return name

    def log(self, name: str) -> list[bytes]:
        """Return the records of a log, as dlog's own reader has them."""
        with Log.tail(name, follow=False, uri=self.uri) as reader:
            return [record.value for record in reader]


def _equal(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Failed(f"{what}: {found!r:.200} instead of {wanted!r:.200}")


def kcat(bench: Bench) -> str:
    if shutil.which("kcat") is None:
        raise PeerMissing("kcat is not installed (apt install kcat)")
    base = ["kcat", "-b", bench.bootstrap]
    lines = [f"k{number}:value {number}" for number in range(100)]
    topic = "of-kcat"
    bench.run(
        [*base, "-P", "-t", topic, "-K:", "-H", "from=kcat", "-z", "lz4"], stdin="\n".join(lines)
    )
    bench.run([*base, "-L", "-t", topic], says=rf'topic "{topic}" with 1 partitions')
    read = bench.run([*base, "-C", "-t", topic, "-e", "-q", "-f", "%k:%s %h\n"])
    _equal("kcat read", read.split("\n")[:100], [f"{line} from=kcat" for line in lines])
    _equal("the log has", bench.log(topic), [f"value {n}".encode() for n in range(100)])
    part = bench.run([*base, "-C", "-t", topic, "-o", "95", "-e", "-q", "-f", "%o "])
    _equal("from an offset", part.split(), ["95", "96", "97", "98", "99"])
    part = bench.run([*base, "-C", "-t", topic, "-o", "s@0", "-c", "2", "-q", "-f", "%o "])
    _equal("from a time", part.split(), ["0", "1"])
    group = [
        *base,
        "-G",
        "kcat-group",
        topic,
        "-X",
        "auto.offset.reset=earliest",
        "-c",
        "100",
        "-q",
    ]
    _equal("a group read", len(bench.run(group).splitlines()), 100)
    with Log.open("native", uri=bench.uri) as log:
        for number in range(10):
            log.append(b"native %d" % number)
    read = bench.run([*base, "-C", "-t", "native", "-e", "-q"])
    _equal("kcat read of a native log", read.splitlines(), [f"native {n}" for n in range(10)])
    return "metadata, produce (lz4, keys, headers), consume by offset, time, group, a native log"


def topics(bench: Bench) -> str:
    bench.topic("t1", 3)
    bench.tool("TopicCommand", "--list", says=r"(?m)^t1$")
    bench.tool("TopicCommand", "--describe", "--topic", "t1", says="PartitionCount: 3")
    bench.tool("TopicCommand", "--alter", "--topic", "t1", "--partitions", "5")
    bench.tool("TopicCommand", "--describe", "--topic", "t1", says="PartitionCount: 5")
    bench.tool("TopicCommand", "--delete", "--topic", "t1")
    left = bench.tool("TopicCommand", "--list")
    _equal("t1 after its deletion", "t1" in left.split(), False)
    return "create, list, describe, add partitions, delete"


def configs(bench: Bench) -> str:
    bench.topic("t2")
    entity = ("--entity-type", "topics", "--entity-name", "t2")
    main = "kafka.admin.ConfigCommand"
    jars = class_path(fetched(artifacts(VERSION)))
    command = [str(executable()), *FLAGS, "-cp", jars, main, "--bootstrap-server", bench.bootstrap]
    bench.run([*command, *entity, "--alter", "--add-config", "retention.ms=3600000"])
    bench.run([*command, *entity, "--describe"], says="retention.ms=3600000")
    return "describe and alter topics"


def offsets(bench: Bench) -> str:
    topic = bench.topic("t3", 1)
    bench.tool("ConsoleProducer", "--topic", topic, stdin="a\nb\nc\n")
    bench.tool("GetOffsetShell", "--topic", topic, says=f"{topic}:0:3")
    bench.tool("GetOffsetShell", "--topic", topic, "--time", "earliest", says=f"{topic}:0:0")
    until = '{"partitions": [{"topic": "t3", "partition": 0, "offset": 2}], "version": 1}'
    path = bench.file("delete.json", until)
    bench.tool("DeleteRecordsCommand", "--offset-json-file", path, says="low_watermark: 2")
    bench.tool("GetOffsetShell", "--topic", topic, "--time", "earliest", says=f"{topic}:0:2")
    return "earliest and latest; records deleted before an offset"


def console(bench: Bench) -> str:
    topic = bench.topic("t4", 1)
    bench.tool("ConsoleProducer", "--topic", topic, stdin="".join(f"{n}\n" for n in range(50)))
    reading = ("--topic", topic, "--from-beginning", "--max-messages", "50", "--group", "console")
    said = bench.tool("consumer.ConsoleConsumer", *reading)
    numbers = [line for line in said.splitlines() if line.isdigit()]
    _equal("consumed", numbers, [str(n) for n in range(50)])
    return "50 lines in and out, in order"


def verifiable(bench: Bench) -> str:
    topic = bench.topic("t5")
    count = ("--max-messages", str(COUNT))
    said = bench.tool("VerifiableProducer", "--topic", topic, *count)
    _equal("acknowledged", said.count('"producer_send_success"'), COUNT)
    reading = ("--topic", topic, "--group-id", "verifiable", "--reset-policy", "earliest")
    said = bench.tool("VerifiableConsumer", *reading, *count)
    batches = (line for line in said.splitlines() if "records_consumed" in line)
    consumed = sum(int(json.loads(line)["count"]) for line in batches)
    if consumed < COUNT:
        raise Failed(f"{consumed} of {COUNT} were consumed")
    in_logs = sum(len(bench.log(f"{topic}-{number}")) for number in range(PARTITIONS))
    _equal("in the logs", in_logs, COUNT)
    return f"{COUNT:,} idempotent records, acknowledged, consumed by a group, counted in the logs"


def groups(bench: Bench) -> str:
    topic = bench.topic("t6", 2)
    bench.tool("VerifiableProducer", "--topic", topic, "--max-messages", "100")
    reading = ("--topic", topic, "--group-id", "g6", "--reset-policy", "earliest")
    bench.tool("VerifiableConsumer", *reading, "--max-messages", "100")
    main, group = "consumer.group.ConsumerGroupCommand", ("--group", "g6")
    bench.tool(main, "--list", says=r"(?m)^g6$")
    bench.tool(main, "--describe", *group, says=r"g6 +t6 +[01] +\d+ +\d+ +0 ")
    bench.tool(main, "--describe", *group, "--state", says="Empty")
    reset = ("--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    bench.tool(main, *group, *reset, says=r"g6 +t6 +[01] +0")
    bench.tool(main, "--delete-offsets", *group, "--topic", topic)
    bench.tool(main, "--delete", *group, says="successful")
    return "list, describe, state, reset offsets, delete offsets, delete"


def performance(bench: Bench) -> str:
    topic = bench.topic("t7")
    records = ("--num-records", "50000", "--throughput", "-1", "--record-size", "100")
    properties = (
        "--bootstrap-server",
        bench.bootstrap,
        "--command-property",
        "compression.type=zstd",
    )
    said = bench.java("ProducerPerformance", "--topic", topic, *records, *properties)
    [written] = re.findall(r"50000 records sent, (.*?), ", said)
    said = bench.tool("ConsumerPerformance", "--topic", topic, "--num-records", "50000")
    _equal("consumed", "50000" in said, True)
    return f"50,000 records of 100 bytes with zstd, {written}; all consumed"


def end_to_end(bench: Bench) -> str:
    topic = bench.topic("t8", 1)
    measured = ["--topic", topic, "--num-records", "500", "--producer-acks", "all"]
    measured += ["--record-size", "100"]
    said = bench.java("EndToEndLatency", "--bootstrap-server", bench.bootstrap, *measured)
    [percentiles] = re.findall(r"Percentiles: (.*)", said)
    return f"500 round trips; ms: {percentiles}"


def api_versions(bench: Bench) -> str:
    said = bench.tool("BrokerApiVersionsCommand", says="Produce")
    return f"{said.count('usable:') // 2} APIs usable of each gateway"


def connect(bench: Bench) -> str:
    jars = fetched(
        [f"org.apache.kafka:{name}:{VERSION}" for name in ("connect-file", "connect-runtime")]
    )
    source = bench.file("source.txt", "".join(f"line {n}\n" for n in range(100)))
    sink = bench.directory / "sink.txt"
    plugins = bench.directory / "plugins"  # without one, it scans where it runs
    plugins.mkdir()
    json_free = "org.apache.kafka.connect.storage.StringConverter"
    worker = bench.file(
        "worker.properties",
        f"bootstrap.servers={bench.bootstrap}\nkey.converter={json_free}\n"
        f"value.converter={json_free}\noffset.storage.file.filename={bench.directory}/offsets\n"
        f"offset.flush.interval.ms=1000\nlisteners=http://127.0.0.1:0\n"
        f"plugin.path={plugins}\nplugin.discovery=service_load\n",
    )
    common = "tasks.max=1\n"
    source_task = bench.file(
        "source.properties",
        f"name=in\nconnector.class=FileStreamSource\n{common}file={source}\ntopic=lines\n",
    )
    sink_task = bench.file(
        "sink.properties",
        f"name=out\nconnector.class=FileStreamSink\n{common}file={sink}\ntopics=lines\n",
    )
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    command = [str(executable()), *FLAGS, "-cp", class_path(jars), main]
    log = bench.directory / "connect.log"
    with log.open("wb") as said, _running([*command, worker, source_task, sink_task], said):
        deadline = _deadline(TOOL_S)
        while next(deadline):
            if sink.exists() and len(sink.read_text().splitlines()) >= 100:
                break
        else:
            raise Failed(f"nothing came out: {log.read_text()[-600:]}")
    _equal("the sink has", sink.read_text().splitlines(), [f"line {n}" for n in range(100)])
    _equal("the log has", len(bench.log("lines")), 100)
    return "a worker alone, file source and file sink: 100 lines through a topic, in order"


def spark(bench: Bench) -> str:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col

    from benchmarks.spark.kafka import connector

    jars = connector()
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    try:
        options = {"kafka.bootstrap.servers": bench.bootstrap}
        topic, copy = bench.topic("t9", 2), bench.topic("t9-copy", 2)
        rows = session.range(COUNT).select(
            col("id").cast("string").alias("key"), col("id").cast("string").alias("value")
        )
        rows.write.format("kafka").options(**options, topic=topic).save()
        found = session.read.format("kafka").options(**options, subscribe=topic).load()
        _equal("a batch read", found.select("value").distinct().count(), COUNT)
        stream = session.readStream.format("kafka").options(
            **options, subscribe=topic, startingOffsets="earliest"
        )
        query = (
            stream.load()
            .select("key", "value")
            .writeStream.format("kafka")
            .options(**options, topic=copy, checkpointLocation=str(bench.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(round(TOOL_S))
        copied = [value for number in range(2) for value in bench.log(f"{copy}-{number}")]
        _equal("a stream copied", sorted(map(int, copied)), list(range(COUNT)))
    finally:
        session.stop()
    return f"sink and source, batch and stream: {COUNT:,} rows"


def sasl(bench: Bench) -> str:
    """A gateway where clients authenticate by passwords and tokens, on a cluster of its own: to
    clients all gateways of a namespace are one cluster."""
    own = [sys.executable, "-m", "dlog.cli"]
    password = "correct horse battery"
    done = []
    with ExitStack() as stack:
        cluster = stack.enter_context(clusters.running(bench.directory / "sasl"))
        uri = ("--uri", cluster.uri)
        bench.run([*own, "kafka", "user", "add", "alice", *uri], stdin=f"{password}\n")
        bench.run([*own, "access", "grant", "user:alice", "writer", "t12*", *uri])
        bench.run([*own, "access", "grant", "oidc:app", "writer", "t12*", *uri])
        key = ECKey.generate_key("P-256", {"kid": "one"}, private=True)
        keys = bench.file("keys.json", json.dumps({"keys": [key.as_dict(private=False)]}))
        now = int(time.time())
        claims = {"iss": "https://id", "aud": "kafka", "sub": "app", "iat": now, "exp": now + 3600}
        head = {"alg": "ES256", "kid": "one"}
        token = bench.file("token", jwt.encode(head, claims, key, algorithms=["ES256"]))
        oidc = ("--oidc-issuer=https://id", "--oidc-audience=kafka", f"--oidc-keys={keys}")
        options = ("--scram", "--sasl-without-tls", *oidc)
        gateway = stack.enter_context(gateway_process(cluster.uri, *options))
        server = ("--bootstrap-server", gateway.bootstrap)
        package = "org.apache.kafka.common.security."
        login = f"{package}scram.ScramLoginModule required"
        by_password = f'sasl.jaas.config={login} username="alice" password="{password}";\n'
        bearer = f"{package}oauthbearer.OAuthBearerLogin"
        by_token = (
            f"sasl.jaas.config={bearer}Module required ;\n"
            f"sasl.login.callback.handler.class={bearer}CallbackHandler\n"
            f"sasl.oauthbearer.token.endpoint.url=file://{token}\n"
        )
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{token}"
        stack.enter_context(_set("JAVA_TOOL_OPTIONS", allowed))
        logins = {"OAUTHBEARER": by_token, "SCRAM-SHA-256": by_password}
        config = ""
        for mechanism, how in {**logins, "SCRAM-SHA-512": by_password}.items():
            plain = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            config = bench.file(f"{mechanism}.properties", plain + how)
            topic = f"t12-{mechanism}"
            auth = ("--command-config", config)
            bench.java("ConsoleProducer", *server, "--topic", topic, *auth, stdin="a\nb\nc\n")
            reading = ("--topic", topic, "--from-beginning", "--max-messages", "3")
            said = bench.java("consumer.ConsoleConsumer", *server, *reading, *auth)
            _equal("consumed", [line for line in said.splitlines() if len(line) == 1], [*"abc"])
            done.append(mechanism)
        wrong = bench.file("wrong.properties", Path(config).read_text().replace("horse", "cow"))
        try:
            bench.java("TopicCommand", *server, "--list", "--command-config", wrong)
        except Failed as error:
            if "authentication failed" not in error.said:
                raise
        else:
            raise Failed("a wrong password was taken")
    return f"{', '.join(done)}: 3 lines in and out by the console tools; a wrong password refused"


@contextmanager
def _set(variable: str, value: str) -> Iterator[None]:
    os.environ[variable] = value
    try:
        yield
    finally:
        del os.environ[variable]


def transactions(bench: Bench) -> str:
    topic = bench.topic("t10")
    records = ("--num-records", "10", "--throughput", "-1", "--record-size", "10")
    server = ("--bootstrap-server", bench.bootstrap)
    try:
        bench.java(
            "ProducerPerformance", "--topic", topic, *records, *server, "--transactional-id", "t"
        )
    except Failed as error:
        [*_, reason] = re.findall(r"\w+Exception: ([^\n]*)", error.said) or [""]
        if "ransaction" not in reason:
            raise
        return f"refused: {reason}"
    raise Failed("a transaction was taken")


def compaction(bench: Bench) -> str:
    compact = ("--topic", "t11", "--config", "cleanup.policy=compact")
    try:
        bench.tool("TopicCommand", "--create", *compact)
    except Failed as error:
        reason = re.search(r"cleanup\.policy=compact: [^\n]*", error.said)
        if reason is None:
            raise
        return f"refused: {reason[0]}"
    raise Failed("a compacted topic was created")


NOT_OFFERED: Final = {
    "test_create_describe_delete_acls": "grants are dlog's",
    "test_elect_leaders": "gateways lead by a rule",
    "test_describe_log_dirs": "bookies have the disks",
    "test_alter_replica_log_dirs": "bookies have the disks",
    "test_describe_metadata_quorum": "metadata are in ZooKeeper",
    "test_alter_partition_reassignments": "gateways lead by a rule",
    "test_list_partition_reassignments": "gateways lead by a rule",
    "test_describe_topic_partitions": "an API of Kafka 4",
    "test_describe_topic_partitions_pagination": "an API of Kafka 4",
    "test_kafka_version_infer": "it infers Kafka 3.8 from the APIs, and is told 4.0",
    "test_transactional_producer_messages": "no transactions",
    "test_transactional_producer_offsets": "no transactions",
    "test_ssl_handshake": "it starts a broker of its own",
    "test_legacy_kafka_client_ssl": "it starts a broker of its own",
}
"""Tests of kafka-python's own suite that cannot pass here, and why."""
_EXTERNAL: Final = """
class ExternalService:
    def __init__(self, host, port): pass
    def open(self): pass
    def close(self): pass
class SpawnedService: pass
"""
"""A module of the suite that its source archive lacks, as far as a broker that runs needs it."""


def kafka_python_suite(bench: Bench) -> str:
    """The integration tests of kafka-python itself, which know how to use a broker that runs."""
    suite = _source_archive(bench, "kafka-python")
    (suite / "test/__init__.py").touch()
    (suite / "test/service.py").write_text(_EXTERNAL)
    environment = {
        "KAFKA_URI": f"kafka://{bench.bootstrap.split(',')[0]}",
        "KAFKA_VERSION": "4.0.0",  # with a lower one it wants a ZooKeeper
        "KAFKA_ROOT": str(suite),
        "PYTHONPATH": str(suite),
    }
    report = bench.directory / "kafka-python.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(suite), "--timeout", "60", f"--junitxml={report}"]
    command += [str(suite / "test/integration")]
    with ExitStack() as stack:
        for name, value in environment.items():
            stack.enter_context(_set(name, value))
        with suppress(Failed):  # what failed is in the report
            bench.run(command)
    if not report.exists():
        raise Failed("its tests were not run")
    passed, failed, skipped = 0, set[str](), 0
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["name"].partition("[")[0]
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    if unforeseen := failed - set(NOT_OFFERED):
        raise Failed(f"{passed} tests passed; failed: {', '.join(sorted(unforeseen))}")
    if not passed:
        raise Failed("no test passed")
    reasons = sorted({NOT_OFFERED[name] for name in failed})
    return f"{passed} passed, {skipped} skipped; {len(failed)} fail: {'; '.join(reasons)}"


def _source_archive(bench: Bench, package: str) -> Path:
    """Return where the source archive of the installed version of *package* lies unpacked."""
    wanted = f"{package}=={version(package)}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    bench_files = bench.directory / package
    try:
        bench.run([*command, "--no-binary", package, "--dest", str(bench_files), wanted])
    except Failed as error:
        raise PeerMissing(f"pip cannot fetch the sources of {wanted}") from error
    [archive] = bench_files.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(bench_files, filter="data")
    [unpacked] = (each for each in bench_files.iterdir() if each.is_dir())
    return unpacked


@contextmanager
def _running(command: Sequence[str], said: object) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=said, stderr=said)  # type: ignore[call-overload]
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def _deadline(seconds: float) -> Iterator[bool]:
    """Give True, with a pause each time, until so many seconds are over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield True
        time.sleep(0.2)
    yield False


ROWS: Final[dict[str, tuple[str, Callable[[Bench], str]]]] = {
    "kcat": ("kcat", kcat),
    "topics": ("kafka-topics", topics),
    "configs": ("kafka-configs", configs),
    "offsets": ("kafka-get-offsets, kafka-delete-records", offsets),
    "console": ("kafka-console-producer, -consumer", console),
    "verifiable": ("VerifiableProducer, VerifiableConsumer", verifiable),
    "groups": ("kafka-consumer-groups", groups),
    "performance": ("ProducerPerformance, ConsumerPerformance", performance),
    "latency": ("EndToEndLatency", end_to_end),
    "versions": ("kafka-broker-api-versions", api_versions),
    "connect": ("Kafka Connect", connect),
    "spark": ("Spark's Kafka source and sink", spark),
    "kafka-python": ("kafka-python's own integration tests", kafka_python_suite),
    "sasl": ("console tools with passwords and tokens", sasl),
    "transactions": ("a transactional producer", transactions),
    "compaction": ("a compacted topic", compaction),
}


def version_of(row: str) -> str:
    if row == "kcat":
        if shutil.which("kcat") is None:
            return "-"
        said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"Version (\S+)", said)
        return found[1] if found else "?"
    if row == "spark":
        return f"PySpark {version('pyspark')}"
    if row == "kafka-python":
        return version(row)
    return VERSION


def main() -> int:
    chosen = sys.argv[1:] or list(ROWS)
    failures = 0
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlog-compat-")))
        cluster = stack.enter_context(clusters.running(directory / "cluster"))
        gateways = [stack.enter_context(gateway_process(cluster.uri)) for _ in range(2)]
        bootstrap = ",".join(gateway.bootstrap for gateway in gateways)
        bench = Bench(cluster.uri, bootstrap, directory)
        for row in chosen:
            tool, proof = ROWS[row]
            try:
                result = proof(bench)
            except PeerMissing as error:
                result = f"not tried: {error}"
            except Failed as error:
                failures += 1
                result = f"FAILED: {error}"
            line = (tool, version_of(row), " ".join(result.split()))
            bench.rows.append(line)
            print(f"| {' | '.join(line)} |", flush=True)
    print("\n| tool | version | result |\n|---|---|---|")
    for line in bench.rows:
        print(f"| {' | '.join(line)} |")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
