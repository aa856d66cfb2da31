"""Runs written as folders of ONNX graphs that transformers.js, optimum and onnxruntime read."""

from pathlib import Path
from typing import Any

from glassformer.errors import ConfigError
from glassformer.files import new_folder, write_json
from glassformer.interop.huggingface import CONFIG, marian_config, marian_vocabularies, write_marian_files
from glassformer.interop.onnx.network import Seen, decoder_graph, encoder_graph
from glassformer.interop.onnx.precision import PRECISIONS
from glassformer.run.folder import Run

GRAPHS = "onnx"
"""The name of the folder that the graphs are in."""


def export_onnx(
    run: Run, out: Path, quantization: str | None = None, attention: Seen | None = None, lines: Path | None = None
) -> str:
    """Write `run` to the folder `out`."""
    if quantization not in PRECISIONS:
        names = ", ".join(name for name in PRECISIONS if name)
        raise ConfigError(f"quantization must be one of {names}, got {quantization!r}")
    precision = PRECISIONS[quantization]
    vocabularies = marian_vocabularies(run)
    with new_folder(out) as made:
        (made / GRAPHS).mkdir()
        for name, graph in (("encoder_model", encoder_graph), ("decoder_model_merged", decoder_graph)):
            (made / GRAPHS / f"{name}{precision.suffix}.onnx").write_bytes(graph(run.model, precision, attention))
        write_marian_files(run, vocabularies, made)
        config: dict[str, Any] = marian_config(run.model.config)
        write_json(made / CONFIG, config)
    return ""
