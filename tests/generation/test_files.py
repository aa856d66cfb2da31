"""Translation from file to file: what a stop leaves, that it continues to the same bytes, and when it doesn't."""

import errno
import hashlib
import json
import os
import random
from itertools import count, islice
from pathlib import Path

import pytest

from glassformer.errors import ArgumentError, ConfigError, DataError
from glassformer.generation import files, partial, stream
from glassformer.generation.config import SearchConfig
from glassformer.generation.files import translate_file
from glassformer.generation.partial import PartialOutput, Record, partial_output
from glassformer.generation.stream import in_chunks
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import SymbolTokenizer

LINES = [f"line {i} ä{'x' * (i % 5)}" for i in range(23)]
SETTINGS = {"beam": 5, "penalty": "plain", "sample": False, "top_p": 0.9}
SIZE = 5


class Stopped(Exception):
    """What stops the writing."""


def output_of(lines: list[str]) -> bytes:
    """None, one or two lines of output for each."""
    return b"".join(f"{line.upper()}\n".encode() * (len(line) % 3) for line in lines)


def add(partial: PartialOutput, lines: list[str], chunks: int | None = None) -> None:
    left = iter(lines)
    partial.skip(left, "lines.txt")
    for _, chunk in islice(in_chunks(left, SIZE, partial.lines + 1), chunks):
        partial.append(chunk, output_of(chunk))
    if chunks is not None:
        raise Stopped


def write(path: Path, lines: list[str] = LINES, *, resume: bool = False, chunks: int | None = None, **changes) -> None:
    """Write the output for `lines`; with `chunks` it is stopped after so many."""
    with partial_output(path, {**SETTINGS, **changes}, resume=resume) as partial:
        add(partial, lines, chunks)


def write_and_stop(path: Path, chunks: int = 2, *, resume: bool = False) -> None:
    with pytest.raises(Stopped):
        write(path, chunks=chunks, resume=resume)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.txt"


@pytest.fixture
def stopped(path: Path) -> Path:
    """An output that was stopped after two chunks."""
    write_and_stop(path)
    return path


def beside(path: Path) -> tuple[Path, Path]:
    return path.with_name("out.txt.partial"), path.with_name("out.txt.partial.json")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("lines", [LINES, LINES[:20], []], ids=["23", "20", "none"])
def test_it_appears_complete_and_alone(path, lines, resume):
    write(path, lines, resume=resume)
    assert path.read_bytes() == output_of(lines)
    assert names(path.parent) == ["out.txt"]


@pytest.mark.parametrize("stops", [[1], [4], [99], [1, 0, 2]], ids=["early", "late", "at the end", "again and again"])
def test_what_a_stop_leaves_is_continued(path, stops):
    path.write_bytes(b"of an earlier day")
    for number, chunks in enumerate(stops):
        write_and_stop(path, chunks, resume=number > 0)
        assert path.read_bytes() == b"of an earlier day"
    assert beside(path)[0].read_bytes() == output_of(LINES[: SIZE * sum(stops)])
    write(path, resume=True)
    assert path.read_bytes() == output_of(LINES)
    assert names(path.parent) == ["out.txt"]


@pytest.mark.parametrize("old", [None, b"of an earlier day"])
def test_a_stop_before_the_first_chunk_leaves_nothing(path, old):
    if old is not None:
        path.write_bytes(old)
    before = names(path.parent)
    write_and_stop(path, chunks=0)
    assert names(path.parent) == before


@pytest.mark.parametrize("torn", [b"half a li", b"a line\nhalf", b"\n", b"\x00" * 4096, output_of(LINES[10:15])])
def test_what_was_torn_is_written_again(stopped, torn):
    with beside(stopped)[0].open("ab") as file:
        file.write(torn)
    write(stopped, resume=True)
    assert stopped.read_bytes() == output_of(LINES)


def test_one_without_a_whole_chunk_starts_anew(path):
    begun, record = beside(path)
    begun.write_bytes(b"half a chunk")
    Record({"beam": 1}, output=hashlib.blake2b(digest_size=16).hexdigest()).write(record)
    write(path)
    assert path.read_bytes() == output_of(LINES)
    begun.touch()  # killed before anything was written
    path.unlink()
    write(path, resume=True)
    assert path.read_bytes() == output_of(LINES)
    assert names(path.parent) == ["out.txt"]


def test_lines_that_come_after_those_that_are_done_may_change(stopped):
    lines = [*LINES[: 2 * SIZE], "another", *LINES[15:], "and one more"]
    write(stopped, lines, resume=True)
    assert stopped.read_bytes() == output_of(lines)


CALLS = [(os, "fsync", call, call // 2) for call in range(11)]  # the first record, then each chunk and its record
CALLS += [(partial, "write_json", call, call) for call in range(6)]


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("module", "name", "call", "chunks"), CALLS)
def test_a_stop_at_any_write_leaves_whole_chunks(path, module, name, call, chunks, after, error, monkeypatch):
    do, calls = getattr(module, name), count()

    def stopping(*arguments: object) -> None:
        stops = next(calls) == call
        if after or not stops:
            do(*arguments)
        if stops:
            raise error

    monkeypatch.setattr(module, name, stopping)
    with pytest.raises(type(error)) as raised:
        write(path)
    assert raised.value is error
    begun, record = beside(path)
    if chunks:
        assert begun.read_bytes() == output_of(LINES[: SIZE * chunks])
        assert json.loads(record.read_bytes())["lines"] == min(SIZE * chunks, len(LINES))
    else:
        assert names(path.parent) == []
    write(path, resume=True)
    assert path.read_bytes() == output_of(LINES)


# What is refused, and stays as it is


def check_refused(path: Path, error: type[Exception], message: str, lines: list[str] = LINES, **options) -> None:
    before = {name: (path.parent / name).read_bytes() for name in names(path.parent)}
    with pytest.raises(error, match=message):
        write(path, lines, **{"resume": True, **options})
    assert {name: (path.parent / name).read_bytes() for name in names(path.parent)} == before


def test_to_start_over_what_was_stopped(stopped):
    message = r"out\.txt\.partial has the output for 10 lines, of a run that was stopped: continue with --resume, or"
    check_refused(stopped, DataError, message, resume=False)


def test_to_resume_what_is_complete(path):
    write(path)
    message = r"out\.txt is there and out\.txt\.partial isn't: there is nothing to resume; leave out --resume"
    check_refused(path, DataError, message)


def test_other_settings(stopped):
    message = r"\.partial was started with beam 5, new None, and is to be continued with beam 2, new 7: give the same"
    check_refused(stopped, ConfigError, message, beam=2, new=7)


@pytest.mark.parametrize("lines", [["other", *LINES[1:]], [*LINES[:9], "other", *LINES[10:]], LINES[:9], [], LINES[1:]])
def test_another_input(stopped, lines):
    message = r"lines\.txt doesn't begin with the 10 lines whose output is in .*out\.txt\.partial: give the input"
    check_refused(stopped, DataError, message, lines)


@pytest.mark.parametrize("resume", [False, True])
def test_what_has_no_record_may_be_somebody_elses(stopped, resume):
    beside(stopped)[1].unlink()
    message = r"out\.txt\.partial has no out\.txt\.partial\.json that says what it is: remove .* to start over"
    check_refused(stopped, DataError, message, resume=resume)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_is_not_written_on(path, kind):
    begun, precious = beside(path)[0], path.with_name("precious")
    precious.write_text("mine")
    begun.symlink_to(precious) if kind == "link" else os.mkfifo(begun)
    with pytest.raises(DataError, match=r"out\.txt\.partial must be a file, and is a link, a folder, a pipe"):
        write(path)
    assert names(path.parent) == ["out.txt.partial", "precious"]
    assert precious.read_text() == "mine"


def test_a_link_in_the_output_s_place_is_replaced_and_what_it_points_to_stays(path):
    path.with_name("precious").write_text("mine")
    path.symlink_to("precious")
    write(path)
    assert (path.is_symlink(), path.read_bytes()) == (False, output_of(LINES))
    assert path.with_name("precious").read_text() == "mine"


# What is damaged is set aside with its work


def flip(path: Path, number: int) -> None:
    content = bytearray(path.read_bytes())
    content[number] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "no JSON": lambda begun, record: record.write_text("{"),
    "a list": lambda begun, record: record.write_text("[1]"),
    "nested": lambda begun, record: record.write_text("[" * 100_000),
    "no number": lambda begun, record: record.write_text('{"lines": "many", "bytes": 3, "digest": "", "settings": {}}'),
    "no lines": lambda begun, record: record.write_text(record.read_text().replace('"lines": 10', '"lines": 0')),
    "fewer bytes": lambda begun, record: record.write_text(record.read_text().replace('"bytes": 1', '"bytes": ')),
    "cut": lambda begun, record: os.truncate(begun, begun.stat().st_size - 1),
    "other output": lambda begun, record: flip(begun, 0),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("resume", [False, True])
def test_what_is_damaged_is_set_aside_and_nothing_of_it_removed(stopped, damage, resume):
    damage(*beside(stopped))
    before = [file.read_bytes() for file in beside(stopped)]
    with pytest.warns(UserWarning, match=r"they are out\.txt\.partial\.damaged-1 and out\.txt\.partial\.damaged-1\.j"):
        write(stopped, resume=resume)
    assert stopped.read_bytes() == output_of(LINES)
    aside = [stopped.with_name(f"out.txt.partial.damaged-1{end}") for end in ("", ".json")]
    assert [file.read_bytes() for file in aside] == before
    assert names(stopped.parent) == ["out.txt", *(file.name for file in aside)]


def test_any_changed_bit_of_a_record_or_its_output_is_found(stopped):
    files_before = {file: file.read_bytes() for file in beside(stopped)}
    draw = random.Random(1)
    for file, content in files_before.items():
        for number in draw.sample(range(len(content)), 60):
            flip(file, number)
            assert partial._read(beside(stopped)[0]) is None, (file.name, number)
            file.write_bytes(content)
    assert partial._read(beside(stopped)[0]) is not None


def test_what_a_kill_right_at_the_end_left_is_removed(path):
    write(path)
    beside(path)[1].write_text("{}")
    with pytest.raises(DataError, match="there is nothing to resume"):
        write(path, resume=True)
    assert names(path.parent) == ["out.txt"]


@pytest.mark.parametrize("resume", [False, True])
def test_two_at_once(path, resume):
    pytest.importorskip("fcntl")
    with partial_output(path, SETTINGS, resume=False) as partial:
        add(partial, LINES[:10])
        check_refused(path, DataError, r"another process is writing to .*out\.txt\.partial: wait", resume=resume)
    assert path.read_bytes() == output_of(LINES[:10])


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL], ids=errno.errorcode.get)
def test_a_file_system_without_locks_works(path, number, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    write_and_stop(path)
    write(path, resume=True)
    assert path.read_bytes() == output_of(LINES)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="no: no such folder to write out"):
        write(tmp_path / "no" / "out.txt")


# translate_file; tests/commands/test_translate.py stops and resumes it with every kind of search


@pytest.fixture(scope="module")
def translator(random_run, tmp_path_factory) -> Translator:
    symbols = SymbolTokenizer("abcd")
    run = random_run(tmp_path_factory.mktemp("run"), symbols, symbols)
    return Translator.of(run.model, run.source_tokenizer, run.target_tokenizer, precision="float32")


CONFIG = SearchConfig(beam=2, n_best=2, max_length=7)
SOURCES = ["a b", "", "d c b a", "b"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, lines in (("in", SOURCES), ("prefixes", ["b", "", "", "d"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("prefixes", [None, ["b", "", "", "d"]])
def test_a_file_is_translated_as_its_lines_are(translator, folder, scores, prefixes):
    prefix_file = None if prefixes is None else str(folder / "prefixes")
    output = str(folder / "out")
    translate_file(translator, str(folder / "in"), output, config=CONFIG, prefixes=prefix_file, scores=scores)
    expected = [
        "\t".join([str(number), *([f"{one.score:.4f}"] if scores else []), one.text])
        for number, best in enumerate(translator.translate_n_best(SOURCES, CONFIG, prefixes=prefixes), 1)
        for one in best
    ]
    assert (folder / "out").read_text().splitlines() == expected


def test_a_file_is_not_translated_into_its_own_place(translator, folder):
    (folder / "link").hardlink_to(folder / "in")
    for name in ("in", "link"):
        with pytest.raises(ConfigError, match=r"output and input must be two files, got .*/(in|link) for both"):
            translate_file(translator, folder / "in", folder / name, config=CONFIG)
    with pytest.raises(ConfigError, match="output and prefixes must be two files"):
        translate_file(translator, folder / "in", folder / "prefixes", config=CONFIG, prefixes=folder / "prefixes")
    assert (folder / "in").read_text().splitlines() == SOURCES


def test_terms_are_refused_with_sampling_before_anything_is_written(translator, folder):
    output, sampling = folder / "out", SearchConfig(sample=True)
    with pytest.raises(ConfigError, match=r"glossary and placeholders need a search, .*: leave out `sample`"):
        translate_file(translator, folder / "in", output, config=sampling, placeholders=r"\d+")
    assert not output.exists()


def test_a_stop_says_what_it_leaves_and_a_model_without_a_folder_resumes_too(translator, folder, monkeypatch):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 2)
    translate_file(translator, folder / "in", folder / "whole")
    (folder / "long").write_text((folder / "in").read_text() + "a\n" * 3)
    with monkeypatch.context() as patch:
        calls = iter([files.translate_chunk] * 2)
        patch.setattr(files, "translate_chunk", lambda *given, **options: next(calls, stop)(*given, **options))
        with pytest.raises(Stopped) as stopped:
            translate_file(translator, folder / "long", folder / "out")
    assert stopped.value.__notes__ == [f"{folder}/out.partial has the translations of 4 lines: continue with --resume"]
    translate_file(translator, folder / "in", folder / "out", resume=True)  # which ends where it was stopped
    assert (folder / "out").read_bytes() == (folder / "whole").read_bytes()


def stop(*_: object, **__: object) -> bytes:
    raise Stopped


@pytest.mark.usefixtures("unchecked")
def test_terms_in_a_dictionary_are_refused_before_anything_is_written(translator, folder):
    with pytest.raises(ArgumentError, match=r"^glossary must be a Glossary, got \{'dog': 'Hund'\}: pass Glossary\("):
        translate_file(translator, folder / "in", folder / "out", config=CONFIG, glossary={"dog": "Hund"})
    assert not (folder / "out").exists()
