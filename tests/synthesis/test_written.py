"""Translations as the stages leave them."""

import pytest

from glassformer.errors import DataError
from glassformer.generation import stream
from glassformer.generation.config import SearchConfig
from glassformer.generation.files import translate_file
from glassformer.generation.translator import Translator
from glassformer.synthesis.written import read_written, write_here, write_hypotheses


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b\nc\nd e f\n")
    return path


def test_one_translation_a_line(text, tmp_path):
    written = tmp_path / "written.txt"
    written.write_text("-0.5\tB A\n-0.25\t\n-1.0\tF\tE\n")
    assert list(read_written(text, written, 1)) == [("a b", -0.5, "B A"), ("c", -0.25, ""), ("d e f", -1.0, "F\tE")]


def test_several_translations_a_line(text, tmp_path):
    written = tmp_path / "written.txt"
    written.write_text("1\t-0.5\tB A\n1\t-0.75\tB\n2\t-0.25\tC\n3\t-1.0\tF\tE\n")
    rows = list(read_written(text, written, 2))
    assert rows == [("a b", -0.5, "B A"), ("a b", -0.75, "B"), ("c", -0.25, "C"), ("d e f", -1.0, "F\tE")]
    assert write_hypotheses(text, written, 2, tmp_path / "hypotheses") == 4
    assert (tmp_path / "hypotheses").read_text() == "B A\nB\nC\nF\tE\n"


@pytest.mark.parametrize(
    ("content", "n_best", "message"),
    [
        ("B A\n", 1, r"written.txt, line 1: expected score<tab>translation: remove the file to write it anew"),
        ("-0.5\tB\nx\tC\n", 1, r"written.txt, line 2: expected score<tab>translation"),
        ("-0.5\tB\n", 2, r"written.txt, line 1: expected number<tab>score<tab>translation"),
        ("-0.5\tB A\n-0.5\tC\n", 1, r"written.txt has no translation of line 3 of .*text.txt: remove it"),
    ],
)
def test_what_no_writer_left(content, n_best, message, text, tmp_path):
    (tmp_path / "written.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        list(read_written(text, tmp_path / "written.txt", n_best))


@pytest.mark.parametrize("n_best", [1, 3])
def test_a_run_writes_here_what_translate_writes_and_goes_on_after_a_stop(n_best, run, tmp_path, monkeypatch):
    lines = ["a b c", "d", "e f", "g h i j", "k", "l m", "n o p"]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    search = SearchConfig(beam=3, n_best=n_best, max_length=9)
    translator = Translator.load(run, "cpu", "float32")
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 3)
    translate_file(translator, tmp_path / "text", tmp_path / "plain", config=search, scores=True)
    chunks = Translator.translate_n_best
    calls = []

    def lost(self, lines, *args, **kwargs):
        calls.append(len(lines))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return chunks(self, lines, *args, **kwargs)

    monkeypatch.setattr(Translator, "translate_n_best", lost)
    place = dict(device="cpu", precision="float32")
    with pytest.raises(KeyboardInterrupt) as stopped:
        write_here([run], tmp_path / "text", tmp_path / "written", search, **place)
    [note] = stopped.value.__notes__
    assert note.endswith("written.partial has the translations of 3 lines: the same command continues")
    for _ in range(2):  # complete, it is left as it is
        write_here([run], tmp_path / "text", tmp_path / "written", search, **place)
    assert calls == [3, 3, 3, 1]
    assert (tmp_path / "written").read_bytes() == (tmp_path / "plain").read_bytes()
    assert len(list(read_written(tmp_path / "text", tmp_path / "written", n_best))) == 7 * n_best
