"""What heads do and how much they matter, against weights and losses written out."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import Want, capture, cli
from glassformer.attention.masks import keep_from_ids
from glassformer.errors import ArgumentError, DataError, RunError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.insight.chart import plot_heads
from glassformer.insight.gates import gated, importance, least_missed, rise_without
from glassformer.insight.heads import FREQUENT, Head, Sentences, _Sums, as_table, role_of, study_heads
from glassformer.insight.prune import without_heads
from glassformer.insight.syntax import Syntax
from glassformer.run.folder import Run, load_run
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.training.config import TrainConfig
from glassformer.training.prepare import prepare_run

PAIRS = [("a b c d", "u v"), ("b a", "v w x"), ("", "u"), ("c c a", "x"), ("d b", "w w"), ("a c b", "u u v")]


@pytest.fixture
def run(random_run, tmp_path) -> Run:
    """Random weights; attention that is far from even."""
    run = random_run(tmp_path / "run", SymbolTokenizer("abcd"), SymbolTokenizer("uvwx"), encoder_layers=2)
    with torch.no_grad():
        for attention in run.model.attentions.values():
            attention.in_proj_weight.mul_(3)
    return run


@pytest.fixture
def sentences(run) -> Sentences:
    return Sentences.of(run, PAIRS, 100)


def kept(run: Run) -> list[tuple[Tensor, Tensor]]:
    """The pairs as ids, with their ends."""
    pairs = [pair for pair in PAIRS if all(pair)]
    sides = (run.source_tokenizer.encode([s for s, _ in pairs]), run.target_tokenizer.encode([t for _, t in pairs]))
    return [(torch.tensor([*s, 0]), torch.tensor([*t, 0])) for s, t in zip(*sides, strict=True)]


def loss_of(run: Run, source: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood of one target, summed, by the model's plain forward pass."""
    target_in = torch.cat([torch.tensor([run.model.target_pad]), target[:-1]])
    return F.cross_entropy(run.model(source[None], target_in[None])[0], target, reduction="sum")


class Loss(nn.Module):
    """The same as a module, some of whose weights may be others."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.model, self._run = run.model, run

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return loss_of(self._run, source, target)


# Importance


def test_without_a_head_is_its_columns_of_the_output_zeroed(run, sentences):
    batches = [sentences.batch(run, indices) for indices in sentences.batches]
    found = rise_without(run.model, batches)
    pairs = kept(run)
    tokens = sum(len(target) for _, target in pairs)
    with torch.no_grad():
        base = sum(loss_of(run, *pair) for pair in pairs) / tokens
        for name, attention in run.model.attentions.items():
            for head in range(attention.num_heads):
                columns = attention.out_proj.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim]
                before = columns.clone()
                columns.zero_()
                rise = sum(loss_of(run, *pair) for pair in pairs) / tokens - base
                columns.copy_(before)
                assert found[name][head].item() == pytest.approx(rise.item(), abs=2e-5), (name, head)


def test_of_heads_that_stand_in_for_each_other_one_stays(run):
    name = "encoder.0.self_attention"
    attention = run.model.attentions[name]
    q_k_v = attention.in_proj_weight.detach().view(3, 3, attention.head_dim, -1)
    columns = attention.out_proj.weight.detach().view(-1, 3, attention.head_dim)
    q_k_v[:, 1], columns[:, 1] = q_k_v[:, 0], columns[:, 0]
    columns.mul_(100)  # so that after the norm one of the two says what both do
    sources = [source for source, _ in PAIRS if source]
    translator = Translator.of(run.model, run.source_tokenizer, run.target_tokenizer, precision="float32")
    said = translator.translate(sources, SearchConfig(beam=1, min_length=4, max_length=6))
    own = Sentences.of(run, list(zip(sources, said, strict=True)), 100)
    batches = [own.batch(run, indices) for indices in own.batches]

    alone = rise_without(run.model, batches)
    ranked = sorted((float(rise), of, head) for of, rises in alone.items() for head, rise in enumerate(rises))
    order, twins = [(of, head) for _, of, head in ranked], {(name, 0), (name, 1)}
    count = 1 + max(order.index(twin) for twin in twins)
    assert count < 18
    chosen = least_missed(run.model, batches, count)
    assert len(set(chosen)) == count
    assert not twins <= set(chosen)
    assert least_missed(run.model, batches, 2) == chosen[:2]
    most = least_missed(run.model, batches, 12)  # leaves one to each of the six attentions
    assert Counter(of for of, _ in most) == dict.fromkeys(alone, 2)
    assert most[:count] == chosen
    assert len(twins & set(most)) == 1
    everything = [(of, head) for of in alone for head in range(3)]
    assert sorted(least_missed(run.model, batches, 18)) == sorted(everything)
    with pytest.raises(ArgumentError, match="count must be from 0 to the model's 18 heads, got 19"):
        least_missed(run.model, batches, 19)


def test_importance_is_the_mean_over_sentences_of_the_gradients_size(run, sentences):
    batches = [sentences.batch(run, indices) for indices in sentences.batches]
    found = importance(run.model, batches)
    for name, attention in run.model.attentions.items():
        total, weight = torch.zeros(3), attention.out_proj.weight.detach()
        for pair in kept(run):
            gate = torch.ones(3, requires_grad=True)
            weights = {f"model.{name}.out_proj.weight": weight * gate.repeat_interleave(attention.head_dim)}
            loss = torch.func.functional_call(Loss(run), weights, pair)
            total += torch.autograd.grad(loss, gate)[0].abs()
        assert_close(found[name].float(), total / total.norm(), rtol=1e-3, atol=1e-5)


def test_gates_leave_nothing_behind_and_must_be_of_the_model(run):
    with pytest.raises(ArgumentError, match=r"gates must be of the model's attentions, got encoder\.7"):
        gated(run.model, {"encoder.7": torch.ones(1, 3)}).__enter__()
    with pytest.raises(ZeroDivisionError), gated(run.model, {"encoder.0.self_attention": torch.ones(1, 3)}):
        raise ZeroDivisionError
    assert not any("_look" in module.__dict__ for module in run.model.modules())


# Statistics


def test_statistics_are_those_of_the_weights(run, sentences):
    heads = {(head.attention, head.head): head for head in study_heads(run, sentences)}
    assert list(heads) == [(name, n) for name, module in run.model.attentions.items() for n in range(3)]
    rows: dict[str, list[tuple[Tensor, int]]] = {name: [] for name in run.model.attentions}
    for source, target in kept(run):
        target_in = torch.cat([torch.tensor([run.model.target_pad]), target[:-1]])
        keep = keep_from_ids(source[None], run.model.source_pad)
        with torch.no_grad(), capture(run.model, Want(weights=True)) as seen:
            run.model.decode(target_in[None], run.model.start(run.model.encode(source[None], keep), keep))
        for name, one in seen.items():
            special = 0 if re.search("decoder.*self", name) else len(source) - 1
            rows[name].append((one.weights[0].double(), special))
    for (name, n), head in heads.items():
        queries = [(weights[n, i], i, special) for weights, special in rows[name] for i in range(weights.shape[1])]
        count = len(queries)

        def mean(numbers: list[float], count: int = count) -> float:
            return pytest.approx(sum(numbers) / count, abs=1e-5)

        assert head.entropy == mean([torch.special.entr(p).sum().item() for p, _, _ in queries])
        assert head.end == mean([p[special].item() for p, _, special in queries])
        assert head.previous == mean([p[i - 1].item() for p, i, _ in queries if 0 < i <= len(p)])
        assert head.next == mean([p[i + 1].item() for p, i, _ in queries if i + 1 < len(p)])
        others = [[x for j, x in enumerate(p.tolist()) if j != special] for p, _, special in queries]
        assert head.confidence == mean([max(row, default=0.0) for row in others])
        offsets = Counter(int(p.argmax()) - i for p, i, _ in queries)
        assert head.positional == pytest.approx(max(offsets.values()) / count)
        assert offsets[head.offset] == max(offsets.values())


def test_importances_of_a_layer_have_norm_1(run, sentences):
    norms: Counter[str] = Counter()
    for head in study_heads(run, sentences):
        norms[head.attention] += head.importance**2
    assert_close(torch.tensor(list(norms.values())), torch.ones(len(norms)))


def test_rare_words_by_hand():
    # Token 9 is the rarest of the first sentence, 8 of the second; the third has frequent ones alone.
    ranks = {**{n: n - 10 for n in range(10, 10 + FREQUENT)}, 8: FREQUENT, 9: FREQUENT + 1}
    sources = [torch.tensor([10, 9, 11, 0]), torch.tensor([8, 12, 13, 0]), torch.tensor([10, 11, 12, 0])]
    looking_at = torch.tensor([[1, 0], [0, 1], [2, 2]])  # of each sentence, head 0 and head 1
    weights = F.one_hot(looking_at, 4).float()[:, :, None].expand(3, 2, 4, 4)
    sums = _Sums(2)
    sums.add_rare(weights, sources, ranks)
    assert (sums._rare.tolist(), sums._sentences) == ([2.0, 0.0], 2)


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
    numbers = dict.fromkeys(
        ("confidence", "entropy", "positional", "previous", "next", "end", "rare", "importance"), 0.1
    )
    plain = dict(attention="encoder.0.self_attention", head=0, offset=-1, without=0.1, role="", syntax=None)
    assert role_of(Head(**{**numbers, **plain, **changes})) == role


# The command


@pytest.fixture
def files(tmp_path) -> Path:
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    return tmp_path / "pairs.tsv"


def test_the_command_prints_a_table_and_leaves_figures_and_a_picture(run, files, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["heads", str(tmp_path / "run"), "--data", str(files)])
    assert exit_.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    loaded = load_run(tmp_path / "run")
    expected = study_heads(loaded, Sentences.of(loaded, PAIRS, 500))
    assert lines[:-1] == list(as_table(expected))
    assert lines[-1] == f"{tmp_path / 'run' / 'heads.png'}: their picture"
    assert (tmp_path / "run" / "heads.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((tmp_path / "run" / "heads.json").read_text())["heads"]
    assert [one["head"] for one in kept] == [0, 1, 2] * 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "a", "b", "c"], "--data takes a file of sources and one of targets, or one TSV file, got 3 files"),
        (["--data", "nowhere.tsv"], "nowhere.tsv: no such file"),
        (["--data", "pairs.tsv", "--sentences", "0"], "--sentences must be at least 1, got 0"),
    ],
)
def test_bad_input_is_one_line(run, files, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        cli.main(["heads", "run", *arguments])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "heads.json").exists()


def test_a_run_without_heads_is_an_error(run, sentences):
    none = replace(run, model=without_heads(run.model, {name: [0, 1, 2] for name in run.model.attentions}))
    with pytest.raises(RunError, match="this run has no attention heads left: there is nothing to study"):
        study_heads(none, sentences)


def test_the_picture_has_the_layers_numbers(run, sentences):
    fewer = replace(run, model=without_heads(run.model, {"encoder.0.self_attention": [0, 1, 2]}))
    encoder, *_ = plot_heads(study_heads(fewer, sentences)).axes
    assert [label.get_text() for label in encoder.get_yticklabels()] == ["1"]


def test_no_sentences_are_an_error(run):
    with pytest.raises(DataError, match="there are no sentences to study: every line is empty"):
        Sentences.of(run, [("", ""), ("a", "")], 5)


def test_heads_that_were_drawn_are_no_files_of_somebody_else(run, files, tmp_path):
    (tmp_path / "run" / "heads.json").write_text("{}")
    (tmp_path / "run" / "mine.txt").write_text("")
    config = TrainConfig(source=files, valid_source=files, out=tmp_path / "run", tokenizer="symbols", overwrite=True)
    with pytest.raises(RunError, match=r"also holds mine.txt:"):
        prepare_run(config, print)
