"""JSON after a change of one or two of its values: another type, another size, missing, doubled, unknown, too deep."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st
from mutations import Bytes, Draw, damaged

VALUES = (
    "null",
    "true",
    "false",
    '"128"',
    '""',
    '"x"',
    "0",
    "-1",
    "1",
    "2",
    "1.5",
    "-0.0",
    "1e-400",
    "1e308",
    "1e400",
    "1000000007",
    "1000000000000",
    "1000000000000000000",
    "9223372036854775808",
    "1" + "0" * 400,
    "1" + "0" * 5000,
    "NaN",
    "-Infinity",
    "[]",
    "{}",
    "[[]]",
    "[0]",
    '{"":null}',
    '{"x":1}',
    '"../pairs.tsv"',
    '"../pipe"',
    '"../endless"',
    '"/nowhere/x.spm"',
    '"."',
    '".."',
    '"\\u0000"',
    '"\\u001b[31mred"',
    '"\\ud800"',
    '"\\u202e\\u2028\\u0085"',
    '"' + "x" * 100_000 + '"',
    "[" * 5000 + "]" * 5000,
    "[" * 200_000 + "]" * 200_000,
    '{"x":' * 2000 + "1" + "}" * 2000,
    "[" + "1," * 5000 + "1]",
)
"""Values, as JSON, that stand where another is expected."""
_MARK = "\uf8ff"
Path = tuple[str | int, ...]


@st.composite
def edited(draw: Draw, base: bytes) -> bytes:
    """Return a document of JSON after one or two changes; its values stay JSON, or nearly so."""
    document = json.loads(base)
    raws: list[str] = []
    for _ in range(draw(st.sampled_from((1, 1, 1, 2)))):
        document = _change(draw, document, raws)
    return _encoded(document, raws)


@st.composite
def edited_line(draw: Draw, base: bytes) -> bytes:
    """Return lines of JSON after a change of one of them."""
    lines = base.splitlines(keepends=True)
    number = draw(st.integers(0, len(lines) - 1))
    lines[number] = draw(edited(lines[number])).rstrip() + b"\n"
    return b"".join(lines)


def written(base: bytes) -> Bytes:
    """Return a document of JSON, edited or with its bytes damaged."""
    return st.one_of(edited(base), edited(base), edited(base), damaged(base))


def _change(draw: Draw, document: Any, raws: list[str]) -> Any:
    """Return the document with one of its values changed; raw JSON is added to `raws`, a mark stands for it."""
    path = draw(st.sampled_from(list(_paths(document))))
    if not path:
        return _raw(draw, raws)
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    if isinstance(parent, str):  # a change before this one put raw JSON here
        return document
    last = path[-1]
    draw(st.sampled_from(CHANGES))(draw, parent, last, raws)
    return document


def _raw(draw: Draw, raws: list[str]) -> str:
    raws.append(draw(st.sampled_from(VALUES)))
    return f"{_MARK}{len(raws) - 1}{_MARK}"


def _replace(draw: Draw, parent: Any, last: Any, raws: list[str]) -> None:
    parent[last] = _raw(draw, raws)


def _near(draw: Draw, parent: Any, last: Any, raws: list[str]) -> None:
    """Put a value of the same type there, near the one that was."""
    match parent[last]:
        case bool() as value:
            parent[last] = not value
        case int() as value:
            parent[last] = draw(st.sampled_from((value + 1, value - 1, -value, 2 * value, value + (1 << 32))))
        case float() as value:
            parent[last] = draw(st.sampled_from((-value, value * 1e30, value + 1)))
        case str() as value:
            parent[last] = draw(st.sampled_from((value + "x", value[:-1], value.upper(), "../" + value, value + "\0")))
        case list() as value:
            parent[last] = draw(st.sampled_from((value[:-1], value + value, value[::-1])))
        case dict() as value:
            parent[last] = dict(list(value.items())[:-1])
        case _:
            parent[last] = 7


def _remove(draw: Draw, parent: Any, last: Any, raws: list[str]) -> None:
    del parent[last]


def _add(draw: Draw, parent: Any, last: Any, raws: list[str]) -> None:
    """Add a value under a name that nobody knows, or at the end."""
    if isinstance(parent, dict):
        name = draw(st.sampled_from(("unknown", "", "\0", "format", "__metadata__", "x" * 300, f"{last}x", "\x1b[0m")))
        parent[name] = _raw(draw, raws)
    else:
        parent.append(_raw(draw, raws))


def _exchange(draw: Draw, parent: Any, last: Any, raws: list[str]) -> None:
    """Put a neighbour's value there."""
    names = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    parent[last] = parent[draw(st.sampled_from(names))]


CHANGES: tuple[Callable[..., None], ...] = (
    _replace,
    _replace,
    _replace,
    _replace,
    _near,
    _near,
    _remove,
    _add,
    _exchange,
)


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every value of a document, but for the many alike of a long list."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:3]):
            yield from _paths(inner, (*path, number))


def _encoded(document: Any, raws: list[str]) -> bytes:
    text = json.dumps(document, ensure_ascii=False)
    for number, raw in enumerate(raws):
        text = text.replace(json.dumps(f"{_MARK}{number}{_MARK}", ensure_ascii=False), raw)
    return text.encode(errors="surrogatepass")
