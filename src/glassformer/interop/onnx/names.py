"""The names of the files in an exported folder, as transformers.js and optimum look for them."""

from pathlib import Path

from glassformer.errors import ConfigError

GRAPHS = "onnx"
"""The folder of the graphs."""
ENCODER, DECODER = "encoder_model", "decoder_model_merged"
DTYPES = {None: "fp32", "int8": "q8", "fp16": "fp16"}
"""Names of the forms of quantization in transformers.js, by which it finds the files of SUFFIXES."""
SUFFIXES = {None: "", "int8": "_quantized", "fp16": "_fp16"}
"""Endings of the graphs' names, before .onnx, for each quantization."""


def graph_file(folder: Path, name: str, quantization: str | None) -> Path:
    """Return the path of a graph; ConfigError for an unknown quantization."""
    if quantization not in SUFFIXES:
        names = " or ".join(name for name in SUFFIXES if name)
        raise ConfigError(f"quantization must be {names}, got {quantization!r}")
    return folder / GRAPHS / f"{name}{SUFFIXES[quantization]}.onnx"
