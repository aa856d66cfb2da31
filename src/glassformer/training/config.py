"""Every setting of a training, with defaults that work. One flag each on the command line."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from glassformer.errors import ConfigError, shown
from glassformer.files import path_as_text, path_from_text
from glassformer.pairs.files import columns_of_each
from glassformer.pairs.mixture import Pairs, Paths, open_pairs
from glassformer.run.config import ENDS, LANGUAGE_CODE
from glassformer.scoring.scores import METRICS
from glassformer.settings.checks import (
    LONGEST,
    MOST,
    BatchTokens,
    Choice,
    Count,
    Device,
    Flag,
    Number,
    Positive,
    Probability,
    Seed,
    Share,
    Threads,
    VocabularySize,
    Whole,
    check_settings,
)
from glassformer.settings.docstrings import with_fields
from glassformer.text.kinds import AUTO, SUBWORD_ENDINGS, WHOLE_KINDS
from glassformer.tracking.tracker import NONE, Track
from glassformer.transformer.config import PRESETS, ModelConfig

PRECISIONS = ("auto", "float32", "bfloat16")
OPTIMIZERS = ("muon", "adam")
TASKS = ("characters",)
TASK_INTERVAL, TASK_VALIDATIONS = 250, 20
"""Fewest updates between validations of a task, and about how many validations it has."""
CHANGEABLE = (
    *(*ENDS, "patience", "device", "precision", "threads", "shard"),
    *("learning_rate", "weight_decay", "clip_norm", "qk_clip", "max_left_out", "batch_tokens", "accumulate"),
    *("checkpoint_seconds", "watch", "track"),
)
"""Settings that `resume` may change."""

INHERITED = (
    *("tokenizer", "source_tokenizer", "target_tokenizer", "vocab_size", "source_vocab_size", "target_vocab_size"),
    *("separate_vocab", "character_coverage", "decompose"),
    *("preset", "d_model", "heads", "encoder_layers", "decoder_layers", "d_ff"),
)
"""Settings that a run has from the one that it begins with."""
BATCH_TOKENS = 2048
"""Most tokens in a batch, where neither the data nor the user say otherwise."""
OFF = "0 turns it off"
Weight = Annotated[float, Number(at_least=0, less_than=math.inf, limit=1e9, note=OFF)]


@with_fields
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Train a Transformer on pairs of text and leave it in a run folder.

    >>> config = TrainConfig(source=Path("pairs.tsv"), out=Path("runs/mine"), preset="tiny", max_epochs=5)
    >>> config.metric, config.batch_tokens  # what is left out is chosen from the pairs when training begins
    ('auto', None)
    """

    out: Path
    """The run folder to write."""
    source: Annotated[Paths | None, Flag(bare=True)] = None
    """Training sources, one a line; without --target a file of both sides: TSV (source<tab>target), CSV, JSON lines,
    parquet, xlsx, TMX, XLIFF or PO, plain or packed. Several files are mixed; a.tsv:3 is read three times."""
    target: Paths | None = None
    """Training targets, line by line the counterparts of the sources."""
    columns: Annotated[tuple[str, str], Flag("NAME")] | None = None
    """The source's and the target's column of a table, by name or number; of a TMX file the two languages."""
    valid_source: Paths | None = None
    """Validation sources (or a TSV file). Left out, up to 1,000 training pairs are held out."""
    valid_target: Paths | None = None
    """Validation targets."""
    source_language: str | None = None
    """Code of the source's language, such as en or pt-BR, by which `glassformer serve` offers the run."""
    target_language: str | None = None
    """Code of the target's language."""
    overwrite: bool = False
    """Replace the run in the output folder."""
    from_: Path | None = None
    """Go on from the model of this run folder, a trained or an imported one, with these pairs (fine-tuning). Its
    tokenizers and sizes are kept."""
    resume: bool = False
    """Continue the unfinished run in the output folder from its last checkpoint, with the settings it was started
    with. What may be given anew: limits, patience, device, precision, threads, shard, learning rate, weight decay,
    clipping, updates to leave out, batch size, checkpoints, watch and track."""

    task: Annotated[str, Choice(*TASKS)] | None = None
    """A kind of task, which brings settings of its own; the flag of a setting overrides it. characters: turn words into
    words or sounds, character by character (pronunciation, inflection, segmentation, normalisation). A feature such as
    <V> is one token. See docs/howto/characters.md."""
    tokenizer: Annotated[str, Flag("KIND")] = AUTO
    """Kind of tokenizer: unigram, bpe, char, word (sentencepiece, learned from the text), features (characters, and
    each feature such as <V> or <PST> as one token), symbols (split at spaces), or the path of a sentencepiece model: a
    .model file, or the .spm of another run. auto: chosen from the text."""
    source_tokenizer: Annotated[str, Flag("KIND")] | None = None
    """The source's own kind of tokenizer; source and target then have separate vocabularies."""
    target_tokenizer: Annotated[str, Flag("KIND")] | None = None
    """The target's own kind of tokenizer; source and target then have separate vocabularies."""
    vocab_size: VocabularySize | None = None
    """Number of token ids. Left out: what the text gives, the more the longer it is (29,000 sentences: 8,000)."""
    source_vocab_size: VocabularySize | None = None
    """The source's own number of token ids; source and target then have separate vocabularies."""
    target_vocab_size: VocabularySize | None = None
    """The target's own number of token ids; source and target then have separate vocabularies."""
    separate_vocab: bool = False
    """Separate vocabularies for source and target, for languages that share no words."""
    character_coverage: Annotated[float, Number(at_least=0.98, at_most=1)] = 1.0
    """Share of the text's characters that get ids of their own, 0.98 or more; the rest become <unk>."""
    decompose: bool = False
    """Split each source character into its parts, if it has any (Unicode NFD): 한 into three letters, é into e and an
    accent. Use it where letters matter, as in words to pronounce. Source and target then have separate vocabularies."""
    max_tokens: Annotated[int, Whole(at_least=2, limit=LONGEST, note="one token and </s>")] = 256
    """Training pairs with a longer side are left out (tokens, with </s>)."""
    max_ratio: Annotated[float, Number(at_least=1, limit=1e9)] = 9.0
    """Training pairs whose lengths in tokens differ by a larger factor are left out."""
    join_lines: Annotated[int, Whole(at_least=1, limit=100)] = 1
    """Train also on neighbouring lines joined into one, at most this many, as far as --max-tokens allows. Each line is
    then read once more, with its neighbours, and `translate --segment paragraph` gives the model this many sentences
    at once. 1 joins none."""

    preset: Annotated[str, Choice(AUTO, *PRESETS)] = AUTO
    """Size of the model: tiny (2.3M parameters with 8,000 ids), small (6.0M), base or big (Vaswani et al. 2017). auto:
    chosen from the pairs and the limits."""
    d_model: int | None = None
    """Width, instead of the preset's."""
    heads: int | None = None
    """Attention heads, instead of the preset's."""
    encoder_layers: int | None = None
    """Encoder layers, instead of the preset's."""
    decoder_layers: int | None = None
    """Decoder layers, instead of the preset's."""
    d_ff: int | None = None
    """Width of the feed-forward layers, instead of the preset's."""
    dropout: float | None = None
    """Dropout probability, instead of the preset's; with preset auto chosen from the pairs."""
    attention_dropout: float | None = None
    """Probability of dropping an attention weight, instead of the preset's."""

    batch_tokens: BatchTokens | None = None
    """Most source and most target tokens in a batch, which the processes share; there is no padding to count. Left out:
    chosen from the pairs, at most 2,048."""
    accumulate: Annotated[int, Whole(at_least=1, limit=1 << 16)] = 1
    """Batches per update, one after the other."""
    optimizer: Annotated[str, Choice(*OPTIMIZERS)] | None = None
    """muon (Jordan et al. 2024: for the matrices of the layers, Adam for the rest) or adam (Vaswani et al. 2017). Muon
    needs fewer updates, which take longer where layers are wide and batches small. Left out: muon; with --from adam."""
    learning_rate: Annotated[float, Number(above=0, less_than=math.inf, limit=1e38)] | None = None
    """Highest learning rate, reached after the warm-up; then it falls with 1 / sqrt(update). Left out: with Muon
    1 / (2 * d_model), which is 2e-3 for the small model, with Adam 1 / (4 * d_model); with --from half of that."""
    warmup: Count | None = None
    """Updates over which the learning rate rises. Left out: a tenth of those that the limits allow (of a limit in
    minutes by the speed of the first seconds), at most 4 * d_model."""
    cooldown: Share = 0.3
    """Share of the training, at its end, over which the learning rate falls linearly to 0; with 0 it doesn't fall. Once
    it falls, patience no longer counts."""
    resample: Share = 0.0
    """Share of the sentences that are split into random subwords each time they are read, until the cooldown (subword
    regularisation: Provilkov et al. 2020 for bpe, Kudo 2018 for unigram). Other tokenizers can split text in one way
    only. A training that is stopped and continued draws other splits than it would have drawn without the stop."""
    label_smoothing: Probability = 0.1
    """Share of the probability that the loss spreads over the whole vocabulary."""
    r_drop: Weight = 0.0
    """Weight of R-Drop (Liang et al. 2021, who take 5): the model reads every batch twice, and the loss pulls together
    the two predictions, which differ by dropout. 0: it reads each batch once."""
    guide: Weight = 0.0
    """Weight of guided attention (Chen et al. 2016): a loss pulls the first head of decoder.0.source_attention to the
    source tokens of the token just written. Their alignment is learned from the pairs beforehand (see
    `glassformer align`). 0: no guide."""
    weight_decay: Weight | None = None
    """Each update reduces the weights of matrices and embeddings by this share times the learning rate (decoupled
    weight decay, Loshchilov & Hutter 2019). Left out: 0.3, or 0 with --from."""
    clip_norm: Annotated[float, Number(at_least=0, limit=1e9, note=OFF)] = 1.0
    """Largest norm of the gradient; 0 leaves it as it is."""
    qk_clip: Weight = 0.0
    """Largest attention score that a head may have. After an update in which a score was larger, the head's query and
    key projections are scaled down (QK-Clip: Kimi K2, 2025, which takes 100). It is for trainings whose scores run
    away, which --watch reports. 0: no limit."""
    max_left_out: Count = 20
    """Stop after about this many updates in a row that had to be left out: their loss was not a number, or jumped."""
    max_epochs: Count | None = None
    """Stop after this many passes over the training pairs. Without any limit (passes, updates or minutes) stop after
    100 passes, or as soon as both 20 passes and 8,000 updates are made. Patience may end the training sooner."""
    max_updates: Count | None = None
    """Stop after this many updates."""
    max_minutes: Positive | None = None
    """Stop after this many minutes of training."""
    patience: Annotated[int, Whole(at_least=0, limit=MOST, note=OFF)] = 20
    """End the training after this many validations without a better score; the cooldown is still done. 0: never."""

    validate_every: Count | None = None
    """Updates between validations, each of which keeps the weights for averaging. Left out: a twelfth of those that the
    limits allow, at most 250."""
    metric: Annotated[str, Choice(AUTO, *METRICS)] = AUTO
    """Score by which models are compared: bleu, chrf, exact (share of equal lines), wer, ser (errors by word, symbol).
    auto: exact for short targets, wer for symbols, else bleu."""
    tokenize: str = "auto"
    """sacreBLEU tokenizer for the bleu metric: auto, 13a, zh, ja-mecab, char, ..."""
    score_pairs: Annotated[int, Whole(at_least=1, limit=10**6)] = 500
    """Validation pairs that are translated (greedily) for the score; the loss takes all of them."""
    average: Annotated[int, Whole(at_least=1, limit=1000)] = 5
    """Checkpoints whose mean becomes the final model; 1 takes the best one."""

    watch: Count | None = None
    """Look at the attention of every head each so many updates: its entropy and largest scores go to attention.jsonl
    and curves.png, and a head that collapses, or whose scores run away, is named on the screen. Left out: never."""

    track: Track = NONE
    """Show the figures in a tracker, too: tensorboard (files in the run folder) or trackio (a database beside it, or
    where TRACKIO_DIR says). Needs the extra `tracking`."""

    checkpoint_seconds: Positive | None = None
    """Seconds between checkpoints, from which --resume goes on; they are written in the background. Left out: 10, or
    as many that writing takes at most 2 % of the time."""

    seed: Seed = 1
    """Seed of everything random: the same seed gives the same weights on the same machine and versions."""
    device: Device = "auto"
    """Where to train: auto, cpu, cuda or mps."""
    precision: Annotated[str, Choice(*PRECISIONS)] = "auto"
    """Type of the matrix products: float32, bfloat16, or auto: bfloat16 where the processor is fast in it."""
    threads: Threads | None = None
    """CPU threads; left out, torch's choice."""
    shard: bool = False
    """With several processes (torchrun): each keeps a part of the weights, gradients and optimizer state (FSDP2), for
    a model that one device can't hold. Otherwise each has them all (DDP)."""

    def __post_init__(self) -> None:
        check_settings(self)
        self.model_config(source_vocab_size=4, target_vocab_size=4)  # refuses sizes that cannot work, at once
        if self.learning_rate is not None:
            self._check_decay(self.learning_rate)
        self._check_tokenizers()
        self._check_files()
        self._check_languages()
        if self.watch is not None and self.guide:
            raise ConfigError("`watch` and `guide` exclude each other, for both take over attention: leave one out")
        if self.overwrite and self.resume:
            raise ConfigError(
                "`overwrite` and `resume` exclude each other: one replaces the run, the other continues it"
            )

    def _check_tokenizers(self) -> None:
        """Raise ConfigError for settings of the text that the tokenizers can't follow."""
        for name in ("source_tokenizer", "target_tokenizer"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} must name a kind or a file, got '': leave it out")
        if self.resample and self.cooldown == 1:
            raise ConfigError(
                f"`cooldown` 1 leaves nothing of resample {self.resample:g}, which ends where the cooldown begins: "
                "lower it"
            )
        kind = self.tokenizers[0]
        if self.decompose and (kind == "symbols" or kind.endswith(SUBWORD_ENDINGS)):
            raise ConfigError(
                "decompose is for tokenizers that learn subwords, characters or words from the text, got "
                f"{kind} for the source: leave it out, or give another source_tokenizer"
            )
        if self.resample and self.from_ is None and set(self.tokenizers) <= set(WHOLE_KINDS):
            raise self.cannot_resample()

    def cannot_resample(self) -> ConfigError:
        """Return the error for tokenizers that can split text in one way alone."""
        return ConfigError(
            f"resample is for tokenizers that can split text in several ways, bpe and unigram, got {self.resample} "
            f"with {' and '.join(sorted(set(self.tokenizers)))}: leave it out"
        )

    def _check_files(self) -> None:
        """Raise ConfigError for files, or a run to begin with, that don't go together."""
        if self.from_ is not None and (fixed := sorted(set(self.changes()) & set(INHERITED))):
            raise ConfigError(
                f"with from_ the tokenizers and sizes of that run are kept: leave out {_quoted(fixed)}, or leave out "
                "from_ to train a model of its own"
            )
        if self.valid_target is not None and self.valid_source is None:
            raise ConfigError("valid_target needs the sources too: name their file, or leave this out")

    def _check_languages(self) -> None:
        """Raise ConfigError for languages that aren't named by their codes."""
        for name in ("source_language", "target_language"):
            code = getattr(self, name)
            if code is not None and not re.fullmatch(LANGUAGE_CODE, code):
                raise ConfigError(f"{name} must be a code, such as en or pt-BR, got {shown(code)}")
        if (self.source_language is None) != (self.target_language is None):
            raise ConfigError("source_language and target_language belong together: give both, or neither")

    @property
    def languages(self) -> tuple[str, str] | None:
        """Codes of both languages, if they are given."""
        if self.source_language is None or self.target_language is None:
            return None
        return self.source_language, self.target_language

    def inherited(self, model: ModelConfig) -> ModelConfig:
        """Return the model of the run that `from_` names, with this config's changes."""
        own = ("dropout", "attention_dropout")
        return replace(model, **{name: getattr(self, name) for name in own if getattr(self, name) is not None})

    def model_config(self, source_vocab_size: int, target_vocab_size: int) -> ModelConfig:
        """Return the preset with this config's changes, for vocabularies of these sizes."""
        own = ("d_model", "heads", "encoder_layers", "decoder_layers", "d_ff", "dropout", "attention_dropout")
        return ModelConfig.preset(
            "small" if self.preset == AUTO else self.preset,
            source_vocab_size=source_vocab_size,
            target_vocab_size=target_vocab_size,
            shared_vocab=self.shares_vocab,
            **{name: getattr(self, name) for name in own if getattr(self, name) is not None},
        )

    def peak(self, d_model: int) -> float:
        """Return the highest learning rate of a model of this width, given or not."""
        if self.learning_rate is not None:
            return self.learning_rate
        rate = (1 / 2 if self.chosen_optimizer == "muon" else 1 / 4) / d_model / (1 if self.from_ is None else 2)
        self._check_decay(rate)
        return rate

    def _check_decay(self, rate: float) -> None:
        """Raise ConfigError where an update would take off more than there is."""
        if rate * self.decay >= 1:
            raise ConfigError(
                f"learning_rate * weight_decay must be less than 1, got {rate:g} * {self.decay:g}: each update would "
                "take more off a weight than the weight itself; lower one of the two"
            )

    @property
    def chosen_batch_tokens(self) -> int:
        """The most tokens in a batch, given or not."""
        return self.batch_tokens or BATCH_TOKENS

    @property
    def chosen_optimizer(self) -> str:
        """The optimizer, given or not."""
        return self.optimizer or ("muon" if self.from_ is None else "adam")

    @property
    def decay(self) -> float:
        """The weight decay, given or not."""
        return (0.3 if self.from_ is None else 0.0) if self.weight_decay is None else self.weight_decay

    @property
    def pairs(self) -> Pairs:
        """Files of the training pairs."""
        if self.source is None:
            raise ConfigError(
                "source is missing: give the file of training pairs before all flags, or with "
                "--source (or --resume to continue a run)"
            )
        return open_pairs(self.source, self.target, self._columns[0])

    @property
    def valid_pairs(self) -> Pairs | None:
        """Files of the validation pairs, if they are given."""
        if self.valid_source is None:
            return None
        return open_pairs(self.valid_source, self.valid_target, self._columns[1])

    @property
    def _columns(self) -> list[tuple[str, str] | None]:
        """Return the columns of the training pairs and of the validation pairs."""
        of_valid = self.valid_source is not None and self.valid_target is None
        return columns_of_each(self.columns, self.target is None, of_valid)

    @property
    def tokenizers(self) -> tuple[str, str]:
        """Kind or file of the source's and of the target's tokenizer, if no run that `from_` names has them."""
        return self.source_tokenizer or self.tokenizer, self.target_tokenizer or self.tokenizer

    @property
    def shares_vocab(self) -> bool:
        """True if both sides share one vocabulary, as they do unless a side has a setting of its own."""
        own = (self.source_tokenizer, self.target_tokenizer, self.source_vocab_size, self.target_vocab_size)
        return not (self.separate_vocab or self.decompose) and all(value is None for value in own)

    def settled(self, chosen: Mapping[str, Any]) -> "TrainConfig":
        """Return these settings with those that were left to the data as they were `chosen`.

        A limit was chosen where none was given; one that is given later takes its place. The interval between
        validations that a task chose follows from the limit.
        """
        left = {name: value for name, value in chosen.items() if getattr(self, name) in (AUTO, None)}
        if any(getattr(self, name) is not None for name in ENDS):
            left = {name: value for name, value in left.items() if name not in ENDS}
        if "validate_every" in left:
            left["validate_every"] = interval_of_task(left.get("max_updates", self.max_updates))
        return replace(self, **left)

    def changes(self) -> dict[str, Any]:
        """Return the settings that aren't left at their defaults, but for the run folder and what to do with it."""
        plain = TrainConfig(out=self.out)
        names = {field.name for field in fields(self)} - {"out", "overwrite", "resume"}
        return {name: getattr(self, name) for name in sorted(names) if getattr(self, name) != getattr(plain, name)}

    def continued(self, out: Path, changes: Mapping[str, Any]) -> "TrainConfig":
        """Return these settings, with those changes, for a run that continues in `out`; ConfigError for others."""
        if fixed := sorted(set(changes) - set(CHANGEABLE)):
            raise ConfigError(
                f"a run continues with the settings it was started with: leave out {_quoted(fixed)} "
                f"(only {_quoted(CHANGEABLE)} can be changed)"
            )
        return replace(self, out=out, overwrite=False, resume=False, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them."""
        return {name: _as_json(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrainConfig":
        """Return the settings that `to_json` gave; ConfigError for others."""
        if unknown := sorted(values.keys() - {field.name for field in fields(cls)}):
            raise ConfigError(f"unknown settings {_quoted(unknown)}: written by another version of glassformer?")
        return cls(**{"out": Path(), **{name: _from_json(name, value) for name, value in values.items()}})


def interval_of_task(updates: int | None) -> int | None:
    """Return the updates between validations of a task that ends after so many; None leaves them to the pace."""
    return None if updates is None else max(TASK_INTERVAL, updates // TASK_VALIDATIONS)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(one) for one in value]
    return path_as_text(value) if isinstance(value, Path) else value


def _from_json(name: str, value: Any) -> Any:
    """Return the value of a setting of which `_as_json` gave this."""
    if isinstance(value, list):
        return tuple(_from_json(name, one) for one in value)
    return path_from_text(value) if name in _PATHS and isinstance(value, str) else value


_PATHS = ("source", "target", "out", "valid_source", "valid_target", "from_")
