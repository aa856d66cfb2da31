"""The run folder: what training leaves and every other tool starts from.

    config.json          format version, sizes of the model, names of the tokenizer files, how it was trained
    model.safetensors    the weights
    source.* target.*    tokenizers: .spm (sentencepiece; with .vocab.json if its ids are an imported model's) or
                         .symbols (one symbol a line)
    metrics.jsonl        one line per report and validation
    curves.png           their picture, where matplotlib is installed
    scores.json          scores on test sets, where `glassformer evaluate --save` put them
    resume/              while training is unfinished: what it needs to go on

Nothing in it is a pickle.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glassformer.errors import ArgumentError, ConfigError, RunError, shown
from glassformer.files import followed, write_json
from glassformer.run.config import RunConfig, TrainingRecord, check_weights, read_config
from glassformer.run.names import CONFIG, FORMAT, WEIGHTS
from glassformer.scoring.scores import METRICS
from glassformer.tensors import open_tensors, write_tensors
from glassformer.text.kinds import SUBWORD_ENDINGS
from glassformer.text.loading import load_tokenizer, tokenizer_files
from glassformer.text.tokenizer import Tokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer, check_memory, count_parameters, weight_shapes

FLOATS = ("F32", "F16", "BF16", "F64")
"""Types of weights that are read, as safetensors names them."""


@dataclass(frozen=True)
class Run:
    """A trained model with its tokenizers, loaded, and how it was trained."""

    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    training: TrainingRecord


@dataclass(frozen=True)
class RunFolder:
    """The content of a run folder, its weights still on disk.

    Example: docs/reference/run_folder.md.
    """

    model_config: ModelConfig
    weights: Mapping[str, Tensor]
    """The tensors by name, each read when it is asked for."""
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    training: TrainingRecord
    """The settings of its training, the counts of its pairs, its languages."""
    tokenizer_files: tuple[Path, Path]
    """Files of the source's and the target's tokenizer."""

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return count_parameters(self.model_config)


class WeightFile(Mapping[str, Tensor]):
    """The tensors of a safetensors file, each read when it is asked for and not kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with open_tensors(path) as file:
            names = file.keys()
            headers = {name: file.get_slice(name) for name in names}
            self._shapes = {name: tuple(header.get_shape()) for name, header in headers.items()}
            self._kinds = {name: header.get_dtype() for name, header in headers.items()}

    def check(self, model: ModelConfig) -> None:
        """Raise RunError unless the names and shapes are those of this model's weights."""
        expected = weight_shapes(model)
        for name in sorted(expected.keys() | self._shapes.keys()):
            if expected.get(name) != self._shapes.get(name):
                raise RunError(
                    f"{self._path} does not fit the model of {CONFIG}: {name} must be "
                    f"{expected.get(name, 'left out')}, got {self._shapes.get(name, 'none')}"
                )
            self._check_kind(name)

    def _check_kind(self, name: str) -> None:
        if self._kinds[name] not in FLOATS:
            kinds = ", ".join(FLOATS)
            raise RunError(f"{self._path}: {name} must be of type {kinds}, got {self._kinds[name]}: fetch it again")

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._shapes:
            raise KeyError(name)
        self._check_kind(name)
        # Opened for each tensor: what an open file has read counts as the process's memory until it is closed.
        with open_tensors(self._path) as file:
            tensor = file.get_tensor(name)
        if not tensor.isfinite().all():
            raise RunError(
                f"{self._path} holds numbers that are not finite, first in {name}: train again with a lower "
                "--learning-rate, or fetch it again"
            )
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def write_config(
    folder: Path,
    model: ModelConfig,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    training: TrainingRecord,
) -> None:
    """Write the tokenizers and config.json of a run folder."""
    config = RunConfig(
        format=FORMAT,
        model=model.to_json(),
        source_tokenizer=source_tokenizer.save(folder / "source").name,
        target_tokenizer=target_tokenizer.save(folder / "target").name,
        training=training,
    )
    write_json(folder / CONFIG, config.to_json())


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Write model.safetensors of a run folder."""
    write_tensors(folder / WEIGHTS, weights, {"format": "pt"})


def load_run(folder: Path, device: torch.device | str = "cpu") -> Run:
    """Read a run folder; RunError says what is missing or wrong in it."""
    run = open_run(folder)
    check_memory(run.model_config, fix=f"{folder} needs a larger machine")
    model = Transformer(run.model_config)
    model.load_state_dict(dict(run.weights))
    return Run(model.to(device).eval(), run.source_tokenizer, run.target_tokenizer, run.training)


def open_run(folder: Path | str) -> RunFolder:
    """Read a run folder but for its weights, each read when it is asked for; RunError says what is missing or wrong.

    Example: docs/reference/run_folder.md.
    """
    folder = Path(folder)
    config = read_config(folder)
    try:
        model = ModelConfig.from_json(config.model)
    except ConfigError as error:
        raise RunError(f"{folder / CONFIG} is damaged: {error}") from None
    check_weights(folder)
    weights = WeightFile(folder / WEIGHTS)
    weights.check(model)
    files = folder / config.source_tokenizer, folder / config.target_tokenizer
    source, target = (load_tokenizer(file) for file in files)
    sizes = model.source_vocab_size, model.target_vocab_size
    if (source.vocab_size, target.vocab_size) != sizes:
        raise RunError(
            f"{folder}: {files[0].name} and {files[1].name} have {source.vocab_size} and "
            f"{target.vocab_size} ids, the model {sizes[0]} and {sizes[1]}: these files are not of one run"
        )
    return RunFolder(model, weights, source, target, config.training, files)


def training_metric(folder: Path) -> str | None:
    """Return the metric that a run's training was validated by; None for a model that was not trained here."""
    training = read_config(folder).training
    metric = {**(training.settings or {}), **(training.chosen or {})}.get("metric")
    return metric if metric in METRICS else None


def load_weights(model: Transformer, weights: Mapping[str, Tensor], path: Path) -> None:
    """Put `weights` into the model; RunError, which names `path`, if they belong to another one."""
    try:
        model.load_state_dict(dict(weights), strict=True)
        if wrong := [name for name, tensor in weights.items() if not tensor.is_floating_point()]:
            raise RunError(f"{path}: {wrong[0]} must hold floating-point numbers, got {weights[wrong[0]].dtype}")
        if not all(tensor.isfinite().all() for tensor in weights.values()):
            raise RunError(f"{path} holds numbers that are not finite: train again with a lower --learning-rate")
    except RuntimeError as error:
        first = next((line.strip() for line in str(error).splitlines()[1:]), str(error))
        raise RunError(f"{path} does not fit the model of {CONFIG}: {first}") from None


def open_together(folders: Sequence[Path | str]) -> dict[Path, RunFolder]:
    """Read run folders whose models shall write together, as `open_run` does each.

    Raises ConfigError where one is named twice, and unless they have the same tokenizers and, as far as they know them,
    the same languages.
    """
    if isinstance(folders, str) or not folders:
        raise ArgumentError(f"folders must be a list of run folders, got {shown(folders)}: Translator.load takes one")
    if len({followed(Path(folder)) for folder in folders}) < len(folders):
        raise ConfigError(f"an ensemble must have runs that differ, got {', '.join(map(str, folders))}")
    runs = {Path(folder): open_run(folder) for folder in folders}
    knowing = [(folder, *run.training.languages) for folder, run in runs.items() if run.training.languages]
    for folder, *languages in knowing[1:]:
        first, source, target = knowing[0]
        if [source, target] != languages:
            raise ConfigError(
                f"runs that translate together must have the same languages, and {first} translates from {source} to "
                f"{target}, {folder} from {languages[0]} to {languages[1]}: leave one out"
            )
    first, *others = runs
    for folder in others:
        pairs = zip(("source", "target"), runs[first].tokenizer_files, runs[folder].tokenizer_files, strict=True)
        for side, ours, theirs in pairs:
            if _content(ours) != _content(theirs):
                raise ConfigError(
                    f"runs that translate together must have the same tokenizers, and those of {first} and {folder} "
                    f"split the {side} in two ways: train the second with {_flags_for_tokenizers(first, runs[first])}"
                )
    return runs


def _flags_for_tokenizers(folder: Path, run: RunFolder) -> str:
    """Return the flags of a training that has the tokenizers of a run."""
    source, target = run.tokenizer_files
    if any(len(tokenizer_files(path)) > 1 or path.suffix not in SUBWORD_ENDINGS for path in (source, target)):
        return f"--from {folder}"
    if run.model_config.shared_vocab:
        return f"--tokenizer {source}"
    return f"--source-tokenizer {source} --target-tokenizer {target}"


def _content(tokenizer: Path) -> list[bytes]:
    return [path.read_bytes() for path in tokenizer_files(tokenizer)]
