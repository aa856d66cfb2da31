import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from glassformer.errors import DataError, RunError
from glassformer.generation.batches import search_all
from glassformer.generation.config import SearchConfig
from glassformer.generation.engines.engine import Engine
from glassformer.generation.translator import Translator
from glassformer.interop.fast_tokenizer import write_fast_tokenizers
from glassformer.interop.huggingface import export_marian, import_marian
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import EOS, SubwordTokenizer, SymbolTokenizer
from glassformer.text.vocabulary import VocabularyTokenizer
from glassformer.transformer.model import Transformer

transformers = pytest.importorskip("transformers", reason="pip install 'glassformer[huggingface]'")


@pytest.fixture
def marian(sides, joint, tmp_path) -> Callable[..., Any]:
    """Makes a random Marian model of transformers, saved with its tokenizers as its own code saves them."""
    folder = tmp_path / "marian"

    def make(*codes: str, **changes: Any) -> Any:
        vocabulary = joint(*codes)
        size = len(vocabulary)
        sizes = dict(vocab_size=size, decoder_vocab_size=size, d_model=24, encoder_layers=2, decoder_layers=3)
        heads = dict(encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=40, decoder_ffn_dim=40)
        ids = dict(pad_token_id=size - 1, decoder_start_token_id=size - 1, eos_token_id=0, forced_eos_token_id=0)
        layout = dict(static_position_embeddings=True, normalize_before=False, scale_embedding=True)
        further = dict(activation_function="swish", max_position_embeddings=64, init_std=0.3)
        settings = {**sizes, **heads, **ids, **layout, **further, **changes}
        torch.manual_seed(3)
        model = transformers.MarianMTModel(transformers.MarianConfig(**settings)).eval()
        with torch.no_grad():
            model.final_logits_bias.normal_(std=0.5)
        folder.mkdir()
        model.save_pretrained(folder)
        for tokenizer, side in zip(sides, ("source", "target"), strict=True):
            tokenizer.save(folder / side)
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        return model

    return make


def logits_of_both(theirs, ours: Transformer, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Ours and theirs, theirs over all ids of the layout, and how near they must be."""
    source, keep = pad_source([torch.tensor([5, 9, 4, 7, 0]), torch.tensor([3, 0])], ours.source_pad)
    target = torch.tensor([[ours.target_pad, 6, 3, 8], [ours.target_pad, 2, 2, 5]])
    ours, theirs, pad = ours.to(dtype), theirs.to(dtype), theirs.config.vocab_size - 1
    if dtype == torch.float64:  # theirs stay float32 whatever the model is
        for part in (theirs.model.encoder, theirs.model.decoder):
            positions = part.embed_positions
            table = ours.positions(torch.zeros(1, positions.weight.shape[0], ours.config.d_model, dtype=dtype))[0]
            positions.weight = torch.nn.Parameter(table, requires_grad=False)
    with torch.no_grad():
        their_logits = theirs(
            input_ids=source.masked_fill(source == ours.source_pad, pad),
            attention_mask=keep[:, 0, 0].long(),
            decoder_input_ids=target.masked_fill(target == ours.target_pad, pad),
        ).logits
        our_logits = ours(source, target)
    return our_logits, their_logits, 1e-9 if dtype == torch.float64 else 1e-4 * our_logits.abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_function": "relu", "scale_embedding": False},
        {"activation_function": "gelu", "tie_word_embeddings": False},
    ],
    ids=["opus", "relu", "untied"],
)
def test_imported_logits_are_theirs(changes, dtype, marian, tmp_path):
    theirs = marian(**changes)
    ours = import_marian(tmp_path / "marian", tmp_path / "run").model
    found, expected, close = logits_of_both(theirs, ours, dtype)
    assert_close(found, expected[..., :-1], atol=close, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("shared", "changes"),
    [
        (True, {}),
        (False, {}),
        (True, {"output_bias": True}),
        (True, {"tied_output": False, "activation": "gelu"}),
        (False, {"tied_output": False}),
    ],
)
def test_exported_logits_and_log_probabilities_are_ours(random_run, shared, changes, dtype, sides, tmp_path):
    source, target = (sides[0], sides[0]) if shared else sides
    run = random_run(tmp_path / "run", source, target, shared=shared, **changes)
    export_marian(run, tmp_path / "marian")
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    assert theirs.generation_config.max_length == 1 + SearchConfig.max_length  # theirs counts the start
    sizes = run.model.config.source_vocab_size, run.model.config.target_vocab_size
    assert theirs.config.vocab_size == max(sizes)
    expected, found, close = logits_of_both(theirs, run.model, dtype)
    predictable = run.model.target_pad
    assert_close(found[..., :predictable], expected, atol=close, rtol=0)
    assert_close(found.log_softmax(-1)[..., :predictable], expected.log_softmax(-1), atol=close, rtol=0)
    assert (found[..., predictable:] < -5000).all()  # padding, and what fills the vocabulary up, is never predicted


@pytest.mark.parametrize("biased", [False, True])
def test_there_and_back_is_the_same_run(random_run, biased, sides, english, tmp_path):
    run = random_run(tmp_path / "run", sides[0], sides[0], shared=True, output_bias=biased)
    export_marian(run, tmp_path / "marian")
    again = import_marian(tmp_path / "marian", tmp_path / "again")
    assert again.model.config == run.model.config
    assert_close(dict(again.model.state_dict()), dict(run.model.state_dict()), rtol=0, atol=0)
    for tokenizer in (again.source_tokenizer, again.target_tokenizer):
        assert tokenizer.encode(english) == run.source_tokenizer.encode(english)
        assert tokenizer.decode(tokenizer.encode(english)) == english


@pytest.mark.parametrize("larger", ["source", "target"])
def test_there_and_back_of_two_vocabularies_gives_the_same_scores(random_run, larger, sides, english, german, tmp_path):
    """What filled up the target's vocabulary has become pieces of it: they need their bias to stay unpredicted."""
    source, target = sorted(sides, key=lambda tokenizer: tokenizer.vocab_size, reverse=larger == "source")
    assert source.vocab_size != target.vocab_size
    run = random_run(tmp_path / "run", source, target)
    export_marian(run, tmp_path / "marian")
    again = import_marian(tmp_path / "marian", tmp_path / "again")
    assert again.model.config.output_bias == (larger == "source")
    before, after = (
        Translator.of(run.model, run.source_tokenizer, run.target_tokenizer, precision="float32")
        for run in (run, again)
    )
    assert_close(after.score(english, german), before.score(english, german), rtol=1e-5, atol=1e-5)
    search = SearchConfig(max_length=11)  # a random model would go on to the limit
    assert after.translate(english, search) == before.translate(english, search)


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_the_same_ids(beam, marian, tmp_path):
    theirs = marian()
    run = import_marian(tmp_path / "marian", tmp_path / "run")
    pad = run.model.source_pad
    generator = torch.Generator().manual_seed(5)
    sources = [[*torch.randint(2, pad, (n,), generator=generator).tolist(), 0] for n in (1, 3, 5, 8, 13)]
    config = SearchConfig(beam=beam, length_penalty=1.0, max_length=20)
    for ids, hypotheses in zip(sources, search_all(Engine.of(run.model), sources, config), strict=True):
        found = hypotheses[0].ids
        expected = theirs.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            num_beams=beam,
            length_penalty=1.0,
            early_stopping=False,
            do_sample=False,
            max_length=21,
            forced_eos_token_id=None,
            bad_words_ids=[[pad]],
        )[0].tolist()
        assert [i for i in expected if i not in (0, pad)] == found


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_text_becomes_their_ids(marian, english, german, tmp_path):
    marian(">>deu<<", ">>nld<<")
    run = import_marian(tmp_path / "marian", tmp_path / "run")
    files = [str(tmp_path / "marian" / name) for name in ("source.spm", "target.spm", "vocab.json")]
    theirs = transformers.MarianTokenizer(*files)
    lines = [*english, ">>deu<< two dogs", ">>nld<<a man", "an unseen Ωmega", "a  double space "]
    assert [[*ids, 0] for ids in run.source_tokenizer.encode(lines)] == theirs(lines)["input_ids"]
    ids = run.target_tokenizer.encode(german)
    assert run.target_tokenizer.decode(ids) == german
    assert run.target_tokenizer.decode([[*ids[0], 0, run.target_tokenizer.pad], []]) == [german[0], ""]
    with pytest.raises(DataError, match=r"the model knows no language >>fra<<, but >>deu<< >>nld<<$"):
        run.source_tokenizer.encode([">>fra<< two dogs"])


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_names_of_special_tokens_are_text_to_transformers_too(random_run, marian, english, sides, tmp_path):
    export_marian(random_run(tmp_path / "run", *sides), tmp_path / "ours")
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path / "ours")
    lines = [*english, "a </s> man", "<pad> a <unk> man", "a</s>"]
    assert theirs(lines)["input_ids"] == [[*ids, 0] for ids in sides[0].encode(lines)]
    marian(">>deu<<", ">>nld<<")
    run = import_marian(tmp_path / "marian", tmp_path / "imported")
    export_marian(run, tmp_path / "again")
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path / "again")
    lines = [">>deu<< two </s> dogs", ">>nld<<a man"]
    assert theirs(lines)["input_ids"] == [[*ids, 0] for ids in run.source_tokenizer.encode(lines)]


@pytest.mark.parametrize("setting", ["norm_first", "final_norm"])
def test_pre_norm_layers_and_final_norms_cannot_be_exported(random_run, setting, sides, tmp_path):
    run = random_run(tmp_path / "run", *sides, **{setting: True})
    message = f"this run's model has {setting}, which the Marian layout lacks: export it --to onnx"
    with pytest.raises(RunError, match=f"^{message}$"):
        export_marian(run, tmp_path / "marian")
    assert not (tmp_path / "marian").exists()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("<pad>", {}, "has a piece <pad>, a name that the Marian layout uses itself: export it --to ctranslate2"),
        ("<unused_0>", {}, "has a piece <unused_0>, a name that .* itself: export it --to ctranslate2"),
        ("</s>", {"eos_piece": "<e>"}, "has a piece </s> beside <e>, which means that: .* train with a tokenizer .*"),
        ("<unk>", {"unk_piece": "<u>"}, "has a piece <unk> beside <u>, which means that: .*"),
    ],
)
def test_a_piece_of_a_name_that_the_layout_uses_is_refused(
    random_run, name, settings, message, english, sides, tmp_path
):
    sizes = {"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2}
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(english * 5), model_writer=trained, user_defined_symbols=[name], **sizes, **settings
    )
    tokenizer = SubwordTokenizer(trained.getvalue())
    assert tokenizer.vocab_size < sides[1].vocab_size  # so the layout fills it up
    run = random_run(tmp_path / "run", tokenizer, sides[1])
    message = f"the source tokenizer of this run {message}"
    with pytest.raises(RunError, match=f"^{message}$"):
        export_marian(run, tmp_path / "marian")
    assert not (tmp_path / "marian").exists()


def test_shared_embeddings_of_different_pieces_cannot_be_exported(random_run, tmp_path):
    """As in a run that was made in Python: `train` shares the tokenizer, too."""
    letters = [SubwordTokenizer.train([line], kind="char", vocab_size=None, seed=1) for line in ("a b c", "d e f")]
    run = random_run(tmp_path / "run", *letters, shared=True)
    with pytest.raises(RunError, match=r"share their embeddings and have different pieces, .* export it --to ctransl"):
        export_marian(run, tmp_path / "marian")
    assert not (tmp_path / "marian").exists()


def test_a_run_of_symbols_cannot_be_exported(random_run, sides, tmp_path):
    run = random_run(tmp_path / "run", sides[0], SymbolTokenizer(["a", "b"]))
    with pytest.raises(RunError, match="the target tokenizer of this run splits symbols at spaces"):
        export_marian(run, tmp_path / "marian")
    assert not (tmp_path / "marian").exists()


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def longer(path: Path) -> None:
    vocabulary = json.loads(path.read_text())
    edit(path, further=vocabulary["<pad>"], **{"<pad>": len(vocabulary)})


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json: give the folder of a Hugging Face Marian model"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is damaged"),
        (lambda f: edit(f / "config.json", model_type="bart"), "must be of model_type 'marian', got 'bart'"),
        (lambda f: edit(f / "config.json", normalize_before=True), "normalize_before must be False, got True"),
        (lambda f: edit(f / "config.json", decoder_ffn_dim=41), "decoder_ffn_dim must be 40, got 41"),
        (lambda f: edit(f / "config.json", activation_function="tanh"), "activation_function must be one of relu, "),
        (lambda f: edit(f / "config.json", pad_token_id=1), "pad_token_id must be "),
        (lambda f: edit(f / "config.json", encoder_layers=3), "is missing"),
        (lambda f: (f / "source.spm").unlink(), "source.spm is missing"),
        (lambda f: (f / "source.spm").write_bytes(b"x"), "not a sentencepiece model"),
        (lambda f: edit(f / "vocab.json", further=9999), "a vocabulary must number its"),
        (lambda f: (f / "vocab.json").write_text("[1"), "vocab.json is no vocabulary"),
        (lambda f: longer(f / "vocab.json"), "these files are not of one model"),
        (lambda f: cut(f / "model.safetensors"), "model.safetensors is damaged"),
        (lambda f: pickled(f), "in pytorch_model.bin, a pickle, which can run code"),
        (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused(damage, message, marian, tmp_path):
    marian()
    damage(tmp_path / "marian")
    with pytest.raises((RunError, DataError), match=message):
        import_marian(tmp_path / "marian", tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_weights_that_are_not_finite_are_refused(marian, tmp_path):
    model = marian()
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path / "marian")
    with pytest.raises(RunError, match=r"not finite, first in model\.encoder\.layers\.0\.fc1\.weight"):
        import_marian(tmp_path / "marian", tmp_path / "run")


QUERIES = "model.encoder.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {f"{QUERIES}.weight": (26, 24), f"{QUERIES[:-6]}k_proj.weight": (22, 24)},
            r"weight must be \(24, 24\), got \(26, 24\)",
        ),
        ({f"{QUERIES}.weight": (24, 23)}, r"weight must be \(24, 24\), got \(24, 23\)"),
        ({f"{QUERIES}.bias": ()}, r"bias must be \(24,\), got \(\)"),
    ],
)
def test_projections_of_other_shapes_are_refused(changed, message, marian, tmp_path):
    marian()
    path = tmp_path / "marian" / "model.safetensors"
    save_file(load_file(path) | {name: torch.ones(shape) for name, shape in changed.items()}, path)
    with pytest.raises(RunError, match=rf"model.safetensors does not fit config.json: {QUERIES}.{message}$"):
        import_marian(tmp_path / "marian", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_output_of_another_shape_is_refused(marian, tmp_path):
    marian(tie_word_embeddings=False)
    path = tmp_path / "marian" / "model.safetensors"
    weights = load_file(path)
    save_file(weights | {"lm_head.weight": torch.ones(())}, path)
    with pytest.raises(RunError, match=r"fit config.json: lm_head.weight must be \(\d+, 24\), got \(\)$"):
        import_marian(tmp_path / "marian", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numbers_beyond_float32_are_refused_by_the_name_of_the_file(marian, tmp_path):
    marian()
    path = tmp_path / "marian" / "model.safetensors"
    weights = load_file(path)
    large = torch.full_like(weights[f"{QUERIES}.bias"], 1e300, dtype=torch.float64)
    save_file(weights | {f"{QUERIES}.bias": large}, path)
    with pytest.raises(RunError, match=rf"^{path}: {QUERIES}.bias holds numbers beyond float32: download it again$"):
        import_marian(tmp_path / "marian", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@torch.no_grad()
def test_a_source_of_a_thousand_tokens_is_read(random_run, sides, tmp_path):
    run = random_run(tmp_path / "run", *sides, encoder_layers=1, decoder_layers=1)
    export_marian(run, tmp_path / "marian")
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    source, start = torch.full((1, 1023), 5), torch.tensor([[run.model.target_pad]])
    expected = run.model(torch.cat([source, torch.tensor([[EOS]])], dim=1), start)
    found = theirs(torch.cat([source, torch.tensor([[EOS]])], dim=1), decoder_input_ids=start).logits
    assert found.shape[1] == 1
    assert_close(found[..., : run.model.target_pad], expected, rtol=1e-4, atol=1e-4)


def test_an_export_needs_a_name_in_utf_8(random_run, sides, tmp_path):
    run = random_run(tmp_path / "run", *sides)
    with pytest.raises(RunError, match=r"the name of a folder must be UTF-8, rename it or choose another$"):
        export_marian(run, tmp_path / "d\udcff")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_vocabulary_tokenizer_needs_the_reserved_ids(sides):
    with pytest.raises(DataError, match="a vocabulary must have <pad> = 2, got None"):
        VocabularyTokenizer(sides[0].proto, {"</s>": 0, "<unk>": 1, "a": 2})


def test_the_command_line_imports_and_exports(run_command, marian, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marian(max_position_embeddings=512)

    def call(command: str) -> tuple[int, str]:
        code = run_command(command)
        return code, " ".join("".join(capsys.readouterr()).split())

    code, said = call("import --from marian --out run")
    assert (code, "translate with:" in said) == (0, True)
    code, said = call("export run --to huggingface --out again")
    assert (code, "MarianMTModel.from_pretrained" in said) == (0, True)
    first, again = (transformers.MarianMTModel.from_pretrained(name).state_dict() for name in ("marian", "again"))
    first["final_logits_bias"][0, -1] = -1e4  # padding is never predicted: its logit's bias isn't kept
    for side in ("encoder", "decoder"):  # sinusoids, of as many positions as we read
        name = f"model.{side}.embed_positions.weight"
        assert (len(first[name]), len(again[name])) == (512, 1024)
        again[name] = again[name][:512]
    assert_close(dict(again), dict(first), rtol=0, atol=0)
    code, said = call("export run --to huggingface --out again")
    assert (code, "is there already: give a new name, or remove it first" in said) == (2, True)
    code, said = call("import --from run --out other")
    assert (code, "a glassformer run folder, which needs no import" in said) == (2, True)


def test_transformers_loads_the_fast_tokenizer(sides, english, tmp_path):
    write_fast_tokenizers(tmp_path, sides[0], sides[0])
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    lines = [*english, "a</s>b <unk> <pad>", "日本 dogs"]
    found = loaded(lines)["input_ids"]
    assert found == [[*ids, 0] for ids in sides[0].encode(lines)]
    assert (loaded.eos_token_id, loaded.pad_token_id) == (0, sides[0].pad)
    assert loaded.batch_decode(found, skip_special_tokens=True) == sides[0].decode(found)
