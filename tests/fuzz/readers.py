"""The files that are read, how each is mutated, and what reads it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archives import packed, zipped
from documents import edited_line, written
from markup import marked_up
from mutations import Bytes, damaged, spoilt
from protobufs import modelled
from samples import PROCESSOR
from tensors import sealed, stored

TRANSLATE = "--device cpu --beam 2 --max-length 7"
TINY = "--preset tiny --d-model 8 --heads 2 --encoder-layers 1 --decoder-layers 1 --d-ff 11"
LEARN = f"train {TINY} --device cpu --precision float32 --threads 1 --max-updates 1 --out new"


@dataclass(frozen=True)
class Reader:
    """A file that is read, by commands and from Python."""

    path: str
    """A sample, or a pattern that only one sample fits."""
    mutate: Callable[[bytes], Bytes]
    """The strategy that mutates its content."""
    commands: Sequence[str]
    """Command lines that read it, `{}` for its path; or calls of `CALLS`."""
    needs: tuple[str, ...] = ()
    """Samples that are needed beside those that the command names."""
    writes: tuple[str, ...] = ()
    """Patterns of the paths that these commands may change where they succeed."""
    costly: bool = False
    """A case takes more than a tenth of a second."""
    may_be_pipe: bool = False
    """It is read once, so that a pipe may stand for it: to wait for whoever writes is right."""


STOPPED = (
    "translate run --input long.txt --output long.out --resume --device cpu --precision float32 --beam 1 --max-length 2"
)
RUN = (
    "open_run run",
    "load run",
    "runs .",
    "table .",
    "translate run 'a b' --device cpu",
    "inspect run 'a b' --out new",
)
SUBWORDS = (
    "load subwords",
    "translate subwords 'a b' --device cpu",
    "export subwords --to huggingface --out new",
    "export subwords --to ctranslate2 --out new",
)
IMPORTED = ("load imported", "translate imported 'a b' --device cpu")
IMPORT = ("import --from marian --out new",)
FROM = "train pairs.tsv --from run --out new --device cpu --precision float32 --threads 1 --max-updates 1"
GO_ON = ("train --resume --out unfinished",)
LISTED = ("runs .", "table .", *GO_ON)
PAIRS = ("pairs {}", f"{LEARN} {{}} --tokenizer symbols")
PLAIN = ("pairs {}", "pairs {} 2 1")
SIDES = ("pairs {}", "pairs {} en de", "pairs {} 2 1")
UNFINISHED = ("unfinished", "new", "curves.png", ".prepared")

READERS = (
    # run folders
    Reader("run/config.json", written, (*RUN, FROM), writes=("new",)),
    Reader("run/model.safetensors", stored, (*RUN, FROM), writes=("new",)),
    Reader("run/source.symbols", spoilt, ("tokenizer {}", *RUN), writes=("new",)),
    Reader("run/heads.json", written, ("read_heads run", "inspect run 'a b' --out new"), writes=("new",)),
    Reader("run/aligning.json", written, ("align run --source valid.tsv --device cpu --precision float32",)),
    Reader("run/calibration.json", written, ("translate run 'a b' --device cpu --confidence new",), writes=("new",)),
    Reader("run/metrics.jsonl", edited_line, ("metrics {}", "curves {}", "runs .", "table .")),
    Reader("run/metrics.jsonl", spoilt, ("metrics {}", "curves {}", "runs .", "table .")),
    Reader("run/attention.jsonl", edited_line, ("sightings {}", "curves run/metrics.jsonl")),
    Reader("run/attention.jsonl", spoilt, ("sightings {}", "curves run/metrics.jsonl")),
    Reader("subwords/config.json", written, SUBWORDS, writes=("new",)),
    Reader("subwords/source.spm", modelled, ("tokenizer {}", *SUBWORDS), writes=("new",)),
    Reader("subwords/source.spm", modelled, (f"{LEARN} pairs.tsv --tokenizer {{}}",), writes=("new",), costly=True),
    Reader("imported/config.json", written, (*IMPORTED, "runs .")),
    Reader("imported/source.spm", modelled, ("tokenizer {}", *IMPORTED)),
    Reader("imported/source.vocab.json", written, ("tokenizer imported/source.spm", *IMPORTED)),
    # models of others
    Reader("marian/config.json", written, IMPORT, writes=("new",)),
    Reader("marian/model.safetensors", stored, IMPORT, writes=("new",)),
    Reader("marian/vocab.json", written, IMPORT, writes=("new",)),
    Reader("marian/source.spm", modelled, IMPORT, writes=("new",)),
    # trainings and translations that were stopped
    Reader("unfinished/config.json", written, LISTED, writes=UNFINISHED, costly=True),
    Reader("unfinished/metrics.jsonl", edited_line, LISTED, writes=UNFINISHED, costly=True),
    Reader("unfinished/resume/valid.json", written, GO_ON, writes=UNFINISHED, costly=True),
    Reader("unfinished/resume/alignment.safetensors", stored, GO_ON, writes=UNFINISHED, costly=True),
    Reader("unfinished/resume/snapshot-*2.safetensors", stored, GO_ON, writes=UNFINISHED, costly=True),
    Reader("unfinished/resume/best-*.safetensors", stored, GO_ON, writes=UNFINISHED, costly=True),
    Reader(
        "unfinished/resume/*5/*.safetensors",
        sealed(stored),
        LISTED,
        writes=UNFINISHED,
        costly=True,
    ),
    Reader("unfinished/resume/train/source.ids", damaged, GO_ON, writes=UNFINISHED, costly=True),
    Reader("unfinished/resume/train/target.offsets", damaged, GO_ON, writes=UNFINISHED, costly=True),
    Reader(
        ".prepared/*/entry.json",
        written,
        (f"{LEARN} many.tsv --valid-source valid.tsv --tokenizer symbols",),
        writes=("new", ".prepared"),
        costly=True,
    ),
    Reader(
        "long.out.partial.json",
        written,
        (STOPPED,),
        needs=("long.out.partial",),
        writes=("long.out*",),
    ),
    Reader(
        "long.out.partial",
        damaged,
        (STOPPED,),
        needs=("long.out.partial.json",),
        writes=("long.out*",),
    ),
    # what is kept in the user's cache folder
    Reader("calibration/*.json", written, ("calibration {}",), writes=("calibration",)),
    # pairs of text
    Reader("pairs.tsv", spoilt, (*PAIRS, "pairs {} 1 2"), writes=("new",)),
    Reader("pairs.csv", spoilt, SIDES),
    Reader("pairs.jsonl", edited_line, SIDES),
    Reader("pairs.jsonl", spoilt, SIDES),
    Reader("pairs.json", written, SIDES),
    Reader("pairs.parquet", damaged, SIDES),
    Reader("pairs.xlsx", zipped, SIDES),
    Reader("pairs.tmx", marked_up, SIDES),
    Reader("pairs.xliff", marked_up, SIDES),
    Reader("pairs2.xliff", marked_up, SIDES),
    Reader("pairs.po", spoilt, SIDES),
    Reader("pairs.utf16", damaged, PLAIN),
    Reader("pairs.tsv.gz", packed("gzip"), PLAIN),
    Reader("pairs.tsv.bz2", packed("bzip2"), PLAIN),
    Reader("pairs.tsv.xz", packed("xz"), PLAIN),
    Reader("pairs.tsv.zst", packed("zstandard"), PLAIN),
    Reader("valid.tsv", spoilt, (f"{LEARN} pairs.tsv --valid-source {{}} --tokenizer symbols",), writes=("new",)),
    Reader("many.tsv", spoilt, ("check {}",), costly=True),
    # lines of text
    Reader(
        "seven.txt",
        spoilt,
        (f"translate run --input {{}} {TRANSLATE}", f"translate run {TRANSLATE} < {{}}"),
        may_be_pipe=True,
    ),
    Reader(
        "seven.txt",
        spoilt,
        (f"translate subwords --input {{}} --output new {TRANSLATE}",),
        writes=("new",),
        may_be_pipe=True,
    ),
    Reader(
        "prefixes.txt",
        spoilt,
        (f"translate run --input seven.txt --prefixes {{}} {TRANSLATE}",),
        may_be_pipe=True,
    ),
    Reader(
        "target.txt",
        spoilt,
        ("evaluate --hypotheses source.txt --target {}", "evaluate --hypotheses {} --target source.txt"),
        may_be_pipe=True,
    ),
    Reader("valid.tsv", spoilt, (f"evaluate run --source {{}} {TRANSLATE}",), may_be_pipe=True),
    Reader(
        "trees.conllu",
        spoilt,
        ("heads run --data pairs.tsv --sentences 7 --device cpu --trees {}",),
        writes=("run/heads.json", "run/heads.png"),
        may_be_pipe=True,
    ),
)


def _open_run(folder: str) -> None:
    from glassformer import open_run

    run = open_run(folder)
    for name in run.weights:
        assert run.weights[name].numel() >= 0
    assert run.parameters >= 0


def _load(folder: str) -> None:
    from glassformer import SearchConfig, Translator

    Translator.load(folder, "cpu", "float32").translate(["a b", "", "c"], SearchConfig(beam=2, max_length=3))


def _tokenizer(path: str) -> None:
    from glassformer.text.loading import load_tokenizer

    tokenizer = load_tokenizer(Path(path))
    lines = ["a b c", "", "Grüße\u2581 x", "a" * 300]
    ids = tokenizer.encode(lines)
    tokenizer.decode(ids)
    for line, row in zip(lines, ids, strict=True):
        assert len(tokenizer.tokens(row)) == len(row) == len(tokenizer.surfaces(line)) == len(tokenizer.spans(line))


def _heads(folder: str) -> None:
    from glassformer.insight.heads import read_heads

    read_heads(Path(folder))


def _sightings(path: str) -> None:
    from glassformer.capture.sightings import heads_of, read_sightings

    sightings = read_sightings(Path(path))
    assert set(heads_of(sightings)) == {layer for sighting in sightings for layer in sighting.figures}


def _metrics(path: str) -> None:
    from glassformer.run.metrics import read_metrics

    metrics = read_metrics(Path(path))
    assert metrics.best is None or metrics.best in metrics.validations


def _curves(path: str) -> None:
    from glassformer.run.curves import plot_curves

    plot_curves(Path(path)).canvas.draw()


def _pairs(path: str, *columns: str) -> None:
    from glassformer import PairFiles

    left, right = columns or ("", "")
    files = PairFiles(Path(path), columns=(left, right) if columns else None)
    files.check()
    for source, target in files:
        assert "\n" not in source + target


def _calibration(path: str) -> None:
    """Ask what is kept for a processor, which is measured anew where the file is damaged."""
    from glassformer.attention.kernels.calibration import recall

    found = recall(Path(path).parent, PROCESSOR)
    assert found.machine == PROCESSOR
    assert min(found.mkl, found.onednn) > 0


def _table(folder: str) -> None:
    """Print the runs on standard error as a terminal gets them."""
    from rich.console import Console

    from glassformer.run.listing import advice, as_table, find_runs

    runs = find_runs(Path(folder))
    Console(stderr=True).print(as_table(runs, 80))
    for line in advice(runs):
        print(line, file=sys.stderr)


CALLS: Mapping[str, Callable[..., Any]] = {
    "open_run": _open_run,
    "load": _load,
    "tokenizer": _tokenizer,
    "read_heads": _heads,
    "metrics": _metrics,
    "sightings": _sightings,
    "curves": _curves,
    "calibration": _calibration,
    "pairs": _pairs,
    "table": _table,
}
"""What reads a file from Python; raises GlassformerError, or ImportError or OSError, where it can't."""


def act(command: Sequence[str]) -> None:
    """Run a command line or a call; the errors that a caller can mend end both in the same way."""
    from glassformer import cli
    from glassformer.errors import GlassformerError

    name, *arguments = command
    if name not in CALLS:
        cli.main(command)
    try:
        CALLS[name](*arguments)
    except (GlassformerError, ImportError, OSError) as error:
        cli._fail(error, str(error))
