"""Public names of packages come when they are asked for."""

import importlib
import subprocess
import sys

import pytest

PACKAGES = ("dlog", "dlog.aio", "ledger")


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_has_a_home_and_is_found_there(package: str) -> None:
    home = importlib.import_module(package)
    assert sorted(home._HOMES) == sorted(home.__all__)
    for name in home.__all__:
        assert getattr(home, name) is getattr(importlib.import_module(home._HOMES[name]), name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = home.nothing


@pytest.mark.integration
def test_importing_dlog_imports_no_client_and_no_library() -> None:
    code = (
        "import dlog, sys; "
        "print(*(m for m in ('asyncio', 'google', 'kazoo', 'pydantic', 'dlog.aio.log', "
        "'ledger.client') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
