"""The Marian layout of Hugging Face (MarianMTModel; the OPUS-MT models are in it): read into a run, written from one.

A folder of config.json, model.safetensors, source.spm, target.spm and vocab.json; with separate vocabularies also
target_vocab.json. Only JSON, safetensors and sentencepiece: transformers isn't needed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from msgspec import Struct
from torch import Tensor
from torch.nn.functional import pad

from glassformer.decoding import MOST_BYTES, Natural, decode_json, read_limited
from glassformer.errors import ConfigError, DataError, RunError, shown
from glassformer.files import check_name, new_folder, write_json
from glassformer.generation.config import SearchConfig
from glassformer.run.config import TrainingRecord
from glassformer.run.folder import Run, WeightFile, load_run, write_config, write_weights
from glassformer.tensors import write_tensors
from glassformer.text.tokenizer import EOS, UNK, SubwordTokenizer, Tokenizer, read_model
from glassformer.text.vocabulary import VocabularyTokenizer, read_vocabulary
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer, check_memory, weight_shapes

CONFIG, WEIGHTS, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
_ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}
_SOURCE_EMBEDDING, _TARGET_EMBEDDING = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
MOST_TOKENS = SearchConfig.max_source_tokens
"""Most tokens of a source in other programs."""
_NEVER = -1e4  # added to the logits of padding and of ids that fill a vocabulary up; float16 holds it
# The parts of a layer, ours and theirs. The projections of an attention are one matrix with us.
_ENCODER_LAYER = {
    "self_attention": "self_attn",
    "self_attention_norm": "self_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
_DECODER_LAYER = {
    **_ENCODER_LAYER,
    "source_attention": "encoder_attn",
    "source_attention_norm": "encoder_attn_layer_norm",
}


def import_marian(folder: Path, out: Path) -> Run:
    """Write a run folder `out` from the Marian model in `folder`, whole or not at all, and return the run.

    `out` must be new or empty. RunError says what is missing, damaged or unlike our model; DataError, what is wrong
    with a vocabulary.
    """
    config = read_marian_config(folder)
    if not (folder / WEIGHTS).exists():
        raise _no_weights(folder)
    source, target = read_marian_tokenizers(folder, shared=config.share_encoder_decoder_embeddings)
    weights = WeightFile(folder / WEIGHTS)
    model_config = _model_config(config, folder, weights)
    check_memory(model_config, fix=f"{folder} needs a larger machine")
    sizes = model_config.source_vocab_size, model_config.target_vocab_size
    if (source.vocab_size, target.vocab_size) != sizes:
        raise RunError(
            f"{folder}: the vocabularies have {source.vocab_size:,} and {target.vocab_size:,} ids, the model "
            f"{sizes[0]:,} and {sizes[1]:,}: these files are not of one model"
        )
    ours = _ours(weights, model_config, folder)
    with new_folder(out) as made:
        write_weights(made, ours)
        write_config(made, model_config, source, target, TrainingRecord(imported="huggingface marian"))
        return load_run(made)


def export_marian(run: Run, out: Path) -> None:
    """Write `run` to the folder `out` in the Marian layout, whole or not at all; `out` must be new or empty.

    RunError says what the layout can't hold.
    `transformers.MarianMTModel.from_pretrained(out)` reads it. Heads that were pruned become zeros. Vocabularies of
    two sizes are filled up to the larger, with tokens that are never predicted.
    """
    model, config = run.model, run.model.config
    for setting in ("norm_first", "final_norm"):
        if getattr(config, setting):
            raise RunError(f"this run's model has {setting}, which the Marian layout lacks: export it --to onnx")
    check_name(out)
    size, vocabularies = marian_size(config), marian_vocabularies(run)
    with new_folder(out) as made:
        write_tensors(made / WEIGHTS, _theirs(model, size), {"format": "pt"})
        write_marian_files(run, vocabularies, made)
        write_json(made / CONFIG, marian_config(config))
        write_json(
            made / "tokenizer_config.json",
            {
                "tokenizer_class": "MarianTokenizer",
                "separate_vocabs": not config.shared_vocab,
                "model_max_length": MOST_TOKENS,
                "split_special_tokens": True,  # transformers would look for their names in the text
                "source_lang": None,
                "target_lang": None,
            },
        )


def marian_size(config: ModelConfig) -> int:
    """Return how many ids both vocabularies have in the Marian layout, where the last one is padding."""
    return max(config.source_vocab_size, config.target_vocab_size)


def marian_vocabularies(run: Run) -> dict[str, dict[str, int]]:
    """Return the vocabularies of the Marian layout by their files' names; RunError says what it can't hold."""
    config = run.model.config
    size = marian_size(config)
    source, target = (
        _vocabulary(tokenizer, size, side)
        for tokenizer, side in ((run.source_tokenizer, "source"), (run.target_tokenizer, "target"))
    )
    if config.shared_vocab and source != target:
        raise RunError(
            "this run's source and target share their embeddings and have different pieces, "
            "which the Marian layout lacks: export it --to ctranslate2"
        )
    return {"vocab.json": source} if config.shared_vocab else {"vocab.json": source, "target_vocab.json": target}


def write_marian_files(run: Run, vocabularies: Mapping[str, Mapping[str, int]], made: Path) -> None:
    """Write the sentencepiece models, the vocabularies and generation_config.json of the Marian layout."""
    size = marian_size(run.model.config)
    for name, vocabulary in vocabularies.items():
        write_json(made / name, vocabulary)
    for tokenizer, side in ((run.source_tokenizer, "source"), (run.target_tokenizer, "target")):
        tokenizer.save(made / side)
        (made / f"{side}.vocab.json").unlink(missing_ok=True)  # the layout has its own
    write_json(
        made / "generation_config.json",
        {
            "bad_words_ids": [[size - 1]],
            "decoder_start_token_id": size - 1,
            "eos_token_id": EOS,
            "forced_eos_token_id": EOS,
            "max_length": SearchConfig.max_length + 1,  # which counts the token that a translation starts from
            "num_beams": 5,
            "pad_token_id": size - 1,
        },
    )


class _Kind(Struct, frozen=True):
    """The fields that tell whose config.json it is."""

    model_type: Any = None
    format: Any = None


class MarianConfig(Struct, frozen=True, kw_only=True):
    """The fields of Marian's config.json that a model depends on, with transformers' defaults."""

    vocab_size: Natural
    decoder_vocab_size: Natural | None = None
    share_encoder_decoder_embeddings: bool = True
    d_model: Natural
    encoder_layers: Natural
    decoder_layers: Natural
    encoder_attention_heads: Natural
    decoder_attention_heads: Natural | None = None
    encoder_ffn_dim: Natural
    decoder_ffn_dim: Natural | None = None
    activation_function: str
    dropout: float = 0.1
    attention_dropout: float = 0.0
    scale_embedding: bool = False
    tie_word_embeddings: bool = True
    normalize_before: bool = False
    normalize_embedding: bool = False
    add_final_layer_norm: bool = False
    static_position_embeddings: bool = True
    eos_token_id: Natural | None = None
    pad_token_id: Natural | None = None
    decoder_start_token_id: Natural | None = None


def read_marian_config(folder: Path) -> MarianConfig:
    """Read the config.json of a Marian model; RunError where there is none."""
    if not folder.is_dir():
        what = "a file, and the folder of a model was expected" if folder.exists() else "no such folder"
        raise RunError(f"{folder}: {what}")
    path = folder / CONFIG
    try:
        data = read_limited(path, MOST_BYTES)
        kind = decode_json(data, _Kind)
    except FileNotFoundError:
        raise RunError(f"{folder} has no {CONFIG}: give the folder of a Hugging Face Marian model") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    if kind.model_type != "marian":
        is_ours = kind.model_type is None and kind.format is not None
        what = "a glassformer run folder, which needs no import" if is_ours else shown(kind.model_type)
        raise RunError(f"{path} must be of model_type 'marian', got {what}: only Marian models (OPUS-MT) are read")
    try:
        return decode_json(data, MarianConfig)
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None


def _no_weights(folder: Path) -> RunError:
    if (folder / PICKLED).exists():
        return RunError(
            f"{folder} has its weights in {PICKLED}, a pickle, which can run code when loaded and is not read. If you "
            'trust it, convert it once: python -c "from transformers import MarianMTModel as M; '
            f"M.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    if any(folder.glob("*.onnx")) or any(folder.glob("onnx/*.onnx")):
        return RunError(
            f"{folder} has its weights in ONNX graphs, which aren't read: those of other programs don't say which "
            f"weight is which. Give the folder with {WEIGHTS} that they were exported from"
        )
    return RunError(f"{folder} has no {WEIGHTS}: download it again, complete")


def read_marian_tokenizers(folder: Path, *, shared: bool) -> tuple[VocabularyTokenizer, VocabularyTokenizer]:
    """Read the tokenizers of source and target, which may share a vocabulary; RunError or DataError if they can't be.

    Ids are those of the folder's vocabularies.
    """
    source = read_vocabulary(folder / "vocab.json")
    target = source if shared else read_vocabulary(folder / "target_vocab.json")
    return _tokenizer(folder / "source.spm", source), _tokenizer(folder / "target.spm", target)


def _tokenizer(path: Path, vocabulary: Mapping[str, int]) -> VocabularyTokenizer:
    if not path.exists():
        raise RunError(f"{path} is missing: download the model again, complete")
    try:
        return VocabularyTokenizer(read_model(path), vocabulary)
    except DataError as error:
        raise RunError(f"{path.parent}: {error}") from None


def _model_config(config: MarianConfig, folder: Path, weights: Mapping[str, Tensor]) -> ModelConfig:
    """Return our settings for theirs; RunError for what our model lacks."""
    path, size, shared = folder / CONFIG, config.vocab_size, config.share_encoder_decoder_embeddings
    target_size = size if shared else config.decoder_vocab_size or size
    for name, expected in (
        ("decoder_ffn_dim", config.encoder_ffn_dim),
        ("decoder_attention_heads", config.encoder_attention_heads),
        ("normalize_before", False),
        ("normalize_embedding", False),
        ("add_final_layer_norm", False),
        ("static_position_embeddings", True),
        ("eos_token_id", EOS),
        ("pad_token_id", size - 1),
        ("decoder_start_token_id", target_size - 1),
    ):
        if (got := getattr(config, name)) not in (None, expected):
            raise RunError(f"{path}: {name} must be {expected}, got {got}: such a Marian model can't be read")
    if (activation := config.activation_function) not in _ACTIVATIONS:
        raise RunError(f"{path}: activation_function must be one of {', '.join(_ACTIVATIONS)}, got {shown(activation)}")
    bias = weights.get("final_logits_bias")
    if shared and _SOURCE_EMBEDDING in weights and _TARGET_EMBEDDING in weights:  # one vocabulary, but two matrices
        shared = torch.equal(weights[_SOURCE_EMBEDDING], weights[_TARGET_EMBEDDING])
    try:
        return ModelConfig(
            source_vocab_size=size,
            target_vocab_size=target_size,
            shared_vocab=shared,
            d_model=config.d_model,
            heads=config.encoder_attention_heads,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            d_ff=config.encoder_ffn_dim,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation=_ACTIVATIONS[activation],
            scale_embedding=config.scale_embedding,
            tied_output=config.tie_word_embeddings,
            output_bias=bias is not None and bool(bias.flatten()[:-1].any()),  # we never predict padding
        )
    except ConfigError as error:
        raise RunError(f"{path} describes a model that can't be: {error}") from None


def _ours(theirs: Mapping[str, Tensor], config: ModelConfig, folder: Path) -> dict[str, Tensor]:
    """Return their weights under our names, in float32."""

    def take(*names: str) -> Tensor:
        for name in names:
            if name in theirs:
                weight = theirs[name].float()
                if theirs[name].dtype == torch.float64 and not weight.isfinite().all():
                    raise RunError(f"{folder / WEIGHTS}: {name} holds numbers beyond float32: download it again")
                return weight
        raise RunError(f"{folder / WEIGHTS} is no Marian model, or cut short: {names[0]} is missing")

    def fitting(name: str, *shape: int) -> Tensor:
        weight = take(name)
        _check_shape(folder, name, weight, shape)
        return weight

    d_model = config.d_model
    ours: dict[str, Tensor] = {}
    ours["target_embedding.weight"] = take(_TARGET_EMBEDDING, "model.shared.weight", "lm_head.weight")
    if not config.shared_vocab:
        ours["source_embedding.weight"] = take(_SOURCE_EMBEDDING)
    for our, their in _parts(config):
        for kind in ("weight", "bias"):
            if our.endswith("attention"):
                shape = (d_model, d_model) if kind == "weight" else (d_model,)
                ours[f"{our}.in_proj_{kind}"] = torch.cat([fitting(f"{their}.{x}_proj.{kind}", *shape) for x in "qkv"])
                ours[f"{our}.out_proj.{kind}"] = take(f"{their}.out_proj.{kind}")
            else:
                ours[f"{our}.{kind}"] = take(f"{their}.{kind}")
    if not config.tied_output:
        ours["output.weight"] = fitting("lm_head.weight", config.target_vocab_size, d_model)[:-1]
    if config.output_bias:
        ours["output_bias"] = take("final_logits_bias").flatten()[:-1]
    for name, shape in weight_shapes(config).items():
        _check_shape(folder, name, ours[name], shape)
    return ours


def _parts(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield the names of every part of every layer, ours and theirs."""
    for side, layers, parts in (
        ("encoder", config.encoder_layers, _ENCODER_LAYER),
        ("decoder", config.decoder_layers, _DECODER_LAYER),
    ):
        for n in range(layers):
            for our, their in parts.items():
                yield f"{side}.{n}.{our}", f"model.{side}.layers.{n}.{their}"


def _check_shape(folder: Path, name: str, weight: Tensor, shape: tuple[int, ...]) -> None:
    if weight.shape != shape:
        raise RunError(f"{folder}: {WEIGHTS} does not fit {CONFIG}: {name} must be {shape}, got {tuple(weight.shape)}")


def _vocabulary(tokenizer: Tokenizer, size: int, side: str) -> dict[str, int]:
    """Return the tokenizer's pieces and ids, filled up to `size` before `<pad>`."""
    check_subwords(tokenizer, side)
    pieces = ["</s>", "<unk>", *tokenizer.tokens(range(UNK + 1, tokenizer.pad))]
    known, last = set(pieces), [*(f"<unused_{n}>" for n in range(size - tokenizer.vocab_size)), "<pad>"]
    for name in last:
        if name in known:
            raise RunError(
                f"the {side} tokenizer of this run has a piece {name}, a name that the Marian layout uses itself: "
                "export it --to ctranslate2"
            )
    return {piece: i for i, piece in enumerate([*pieces, *last])}


def check_subwords(tokenizer: Tokenizer, side: str) -> None:
    """Raise RunError unless the tokenizer is a sentencepiece model, in which `</s>` and `<unk>` are what they mean."""
    if not isinstance(tokenizer, SubwordTokenizer | VocabularyTokenizer):
        raise RunError(
            f"the {side} tokenizer of this run splits symbols at spaces, and exports hold sentencepiece models only: "
            f"train with --{side}-tokenizer unigram, bpe, char, word or features to export"
        )
    for i, name in ((EOS, "</s>"), (UNK, "<unk>")):
        if tokenizer.id_of(name) not in (None, i):
            raise RunError(
                f"the {side} tokenizer of this run has a piece {name} beside {tokenizer.tokens([i])[0]}, which means "
                "that: what reads an export would take one for the other, so train with a tokenizer that has one"
            )


def _theirs(model: Transformer, size: int) -> dict[str, Tensor]:
    """Return our weights under their names, the vocabularies filled up to `size`."""
    config, ours = model.config, model.state_dict()

    theirs = {"final_logits_bias": logits_bias(model)[None]}
    target = filled_up(ours["target_embedding.weight"], size)
    if config.shared_vocab:
        theirs["model.shared.weight"] = target
    else:
        theirs[_TARGET_EMBEDDING] = target
        theirs[_SOURCE_EMBEDDING] = filled_up(ours["source_embedding.weight"], size)
    if not config.tied_output:
        if config.shared_vocab:  # untied, their model has three copies
            theirs |= {_SOURCE_EMBEDDING: target.clone(), _TARGET_EMBEDDING: target.clone()}
        theirs["lm_head.weight"] = pad(ours["output.weight"], (0, 0, 0, size - config.target_pad))
    for our, their in _parts(config):
        for kind in ("weight", "bias"):
            if our.endswith("attention"):
                # Heads that were removed, as zeros.
                missing = (config.heads - config.heads_of(our)) * (config.d_model // config.heads)
                parts = ours[f"{our}.in_proj_{kind}"].unflatten(0, (3, config.d_model - missing))
                for x, part in zip("qkv", parts, strict=True):
                    theirs[f"{their}.{x}_proj.{kind}"] = torch.cat([part, part.new_zeros(missing, *part.shape[1:])])
                output = ours[f"{our}.out_proj.{kind}"]
                theirs[f"{their}.out_proj.{kind}"] = pad(output, (0, missing)) if kind == "weight" else output
            else:
                theirs[f"{their}.{kind}"] = ours[f"{our}.{kind}"]
    return theirs


def filled_up(embedding: Float[Tensor, "ids d_model"], size: int) -> Float[Tensor, "{size} d_model"]:
    """Return an embedding matrix with zeros for the ids that fill a vocabulary up; padding stays the last."""
    return torch.cat([pad(embedding[:-1], (0, 0, 0, size - len(embedding))), embedding[-1:]])


def logits_bias(model: Transformer) -> Float[Tensor, " ids"]:
    """Return what the Marian layout adds to logits, so that its probabilities of all ids are our model's."""
    config = model.config
    bias = torch.full((marian_size(config),), _NEVER)
    bias[: config.target_pad] = 0.0 if model.output_bias is None else model.output_bias.detach()
    return bias


def marian_config(config: ModelConfig) -> dict[str, Any]:
    """Return the config.json of the Marian layout."""
    size = marian_size(config)
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "activation_function": config.activation,
        "activation_dropout": 0.0,
        "attention_dropout": config.attention_dropout,
        "bad_words_ids": [[size - 1]],
        "d_model": config.d_model,
        "decoder_attention_heads": config.heads,
        "decoder_ffn_dim": config.d_ff,
        "decoder_layers": config.decoder_layers,
        "decoder_start_token_id": size - 1,
        "decoder_vocab_size": size,
        "dropout": config.dropout,
        "encoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.d_ff,
        "encoder_layers": config.encoder_layers,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
        "is_encoder_decoder": True,
        "max_position_embeddings": MOST_TOKENS,
        "normalize_before": False,
        "normalize_embedding": False,
        "pad_token_id": size - 1,
        "scale_embedding": config.scale_embedding,
        "share_encoder_decoder_embeddings": config.shared_vocab,
        "static_position_embeddings": True,
        "tie_word_embeddings": config.tied_output,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": size,
    }
