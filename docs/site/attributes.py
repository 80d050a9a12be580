"""What the source says of the attributes of a class: the string below each."""

import ast
import inspect
import textwrap
from typing import Any


def attribute_docs(kind: type[Any]) -> dict[str, str]:
    """Return, by name, the string that follows each attribute in the body of *kind*."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[statement.target.id] = inspect.cleandoc(str(after.value.value))
    return found
