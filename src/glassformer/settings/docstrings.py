"""Read the docstrings below the fields of a dataclass, for `help()` and for the help of the command line."""

import ast
import inspect
import textwrap
from dataclasses import fields, is_dataclass
from typing import TypeVar

FIELDS = "Fields:"
"""The line below which `with_fields` lists them."""
WIDTH = 100
Class = TypeVar("Class", bound=type)


def with_fields(kind: Class) -> Class:
    """Let the docstring of a dataclass end with its fields and their docstrings, so that `help()` shows them.

    >>> from glassformer import SearchConfig
    >>> print(SearchConfig.__doc__.partition("Fields:")[2].splitlines()[1])
        beam: Hypotheses kept at each step; 1 is greedy search.
    """
    type.__setattr__(kind, "__doc__", _DocWithFields(kind.__doc__ or ""))
    return kind


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, in one line; "" where there is none.

    That of a field which several classes of its line define is the last one's.
    """
    found = {one.name: "" for one in fields(kind)}
    for one in reversed([one for one in kind.__mro__ if is_dataclass(one)]):
        found |= {name: doc for name, doc in _own_docs(one).items() if name in found}
    return found


def _own_docs(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields that a class defines itself."""
    statements = next(iter(ast.parse(textwrap.dedent(inspect.getsource(kind))).body))
    assert isinstance(statements, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, below in zip(statements.body, statements.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = " ".join(text.value.split())
    return found


class _DocWithFields:
    """A docstring that is completed when it is asked for: reading the source takes milliseconds."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: object, owner: type) -> str:
        wrapper = textwrap.TextWrapper(WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
        wrapper.break_on_hyphens = False  # a flag stays in one piece
        described = [wrapper.fill(f"{name}: {doc}") for name, doc in field_docs(owner).items()]
        return "\n".join([inspect.cleandoc(self._text), "", FIELDS, *described])
