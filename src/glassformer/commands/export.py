"""`glassformer export`: a run becomes a model of another library."""

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
    to: Literal["huggingface", "ctranslate2"]
    """huggingface: a Marian model, for transformers and whatever reads its files. ctranslate2: for CTranslate2."""
    out: Path
    """The folder to write."""
    quantization: str | None = None
    """With --to ctranslate2: store the weights as int8, int8_float32, int8_float16, int8_bfloat16, int16, float16,
    bfloat16 or float32. Left out: as they are, in float32."""


def export_model(flags: ExportFlags) -> int:
    """Write the model, and print how it is used there."""
    from glassformer.alignment.heads import read_aligning_heads
    from glassformer.interop.ctranslate2 import export_ctranslate2
    from glassformer.interop.huggingface import export_marian
    from glassformer.run.folder import load_run

    check_new_folder(flags.out)
    if flags.to == "huggingface":
        if flags.quantization is not None:
            raise ConfigError("--quantization is for --to ctranslate2: leave it out with --to huggingface")
        run = load_run(flags.run)
        export_marian(run, flags.out)
        if run.model.config.heads_left:
            print("heads that were pruned are zeros in it: the Marian layout can't leave them out, so it is no smaller")
        print(f"{flags.out}: load it with transformers.MarianMTModel.from_pretrained({str(flags.out)!r})")
    else:
        run = load_run(flags.run)
        aligning = read_aligning_heads(flags.run, run.model.config)
        export_ctranslate2(run, flags.out, flags.quantization, aligning)
        source, target = (str(flags.out / f"{side}.spm") for side in ("source", "target"))
        print(f"{flags.out}: translate a line with:")
        print(f"  pieces = sentencepiece.SentencePieceProcessor({source!r}).encode(line, out_type=str)")
        print(f"  translator = ctranslate2.Translator({str(flags.out)!r})")
        print('  best = translator.translate_batch([[*pieces, "</s>"]], beam_size=5)[0].hypotheses[0]')
        print(f"  print(sentencepiece.SentencePieceProcessor({target!r}).decode(best))")
    return 0
