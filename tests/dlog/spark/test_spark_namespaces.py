"""Which namespace a source or sink works on, and how its connections are secured."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from dlog.config import load
from dlog.spark.errors import InvalidOption
from dlog.spark.namespaces import Namespace, environment_of
from dlog.spark.sink.keeper.place import Program, place_of
from dlog.spark.source import DlogSource
from ledger.security.settings import TlsMode
from tests.certificates import certificate, put

URI = "zk://127.0.0.1:1/dlog"
VALUES = StructType([StructField("value", BinaryType())])


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Options that name good files; nothing of it is in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("", "_CA", "_CERT", "_KEY", "_IDENTITY"):
        monkeypatch.delenv(f"DLOG_TLS{name}", raising=False)
    tls = put(tmp_path / "tls", certificate("spark"))
    return {"tls": "required", "tlsca": tls.ca, "tlscert": tls.cert, "tlskey": tls.key}


def reading(given: dict[str, str]) -> object:
    return DlogSource({"logs": "a", "uri": URI, **given}).reader(VALUES)


def streaming(given: dict[str, str]) -> object:
    return DlogSource({"logs": "a", "uri": URI, **given}).streamReader(VALUES)


def writing(given: dict[str, str]) -> object:
    return DlogSource({"log": "a", "uri": URI, **given}).writer(VALUES, overwrite=False)


def test_options_come_before_the_environment_and_what_they_leave_out_is_taken_from_it(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLOG_TLS", "optional")
    monkeypatch.setenv("DLOG_TLS_CA", "/elsewhere/ca.pem")
    monkeypatch.setenv("DLOG_TLS_IDENTITY", "cn")
    namespace = Namespace.of({"uri": URI, **files})
    found = load(dict(namespace.given)).secured
    assert (found.mode, found.ca, found.identity) == (TlsMode.REQUIRED, files["tlsca"], ("cn",))
    assert load(dict(Namespace.of({"uri": URI, "tls": "off"}).given)).secured.mode is TlsMode.OFF
    assert load(dict(Namespace.of({"uri": URI}).given)).tls == "optional"


def test_the_keeper_is_told_by_its_environment(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Namespace.of({"uri": f"{URI}?auth=digest:user:hidden", **files})
    for name, value in environment_of(before).items():
        monkeypatch.setenv(name, value)
    assert load().uri == before.uri
    assert load().secured == load(dict(before.given)).secured


def test_who_connects_otherwise_shares_no_keeper(
    files: dict[str, str],
) -> None:
    driver = Program(1, "1")
    given = [{}, files, {**files, "tlscert": "/other.pem"}]
    assert len({place_of(driver, Namespace.of({"uri": URI, **each})) for each in given}) == 3


def test_tasks_have_the_options_of_their_query(files: dict[str, str]) -> None:
    namespace = Namespace.of({"uri": URI, **files})
    assert pickle.loads(pickle.dumps(namespace)) == namespace
    reader = streaming(files)
    assert pickle.loads(pickle.dumps(reader))._namespace == namespace


@pytest.mark.parametrize("use", [reading, streaming, writing])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tls": "perhaps"}, "say one of off, optional, required"),
        ({"tls": "required", "tlsca": "/ca.pem"}, "needs DLOG_TLS_CERT, the path of a file"),
        ({"tlsca": "/ca.pem"}, "DLOG_TLS is not; say one of"),
        ({"tls": "required", "tlsidentity": "mail"}, "name some of uri, dns, cn"),
    ],
)
def test_options_that_say_nothing_usable_are_refused_before_anything_runs(
    use: Callable[[dict[str, str]], object], given: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidOption, match=r"option tls=.* of format dlog") as caught:
        use(given)
    assert said in str(caught.value)
    assert "tls, tlsCa, tlsCert, tlsKey, tlsIdentity" in str(caught.value)


def making_a_table(given: dict[str, str]) -> object:
    return DlogSource({"logs": "a", "uri": URI, "provider": "dlog", **given}).schema()


@pytest.mark.parametrize("use", [reading, streaming, writing, making_a_table])
def test_a_key_in_place_of_its_path_is_refused_unseen(
    use: Callable[[dict[str, str]], object], files: dict[str, str]
) -> None:
    key = Path(files["tlskey"]).read_text()
    with pytest.raises(InvalidOption, match=r"option tlsKey='\.\.\.'.*the path of the file") as e:
        use({**files, "tlskey": key})
    assert key.splitlines()[1] not in f"{e.value!s}{e.value!r}{vars(e.value)}"


def test_a_namespace_is_shown_without_its_password() -> None:
    assert "hidden" not in repr(Namespace.of({"uri": f"{URI}?auth=digest:user:hidden"}))
