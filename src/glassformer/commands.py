"""What each command of the command line can be told; their flags and their --help. Loads no torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional

from glassformer.generation.config import SearchConfig


@dataclass(frozen=True, kw_only=True)
class RunsCommand:
    """List the runs in a folder and the folders below it, the last changed first.

    A run is `training` while a process is at it, `unfinished` if it was stopped (`glassformer train --resume` goes on),
    `done`, `imported`, or `damaged`. The score is the best of its validations, the loss that of the last one, in nats a
    token. On a terminal a table, of as many columns as fit; elsewhere all of them, separated by tabs, below a line with
    their names.
    """

    folder: Positional[Path] = Path("runs")
    """Where to look, four folders deep; hidden folders are passed over. A run folder shows itself."""


@dataclass(frozen=True, kw_only=True)
class TranslateCommand:
    """Translate lines, from standard input to standard output or from file to file, as a stream.

    Each line of output belongs to the line of input at its place; empty lines stay empty. With --n-best above 1
    every line gives up to so many lines: its number, a tab, the translation. Stopped on the way from file to file, it
    keeps what is done, and the same command with --resume goes on; it refuses if the
    settings, or the device or precision that `auto` picks, are others.
    """

    run: Positional[Path]
    """The run folder that training left."""
    input: Path | None = None
    """File to translate, UTF-8, plain or .gz. Left out: standard input."""
    output: Path | None = None
    """File to write; it appears when it is complete. Left out: standard output."""
    prefixes: Path | None = None
    """File with what each line's translation must begin with, a line for each line of the input; empty: anything."""
    resume: bool = False
    """Go on from OUTPUT.partial, where the same command was stopped, to the same bytes as without the stop."""
    scores: bool = False
    """Put the score (log-probability / length penalty) and a tab before each translation."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda or mps."""
    precision: str = "auto"
    """float32, bfloat16, float16, or auto: what this processor is fastest in (bfloat16 and int8 on recent CPUs)."""
    search: OmitArgPrefixes[SearchConfig] = field(default_factory=SearchConfig)


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """Score a run's translations, or a file of translations, against references.

    Prints sacreBLEU's BLEU and chrF with their signatures, exact match, word and symbol error rate.
    """

    run: Positional[Path | None] = None
    """The run folder whose model translates --source. Left out: --hypotheses are scored as they are."""
    source: Path | None = None
    """Sources, one a line; without --target a TSV file of source<tab>reference."""
    target: Path | None = None
    """References, one a line."""
    hypotheses: Path | None = None
    """Translations to score instead of a run's own."""
    output: Path | None = None
    """Where to write the run's translations."""
    tokenize: str = "auto"
    """sacreBLEU tokenizer for BLEU: auto (by the script of the references), 13a, zh, ja-mecab, char, ..."""
    symbols: bool = False
    """Lines are symbols split at spaces (phones): error rates as in the SIGMORPHON tasks. A run knows this itself."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda or mps."""
    precision: str = "auto"
    """float32, bfloat16, float16, or auto: what this processor is fastest in (bfloat16 and int8 on recent CPUs)."""
    search: OmitArgPrefixes[SearchConfig] = field(default_factory=SearchConfig)


@dataclass(frozen=True, kw_only=True)
class ImportCommand:
    """Make a run folder of a trained Hugging Face Marian model, such as those of OPUS-MT.

    Reads config.json, model.safetensors, source.spm, target.spm and vocab.json of a folder; needs no other library.
    """

    from_: Annotated[Path, tyro.conf.arg(name="from")]
    """The folder of the model."""
    out: Path
    """The run folder to write."""


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Write a run's model in the layout of another library."""

    run: Positional[Path]
    """The run folder."""
    to: Literal["huggingface", "ctranslate2"]
    """huggingface: a Marian model, for transformers and whatever reads its files. ctranslate2: for CTranslate2."""
    out: Path
    """The folder to write."""
    quantization: str | None = None
    """With --to ctranslate2: store the weights as int8, int8_float32, int8_float16, int8_bfloat16, int16, float16,
    bfloat16 or float32. Left out: as they are, in float32."""


@dataclass(frozen=True, kw_only=True)
class HeadsCommand:
    """Show what each attention head of a run does on sentences of yours: a table, and a picture.

    Of each head: how much the loss rises without it, how sure and how spread its weights are, on which relative
    position they mostly fall, and its role (positional, syntactic and rare words by the criteria of Voita et al. 2019,
    end: it rests on the sentence's end). Leaves heads.json and, with matplotlib, heads.png in the run folder.
    """

    run: Positional[Path]
    """The run folder."""
    data: tuple[Path, ...]
    """The sentences: a file of sources and one of targets, or one TSV file."""
    sentences: int = 500
    """How many of them are studied; how rare tokens are is counted in all."""
    trees: Path | None = None
    """Dependency trees of sources among them, in CoNLL-U: which heads look along nsubj, obj, amod, advmod? Their text
    must be that of the sentences, in any order."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda or mps."""


@dataclass(frozen=True, kw_only=True)
class InspectCommand:
    """Write a page on which to look at what a run looks at while it translates a line.

    One HTML file that needs no network: the encoder's attention, the decoder's to its own text and to the source, every
    head of every layer, token by token, for several hypotheses of the beam. Roles and importance of the heads are on it
    once `glassformer heads` has studied the run.
    """

    run: Positional[Path]
    """The run folder."""
    source: str
    """The line to translate."""
    target: str | None = None
    """A translation to look at, in place of the run's own."""
    out: Path = Path("attention.html")
    """The page to write."""
    hypotheses: int = 3
    """How many translations to compare, best first."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda or mps."""


@dataclass(frozen=True, kw_only=True)
class DemoCommand:
    """Train a model, in a minute and a half, that reads dates in 16 languages and writes them as ISO 8601."""

    out: Path = Path("runs/dates")
    """The run folder to write; one of an earlier demo is replaced."""
    seed: int = 1
    """Seed of the data and the training."""
