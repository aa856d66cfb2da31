"""`glassformer import`: a Hugging Face Marian model becomes a run folder."""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

from glassformer.files import check_new_folder
from glassformer.settings.checks import Flag
from glassformer.terminal import loading


@dataclass(frozen=True, kw_only=True)
class ImportFlags:
    """Make a run of a Hugging Face Marian model, such as OPUS-MT's.

    Reads config.json, model.safetensors, source.spm, target.spm and vocab.json of a folder; needs no other library.
    """

    from_: Annotated[Path, Flag("FOLDER")]
    """The folder of the model."""
    out: Path
    """The run folder to write."""


def import_model(flags: ImportFlags) -> int:
    """Write the run folder of a Marian model."""
    check_new_folder(flags.out)
    with loading():
        from glassformer.interop.huggingface import import_marian

    run = import_marian(flags.from_, flags.out)
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    print(f"{flags.out}: {parameters / 1e6:.1f} million parameters")
    print(f"translate with:\n  glassformer translate {quote(str(flags.out))} < FILE")
    return 0
