"""Runs exported to CTranslate2, which itself says what they translate to and how likely they find it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from glassformer.cli import main
from glassformer.errors import ConfigError, RunError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.insight.prune import without_heads
from glassformer.interop.ctranslate2 import QUANTIZATIONS, export_ctranslate2
from glassformer.run.folder import Run, write_weights
from glassformer.text.tokenizer import EOS, SubwordTokenizer, SymbolTokenizer, Tokenizer
from glassformer.text.vocabulary import VocabularyTokenizer
from glassformer.transformer.model import Transformer

ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install 'glassformer[ctranslate2]'")
sentencepiece = pytest.importorskip("sentencepiece")

TEXT = [
    "two dogs run over the green grass",
    "a man sings a song",
    "the dogs sing",
    "a green man runs over two songs",
    "grass",
]
OTHER = ["zwei Hunde laufen über das Gras", "ein Mann singt ein Lied", "die Hunde", "ein grüner Mann läuft", "Gras"]
LENGTH = 17


def learn(lines: list[str]) -> SubwordTokenizer:
    return SubwordTokenizer.train(lines * 5, kind="unigram", vocab_size=None, seed=1)


@pytest.fixture(scope="module")
def sides() -> tuple[SubwordTokenizer, SubwordTokenizer]:
    return learn(TEXT), learn(OTHER)


def teach(run: Run, sources: list[str], targets: list[str]) -> None:
    """A few steps of training, because what a random model finds is one token again and again."""
    model = run.model
    source, target = (
        pad_sequence([torch.tensor([*ids, EOS]) for ids in tokenizer.encode(lines)], True, tokenizer.pad)
        for tokenizer, lines in ((run.source_tokenizer, sources), (run.target_tokenizer, targets))
    )
    start = torch.full((len(target), 1), model.target_pad)
    for layer in model.decoder:
        layer.feed_forward_norm.reset_parameters()  # it learns sooner
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        logits = model(source, torch.cat([start, target[:, :-1]], dim=1))
        loss = cross_entropy(logits.transpose(1, 2), target, ignore_index=model.target_pad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def translator_of(run: Run) -> Translator:
    return Translator.of(run.model, run.source_tokenizer, run.target_tokenizer, precision="float32")


def pieces_of(tokenizer: Tokenizer, lines: list[str]) -> list[list[str]]:
    return [tokenizer.tokens(ids) for ids in tokenizer.encode(lines)]


@torch.no_grad()
def greedy(model: Transformer, ids: list[int]) -> list[int]:
    """The likeliest token again and again, up to `</s>`."""
    cache = model.start(model.encode(torch.tensor([[*ids, EOS]])))
    found = [model.target_pad]
    while len(found) <= LENGTH:
        states, cache = model.decode(torch.tensor([found[-1:]]), cache)
        found.append(int(model.logits(states).argmax()))
        if found[-1] == EOS:
            return found[1:-1]
    return found[1:]


def check_same(run: Run, sources: list[str], targets: list[str], out: Path) -> None:
    """That CTranslate2 finds the same as a run that has learned a little of these pairs."""
    teach(run, sources, targets)
    export_ctranslate2(run, out)
    theirs = ctranslate2.Translator(str(out), device="cpu", compute_type="float32", intra_threads=1)
    ours = translator_of(run)
    pieces = [[*line, "</s>"] for line in pieces_of(run.source_tokenizer, sources)]

    results = theirs.translate_batch(pieces, beam_size=1, max_decoding_length=LENGTH)
    found = [result.hypotheses[0] for result in results]
    ids = [greedy(run.model, line) for line in run.source_tokenizer.encode(sources)]
    assert found == [run.target_tokenizer.tokens(line) for line in ids]
    assert len({token for line in found for token in line}) > 10  # or it would be no test
    target = sentencepiece.SentencePieceProcessor(str(out / "target.spm"))
    texts = [target.decode(line).strip() for line in found]
    assert texts == ours.translate(sources, SearchConfig(beam=1, max_length=LENGTH))

    for lines in (targets, targets[::-1]):
        scores = theirs.score_batch(pieces, pieces_of(run.target_tokenizer, lines))
        assert [sum(score.log_probs) for score in scores] == pytest.approx(ours.score(sources, lines), abs=1e-4)


# Each trains a model for a moment, or greedy search would find one token again and again: a few seconds.
@pytest.mark.parametrize(
    ("shared", "changes"),
    [
        (True, {}),
        (False, {}),
        (True, {"tied_output": False, "activation": "gelu"}),
        (False, {"output_bias": True, "scale_embedding": False}),
        (False, {"norm_first": True, "final_norm": True}),
    ],
    ids=["plain-shared", "plain", "untied", "biased", "norm first"],
)
def test_it_finds_what_we_find(random_run, changes, shared, sides, tmp_path):
    source, target = (sides[0], sides[0]) if shared else sides
    assert shared or source.vocab_size != target.vocab_size
    run = random_run(tmp_path / "run", source, target, shared=shared, **changes)
    check_same(run, TEXT, TEXT[::-1] if shared else OTHER, tmp_path / "out")


def test_it_finds_what_we_find_of_a_pruned_run_and_is_smaller(random_run, sides, tmp_path):
    run = random_run(tmp_path / "run", *sides, encoder_layers=2, decoder_layers=2)
    check_same(run, TEXT, OTHER, tmp_path / "whole")
    removed = {
        "encoder.0.self_attention": [0, 1, 2],
        "encoder.1.self_attention": [1],
        "decoder.0.self_attention": [2],
        "decoder.0.source_attention": [0],
        "decoder.1.source_attention": [0, 1],
        "decoder.1.self_attention": [0, 1],
    }
    smaller = replace(run, model=without_heads(run.model, removed))
    check_same(smaller, TEXT, OTHER, tmp_path / "out")
    # A head's numbers are 4 x 8 x 24 weights and 3 x 8 biases; each stack keeps 2 of 3.
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("whole", "out")]
    assert sizes[0] - sizes[1] == 4 * (2 + 4) * (4 * 8 * 24 + 3 * 8)


@pytest.mark.parametrize("larger", ["source", "target"])
def test_either_vocabulary_may_be_the_larger(random_run, larger, sides, tmp_path):
    source, target = sorted(sides, key=lambda tokenizer: tokenizer.vocab_size, reverse=larger == "source")
    run = random_run(tmp_path / "run", source, target)
    lines = {sides[0]: TEXT, sides[1]: OTHER}
    check_same(run, lines[source], lines[target], tmp_path / "out")


def test_two_sentencepiece_models_of_one_vocabulary(random_run, sides, tmp_path):
    pieces = [piece for side in sides for piece in side.tokens(range(2, side.pad))]
    pieces = list(dict.fromkeys(["</s>", "<unk>", ">>deu<<", *pieces, "<pad>"]))
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    source, target = (VocabularyTokenizer(side._proto, vocabulary) for side in sides)
    run = random_run(tmp_path / "run", source, target, shared=True)
    check_same(run, [*TEXT, f">>deu<< {TEXT[0]}"], [*OTHER, OTHER[1]], tmp_path / "out")


def test_unknown_pieces_are_unknown_to_both(random_run, sides, tmp_path):
    run = random_run(tmp_path / "run", *sides)
    export_ctranslate2(run, tmp_path / "out")
    source = sentencepiece.SentencePieceProcessor(str(tmp_path / "out/source.spm"))
    lines = ["two Ωmega dogs", "<pad>", "</s> <unk>"]
    theirs = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", compute_type="float32")
    pieces = [[*source.encode(line, out_type=str), "</s>"] for line in lines]
    found = theirs.score_batch(pieces, pieces_of(run.target_tokenizer, OTHER[:3]))
    expected = translator_of(run).score(lines, OTHER[:3])
    assert [sum(score.log_probs) for score in found] == pytest.approx(expected, abs=1e-2, rel=1e-5)


def test_vocabulary_is_ours_without_padding(random_run, sides, tmp_path):
    export_ctranslate2(random_run(tmp_path / "run", sides[0], sides[0], shared=True), tmp_path / "one")
    found = json.loads((tmp_path / "one/shared_vocabulary.json").read_text(encoding="utf-8"))
    assert found == sides[0].tokens(range(sides[0].pad))
    export_ctranslate2(random_run(tmp_path / "other", *sides), tmp_path / "two")
    assert not (tmp_path / "two/shared_vocabulary.json").exists()
    for side, tokenizer in zip(("source", "target"), sides, strict=True):
        found = json.loads((tmp_path / f"two/{side}_vocabulary.json").read_text(encoding="utf-8"))
        assert found == tokenizer.tokens(range(tokenizer.pad))


def test_a_source_may_be_as_long_as_ours(random_run, sides, tmp_path):
    run = random_run(tmp_path / "run", sides[0], sides[0], shared=True)
    export_ctranslate2(run, tmp_path / "out")
    theirs = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", compute_type="float32")
    long = " ".join(["grass"] * 2000)
    pieces = [*pieces_of(run.source_tokenizer, [long])[0][:1023], "</s>"]
    score = theirs.score_batch([pieces], pieces_of(run.target_tokenizer, TEXT[:1]))[0]
    with pytest.warns(UserWarning, match="is cut to its first 1,023"):
        expected = translator_of(run).score([long], TEXT[:1])
    assert [sum(score.log_probs)] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("quantization", ["int8", "int8_float16", "int16", "bfloat16"])
def test_quantized_weights_are_smaller_and_nearly_the_same(random_run, quantization, sides, tmp_path):
    run = random_run(tmp_path / "run", *sides)
    export_ctranslate2(run, tmp_path / "out", quantization)
    theirs = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", compute_type="auto")
    pieces = [[*line, "</s>"] for line in pieces_of(sides[0], TEXT)]
    scores = theirs.score_batch(pieces, pieces_of(sides[1], OTHER))
    expected = translator_of(run).score(TEXT, OTHER)
    assert [sum(score.log_probs) for score in scores] == pytest.approx(expected, rel=0.1)
    export_ctranslate2(run, tmp_path / "whole")
    smaller, whole = ((tmp_path / name / "model.bin").stat().st_size for name in ("out", "whole"))
    assert smaller < 0.9 * whole


def test_quantizations_are_theirs():
    from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES

    assert QUANTIZATIONS == ACCEPTED_MODEL_TYPES


# What is refused, and leaves nothing behind


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def colour_padding(run: Run) -> None:
    with torch.no_grad():
        run.model.target_embedding.weight[-1, 3] = -0.25


@pytest.mark.parametrize(
    ("changes", "target", "damage", "quantization", "message"),
    [
        ({}, None, None, "int4", r"quantization must be one of int8, int8_float32, .* got 'int4'"),
        ({}, None, colour_padding, None, r"a padding embedding that is not zero \(its largest number is 0\.25\)"),
        ({"final_norm": True}, None, None, None, "model has final_norm without norm_first, which CTranslate2 lacks"),
        ({}, SymbolTokenizer("ab"), None, None, "the target tokenizer of this run splits symbols at spaces"),
    ],
)
def test_what_it_cannot_hold_is_refused(random_run, changes, target, damage, quantization, message, sides, tmp_path):
    run = random_run(tmp_path / "run", sides[0], target or sides[1], **changes)
    if damage:
        damage(run)
    with pytest.raises((ConfigError, RunError), match=message):
        export_ctranslate2(run, tmp_path / "out", quantization)
    assert names(tmp_path) == ["run"]


def test_a_missing_package_is_named_with_its_extra(random_run, sides, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    run = random_run(tmp_path / "run", *sides)
    with pytest.raises(ImportError, match=r"needs the package ctranslate2: pip install 'glassformer\[ctr"):
        export_ctranslate2(run, tmp_path / "out")
    assert names(tmp_path) == ["run"]


def test_a_conversion_that_fails_leaves_nothing(random_run, sides, tmp_path, monkeypatch):
    from ctranslate2.specs import TransformerSpec

    def fail(self, output: str) -> None:
        Path(output, "model.bin").write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(TransformerSpec, "save", fail)
    run = random_run(tmp_path / "run", *sides)
    (tmp_path / "out").mkdir()
    with pytest.raises(OSError, match="no space left"):
        export_ctranslate2(run, tmp_path / "out")
    assert names(tmp_path) == ["out", "run"]
    assert names(tmp_path / "out") == []


# The command line


def call(capsys: pytest.CaptureFixture, *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code, *capsys.readouterr()


def test_the_command_exports_and_says_how_to_translate(random_run, sides, tmp_path, capsys):
    run = random_run(tmp_path / "run", *sides)
    teach(run, TEXT, OTHER)
    write_weights(tmp_path / "run", run.model.state_dict())
    out = tmp_path / "new" / "out"
    code, said, err = call(capsys, "export", tmp_path / "run", "--to", "ctranslate2", "--out", out)
    assert (code, err) == (0, "")
    first, *snippet = said.splitlines()
    assert first == f"{out}: translate a line with:"
    capsys.readouterr()
    exec(
        "\n".join(line.removeprefix("  ") for line in snippet),
        {"ctranslate2": ctranslate2, "sentencepiece": sentencepiece, "line": TEXT[2]},
    )
    found = capsys.readouterr().out.removesuffix("\n")
    assert [found] == translator_of(run).translate(TEXT[2:3])


def test_the_command_quantizes(random_run, sides, tmp_path, capsys):
    random_run(tmp_path / "run", *sides)
    out = tmp_path / "out"
    command = ("export", tmp_path / "run", "--to", "ctranslate2", "--out", out)
    assert call(capsys, *command, "--quantization", "int8")[0] == 0
    assert ctranslate2.Translator(str(out), device="cpu").compute_type.startswith("int8")
    code, _, err = call(capsys, *command)
    assert (code, f"--out {out} is already there: give a new name, or remove it first" in err) == (2, True)


def test_the_command_refuses_a_quantization_for_hugging_face(tmp_path, capsys):
    command = ("export", tmp_path / "run", "--to", "huggingface", "--out", tmp_path / "out", "--quantization", "int8")
    code, _, err = call(capsys, *command)
    assert code == 2
    assert "--quantization is for --to ctranslate2: leave it out with --to huggingface" in err
    assert names(tmp_path) == []
