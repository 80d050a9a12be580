"""A plugin of pytest: the mutant that `VARIABLE` describes is imported instead of its module.

It comes before anything else is imported, so everybody in this process has it.
"""

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType

from tests.mutants.mutant import ROOT, VARIABLE, Mutant


class _Loader(SourceFileLoader):
    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(ROOT / mutant.file))
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        """Compile it, beside what Python keeps compiled."""
        return compile(self._mutant.source(), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        loader = _Loader(self._mutant)
        return spec_from_file_location(fullname, loader.path, loader=loader)


def _install() -> None:
    mutant = Mutant(**json.loads(os.environ[VARIABLE]))
    assert mutant.module not in sys.modules, f"{mutant.module} was imported too early"
    sys.meta_path.insert(0, _Finder(mutant))


_install()
