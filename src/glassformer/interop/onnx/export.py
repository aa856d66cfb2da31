"""Runs written as folders of ONNX graphs that transformers.js, optimum and onnxruntime read."""

from pathlib import Path
from typing import Any

import torch

from glassformer.errors import DataError
from glassformer.files import check_name, new_folder, write_json
from glassformer.interop.fast_tokenizer import write_fast_tokenizers
from glassformer.interop.huggingface import CONFIG, marian_config, marian_vocabularies, write_marian_files
from glassformer.interop.onnx.generate import OnnxTranslator
from glassformer.interop.onnx.names import DECODER, ENCODER, GRAPHS, graph_file
from glassformer.interop.onnx.network import Seen, decoder_graph, encoder_graph
from glassformer.interop.onnx.precision import PRECISIONS
from glassformer.interop.onnx.validate import Likeness, compare
from glassformer.pairs.lines import read_lines
from glassformer.run.folder import Run
from glassformer.transformer.config import ModelConfig


def export_onnx(
    run: Run,
    out: Path,
    quantization: str | None = None,
    *,
    attention: Seen | None = None,
    validate: Path | None = None,
) -> Likeness:
    """Write `run` to the folder `out` as ONNX graphs, complete or not at all; return how like the model they are.

    `out` must be new or empty. Beside the graphs of the encoder and of the decoder it has what the Marian layout has
    but for the weights. `quantization` is int8 or fp16; None keeps float32. With `attention` the graphs return weights
    of attention too: "cross", those of target over source, or "all". Heads that were pruned are left out. A source and
    a target have at most `parts.POSITIONS` tokens.

    The graphs are held against the model: in float32 logits of random batches must be the same up to rounding, and so
    must greedy translations of the lines of the file `validate`. Otherwise, and for runs that can't be exported,
    RunError. Needs the extra `onnx`.
    """
    graph_file(out, ENCODER, quantization)  # an unknown quantization is refused before any work
    check_name(out)
    vocabularies = marian_vocabularies(run)
    lines = [] if validate is None else list(read_lines(validate))
    if validate is not None and not lines:
        raise DataError(f"{validate} has no lines: give lines of source text")
    with new_folder(out) as made:
        (made / GRAPHS).mkdir()
        for name, build in ((ENCODER, encoder_graph), (DECODER, decoder_graph)):
            graph_file(made, name, quantization).write_bytes(build(run.model, PRECISIONS[quantization], attention))
        write_marian_files(run, vocabularies, made)
        write_fast_tokenizers(made, run.source_tokenizer, run.target_tokenizer)
        write_json(made / CONFIG, _config(run.model.config))
        graphs = OnnxTranslator.load(made, quantization, torch.get_num_threads())
        return compare(run, graphs, lines, exact=quantization is None)


def _config(config: ModelConfig) -> dict[str, Any]:
    """Return the config.json of the Marian layout, with what only graphs can hold."""
    return {
        **marian_config(config),
        "normalize_before": config.norm_first,
        "add_final_layer_norm": config.final_norm,
    }
