"""Relations read from CoNLL-U, and heads that follow them, by hand."""

import gzip

import pytest
import torch
import torch.nn.functional as F

from glassformer.errors import DataError
from glassformer.insight import syntax
from glassformer.insight.heads import table_lines
from glassformer.insight.study import Sentences, study_heads
from glassformer.insight.syntax import Arc, RelationCounts, Syntax, Treebank
from glassformer.text.tokenizer import SymbolTokenizer, train_tokenizer

ENGLISH = """\
# text = Old dogs don't bark.
1\tOld\told\tADJ\t_\t_\t2\tamod\t_\t_
2\tdogs\tdog\tNOUN\t_\t_\t5\tnsubj:outer\t_\t_
3-4\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
3\tdo\tdo\tAUX\t_\t_\t5\taux\t_\t_
4\tn't\tnot\tPART\t_\t_\t5\tadvmod\t_\t_
5\tbark\tbark\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No
5.1\tnothing\t_\t_\t_\t_\t_\t_\t_\t_
6\t.\t.\tPUNCT\t_\t_\t5\tpunct\t_\t_

1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_

"""


@pytest.fixture
def english(tmp_path) -> Treebank:
    (tmp_path / "trees.conllu").write_text(ENGLISH)
    return Treebank(tmp_path / "trees.conllu")


def test_relations_of_words_are_those_of_their_tokens(english):
    # Spaces don't count, subtypes do not differ, don't stands for both of its words.
    found = english.arcs(["Ol", "d", "dog", "s", "don", "'", "t", "bar", "k."])
    assert found == [
        Arc("amod", [0, 1], [2, 3]),
        Arc("nsubj", [2, 3], [7, 8]),
        Arc("advmod", [4, 5, 6], [7, 8]),
    ]
    assert english.arcs(["Go"]) == []


def test_sentences_are_found_by_their_text(english):
    assert english.arcs_of_all([["G", "o"], ["Stay"]]) == [[], None]
    assert english.arcs(["Old", "cats"]) is None
    with pytest.raises(
        DataError, match=r"trees.conllu has a tree for none of the 2 sentences: its trees must have their"
    ):
        english.arcs_of_all([["Stay"], ["go"]])


def test_tokens_of_a_sentencepiece_model_find_their_tree(english):
    tokenizer = train_tokenizer(["Old dogs don't bark.", "Go"] * 9, kind="char", vocab_size=None, seed=1)
    surfaces = tokenizer.surfaces("Old dogs don't bark.")
    (amod, *_) = english.arcs(surfaces)
    assert ["".join(surfaces[n] for n in tokens) for tokens in (amod.dependent, amod.head)] == ["Old", "dogs"]


def test_tokens_may_be_parts_of_letters(tmp_path):
    (tmp_path / "trees.conllu").write_text("1\t한\t_\t_\t_\t_\t2\tamod\t_\t_\n2\té\t_\t_\t_\t_\t0\troot\t_\t_\n\n")
    tokenizer = train_tokenizer(["한 é"] * 9, kind="char", vocab_size=None, seed=1, decompose=True)
    (link,) = Treebank(tmp_path / "trees.conllu").arcs(tokenizer.surfaces("한 é"))
    assert (len(link.dependent), len(link.head)) == (3, 2)


def test_what_a_head_follows_by_hand(monkeypatch):
    monkeypatch.setattr(syntax, "MIN_OCCURRENCES", 3)
    links = [Arc("nsubj", [0], [2]), Arc("obj", [3], [1])]
    # Head 0 looks from each subject at its verb; head 1 always two to the right, or at the last.
    looks = torch.tensor([[2, 0, 1, 0], [2, 3, 3, 3]])
    counts = RelationCounts(2)
    for _ in range(3):
        counts.add(F.one_hot(looks, 4).float(), links)
    counts.add(F.one_hot(torch.tensor([[3, 0, 0, 0], [2, 3, 3, 3]]), 4).float(), [Arc("nsubj", [0], [3])])
    # Subject to verb: of 4 looks head 0 finds 4, head 1 finds 3; the best offset, 2, finds 3.
    assert counts.best(0) == Syntax(relation="nsubj", to="head", found=1.0, by_position=0.75)
    assert counts.best(1) == Syntax(relation="nsubj", to="head", found=0.75, by_position=0.75)


def test_few_relations_say_nothing():
    counts = RelationCounts(1)
    counts.add(torch.eye(4)[None], [Arc("nsubj", [0], [2])])
    assert counts.best(0) is None


def test_a_head_that_follows_a_relation_has_that_role(random_run, tmp_path, monkeypatch):
    run = random_run(tmp_path / "run", SymbolTokenizer("abcd"), SymbolTokenizer("uvwx"), encoder_layers=1)
    # a and b depend on each other at changing distance: in each sentence d and c stand somewhere between.
    lines = ["a b c d", "a c b d", "c a d b", "a c d b", "b d c a"]
    trees = []
    for line in lines:
        words = line.split()
        rows = [(word, words.index("b") + 1 if word == "a" else 0, "obj" if word == "a" else "dep") for word in words]
        trees.append("".join(f"{n}\t{w}\t_\t_\t_\t_\t{h}\t{r}\t_\t_\n" for n, (w, h, r) in enumerate(rows, 1)) + "\n")
    (tmp_path / "trees.conllu").write_text("".join(reversed(trees)))
    monkeypatch.setattr(syntax, "MIN_OCCURRENCES", 5)
    # Head 0: a asks for what b has.
    attention, width = run.model.encoder[0].self_attention, run.model.encoder[0].self_attention.head_dim
    (a, b) = (run.source_tokenizer.encode([letter])[0][0] for letter in "ab")
    with torch.no_grad():
        run.model.source_embedding.weight[[a, b]] = 100 * torch.eye(24)[:2]
        attention.in_proj_weight[:width] = torch.zeros(width, 24).index_fill(0, torch.tensor(0), 1.0) * torch.eye(24)[0]
        attention.in_proj_weight[24 : 24 + width] = attention.in_proj_weight[:width].roll(1, 1)
    sentences = Sentences.from_pairs(run, [(line, "u v") for line in lines], 10, Treebank(tmp_path / "trees.conllu"))
    heads = study_heads(run, sentences)
    found = heads[0].syntax
    assert found == Syntax(relation="obj", to="head", found=1.0, by_position=0.4)
    assert heads[0].role == "syntactic"
    assert list(table_lines(heads[:1]))[1].endswith("syntactic: obj to head 100% (40%)")
    assert all(head.syntax is None for head in heads if head.attention.startswith("decoder"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("some plain text\n\n", "trees.conllu is not CoNLL-U .*: ten columns, tabs between them"),
        ("1\ta\tb\n\n", "trees.conllu is not CoNLL-U .*: ten columns, tabs between them"),
        ("1\tcafé\n\n", "trees.conllu: not UTF-8 .byte 0xe9.; .*convert it"),
        ("# " + "a" * (1 << 20), "trees.conllu, line 1: it has more than 1,048,576 bytes"),
        (None, "trees.conllu: no such file"),
    ],
)
def test_what_is_no_treebank_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "trees.conllu").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=message):
        Treebank(tmp_path / "trees.conllu")


def test_the_command_takes_trees(run, tmp_path, capsys, run_command):
    (tmp_path / "pairs.tsv").write_text("a b\tu v\n")
    (tmp_path / "trees.conllu").write_text("1\tc\t_\t_\t_\t_\t0\troot\t_\t_\n\n")
    assert run_command(f"heads {tmp_path}/run --data {tmp_path}/pairs.tsv --trees {tmp_path}/trees.conllu") == 2
    assert "trees.conllu has a tree for none of the 1 sentences" in capsys.readouterr().err


def test_trees_may_be_packed(tmp_path):
    (tmp_path / "trees.conllu.gz").write_bytes(gzip.compress(b"1\tdogs\t_\t_\t_\t_\t0\troot\t_\t_\n\n"))
    assert Treebank(tmp_path / "trees.conllu.gz").arcs(["do", "gs"]) == []
