"""The plan of a bulk translation: its files in blocks of lines, and which of the blocks are done.

    OUTPUT/NAME                          the translation of the input's file NAME, once it is complete
    OUTPUT/_problems.jsonl               the rows that could not be translated, or not whole, once all is complete
    OUTPUT/_unfinished/plan.json         the settings, and the files with their numbers of rows and digests
    OUTPUT/_unfinished/blocks/F/B.D      the output for block B of file F; D is a digest of it
    OUTPUT/_unfinished/problems/F/B      the problems of that block
    OUTPUT/_unfinished/writing/          files that don't have their names yet

Whatever is lost, what stands there is done: each file appears whole, under a name that says what it is. A block that
was made twice has the same name, and counts once.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.json import encode

from glassformer.cluster.lines import Problem
from glassformer.cluster.storage import UNFINISHED, Storage
from glassformer.decoding import Natural, decode_json
from glassformer.errors import ConfigError, DataError
from glassformer.generation.stream import LINES_AT_ONCE

PLAN, PROBLEMS = f"{UNFINISHED}/plan.json", "_problems.jsonl"
Block = tuple[int, int]
"""A file's place in the plan, and a block's place in the file, from 0."""


class PlannedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the input."""

    name: str
    output: str
    """Name of its translation."""
    form: str
    rows: Natural
    digest: str
    column: str | None

    @property
    def blocks(self) -> int:
        """Number of blocks; a file without rows has one without rows."""
        return max(1, -(-self.rows // LINES_AT_ONCE))

    def rows_of(self, block: int) -> tuple[int, int]:
        """Return the numbers of a block's first and last row, from 1."""
        return block * LINES_AT_ONCE + 1, min(self.rows, (block + 1) * LINES_AT_ONCE)

    def rows_in(self, block: int) -> int:
        """Return how many rows a block has."""
        first, last = self.rows_of(block)
        return last - first + 1


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """The files to translate, and the settings to translate them with."""

    settings: dict[str, Any]
    files: tuple[PlannedFile, ...]

    @property
    def rows(self) -> int:
        """Number of rows of all files."""
        return sum(file.rows for file in self.files)

    def blocks(self) -> Iterator[Block]:
        """Yield all blocks of all files."""
        for place, file in enumerate(self.files):
            yield from ((place, block) for block in range(file.blocks))

    def name_of(self, block: Block) -> str:
        """Return the words that name a block in a message."""
        file = self.files[block[0]]
        first, last = file.rows_of(block[1])
        return f"{file.name}, rows {first:,} to {last:,}"


def plan_file(source: Storage, name: str, column: str | None, scores: bool) -> PlannedFile | str:
    """Return the plan of a file, or the message that says why it can't be read."""
    from glassformer.cluster.forms import form_of, output_name

    form = form_of(name)
    try:
        rows, digest, chosen = form.survey(source, name, column, scores=scores)
    except DataError as error:
        return str(error)
    return PlannedFile(name, output_name(name), form.name, rows, digest, chosen)


def start(storage: Storage, plan: Plan, *, resume: bool) -> None:
    """Write the plan to the folder of the output, or with `resume` compare it with the one that is there.

    Raises DataError or ConfigError where the folder has a translation already, or the beginning of another one.
    """
    old = _read(storage)
    if old is None:
        there = [file.output for file in plan.files if storage.is_file(file.output)]
        if there:
            nothing = "there is nothing to resume" if resume else "a translation is never overwritten"
            raise DataError(f"{storage} has {there[0]} already: {nothing}; give another --output, or remove it")
        storage.write(PLAN, encode(plan))
        return
    remove = f"remove {storage}/{UNFINISHED} to start over"
    if not resume:
        raise DataError(f"{storage} has a translation that was stopped: continue with --resume, or {remove}")
    now = to_builtins(plan.settings)
    if differ := [name for name in {**old.settings, **now} if old.settings.get(name) != now.get(name)]:
        was, is_ = (", ".join(f"{name} {each.get(name)}" for name in differ) for each in (old.settings, now))
        raise ConfigError(
            f"{storage} was started with {was}, and is to be continued with {is_}: give the same, or {remove}"
        )
    if old.files != plan.files:
        changed = sorted(file.name for file in {*old.files} ^ {*plan.files})
        raise DataError(f"{changed[0]} is not as it was when the translation to {storage} was started: {remove}")


def _read(storage: Storage) -> Plan | None:
    """Return the plan that is there; DataError where it is damaged."""
    if not storage.is_file(PLAN):
        return None
    try:
        return decode_json(storage.read(PLAN), Plan)
    except ValueError as error:
        raise DataError(f"{storage}/{PLAN} is damaged ({error}): remove {storage}/{UNFINISHED} to start over") from None


def write_block(storage: Storage, block: Block, output: bytes, problems: list[Problem]) -> None:
    """Write the output for a block, and before it its problems."""
    file, number = block
    if problems:
        storage.write(f"{UNFINISHED}/problems/{file}/{number}", encode([to_builtins(one) for one in problems]))
    storage.write(f"{UNFINISHED}/blocks/{file}/{number}.{_digest(output)}", output)


def done_blocks(storage: Storage, plan: Plan) -> set[Block]:
    """Return the blocks whose output is there, or in a file that is complete."""
    done = set[Block]()
    for place, file in enumerate(plan.files):
        if storage.is_file(file.output):
            done |= {(place, block) for block in range(file.blocks)}
        else:
            done |= {(place, number) for number in _names(storage, place)}
    return done


def finish_file(storage: Storage, place: int, file: PlannedFile) -> None:
    """Put the blocks of a file together, and remove them. It may be done again after a loss at any point."""
    from glassformer.cluster.forms import FORMS

    folder = f"{UNFINISHED}/blocks/{place}"
    if not storage.is_file(file.output):
        names = _names(storage, place)
        outputs = (_checked(storage, f"{folder}/{names[number]}") for number in range(file.blocks))
        with storage.writing(file.output) as sink:
            FORMS[file.form].join(outputs, sink)
    storage.remove_folder(folder)


def try_to_finish_file(storage: Storage, place: int, file: PlannedFile) -> str | None:
    """Put a file together; return the message that says why it can't be."""
    try:
        finish_file(storage, place, file)
    except DataError as error:
        return str(error)
    return None


def finish(storage: Storage, plan: Plan) -> int:
    """Write the problems of all files, and remove what was needed on the way; return how many problems there are."""
    count = 0
    with storage.writing(PROBLEMS) as sink:
        for place, file in enumerate(plan.files):
            folder = f"{UNFINISHED}/problems/{place}"
            for name in sorted(storage.names(folder), key=int):
                for problem in decode_json(storage.read(f"{folder}/{name}"), list[Problem]):
                    fields = {"file": file.name, **to_builtins(problem)}
                    sink.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
                    count += 1
    if not count:
        storage.remove(PROBLEMS)
    storage.remove_folder(UNFINISHED)
    return count


def _names(storage: Storage, place: int) -> dict[int, str]:
    """Return the names of the finished blocks of a file, by their numbers."""
    names = storage.names(f"{UNFINISHED}/blocks/{place}")
    return {int(name.split(".")[0]): name for name in names}


def _checked(storage: Storage, name: str) -> bytes:
    """Return the output for a block; where it is damaged it is removed, and DataError says so."""
    output = storage.read(name)
    if not name.endswith(f".{_digest(output)}"):
        storage.remove(name)
        raise DataError(f"{storage}/{name} was damaged, and is removed: it is made anew when the translation continues")
    return output


def _digest(output: bytes) -> str:
    return hashlib.blake2b(output, digest_size=16).hexdigest()
