"""What Spark's part of dlog holds and says has no secret in it: they are planted."""

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from dlog.spark.batch import BatchReader
from dlog.spark.micro_batch import StreamReader
from dlog.spark.namespaces import Namespace
from dlog.spark.options import SourceOptions
from dlog.spark.source import DlogSource
from ledger.errors import LogError
from tests.dlog.test_secrets_unseen import (
    HIDDEN,
    SECRET,
    WITH_SECRET,
    dataclasses_of_the_product,
    secrets_shown_by,
    told,
)

PEM = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"


def test_no_dataclass_shows_a_field_that_is_a_secret_by_its_name() -> None:
    looked_at, seen = secrets_shown_by(dataclasses_of_the_product(spark=True))
    assert looked_at >= 2
    assert not seen


def test_what_travels_to_executors_does_not_show_the_namespaces_options() -> None:
    namespace = Namespace(WITH_SECRET, (("tls_key", "/path"),))
    source = DlogSource({"uri": WITH_SECRET, "path": "a"})
    options = SourceOptions.parse({"path": "a"})
    for each in (namespace, source, options, vars(source)):
        shown = f"{each!r} {each}" if not isinstance(each, dict) else ""
        assert not told(HIDDEN, shown), type(each)
    readers = (BatchReader(namespace, options), StreamReader(namespace, options))
    for reader in readers:
        assert not told(HIDDEN, f"{reader!r} {reader}"), type(reader)


@pytest.mark.parametrize(
    "options",
    [
        {"uri": f"zk://a/r?auth=plain:{SECRET}"},
        {"uri": f"zk://me:{SECRET}@a/r"},
        {"uri": f"{WITH_SECRET}#x"},
        {"tls": "required", "tlsKey": PEM},
        {"tls": "required", "tlsCa": PEM, "uri": WITH_SECRET},
    ],
    ids=["scheme", "user", "fragment", "key", "authority"],
)
def test_options_that_are_refused_are_not_repeated(options: dict[str, str]) -> None:
    source = DlogSource({"path": "a", **options})
    schema = StructType([StructField("value", BinaryType())])
    for made in (
        lambda: source.reader(schema),
        lambda: source.streamReader(schema),
        lambda: source.writer(schema, overwrite=False),
        lambda: source.streamWriter(schema, overwrite=False),
    ):
        with pytest.raises(LogError) as caught:
            made()
        cause: BaseException | None = caught.value
        while cause is not None:  # Spark shows the whole chain
            assert not told(HIDDEN, f"{cause} {cause!r} {vars(cause)}")
            cause = cause.__cause__
