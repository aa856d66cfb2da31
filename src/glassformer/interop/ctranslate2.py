"""Runs written as models of CTranslate2, a C++ library that translates fast, through its own specification classes.

A folder of config.json, model.bin, the vocabulary (two of them, if source and target have their own), source.spm and
target.spm.
"""

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from glassformer.alignment.heads import AligningHeads
from glassformer.errors import ConfigError, RunError
from glassformer.files import new_folder
from glassformer.interop.huggingface import MOST_TOKENS, check_subwords
from glassformer.run.folder import Run
from glassformer.text.tokenizer import EOS, UNK
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.positions import sinusoids

QUANTIZATIONS = (
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
    "int16",
    "float16",
    "bfloat16",
    "float32",
)


def export_ctranslate2(
    run: Run, out: Path, quantization: str | None = None, aligning: AligningHeads | None = None
) -> None:
    """Write `run` to the folder `out` for CTranslate2, complete or not at all; `out` must be new or empty.

    Tokens are the pieces of source.spm and target.spm; a source ends with `</s>` and has at most 1,024 tokens.
    `quantization` is one of `QUANTIZATIONS`: how the weights are stored; None keeps them as they are, in float32.
    Pruned heads are left out as far as CTranslate2 allows: all attentions of a stack have equally many there, so an
    attention with fewer gets zeros. `aligning` are the heads whose mean weights `translate_batch` returns as attention;
    left out, that is the last layer's first head. Needs the extra `ctranslate2`. RunError says why a run can't be
    exported, and ConfigError which quantizations there are.
    """
    spec = ctranslate2_model(run, quantization, aligning)
    with new_folder(out) as made:
        spec.save(str(made))
        for side, tokenizer in (("source", run.source_tokenizer), ("target", run.target_tokenizer)):
            tokenizer.save(made / side)
            (made / f"{side}.vocab.json").unlink(missing_ok=True)  # the vocabulary is written already


def ctranslate2_model(run: Run, quantization: str | None = None, aligning: AligningHeads | None = None) -> Any:
    """Return CTranslate2's description of the model with its weights; its method `save` writes a folder.

    `aligning` is as in `export_ctranslate2`. RunError says why a run can't be exported, ConfigError which quantizations
    there are.
    """
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ConfigError(f"quantization must be one of {', '.join(QUANTIZATIONS)}, got {quantization!r}")
    start = run.model.target_embedding.weight[-1]
    if start.any():
        raise RunError(
            "this run's decoder starts from a padding embedding that is not zero (its largest number is "
            f"{start.abs().max():.3g}), and CTranslate2's from zeros: export it --to huggingface"
        )
    if run.model.config.final_norm and not run.model.config.norm_first:
        raise RunError(
            "this run's model has final_norm without norm_first, which CTranslate2 lacks: export it --to onnx"
        )
    tokenizers = {"source": run.source_tokenizer, "target": run.target_tokenizer}
    for side, tokenizer in tokenizers.items():
        check_subwords(tokenizer, side)
    spec = _spec(run, aligning)
    spec.validate()
    spec.optimize(quantization=quantization)
    return spec


def _spec(run: Run, aligning: AligningHeads | None) -> Any:
    """Return CTranslate2's description of the model, filled with its weights.

    Padding is left out: their decoder starts from zeros.
    """
    try:
        from ctranslate2 import specs
        from ctranslate2.specs import common_spec, transformer_spec
    except ImportError as error:
        raise ImportError(
            "exporting to CTranslate2 needs the package ctranslate2: pip install 'glassformer[ctranslate2]'"
        ) from error
    config = run.model.config
    # Copies: quantizing changes them in place.
    weights = {name: tensor.detach().float().cpu().clone() for name, tensor in run.model.state_dict().items()}
    d_head = config.d_model // config.heads
    shape: dict[str, Any] = dict(
        pre_norm=config.norm_first,
        no_final_norm=not config.final_norm,
        activation=common_spec.Activation[config.activation.upper()],
        head_dim=d_head,
    )
    heads = {stack: _most_heads(config, stack) for stack in ("encoder", "decoder")}
    encoder: Any = transformer_spec.TransformerEncoderSpec(config.encoder_layers, heads["encoder"], **shape)
    decoder: Any = transformer_spec.TransformerDecoderSpec(
        config.decoder_layers,
        heads["decoder"],
        alignment_layer=-1 if aligning is None else aligning.layer,
        alignment_heads=1 if aligning is None else len(aligning.heads),
        **shape,
    )
    if aligning is not None:
        _put_first(weights, aligning, config.heads_of(aligning.attention))
    decoder.start_from_zero_embedding = True
    target = weights["target_embedding.weight"]
    encoder.embeddings[0].weight = weights.get("source_embedding.weight", target)[:-1].numpy()
    decoder.embeddings.weight = target[:-1].numpy()
    decoder.projection.weight = weights.get("output.weight", target[:-1]).numpy()
    if config.output_bias:
        decoder.projection.bias = weights["output_bias"].numpy()
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        stack.scale_embeddings = config.d_model**0.5 if config.scale_embedding else 1.0
        stack.position_encodings.encodings = sinusoids(MOST_TOKENS, config.d_model).numpy()
        if config.final_norm:
            _fill_norm(stack.layer_norm, weights, f"{name}_norm")
        for n, layer in enumerate(stack.layer):
            at = f"{name}.{n}"
            _fill_attention(layer.self_attention, weights, f"{at}.self_attention", heads[name] * d_head)
            if name == "decoder":
                _fill_attention(layer.attention, weights, f"{at}.source_attention", heads[name] * d_head)
            _fill_linear(layer.ffn.linear_0, weights, f"{at}.feed_forward.inner")
            _fill_linear(layer.ffn.linear_1, weights, f"{at}.feed_forward.outer")
            _fill_norm(layer.ffn.layer_norm, weights, f"{at}.feed_forward_norm")
    spec: Any = specs.TransformerSpec(encoder, decoder)
    tokenizers = run.source_tokenizer, run.target_tokenizer
    source, tokens = (tokenizer.tokens(range(tokenizer.pad)) for tokenizer in tokenizers)
    source[EOS] = tokens[EOS] = "</s>"  # what ends a source, however the run's own vocabulary writes it
    source[UNK] = tokens[UNK]  # they look for one name in both
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(tokens)
    spec.config.eos_token = tokens[EOS]
    spec.config.decoder_start_token = tokens[EOS]  # whatever it is, their decoder starts from zeros
    spec.config.unk_token = tokens[UNK]
    return spec


def _put_first(weights: dict[str, Tensor], aligning: AligningHeads, heads: int) -> None:
    """Put the aligning heads of an attention before its others: CTranslate2 takes the mean of the first ones."""
    order = [*aligning.heads, *(head for head in range(heads) if head not in aligning.heads)]
    for name in ("in_proj_weight", "in_proj_bias"):
        of_all = weights[f"{aligning.attention}.{name}"].unflatten(0, (3, heads, -1))
        weights[f"{aligning.attention}.{name}"] = of_all[:, order].flatten(0, 2)
    output = weights[f"{aligning.attention}.out_proj.weight"].unflatten(1, (heads, -1))
    weights[f"{aligning.attention}.out_proj.weight"] = output[:, order].flatten(1)


def _most_heads(config: ModelConfig, stack: str) -> int:
    """Return the largest number of heads of any attention in a stack."""
    return max(1, *(config.heads_of(name) for name in config.attentions if name.startswith(stack)))


def _fill_attention(theirs: Any, weights: dict[str, Tensor], name: str, width: int) -> None:
    """Fill an attention, each projection with zeros up to `width` rows.

    Theirs for queries, keys and values are one matrix; in attention to the source two, the queries' and the others'.
    """
    weight, bias = weights[f"{name}.in_proj_weight"], weights[f"{name}.in_proj_bias"]
    missing = width - len(weight) // 3
    weight, bias = pad(weight.unflatten(0, (3, -1)), (0, 0, 0, missing)), pad(bias.unflatten(0, (3, -1)), (0, missing))
    first, *second, last = theirs.linear
    parts = [(first, slice(0, 1)), (second[0], slice(1, 3))] if second else [(first, slice(0, 3))]
    for linear, rows in parts:
        linear.weight, linear.bias = weight[rows].flatten(0, 1).numpy(), bias[rows].flatten().numpy()
    last.weight = pad(weights[f"{name}.out_proj.weight"], (0, missing)).numpy()
    last.bias = weights[f"{name}.out_proj.bias"].numpy()
    _fill_norm(theirs.layer_norm, weights, f"{name}_norm")


def _fill_linear(theirs: Any, weights: dict[str, Tensor], name: str) -> None:
    theirs.weight, theirs.bias = weights[f"{name}.weight"].numpy(), weights[f"{name}.bias"].numpy()


def _fill_norm(theirs: Any, weights: dict[str, Tensor], name: str) -> None:
    theirs.gamma, theirs.beta = weights[f"{name}.weight"].numpy(), weights[f"{name}.bias"].numpy()
