"""Spark as all tests start it: on loopback, its files in one directory, the format registered."""

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import dlog.spark
from dlog.local.java import java_environment

ROOT: Final = Path(__file__).parents[3]
AS_INSTALLED: Final = os.pathsep.join([str(ROOT), str(ROOT / "dlog" / "spark" / "discovery")])
"""The path that finds what a wheel brings along."""


def environment() -> dict[str, str]:
    """Return what has to be in the environment before a session is made."""
    return {**java_environment(), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": AS_INSTALLED}


def session(master: str, scratch: Path, settings: dict[str, str] | None = None) -> SparkSession:
    """Return a session of *master*, one of this process, with *settings* of Spark beside ours."""
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.python.authenticate.socketTimeout": "300s",  # else 15, which a loaded machine misses
        # The default starts a process for each file.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager"
        ),
    }
    builder = SparkSession.builder.master(master)
    for name, value in (ours | (settings or {})).items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    dlog.spark.register(made)
    return made
