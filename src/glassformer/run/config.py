"""config.json of a run folder: its structure, and how it is read. Loads no torch."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from glassformer.decoding import FileName, Natural, decode_json, read_limited
from glassformer.errors import RunError, closest_path
from glassformer.run.names import CONFIG, FILES, FORMAT, RESUME, WEIGHTS

LANGUAGE_CODE = r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8})*"
"""The code of a language, as BCP 47 has it: en, pt-BR."""
Code = Annotated[str, Meta(pattern=rf"^{LANGUAGE_CODE}\Z")]
ENDS = ("max_epochs", "max_updates", "max_minutes")
"""Settings that end a training."""
MOST_BYTES = 1 << 20
"""Largest config.json that is read: the settings of a training take 3 kB."""


class TrainingRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The origin of a model: its training here, the model it was imported from, or the heads that were removed."""

    settings: dict[str, Any] | None = None
    """The settings of its training, as `TrainConfig` has them."""
    begun_with: dict[str, Any] | None = None
    """First values of the settings that were changed when its training went on."""
    chosen: dict[str, Any] | None = None
    """The settings that the data decided."""
    pairs: dict[str, dict[str, Natural]] | None = None
    """The counts of the pairs for training and for validation."""
    imported: str | None = None
    """The layout that it was imported from."""
    languages: tuple[Code, Code] | None = None
    """Codes of the source's and the target's language."""
    launch: str | None = None
    """The id of the launch of several processes that began its training (torchrun's --rdzv-id)."""
    removed: dict[str, list[Natural]] | None = None
    """The heads that were removed, by the path of their attention."""

    @property
    def first_settings(self) -> dict[str, Any] | None:
        """The settings that its training began with."""
        return None if self.settings is None else self.settings | (self.begun_with or {})

    @property
    def join_lines(self) -> int:
        """Most lines that were joined into one for its training; 1 where none were, or nothing is known."""
        count = (self.settings or {}).get("join_lines")
        return count if isinstance(count, int) and count > 1 else 1

    def to_json(self) -> dict[str, Any]:
        """Return what the file holds: the fields that say something."""
        return to_builtins(self)


class RunConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of config.json. Which sizes a model may have, and which settings a training, their classes say."""

    format: Annotated[int, Meta(ge=1)]
    """Version of the format."""
    model: dict[str, Any]
    """The fields of `ModelConfig`."""
    source_tokenizer: FileName
    target_tokenizer: FileName
    training: TrainingRecord

    @property
    def tokenizers(self) -> tuple[str, str]:
        """Names of the source's and the target's tokenizer file."""
        return self.source_tokenizer, self.target_tokenizer

    def to_json(self) -> Mapping[str, Any]:
        """Return what the file holds."""
        return to_builtins(self)


class _Head(Struct):
    """The fields that tell whose file it is, and of which version."""

    format: Any = None
    model_type: Any = None


def read_config(folder: Path) -> RunConfig:
    """Return config.json of a run folder; RunError says what is missing or wrong."""
    if not folder.is_dir():
        if folder.exists():
            raise RunError(f"{folder} is a file, a run folder was expected (glassformer train --out makes one)")
        raise RunError(f"{folder}: no such run folder{closest_path(folder, folder=True)}")
    path = folder / CONFIG
    if not path.exists():
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG} (glassformer train --out makes one)")
    try:
        return decode_config(read_limited(path, MOST_BYTES), folder)
    except ValueError as error:
        raise RunError(f"{path} {error}") from None


def check_weights(folder: Path) -> None:
    """Raise RunError where a run folder has no weights."""
    if (folder / WEIGHTS).exists():
        return
    fix = "copy it again from where it was trained"
    if (folder / RESUME).exists():
        fix = "its training has not reached a first validation"
    raise RunError(f"{folder / WEIGHTS} is missing: {fix}")


def own_files(folder: Path) -> dict[str, Path]:
    """Return the files that a run folder may consist of, each beside what a message calls it; RunError for others.

    What a command writes for its user must take the place of none of them.
    """
    names = FILES.union(read_config(folder).tokenizers)
    return {f"the run's {name}": folder / name for name in sorted(names)}


def decode_config(data: bytes, folder: Path) -> RunConfig:
    """Return what the bytes of a config.json in this folder say; ValueError, without the file's name, for others."""
    try:
        head = decode_json(data, _Head)
    except ValueError as error:
        raise ValueError(f"was not written by glassformer, or is damaged: {error}") from None
    if head.format is None:
        if (folder / "onnx").is_dir() and not (folder / WEIGHTS).exists():
            raise ValueError("is of an export, graphs of ONNX, not of a run: name the run that was exported")
        if head.model_type is not None:
            raise ValueError(
                "is of a Hugging Face model, not of a run: make a run of it with glassformer import --from "
                f"{quote(str(folder))} --out RUN"
            )
        raise ValueError("was not written by glassformer, or is damaged: it has no format")
    if isinstance(head.format, int) and head.format > FORMAT:
        raise ValueError(
            f"has format version {head.format}, this glassformer reads up to {FORMAT}: upgrade glassformer"
        )
    try:
        return decode_json(data, RunConfig)
    except ValueError as error:
        raise ValueError(f"is damaged: {error}") from None


def names_its_format(data: bytes) -> bool:
    """Return whether these bytes are JSON with a version of the format, as every config.json of glassformer is."""
    try:
        return decode_json(data, _Head).format is not None
    except ValueError:
        return False


def is_run_folder(folder: Path) -> bool:
    """Return whether training wrote this folder, finished or not."""
    try:
        read_config(folder)
    except RunError:
        return False
    return True
