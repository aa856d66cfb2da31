"""Runs as models of CTranslate2, a C++ library that translates fast: by way of the Marian layout and its own converter.

A folder of config.json, model.bin, the vocabulary (two of them, if source and target have their own), source.spm and
target.spm.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from glassformer.errors import ConfigError, RunError
from glassformer.files import write_json
from glassformer.interop.huggingface import CONFIG, export_marian
from glassformer.run import Run

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
POSITIONS = 1024  # sinusoids are stored; CTranslate2 cuts sources to as many tokens unless told otherwise


def export_ctranslate2(run: Run, out: Path, quantization: str | None = None) -> None:
    """Writes `run` to the folder `out` for CTranslate2, complete or not at all; `out` must be new or empty.

    Tokens are the pieces of source.spm and target.spm; a source ends with `</s>` and has at most 1,024 tokens.
    `quantization` is one of `QUANTIZATIONS`: how the weights are stored; None keeps them as they are, in float32.
    Needs the extra `ctranslate2`; RunError says what keeps a run from being exported.
    """
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ConfigError(f"quantization must be one of {', '.join(QUANTIZATIONS)}, got {quantization!r}")
    start = run.model.target_embedding.weight[-1]
    if start.any():
        raise RunError(
            "this run's decoder starts from a padding embedding that is not zero (its largest number is "
            f"{start.abs().max():.3g}), and CTranslate2's from zeros: export it --to huggingface"
        )
    try:
        from ctranslate2.converters import TransformersConverter
        from transformers.utils import logging  # the converter needs transformers, and doesn't say so
    except ImportError as error:
        raise ImportError(
            "exporting to CTranslate2 needs ctranslate2 and transformers: pip install 'glassformer[ctranslate2]'"
        ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary, _quiet(logging):
        marian, converted = Path(temporary, "marian"), Path(temporary, "converted")
        export_marian(run, marian)
        config = json.loads((marian / CONFIG).read_text(encoding="utf-8"))
        write_json(marian / CONFIG, {**config, "max_position_embeddings": POSITIONS})
        converter = TransformersConverter(str(marian), copy_files=["source.spm", "target.spm"])
        converter.convert(str(converted), quantization=quantization)
        if not run.model.config.shared_vocab:
            _write_vocabularies(marian, converted)
        if out.exists():
            out.rmdir()  # an empty one, in whose place not every system puts another
        converted.rename(out)


def _write_vocabularies(marian: Path, converted: Path) -> None:
    """Both vocabularies, without `<pad>`: the converter writes the source's alone and takes it for both."""
    (converted / "shared_vocabulary.json").unlink(missing_ok=True)
    for name, theirs in (("vocab.json", "source_vocabulary.json"), ("target_vocab.json", "target_vocabulary.json")):
        ids = json.loads((marian / name).read_text(encoding="utf-8"))
        pieces = sorted(ids, key=ids.__getitem__)[:-1]
        (converted / theirs).write_text(json.dumps(pieces, indent=2), encoding="utf-8")


@contextmanager
def _quiet(logging: ModuleType) -> Iterator[None]:
    """transformers without its progress bar, and without advice to install what only its tokenizer would use."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
            yield
    finally:
        if shown:
            logging.enable_progress_bar()
