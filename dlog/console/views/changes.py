"""What a change will do, said before it is done. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    value: str = ""
    choices: Sequence[str] = ()
    """Empty: free text."""


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Asked for the fields, if there are any, then for a yes."""

    kind: str
    target: str
    title: str
    says: Sequence[str]
    """What will happen, a sentence each."""
    fields: Sequence[Field]
    typed: str
    """What has to be typed to mean it; empty: a button will do."""
    danger: bool
    ready: bool
    """Whether all is given that has to be, and the plan stands."""
    trouble: str = ""
