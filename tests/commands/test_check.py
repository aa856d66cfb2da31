"""`glassformer check` on good and on suspicious pairs; files that are refused are in tests/pairs/test_odd_files.py."""

import os

import pytest


def test_it_says_what_the_pairs_are_like_and_what_train_would_choose(here, capfd, run_command, tree):
    rows = [("one cat", "eine Katze"), ("", "leer"), ("one cat", "eine Katze"), ("same", "same"), ("3", "drei")]
    (here / "odd.csv").write_text("id,en,de\n" + "".join(f"{n},{s},{t}\n" for n, (s, t) in enumerate(rows)))
    before = tree(here)
    assert run_command("check odd.csv --valid-source odd.csv --max-minutes 2") == 0
    out = capfd.readouterr().out
    for line in (
        "odd.csv: en is the source, de the target (of the columns id, en, de)",
        "odd.csv: 5 pairs, for example",
        "characters a line               3.8, at most 7             6.4, at most 10",
        "words a line                               1.2                         1.4",
        "script                                   Latin                       Latin",
        "          4 to 7  ████████████████████████    ████████████████████████",
        "empty side (left out): 1 pair, number 2:  -> leer",
        "repeated: 1 pair, number 3: one cat -> eine Katze",
        "target copies the source: 1 pair, number 4: same -> same",
        "4 of the 4 validation sources are among those to train on (the first is number 1)",
        "  --target-tokenizer char       lines of 7 characters and 2 words on average",
        "  --encoder-layers 2            4 pairs of short lines, 2 minutes",
        "  --metric exact                exact match: short targets",
        "and prepare:\n  learning the vocabulary\n",
        "  train: 4 of 5 pairs, left out 1 empty; 27 source and 36 target tokens\n",
    ):
        assert line in out, out
    assert tree(here) == before


def test_the_name_of_a_file_need_not_be_utf_8(here, capfdbinary, run_command):
    name = b"p\xff.tsv"
    (here / os.fsdecode(name)).write_text("one\teins\ntwo\tzwei\n")
    assert run_command(f"check {os.fsdecode(name)}") == 0
    assert name + b": 2 pairs, for example\n" in capfdbinary.readouterr().out


def test_pairs_that_are_not_scored_are_no_overlap(here, capfd, run_command):
    """An empty line of both files was one."""
    (here / "train.tsv").write_text("\none\teins\ntwo\tzwei\n", encoding="utf-8")
    for last, said in (
        ("three\tdrei", "none of the 1 validation sources is among those to train on"),
        ("two\tZwei", "1 of the 1 validation sources is among those to train on (the first is number 3)"),
    ):
        (here / "valid.tsv").write_text(f"\n \t \n{last}\n", encoding="utf-8")
        assert run_command("check train.tsv --valid-source valid.tsv") == 0
        assert f"\n{said}" in capfd.readouterr().out


def test_nothing_wrong_is_said_too(here, capfd, run_command):
    (here / "fine.tsv").write_text("one\teins\ntwo\tzwei\n")
    (here / "valid.tsv").write_text("three\tdrei\n")
    assert run_command("check fine.tsv --valid-source valid.tsv") == 0
    out = capfd.readouterr().out
    assert "\nno pair is empty, repeated, a copy of its source, or the wrong way round\n" in out
    assert "\nnone of the 1 validation sources is among those to train on\n" in out


def test_what_has_no_translation_yet_decides_nothing(here, capfd, run_command):
    """Of a table of which a part is translated, the other rows made lines look short."""
    rows = [f"das ist der Satz mit der Nummer {n}\tthis is the sentence of the number {n}\n" for n in range(60)]
    chosen = list[str]()
    for name, more in (("all.tsv", 0), ("some.tsv", 140)):
        (here / name).write_text("".join([*rows, *(f"noch ohne Übersetzung {n}\t\n" for n in range(more))]))
        assert run_command(f"check {name}") == 0
        _, _, after = capfd.readouterr().out.partition("glassformer train would say:")
        chosen.append(after.partition("and prepare:")[0])
    assert "only 60 pairs" in chosen[0]
    assert chosen[0] == chosen[1]


def test_a_task_says_what_it_chooses(here, capfd, run_command):
    (here / "words.tsv").write_text("<V><PST>walk\twalked\n<N><PL>dog\tdogs\n")
    assert run_command("check words.tsv --valid-source words.tsv --task characters") == 0
    out = capfd.readouterr().out
    for line in (
        "  --tokenizer features          characters, and features such as <V> where there are any",
        "  --dropout 0.25                task characters",
        "  --max-updates 5000            task characters, 2 pairs",
        "  vocabulary: 17 ids, shared",
    ):
        assert line in out, out


UNITS = "".join(f'msgid "word {n}"\nmsgstr "{f"Wort {n}" if n % 4 else ""}"\n\n' for n in range(20))
APART = "without a pair, such as empty lines or units that aren't translated"


@pytest.mark.parametrize(
    ("name", "content", "pairs", "places", "empty"),
    [
        ("some.po", 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n' + UNITS, 15, "4 places", []),
        (
            *("lines.tsv", "one\teins\n\t\n\ntwo\tzwei\nthree\t\n", 3, "2 places"),
            ["empty side (left out): 1 pair, number 5: three -> "],
        ),
        ("one-gap.tsv", "one\teins\n\ntwo\tzwei\n", 2, "1 place", []),
    ],
)
def test_what_is_no_pair_is_not_counted_as_one(here, capfd, run_command, name, content, pairs, places, empty):
    (here / name).write_text(content)
    assert run_command(f"check {name}") == 0
    lines = capfd.readouterr().out.splitlines()
    begin = lines.index(f"{name}: {pairs} pairs, for example") + 1
    end = lines.index(f"  and {places} {APART}")
    assert end - begin == min(pairs, 3)
    assert "   -> " not in lines[begin:end]
    assert [line for line in lines if line.startswith("empty side")] == empty


def test_sources_that_seem_to_hold_both_sides_are_said(here, capfd, run_command):
    (here / "pairs.tsv").write_text("one\teins\ntwo\tzwei\n")
    (here / "target.txt").write_text("eins\nzwei\n")
    assert run_command("check pairs.tsv --target target.txt") == 0
    assert "pairs.tsv: its lines have tabs. If they are pairs, give this file alone\n" in capfd.readouterr().out
    (here / "one-tab.txt").write_text("one\teins\ntwo\n")
    assert run_command("check one-tab.txt --target target.txt") == 0
    assert "have tabs" not in capfd.readouterr().out
