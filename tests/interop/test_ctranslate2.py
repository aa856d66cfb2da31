"""Runs exported to CTranslate2, which itself says what they translate to and how likely they find it."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from glassformer.alignment.attention import source_weights, tokenize_into_pieces
from glassformer.alignment.heads import AligningHeads
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

LENGTH = 17


def teach(run: Run, sources: list[str], targets: list[str], updates: int = 40) -> None:
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
    for _ in range(updates):
        logits = model(source, torch.cat([start, target[:, :-1]], dim=1))
        loss = cross_entropy(logits.transpose(1, 2), target, ignore_index=model.target_pad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def translator_of(run: Run) -> Translator:
    return Translator.of(run.model, run.source_tokenizer, run.target_tokenizer, precision="float32")


def theirs_of(out: Path, compute_type: str = "float32") -> Any:
    return ctranslate2.Translator(str(out), device="cpu", compute_type=compute_type, intra_threads=1)


def pieces_of(tokenizer: Tokenizer, lines: list[str], *end: str) -> list[list[str]]:
    return [[*tokenizer.tokens(ids), *end] for ids in tokenizer.encode(lines)]


def scores_of(theirs: Any, sources: list[list[str]], targets: list[list[str]]) -> list[float]:
    return [sum(score.log_probs) for score in theirs.score_batch(sources, targets)]


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
    theirs, ours = theirs_of(out), translator_of(run)
    pieces = pieces_of(run.source_tokenizer, sources, "</s>")

    results = theirs.translate_batch(pieces, beam_size=1, min_decoding_length=0, max_decoding_length=LENGTH)
    found = [result.hypotheses[0] for result in results]
    ids = [greedy(run.model, line) for line in run.source_tokenizer.encode(sources)]
    assert found == [run.target_tokenizer.tokens(line) for line in ids]
    expected = ours.translations(sources, SearchConfig(beam=1, max_length=LENGTH))
    assert found == [translation.tokens for translation in expected]
    assert len({token for line in found for token in line}) > 10  # or it would be no test
    target = sentencepiece.SentencePieceProcessor(str(out / "target.spm"))
    assert [target.decode(line).strip() for line in found] == [translation.text for translation in expected]

    for lines in (targets, targets[::-1]):
        scores = scores_of(theirs, pieces, pieces_of(run.target_tokenizer, lines))
        assert scores == pytest.approx(ours.score(sources, lines), abs=1e-4)


# Each trains a model for a moment, or greedy search would find one token again and again: a second or two.
@pytest.mark.parametrize(
    ("source", "target", "changes"),
    [
        (0, 0, {}),
        (0, 1, {}),
        (0, 0, {"tied_output": False, "activation": "gelu"}),
        (1, 0, {"output_bias": True, "scale_embedding": False}),  # the other vocabulary is the larger
        (0, 1, {"norm_first": True, "final_norm": True}),
    ],
    ids=["plain-shared", "plain", "untied", "biased", "norm first"],
)
def test_it_finds_what_we_find(random_run, source, target, changes, sides, english, german, tmp_path):
    assert sides[0].vocab_size != sides[1].vocab_size
    lines = [english, german]
    run = random_run(tmp_path / "run", sides[source], sides[target], shared=source == target, **changes)
    check_same(run, lines[source], lines[target][::-1] if source == target else lines[target], tmp_path / "out")


def test_it_finds_what_we_find_of_a_pruned_run_and_is_smaller(random_run, sides, english, german, tmp_path):
    run = random_run(tmp_path / "run", *sides, encoder_layers=2, decoder_layers=2)
    teach(run, english, german, updates=1)  # or all its biases are zeros, which are stored once
    export_ctranslate2(run, tmp_path / "whole")
    removed = {
        "encoder.0.self_attention": [0, 1, 2],
        "encoder.1.self_attention": [1],
        "decoder.0.self_attention": [2],
        "decoder.0.source_attention": [0],
        "decoder.1.source_attention": [0, 1],
        "decoder.1.self_attention": [0, 1],
    }
    smaller = replace(run, model=without_heads(run.model, removed))
    check_same(smaller, english, german, tmp_path / "out")
    # A head's numbers are 4 x 8 x 24 weights and 3 x 8 biases; each stack keeps 2 of 3.
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("whole", "out")]
    assert sizes[0] - sizes[1] == 4 * (2 + 4) * (4 * 8 * 24 + 3 * 8)


def test_two_sentencepiece_models_of_one_vocabulary(random_run, sides, joint, english, german, tmp_path):
    source, target = (VocabularyTokenizer(side.proto, joint(">>deu<<")) for side in sides)
    run = random_run(tmp_path / "run", source, target, shared=True)
    check_same(run, [*english, f">>deu<< {english[0]}"], [*german, german[1]], tmp_path / "out")


def test_a_model_of_the_users_own_ends_sources_as_all_do(random_run, english, german, tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*english, *german] * 20),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        eos_piece="[EOS]",
    )
    own = SubwordTokenizer(model.getvalue())
    assert own.tokens([EOS]) == ["[EOS]"]
    run = random_run(tmp_path / "run", own, own, shared=True)
    check_same(run, english, german, tmp_path / "out")


def test_unknown_pieces_are_unknown_to_both_however_the_sides_call_them(random_run, english, german, tmp_path):
    def own(lines: list[str], unk_piece: str) -> SubwordTokenizer:
        model = io.BytesIO()
        options = dict(vocab_size=60, hard_vocab_limit=False, minloglevel=2, unk_piece=unk_piece)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines * 20), model_writer=model, **options)
        return SubwordTokenizer(model.getvalue())

    run = random_run(tmp_path / "run", own(english, "<unk>"), own(german, "[UNK]"), shared=False)
    teach(run, [f"{line} Ω" for line in english], german)
    check_unknown(run, german, tmp_path)


def test_unknown_pieces_are_unknown_to_both(run, german, tmp_path):
    check_unknown(run, german, tmp_path)


def check_unknown(run: Run, german: list[str], tmp_path: Path) -> None:
    export_ctranslate2(run, tmp_path / "out")
    source = sentencepiece.SentencePieceProcessor(str(tmp_path / "out/source.spm"))
    lines = ["two Ωmega dogs", "<pad>", "</s> <unk>"]
    pieces = [[*source.encode(line, out_type=str), "</s>"] for line in lines]
    found = scores_of(theirs_of(tmp_path / "out"), pieces, pieces_of(run.target_tokenizer, german[:3]))
    assert found == pytest.approx(translator_of(run).score(lines, german[:3]), abs=1e-2, rel=1e-5)


def test_vocabulary_is_ours_without_padding(random_run, run, sides, tmp_path):
    export_ctranslate2(random_run(tmp_path / "shared", sides[0], sides[0], shared=True), tmp_path / "one")
    found = json.loads((tmp_path / "one/shared_vocabulary.json").read_text(encoding="utf-8"))
    assert found == sides[0].tokens(range(sides[0].pad))
    export_ctranslate2(run, tmp_path / "two")
    assert not (tmp_path / "two/shared_vocabulary.json").exists()
    for side, tokenizer in zip(("source", "target"), sides, strict=True):
        found = json.loads((tmp_path / f"two/{side}_vocabulary.json").read_text(encoding="utf-8"))
        assert found == tokenizer.tokens(range(tokenizer.pad))


def test_a_source_may_be_as_long_as_ours(run, german, tmp_path):
    export_ctranslate2(run, tmp_path / "out")
    long = " ".join(["grass"] * 2000)
    pieces = [*pieces_of(run.source_tokenizer, [long])[0][:1023], "</s>"]
    found = scores_of(theirs_of(tmp_path / "out"), [pieces], pieces_of(run.target_tokenizer, german[:1]))
    with pytest.warns(UserWarning, match="is cut to its first 1,023"):
        expected = translator_of(run).score([long], german[:1])
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("quantization", ["int8", "int8_float16", "int16", "bfloat16"])
def test_quantized_weights_are_smaller_and_nearly_the_same(run, quantization, english, german, tmp_path):
    export_ctranslate2(run, tmp_path / "out", quantization)
    pieces = pieces_of(run.source_tokenizer, english, "</s>"), pieces_of(run.target_tokenizer, german)
    found = scores_of(theirs_of(tmp_path / "out", "auto"), *pieces)
    assert found == pytest.approx(translator_of(run).score(english, german), rel=0.1)
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


def test_a_missing_package_is_named_with_its_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(ImportError, match=r"needs the package ctranslate2: pip install 'glassformer\[ctr"):
        export_ctranslate2(run, tmp_path / "out")
    assert names(tmp_path) == ["run"]


def test_a_conversion_that_fails_leaves_nothing(run, tmp_path, monkeypatch):
    from ctranslate2.specs import TransformerSpec

    def fail(self, output: str) -> None:
        Path(output, "model.bin").write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(TransformerSpec, "save", fail)
    (tmp_path / "out").mkdir()
    with pytest.raises(OSError, match="no space left"):
        export_ctranslate2(run, tmp_path / "out")
    assert names(tmp_path) == ["out", "run"]
    assert names(tmp_path / "out") == []


# The command line


def test_the_command_exports_and_says_how_to_translate(run, run_command, english, german, tmp_path, capsys):
    teach(run, english, german)
    write_weights(tmp_path / "run", run.model.state_dict())
    out = tmp_path / "new" / "out"
    assert run_command(f"export {tmp_path}/run --to ctranslate2 --out {out}") == 0
    said, err = capsys.readouterr()
    first, *snippet = said.splitlines()
    assert (first, err) == (f"{out}: translate a line with:", "writing the model\n")
    given = {"ctranslate2": ctranslate2, "sentencepiece": sentencepiece, "line": english[2]}
    exec("\n".join(line.removeprefix("  ") for line in snippet), given)
    found = capsys.readouterr().out.removesuffix("\n")
    assert [found] == translator_of(run).translate(english[2:3])


@pytest.mark.usefixtures("run")
def test_the_command_quantizes(run_command, tmp_path, capsys):
    out = tmp_path / "out"
    command = f"export {tmp_path}/run --to ctranslate2 --out {out}"
    assert run_command(f"{command} --quantization int8") == 0
    assert ctranslate2.Translator(str(out), device="cpu").compute_type.startswith("int8")
    assert run_command(command) == 2
    assert f"{out} is there already: give a new name, or remove it first" in capsys.readouterr().err


def test_the_command_refuses_a_quantization_for_hugging_face(run_command, tmp_path, capsys):
    command = f"export {tmp_path}/run --to huggingface --out {tmp_path}/out --quantization int8"
    assert run_command(command) == 2
    message = "--quantization is for --to ctranslate2, onnx, web or argos: leave it out with --to huggingface"
    assert message in capsys.readouterr().err
    assert names(tmp_path) == []


def test_their_attention_is_that_of_the_aligning_heads(random_run, sides, english, german, tmp_path):
    source, target = sides
    run = random_run(tmp_path / "run", source, target)
    heads = AligningHeads(layer=0, heads=(2, 0), shift=0, agreement=1.0, chance=0.0, pairs=1)
    export_ctranslate2(run, tmp_path / "out", aligning=heads)
    pieces, theirs = pieces_of(run.source_tokenizer, english, "</s>"), theirs_of(tmp_path / "out")
    forced = pieces_of(run.target_tokenizer, german)
    assert scores_of(theirs, pieces, forced) == pytest.approx(translator_of(run).score(english, german), abs=1e-4)
    result = theirs.translate_batch(pieces[:1], target_prefix=forced[:1], beam_size=1, return_attention=True)[0]
    lines = (
        tokenize_into_pieces(run.source_tokenizer, english[:1], ""),
        tokenize_into_pieces(run.target_tokenizer, german[:1], ""),
    )
    [(_, weights)] = source_weights(translator_of(run).engine, *lines, {0: (2, 0)})
    steps = len(forced[0])
    assert_close(torch.tensor(result.attention[0][:steps]), weights[0].mean(0)[:steps], atol=1e-4, rtol=0)
