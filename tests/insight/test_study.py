"""What heads do, against statistics of weights written out, and the command that shows it."""

import json
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from glassformer import Want, capture
from glassformer.attention.masks import keep_from_ids
from glassformer.errors import DataError, RunError
from glassformer.insight.heads import Head, read_heads, table_lines
from glassformer.insight.prune import without_heads
from glassformer.insight.study import (
    BATCH_TOKENS,
    FREQUENT,
    Sentences,
    _batches_of_similar_length,
    _Statistics,
    role_of,
    study_heads,
)
from glassformer.insight.syntax import Syntax
from glassformer.run.folder import load_run
from glassformer.training.config import TrainConfig
from glassformer.training.prepare import prepare_run


def test_statistics_are_those_of_the_weights(run, sentences, encoded):
    studied = study_heads(run, sentences)
    assert [(head.attention, head.head) for head in studied] == [(n, h) for n in run.model.attentions for h in range(3)]
    rows: dict[str, list[tuple[Tensor, int]]] = {name: [] for name in run.model.attentions}
    for source, target in encoded:
        target_in = torch.cat([torch.tensor([run.model.target_pad]), target[:-1]])
        keep = keep_from_ids(source[None], run.model.source_pad)
        with torch.no_grad(), capture(run.model, Want(weights=True)) as captured:
            run.model.decode(target_in[None], run.model.start(run.model.encode(source[None], keep), keep))
        for name, one in captured.items():
            special = 0 if re.search("decoder.*self", name) else len(source) - 1
            rows[name].append((one.weights[0].double(), special))
    norms: Counter[str] = Counter()
    for head in studied:
        queries = [
            (weights[head.head, i], i, special)
            for weights, special in rows[head.attention]
            for i in range(weights.shape[1])
        ]
        others = [[x for j, x in enumerate(p.tolist()) if j != special] for p, _, special in queries]
        for name, numbers in {
            "entropy": [torch.special.entr(p).sum().item() for p, _, _ in queries],
            "end": [p[special].item() for p, _, special in queries],
            "previous": [p[i - 1].item() for p, i, _ in queries if 0 < i <= len(p)],
            "next": [p[i + 1].item() for p, i, _ in queries if i + 1 < len(p)],
            "confidence": [max(row, default=0.0) for row in others],
        }.items():
            assert getattr(head, name) == pytest.approx(sum(numbers) / len(queries), abs=1e-5), name
        offsets = Counter(int(p.argmax()) - i for p, i, _ in queries)
        assert head.positional == pytest.approx(max(offsets.values()) / len(queries))
        assert offsets[head.offset] == max(offsets.values())
        norms[head.attention] += head.importance**2
    assert_close(torch.tensor(list(norms.values())), torch.ones(len(norms)))


def test_rare_words_by_hand():
    # Token 9 is the rarest of the first sentence, 8 of the second; the third has frequent ones alone.
    ranks = {**{n: n - 10 for n in range(10, 10 + FREQUENT)}, 8: FREQUENT, 9: FREQUENT + 1}
    sources = [torch.tensor([10, 9, 11, 0]), torch.tensor([8, 12, 13, 0]), torch.tensor([10, 11, 12, 0])]
    targets = torch.tensor([[1, 0], [0, 1], [2, 2]])  # in each sentence, where head 0 and head 1 look
    weights = F.one_hot(targets, 4).float()[:, :, None].expand(3, 2, 4, 4)
    statistics = _Statistics(2)
    statistics.add_rare(weights, sources, ranks)
    assert (statistics._rare.tolist(), statistics._sentences) == ([2.0, 0.0], 2)


FOLLOWS = Syntax(relation="obj", to="head", found=0.61, by_position=0.5)


@pytest.mark.parametrize(
    ("changes", "role"),
    [
        ({}, ""),
        ({"positional": 0.9}, "positional"),
        ({"positional": 0.89, "rare": 0.66}, "rare words"),
        ({"positional": 0.9, "rare": 0.9, "end": 0.9}, "positional"),
        ({"rare": 0.65, "end": 0.5}, "end"),
        ({"rare": None, "end": 0.49}, ""),
        ({"syntax": FOLLOWS, "rare": 0.9}, "syntactic"),
        ({"syntax": replace(FOLLOWS, found=0.59), "rare": 0.9}, "rare words"),
    ],
)
def test_roles(changes, role):
    names = ("confidence", "entropy", "positional", "previous", "next", "end", "rare", "importance", "without")
    plain = dict(attention="encoder.0.self_attention", head=0, offset=-1, role="", syntax=None)
    assert role_of(Head(**{**dict.fromkeys(names, 0.1), **plain, **changes})) == role


@pytest.fixture
def file(pairs, tmp_path) -> Path:
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return tmp_path / "pairs.tsv"


def test_the_command_prints_a_table_and_leaves_figures_and_a_picture(run, pairs, file, tmp_path, capsys, run_command):
    folder = tmp_path / "run"
    assert run_command(f"heads {folder} --data {file}") == 0
    lines = capsys.readouterr().out.splitlines()
    loaded = load_run(folder)
    expected = study_heads(loaded, Sentences.from_pairs(loaded, pairs, 500))
    assert lines == [*table_lines(expected), f"{folder / 'heads.png'}: their picture"]
    assert (folder / "heads.png").read_bytes().startswith(b"\x89PNG")
    assert read_heads(folder) == expected
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, folder / "model.safetensors")
    assert read_heads(folder) == []
    # Files that the command left don't stand in the way of a training that overwrites the run.
    (folder / "mine.txt").write_text("")
    config = TrainConfig(source=file, valid_source=file, out=folder, tokenizer="symbols", overwrite=True)
    with pytest.raises(RunError, match=r"also holds mine.txt:"):
        prepare_run(config, print)


def test_the_pairs_may_be_columns_of_a_table(run, file, tmp_path, capsys, run_command):
    folder, path = tmp_path / "run", tmp_path / "table.tsv"
    assert run_command(f"heads {folder} --data {file}") == 0
    expected = capsys.readouterr().out
    rows = "".join(f"{n}\t{line}\n" for n, line in enumerate(file.read_text().splitlines()))
    path.write_text(f"id\tasked\tanswered\n{rows}")
    assert run_command(f"heads {folder} --data {path} --columns asked answered") == 0
    assert capsys.readouterr().out == expected
    assert run_command(f"heads {folder} --data {path} --columns asked answred") == 2
    assert "did you mean answered?" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{}", '{"heads": [{"head": 1}]}', "not JSON", json.dumps({"heads": [1]})])
def test_a_file_of_something_else_is_an_error(tmp_path, content):
    (tmp_path / "heads.json").write_text(content)
    with pytest.raises(
        RunError, match=r"heads.json is damaged, or not of glassformer: .*: run `glassformer heads` again$"
    ):
        read_heads(tmp_path)


def test_what_older_versions_wrote_is_read(run, file, tmp_path, run_command):
    folder = tmp_path / "run"
    assert run_command(f"heads {folder} --data {file}") == 0
    expected = read_heads(folder)
    kept = json.loads((folder / "heads.json").read_text())
    (folder / "heads.json").write_text(json.dumps({"heads": kept["heads"]}))
    assert read_heads(folder) == expected != []


def test_the_file_is_there_before_the_table_is_read(run, file, tmp_path, run_command, monkeypatch):
    folder = tmp_path / "run"

    read, write = os.pipe()
    os.close(read)
    with open(write, "w", buffering=1) as closed:  # each line is written as it is printed
        monkeypatch.setattr(sys, "stdout", closed)
        assert run_command(f"heads {folder} --data {file}") == 0
        monkeypatch.undo()
    assert {head.attention for head in read_heads(folder)} == set(load_run(folder).model.attentions)
    assert (folder / "heads.png").exists()


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ([(3, 400)] + [(4, 4)] * 499, [5, 495]),
        ([(1, 3000), (2, 2)], [1, 1]),
        ([(4, 4)] * 513, [512, 1]),
        ([(1, 2), (3, 1000), (3, 1000), (3, 1000)], [2, 2]),
    ],
)
def test_batches_have_room_for_their_longest_pair(lengths, sizes):
    batches = _batches_of_similar_length(lengths)
    assert list(map(len, batches)) == sizes
    assert sorted(n for batch in batches for n in batch) == list(range(len(lengths)))
    padded = [len(batch) * max(max(lengths[n]) for n in batch) for batch in batches if len(batch) > 1]
    assert max(padded, default=0) <= BATCH_TOKENS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--data a b c", "--data takes a file of sources and one of targets, or one file of both sides, got 3 files"),
        ("--data nowhere.tsv", "nowhere.tsv: no such file"),
        ("--data pairs.tsv --sentences 0", "--sentences must be at least 1, got 0"),
    ],
)
def test_bad_input_is_one_line(run, file, tmp_path, capsys, monkeypatch, run_command, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert run_command(f"heads run {arguments}") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "heads.json").exists()


def test_a_picture_that_cannot_be_written_is_said_before_the_work(
    run, file, tmp_path, capsys, monkeypatch, run_command
):
    pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "heads.png").mkdir()
    assert run_command("heads run --data pairs.tsv") == 2
    assert "heads.png is a folder" in capsys.readouterr().err
    assert not (tmp_path / "run" / "heads.json").exists()


def test_pairs_that_are_too_long_on_either_side_are_replaced_by_the_next(run, monkeypatch):
    monkeypatch.setattr("glassformer.insight.study.LONGEST", 4)
    long, short = " ".join("ab" * 4), "a b"
    pairs = [(short, long), (long, short), (short, "b a"), (short, long), ("b", "a"), ("b a", "a b")]
    for most, expected in ((1, 1), (2, 2), (3, 3), (9, 3)):
        found = Sentences.from_pairs(run, pairs, most)
        assert [len(ids) for ids in found.sources] == [3, 2, 3][:expected]
        assert max(len(ids) for ids in found.targets) == 3
    with pytest.raises(DataError, match=r"^there are no sentences to study: each is longer than 4 tokens$"):
        Sentences.from_pairs(run, pairs[:2], 5)


def test_nothing_to_study_is_an_error(run, sentences):
    none = replace(run, model=without_heads(run.model, {name: [0, 1, 2] for name in run.model.attentions}))
    with pytest.raises(RunError, match="this run has no attention heads left: there is nothing to study"):
        study_heads(none, sentences)
    with pytest.raises(DataError, match="there are no sentences to study: every line is empty"):
        Sentences.from_pairs(run, [("", ""), ("a", ""), (" ", "\u3000"), ("a", "\t")], 5)


def test_a_study_leaves_each_module_in_its_mode(run, sentences):
    """It left the whole model in evaluation; the loss of heads put its frozen parts into training."""
    frozen = run.model.encoder
    run.model.train()
    frozen.eval()
    modes = {name: module.training for name, module in run.model.named_modules()}
    assert len(set(modes.values())) == 2
    try:
        study_heads(run, sentences)
        assert {name: module.training for name, module in run.model.named_modules()} == modes
    finally:
        run.model.eval()
