"""A Spark application of its own, whose daemons of Python workers are killed.

`python -m tests.dlog.spark.orphans URI DIRECTORY` writes a log before and after, prints the process
id of its JVM, and ends with its input. Spark goes on using idle workers, which are nobody's
children then; it says "Broken pipe" for each later error of theirs, so no other test may share the
JVM with this.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from tests.dlog.spark.feeding import Feed
from tests.dlog.spark.processes import children
from tests.dlog.spark.sessions import session

ROWS: Final = 40


def spellings(uri: str) -> list[dict[str, Any]]:
    """Return the options of two namespaces that are one: workers know the second one afresh."""
    return [{"uri": uri}, {"uri": uri, "tls": "off"}]


def main() -> None:
    uri, directory = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Spark writes there, too
    spark = session("local[2]", Path(directory) / "scratch")
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    feed = Feed(spark, Path(directory))
    first, other = spellings(uri)
    feed.put(10)
    feed.run(log="orphans", **first)
    for daemon in children(jvm, b"pyspark.daemon"):
        os.kill(daemon, signal.SIGKILL)
    while feed.rows < ROWS:
        feed.put(10)
        feed.run(log="orphans", **other)
    answers.write(f"{jvm}\n")
    answers.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
