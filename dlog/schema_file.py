"""Files with a schema of a log, by their suffixes; a .proto file is compiled."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dlog.errors import InvalidLogSchema
from dlog.log_schema import LogSchema, SchemaFormat

_COMPILE_S: Final = 60.0
_SUFFIXES: Final[Mapping[str, SchemaFormat]] = {
    ".avsc": "avro",
    ".json": "json",
    ".arrow": "arrow",
    ".proto": "protobuf",
    ".desc": "protobuf",
}


def read_schema(path: Path, message: str = "") -> LogSchema:
    """Return the schema in a file, by its suffix. Raises `InvalidLogSchema`."""
    form = _SUFFIXES.get(path.suffix)
    if form is None:
        raise InvalidLogSchema(f"{path}: its name ends with none of {', '.join(_SUFFIXES)}")
    try:
        definition = compile_proto(path) if path.suffix == ".proto" else path.read_bytes()
    except OSError as error:
        raise InvalidLogSchema(f"{path}: {error.strerror}") from error
    return LogSchema(format=form, definition=definition, message=message)


def compile_proto(path: Path) -> bytes:
    """Return the set of file descriptors of the file *path* with what it imports from its folder.

    Raises `InvalidLogSchema` if it is no such file, or there is no compiler."""
    found = shutil.which("protoc")
    command = [found] if found else [sys.executable, "-m", "grpc_tools.protoc"]
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, "set")
        options = [f"-I{path.parent}", "--include_imports", f"--descriptor_set_out={made}"]
        done = subprocess.run(  # noqa: S603 - the compiler that was found
            [*command, *options, str(path)],
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            check=False,
        )
        if not done.returncode:
            return made.read_bytes()
    if not found and "No module named" in done.stderr:
        raise InvalidLogSchema(
            "a .proto file needs a compiler, and there is none: pip install grpcio-tools, or give "
            "what protoc --include_imports --descriptor_set_out=orders.desc writes"
        )
    raise InvalidLogSchema(f"{path}: {done.stderr.strip()[:1000]}")
