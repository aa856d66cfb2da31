"""What is fuzzed: a strategy of cases for every reader and for the flags of every command."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cases import Case, Content
from flags import BASES, flag_targets, good_lines
from hypothesis import strategies as st
from mutations import Draw, Special, specials
from readers import READERS, Reader
from sandbox import Sandbox

from glassformer.cli import COMMANDS

COSTLY = 0.1
"""The weight of what takes more than a tenth of a second."""
FLAGS_AT_ONCE = 4
"""Number of a command's flags that get as many cases as a reader."""


@dataclass(frozen=True)
class Target:
    """What is fuzzed."""

    name: str
    good: Sequence[Case]
    """Cases with nothing wrong, which must succeed: else nothing that is made of them says anything."""
    cases: st.SearchStrategy[Case]
    weight: float = 1.0
    """Number of its cases for each one of a reader."""


def make_targets(sandbox: Sandbox) -> Iterator[Target]:
    """Yield all targets."""
    for reader in READERS:
        path, base = sandbox.read(reader.path)
        good = [_case(reader, path, command, base) for command in reader.commands]
        yield Target(reader.path, good, _cases(reader, path, base), COSTLY if reader.costly else 1.0)
    for name, cases in flag_targets().items():
        weight = COSTLY if any(base.costly for base in BASES[name]) else len(COMMANDS[name].arguments) / FLAGS_AT_ONCE
        yield Target(f"flags {name}", good_lines(name), cases, weight)


def _cases(reader: Reader, path: str, base: bytes) -> st.SearchStrategy[Case]:
    """Return the cases of a reader of this sample: mutated content, or sometimes what is no file."""
    usual = reader.mutate(base)
    others = specials.filter(lambda special: special is not Special.PIPE) if reader.may_be_pipe else specials
    contents = st.one_of(*[usual] * 7, others)

    @st.composite
    def cases(draw: Draw) -> Case:
        return _case(reader, path, draw(st.sampled_from(reader.commands)), draw(contents))

    return cases()


def _case(reader: Reader, path: str, command: str, content: Content) -> Case:
    """Return the case of a command of a reader with this content at the path, or on standard input."""
    words = [word.replace("{}", path) for word in shlex.split(command)]
    stdin, files = b"", {path: content}
    if "<" in words:
        words = words[: words.index("<")]
        stdin, files = content if isinstance(content, bytes) else b"", {}
    return Case(reader.path, tuple(words), files, reader.needs, reader.writes, stdin)
