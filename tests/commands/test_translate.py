"""`glassformer translate`: lines to lines, stopped and resumed; bad input is in test_cli.py."""

import gzip
import os
import pty
import re
import shutil
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from glassformer.generation import stream
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.markup.translate import translate_markup
from glassformer.text.tokenizer import SymbolTokenizer

UNKNOWN = "the model never saw this text, and reads it as unknown: "
SEARCH = SearchConfig(beam=2, max_length=7)


def without_cuts(err: str) -> str:
    """What was said, but for the line that counts translations of more than 7 tokens."""
    return "".join(line for line in err.splitlines(keepends=True) if " cut at the limit of tokens" not in line)


def test_translates_from_stdin_to_stdout(here, stdin, capfd, translator, run_command):
    lines = (here / "seven.txt").read_text(encoding="utf-8").splitlines()
    expected = translator.translate(lines, SEARCH)  # compiles what isn't yet
    stdin((here / "seven.txt").read_bytes())
    assert run_command("translate run SHORT") == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == expected
    assert out.endswith("\n")
    assert without_cuts(err) == ""


def test_translates_its_arguments(here, capfd, translator, run_command):
    lines = (here / "seven.txt").read_text(encoding="utf-8").splitlines()[:2]
    assert run_command(f"translate run '{lines[0]}' '{lines[1]}' SHORT") == 0
    assert capfd.readouterr().out.splitlines() == translator.translate(lines, SEARCH)
    assert run_command(f"translate run '{lines[0]}' --input seven.txt SHORT") == 2
    assert "are for files, and can't be combined with TEXT" in capfd.readouterr().err


def test_lines_with_tags_come_from_a_file_and_go_to_one(here, capfd, translator, run_command):
    lines = ["3 <b>May</b> 2024 &amp; <x/>", "", "<p>1</p>June"]
    (here / "tagged.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for format in ("html", "xml"):
        assert run_command(f"translate run --format {format} --input tagged.txt --output new.txt SHORT") == 0
        assert (here / "new.txt").read_text(encoding="utf-8").splitlines() == translate_markup(
            translator, lines, format, SEARCH
        )
        said = without_cuts(capfd.readouterr().err)
        assert said.endswith("heads are chosen: glassformer align run --source PAIRS.tsv\n")
        assert run_command(f"translate run --format {format} '{lines[0]}' --placeholders default SHORT") == 0
        out, err = capfd.readouterr()
        assert out.count("<b>") == out.count("</b>") == out.count("<x/>") == 1
        assert "0 terms and 0 placeholders in 0 lines" in err


def test_tags_that_need_no_alignment_need_no_heads(random_run, tmp_path, capfd, run_command):
    """The translation was written, and then the command failed: it asked which heads were chosen of none."""
    letters = SymbolTokenizer("abc")
    none = {f"decoder.{n}.source_attention": 0 for n in range(2)}
    random_run(tmp_path / "bare", letters, letters, heads_left=none)
    assert run_command(f"translate {tmp_path / 'bare'} '<p>a b</p>' --format html --device cpu") == 0
    out, err = capfd.readouterr()
    assert (out[:3], out[-5:]) == ("<p>", "</p>\n")
    assert "heads are chosen" in err


def test_html_that_goes_on_in_the_next_line_is_refused(here, capfd, run_command):
    """The rest of a script, in the lines after it, was translated."""
    for begin in ("<script>", "<!-- a", "a <pre>b"):
        (here / "lines").write_text(f"<p>a<p>b\n{begin}\nx = 1\n", encoding="utf-8")
        assert run_command("translate run --format html --input lines --output new.html SHORT") == 2
        said = run_command.complaint(without_cuts(capfd.readouterr().err))
        assert f"line 2: {begin.replace(' a', '').replace('a ', '').removesuffix('b')} isn't closed in its line" in said
        assert not (here / "new.html").exists()


def test_a_web_page_is_translated_whole(here, capfd, translator, run_command):
    page = "<html><script>\nf(1)\n</script><p>3 <b>May</b>\n  2024</p><p>June</p>\n"
    (here / "page.html").write_text(page, encoding="utf-8")
    [expected] = translate_markup(translator, [page], "html", SEARCH)
    for format in ("", "--format html"):
        assert run_command(f"translate run --input page.html {format} --output new.html SHORT") == 0
        assert (here / "new.html").read_text(encoding="utf-8") == expected
        assert "page.html: 2 of its texts translated\n" in capfd.readouterr().err
    assert run_command("translate run --input page.html --format xml --output other.html SHORT") == 2
    assert "a document says itself what it is, got xml" in run_command.complaint(capfd.readouterr().err)
    assert not (here / "other.html").exists()


def test_a_file_s_name_is_translated_with_a_hint(here, capfd, run_command):
    assert run_command(f"translate run seven.txt {'long' * 300} SHORT") == 0
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 2
    assert "seven.txt is a file, and its name is translated: --input seven.txt translates what it holds\n" in err
    assert err.count("is a file") == 1


def test_text_that_is_not_utf_8_or_begins_with_a_dash(here, capfd, run_command):
    assert run_command(f"translate run caf{os.fsdecode(bytes([233]))}") == 2
    assert "the text caf\\udce9 is not UTF-8" in run_command.complaint(capfd.readouterr().err)
    assert run_command("translate run '-hello there'") == 2
    assert "text that begins with - comes last, after --" in run_command.complaint(capfd.readouterr().err)
    assert run_command("translate run 'a b' SHORT -- '-hello there' 'b a'") == 0
    assert len(capfd.readouterr().out.splitlines()) == 3


def test_on_a_terminal_it_says_how_to_go_on_and_answers_each_line(here):
    leader, terminal = pty.openpty()
    command = [sys.executable, "-m", "glassformer", "translate", "run", "--device", "cpu"]
    with subprocess.Popen(
        command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.close(terminal)
        try:
            assert process.stderr.readline() == "a line, then Enter; Ctrl-D ends\n"
            for _ in range(2):
                os.write(leader, b"a b c\n")
                assert process.stdout.readline().endswith("\n")
            os.write(leader, b"\x04")
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
            os.close(leader)


def test_text_that_the_model_never_saw_is_said_once(here, stdin, capfd, run_command):
    stdin("a ж b\nж b ж щ\na b\n".encode())
    assert run_command("translate run SHORT") == 0
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 3
    assert without_cuts(err) == f"glassformer: warning: {UNKNOWN}ж щ\n"
    (here / "unknown.txt").write_text("a ж b\n", encoding="utf-8")
    assert run_command("translate run --input unknown.txt --output out.txt SHORT") == 0
    assert without_cuts(capfd.readouterr().err) == f"glassformer: warning: {UNKNOWN}ж\n"


def test_an_input_of_rows_is_said_and_one_without_lines_refused(here, capfd, run_command):
    for name, said in (("pairs.tsv", "has tabs: each line is"), ("a.jsonl", "has JSON: each line is")):
        (here / "a.jsonl").write_text('{"en": "a"}\n')
        assert run_command(f"translate run --input {name} --output out.txt SHORT") == 0
        assert capfd.readouterr().err.startswith(f"{name} {said} translated as it stands")
    (here / "a.tmx").write_text('<?xml version="1.0"?>\n<tmx version="1.4"></tmx>\n')
    assert run_command("translate run --input a.tmx SHORT") == 2
    assert "a.tmx is a document, which is written whole" in run_command.complaint(capfd.readouterr().err)


def test_a_document_is_translated_and_what_stayed_is_said(here, capfd, translator, run_command):
    (here / "a.po").write_text('msgid "a b"\nmsgstr ""\n\nmsgid "c"\nmsgstr "d"\n')
    assert run_command("translate run --input a.po --output b.po SHORT --precision float32") == 0
    out, err = capfd.readouterr()
    assert (out, without_cuts(err)) == ("", "a.po: 1 of its texts translated, 1 have a translation and keep it\n")
    (expected,) = translator.translate(["a b"], SEARCH)
    assert (here / "b.po").read_text() == f'msgid "a b"\nmsgstr "{expected}"\n\nmsgid "c"\nmsgstr "d"\n'
    (here / "a.xlf").write_text('<xliff version="1.2"><trans-unit><source>a <x/></source></trans-unit></xliff>')
    assert run_command("translate run --input a.xlf --output b.xlf --overwrite-targets SHORT") == 0
    err = capfd.readouterr().err
    cut = "in texts with tags: 1 translation cut at the limit of tokens: try a higher --max-length than 7"
    repeats = "or where the model repeats itself --no-repeat-ngram 3"
    assert err == f"a.xlf: 1 of its texts translated\n{cut}, {repeats}\n"
    before, after = (here / "a.xlf").read_text(), (here / "b.xlf").read_text()
    target = re.search(r"<target[^>]*>(.*)</target>", after)
    assert target is not None
    assert target[1].count("<x/>") == 1
    assert after.replace(target[0], "") == before


def test_terms_reach_documents_and_paragraphs(here, capfd, translator, run_command):
    (here / "terms.tsv").write_text("a\tg f\n")
    (here / "a.xlf").write_text(
        '<xliff version="1.2"><trans-unit><source>a <x/> b</source></trans-unit>'
        "<trans-unit><source>b a</source></trans-unit></xliff>"
    )
    terms = "--glossary terms.tsv --placeholders '%s' --device cpu --beam 2 --max-length 9 --precision float32"
    assert run_command(f"translate run --input a.xlf --output b.xlf {terms}") == 0
    said = without_cuts(capfd.readouterr().err).splitlines()
    assert said[0] == "a.xlf: 2 of its texts translated"
    assert re.fullmatch(r"in texts with tags: 1 term \(. forced\) and 0 placeholders in 1 line", said[1])
    assert re.fullmatch(r"1 term \(. forced\) and 0 placeholders in 1 line", said[2])
    targets = re.findall("<target[^>]*>(.*?)</target>", (here / "b.xlf").read_text())
    assert ["g f" in " ".join(re.sub("<[^>]*>", " ", target).split()) for target in targets] == [True, True]
    assert run_command(f"translate run --segment paragraph --sentences 2 {terms} 'a bc.  %s a.'") == 0
    out, err = capfd.readouterr()
    assert (out.count("g f"), out.count("%s"), out.count("  ")) == (2, 1, 1)
    assert "2 terms (" in err
    assert ") and 1 placeholder in 1 line\n" in err


def test_placeholders_of_a_document_are_copied_unless_that_is_turned_off(here, capfd, run_command):
    (here / "a.json").write_text('["a {x} b", "a <b>{y}</b>"]')
    options = "--device cpu --beam 2 --max-length 9 --precision float32"
    assert run_command(f"translate run --input a.json --output b.json {options}") == 0
    said = without_cuts(capfd.readouterr().err).splitlines()
    counted = "0 terms and 1 placeholder in 1 line"
    assert said == ["a.json: 2 of its texts translated", f"in texts with tags: {counted}", counted]
    found = (here / "b.json").read_text()
    assert (found.count("{x}"), found.count("<b>{y}</b>")) == (1, 1)
    assert run_command(f"translate run --input a.json --output c.json --placeholders none {options}") == 0
    assert "{" not in (here / "c.json").read_text()
    assert "placeholder" not in capfd.readouterr().err
    assert run_command("translate run --input a.json --output d.json --sample --device cpu --max-length 3") == 2
    assert "text with tags is translated by a search" in capfd.readouterr().err


def test_what_was_cut_is_said_with_what_to_do(here, stdin, capfd, run_command):
    stdin(b"\na b c. D e f.\n")
    assert run_command("translate run --device cpu --beam 1 --max-length 3 --min-length 3") == 0
    said = "1 translation was cut at the limit of tokens, the first of line 2: try --segment paragraph or a higher"
    repeats = "or where the model repeats itself --no-repeat-ngram 3"
    assert f"{said} --max-length than 3, {repeats}\n" in capfd.readouterr().err
    limits = "--device cpu --beam 1 --max-length 3 --min-length 3"
    assert run_command(f"translate run 'a b c. D e f.' {limits} --segment paragraph") == 0
    err = capfd.readouterr().err
    assert f"the first of line 1: try a higher --max-length than 3, {repeats}\n" in err


@pytest.mark.parametrize("name", ["seven.txt", "seven.txt.gz"])
def test_translates_from_file_to_file(here, capfd, translator, name, run_command):
    lines = (here / "seven.txt").read_text(encoding="utf-8").splitlines()
    (here / "seven.txt.gz").write_bytes(gzip.compress((here / "seven.txt").read_bytes()))
    (here / "out.txt").write_text("of an earlier day", encoding="utf-8")
    assert run_command(f"translate run --input {name} --output out.txt SHORT") == 0
    assert (here / "out.txt").read_text(encoding="utf-8").splitlines() == translator.translate(lines, SEARCH)
    out, err = capfd.readouterr()
    assert (out, without_cuts(err)) == ("", "")
    assert not list(here.glob("*.tmp")) + list(here.glob(".*"))


@pytest.mark.parametrize("n_best", [1, 2])
def test_scores_and_n_best_with_line_numbers(n_best, here, capfd, translator, monkeypatch, run_command):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 3)  # numbers continue from chunk to chunk
    lines = (here / "seven.txt").read_text(encoding="utf-8").splitlines()
    assert run_command(f"translate run --input seven.txt --n-best {n_best} --scores --precision float32 SHORT") == 0
    found = translator.translate_n_best(lines, SearchConfig(beam=2, n_best=n_best, max_length=7))
    expected = [
        (*([str(number)] if n_best > 1 else []), f"{best.score:.4f}", best.text)
        for number, bests in enumerate(found, 1)
        for best in bests
    ]
    assert len(expected) == 7 * n_best
    assert [tuple(line.split("\t")) for line in capfd.readouterr().out.splitlines()] == expected


def test_equal_lines_of_different_chunks_are_drawn_differently(here, capfd, monkeypatch, run_command):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 20)
    line = (here / "seven.txt").read_text(encoding="utf-8").splitlines()[0]
    (here / "same.txt").write_text(f"{line}\n" * 60, encoding="utf-8")
    command = "translate run --input same.txt --sample --temperature 5 --max-length 7 --device cpu"
    assert run_command(command) == 0
    drawn = capfd.readouterr().out.splitlines()
    assert len({tuple(drawn[first : first + 20]) for first in (0, 20, 40)}) == 3
    assert run_command(command) == 0
    assert capfd.readouterr().out.splitlines() == drawn


@pytest.mark.parametrize("output", ["", "--output out.txt"], ids=["to stdout", "to a file"])
@pytest.mark.parametrize("given", ["", "--input seven.txt"], ids=["stdin", "a file"])
def test_translations_begin_as_prescribed(given, output, here, stdin, capfd, translator, monkeypatch, run_command):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 3)
    lines, prefixes = (
        (here / name).read_text(encoding="utf-8").splitlines() for name in ("seven.txt", "prefixes-of-seven.txt")
    )
    if not given:
        stdin((here / "seven.txt").read_bytes())
    options = "SHORT --prefixes prefixes-of-seven.txt --precision float32"
    assert run_command(f"translate run {given} {output} {options}") == 0
    found = (capfd.readouterr().out or (here / "out.txt").read_text(encoding="utf-8")).splitlines()
    assert found == translator.translate(lines, SEARCH, prefixes=prefixes)
    assert all(line.startswith(prefix) for line, prefix in zip(found, prefixes, strict=True))
    assert found != translator.translate(lines, SEARCH)


def test_prefixes_of_a_translation_that_can_be_resumed_must_be_a_file(here, capfd, run_command):
    os.mkfifo(here / "pipe")
    assert run_command("translate run --input seven.txt --output out.txt --prefixes pipe SHORT") == 2
    err = capfd.readouterr().err
    assert "pipe is a pipe or device, and is read several times: save it" in run_command.complaint(err)


@pytest.mark.parametrize(
    "options",
    [
        "SHORT",
        "SHORT --n-best 2 --scores",
        "--device cpu --sample --seed 3 --n-best 2 --max-length 7",
        "SHORT --prefixes prefixes.txt",
    ],
    ids=["beam", "n-best", "sampled", "prefixes"],
)
def test_a_stopped_translation_is_resumed_to_the_same_bytes(
    options, here, capfd, monkeypatch, run_command, tree, stopping
):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 7)
    command = f"translate run --input source.txt {options}"
    assert run_command(f"{command} --output whole.txt") == 0
    before = tree(here)
    with stopping():
        assert run_command(f"{command} --output out.txt") == 130
    assert without_cuts(capfd.readouterr().err).splitlines() == [
        "out.txt.partial has the translations of 14 lines: continue with --resume",
        "glassformer: error: interrupted",
    ]
    assert run_command(f"{command} --output out.txt --resume") == 0
    assert tree(here) == {**before, "out.txt": before["whole.txt"]}


def test_what_to_translate_may_not_change_on_the_way(here, capfd, monkeypatch, run_command, tree, stopping):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 7)
    shutil.copytree(here / "run", here / "same")
    shutil.copytree(here / "run", here / "other")
    weights = load_file(here / "run" / "model.safetensors")
    save_file({name: -weight for name, weight in weights.items()}, here / "other" / "model.safetensors")
    with stopping():
        assert run_command("translate run --input source.txt --output out.txt SHORT") == 130
    capfd.readouterr()
    for command, message in {
        "translate run --input seven.txt": "seven.txt doesn't begin with the 14 lines whose output is in out.txt.par",
        "translate run --input source.txt --penalty wu": "started with penalty plain, and is to be contin",
        "translate run --input source.txt --scores": "started with scores False, and is to be continued with sco",
        "translate run --input source.txt --prefixes prefixes.txt": "started with prefixes (digest) None, and is to be",
        "translate other --input source.txt": "out.txt.partial was started with run folder (digest) ",
    }.items():
        before = tree(here)
        assert run_command(f"{command} --output out.txt --resume SHORT") == 2
        assert message in run_command.complaint(capfd.readouterr().err)
        assert tree(here) == before
    shutil.copy(here / "source.txt", here / "moved.txt")
    assert run_command("translate same --input moved.txt --output out.txt --resume SHORT") == 0
    assert run_command("translate run --input source.txt --output whole.txt SHORT") == 0
    assert (here / "out.txt").read_bytes() == (here / "whole.txt").read_bytes()


def test_a_bad_line_far_on_leaves_what_came_before_it(here, capfd, monkeypatch, run_command):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 2)
    assert run_command("translate run --input latin1.tsv --output out.txt SHORT") == 2
    _tabs, kept, error = capfd.readouterr().err.splitlines()
    assert kept.startswith("out.txt.partial has the translations of 2 lines")
    assert "latin1.tsv, line 3: not UTF-8" in error
    (here / "mended.tsv").write_text((here / "latin1.tsv").read_text(encoding="latin1"), encoding="utf-8")
    assert run_command("translate run --input mended.tsv --output out.txt --resume SHORT") == 0
    assert run_command("translate run --input mended.tsv --output whole.txt SHORT") == 0
    assert (here / "out.txt").read_bytes() == (here / "whole.txt").read_bytes()


def test_odd_lines_keep_their_neighbours_and_order(here, stdin, capfd, run_command):
    plain = ["a b c", "g f", "d d e"]
    odd = [plain[0], "", " \t ", "a " * 5000, plain[1], "語 ❤ zzz", "a\u2028b", plain[2]]
    stdin("".join(f"{line}\n" for line in odd).encode())
    assert run_command("translate run SHORT --precision float32") == 0  # bfloat16 rounds otherwise in other batches
    out, err = capfd.readouterr()
    lines = out.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(odd)
    assert lines[1] == lines[2] == ""
    assert [lines[0], lines[4], lines[7]] == Translator.load("run", "cpu", "float32").translate(plain, SEARCH)
    unknown, cut = without_cuts(err).splitlines()
    assert unknown == f"glassformer: warning: {UNKNOWN}語 ❤ zzz"
    assert cut.startswith("glassformer: warning: a source of 5,000 tokens is cut to its first 1,023: ")


def test_terms_and_placeholders_come_from_flags_and_are_counted(here, capfd, run_command):
    (here / "terms.tsv").write_text("a\tg f|e e\nx y\tg\n", encoding="utf-8")
    (here / "keep.txt").write_text("c\n", encoding="utf-8")
    (here / "in.txt").write_text("a b\n\nc {x}\nd\n", encoding="utf-8")
    options = "--glossary terms.tsv --keep keep.txt --placeholders default --device cpu --beam 2 --max-length 13"
    assert run_command(f"translate run --input in.txt --output out.txt {options}") == 0
    assert without_cuts(capfd.readouterr().err).splitlines()[-1].startswith("2 terms (")
    found = (here / "out.txt").read_text(encoding="utf-8").split("\n")
    assert "g f" in found[0] or "e e" in found[0]
    assert found[2].count("{x}") == 1
    assert "c" in found[2].split()
    assert run_command(f"translate run --input in.txt {options}") == 0
    out, err = capfd.readouterr()
    assert out.split("\n") == found
    assert without_cuts(err).splitlines()[-1].endswith("forced) and 1 placeholder in 2 lines")
    assert run_command(f"translate run d {options}") == 0
    assert capfd.readouterr().err == "0 terms and 0 placeholders in 0 lines\n"


def test_what_is_missing_is_named_with_its_line(here, capfd, run_command):
    (here / "terms.tsv").write_text("a\tg f e d c b a\n", encoding="utf-8")
    (here / "in.txt").write_text("b\na b\n", encoding="utf-8")
    assert run_command("translate run --input in.txt --glossary terms.tsv --device cpu --max-length 5") == 0
    err = capfd.readouterr().err
    assert "warning: max_length leaves no room for 'g f e d c b a': raise it" in err
    assert without_cuts(err).endswith("1 missing: line 2: g f e d c b a\n")
