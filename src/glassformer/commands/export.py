"""`glassformer export`: a run becomes a model of another library."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from glassformer.checks import Flag
from glassformer.errors import ConfigError
from glassformer.files import check_new_folder


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """Write a run's model in the layout of another library."""

    run: Annotated[Path, Flag(positional=True)]
    """The run folder."""
    to: Literal["huggingface", "ctranslate2", "onnx"]
    """huggingface: a Marian model, for transformers and whatever reads its files. ctranslate2: for CTranslate2. onnx:
    graphs for onnxruntime in any language and for transformers.js."""
    out: Path
    """The folder to write."""
    quantization: str | None = None
    """Store the weights in fewer bits. With --to ctranslate2: int8, int8_float32, int8_float16, int8_bfloat16, int16,
    float16, bfloat16 or float32. With --to onnx: int8 or fp16. Left out: as they are, in float32."""
    attention: Literal["cross", "all"] | None = None
    """With --to onnx: let the graphs return attention weights too. cross: those of target over source. all: also those
    of the encoder and of the target over itself."""
    validate: Path | None = None
    """With --to onnx: lines of source text. The export fails unless onnxruntime translates them as this library does,
    greedily."""


def export_model(flags: ExportFlags) -> int:
    """Write the model, and print how it is used there."""
    target = TARGETS[flags.to]
    for name in ("quantization", "attention", "validate"):
        takers = [other for other, kind in TARGETS.items() if name in kind.takes]
        if getattr(flags, name) is not None and name not in target.takes:
            raise ConfigError(f"{name} is for --to {' or '.join(takers)}: leave it out with --to {flags.to}")
    check_new_folder(flags.out)
    target.export(flags)
    return 0


@dataclass(frozen=True)
class Target:
    """A layout that runs are written in."""

    export: Callable[[ExportFlags], None]
    """Writes the folder, and prints how it is used."""
    takes: frozenset[str] = frozenset()
    """The flags that only some targets have a use for, and this one has."""


def _to_huggingface(flags: ExportFlags) -> None:
    from glassformer.interop.huggingface import export_marian
    from glassformer.run.folder import load_run

    run = load_run(flags.run)
    export_marian(run, flags.out)
    if run.model.config.heads_left:
        print("heads that were pruned are zeros in it: the Marian layout can't leave them out, so it is no smaller")
    print(f"{flags.out}: load it with transformers.MarianMTModel.from_pretrained({str(flags.out)!r})")


def _to_ctranslate2(flags: ExportFlags) -> None:
    from glassformer.alignment.heads import read_aligning_heads
    from glassformer.interop.ctranslate2 import export_ctranslate2
    from glassformer.run.folder import load_run

    run = load_run(flags.run)
    export_ctranslate2(run, flags.out, flags.quantization, read_aligning_heads(flags.run, run.model.config))
    source, target = (str(flags.out / f"{side}.spm") for side in ("source", "target"))
    print(f"{flags.out}: translate a line with:")
    print(f"  pieces = sentencepiece.SentencePieceProcessor({source!r}).encode(line, out_type=str)")
    print(f"  translator = ctranslate2.Translator({str(flags.out)!r})")
    print('  best = translator.translate_batch([[*pieces, "</s>"]], beam_size=5)[0].hypotheses[0]')
    print(f"  print(sentencepiece.SentencePieceProcessor({target!r}).decode(best))")


def _to_onnx(flags: ExportFlags) -> None:
    from glassformer.interop.onnx.export import export_onnx
    from glassformer.run.folder import load_run

    found = export_onnx(
        load_run(flags.run), flags.out, flags.quantization, attention=flags.attention, validate=flags.validate
    )
    print(f"{flags.out}: logits differ from the model's by {found.mean_difference:.1g}, at most {found.difference:.1g}")
    if found.lines:
        ties = f", {found.ties} more up to a tie in rounding" if found.ties else ""
        print(f"{found.same:,} of {found.lines:,} lines translate to the same tokens, greedily{ties}")


TARGETS = {
    "huggingface": Target(_to_huggingface),
    "ctranslate2": Target(_to_ctranslate2, frozenset({"quantization"})),
    "onnx": Target(_to_onnx, frozenset({"quantization", "attention", "validate"})),
}
