"""Make the dates, train on them, and show how well dates never seen are read."""

import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.table import Table

from glassformer.demo.dates import DatePhrase, make_dates
from glassformer.errors import RunError
from glassformer.files import check_place, path_from_text, replacing
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.run.config import is_run_folder, read_config
from glassformer.training.config import TrainConfig
from glassformer.training.result import TrainResult
from glassformer.training.train import train

EXAMPLES = 5
SPLITS = "train", "valid", "test"


def demonstrate(out: Path, seed: int) -> int:
    """Train the dates model into the run folder `out` and print what it does on held-out dates.

    Return the number of the signal that stopped it, 0 if it ended. No date and no phrase of the test is in training
    (see `make_dates`). The dates stay beside the run, in `<out>-data`. The last line printed is `exact match NN.N %`.

    Raises:
        RunError: `out` is there, and is not a run that the demonstration made; or where the dates go are other files.
    """
    if not out.name:
        raise RunError(f"--out must be a new folder, got {out}: give it a name")
    data = out.with_name(f"{out.name}-data")
    again = _was_made_from(data, out)
    if (out.exists() or out.is_symlink()) and not again:
        raise RunError(
            f"{out} is there already, and the demonstration replaces only a run that it made: choose another --out"
        )
    if not again:
        check_place(out)
        _check_replaceable(data)
    console = Console(highlight=False, soft_wrap=True)
    splits = make_dates(seed=seed, train=60_000)
    console.print(f"{len(splits.train):,} dates to learn from, for example [b]{splits.train[0].phrase}[/b]")
    data.mkdir(parents=True, exist_ok=True)
    for name, dates in zip(SPLITS, (splits.train, splits.valid, splits.test), strict=True):
        write_phrases(data / f"{name}.tsv", dates)
    config = settings(data, out, seed, overwrite=again)
    result = train(config)
    if result.signal:
        console.print("The demonstration was interrupted; run it again for its results.")
        return result.signal
    answers = Translator.load(out).translate([date.phrase for date in splits.test], SearchConfig(beam=1))
    _report(console, splits.test, answers, result)
    return 0


def _was_made_from(data: Path, out: Path) -> bool:
    """Return whether `out` is a run that was trained on the dates in `data`."""
    if not is_run_folder(out):
        return False
    settings = read_config(out).training.settings or {}  # an imported run has none
    source = settings.get("source")
    return isinstance(source, str) and path_from_text(source).resolve() == (data / "train.tsv").resolve()


def _check_replaceable(data: Path) -> None:
    """Raise RunError where the dates go and somebody else's file is; those of a demo that was stopped are ours."""
    if data.exists() and not data.is_dir():
        raise RunError(f"{data} is a file, and the dates go into a folder of this name: choose another --out")
    for name in SPLITS:
        path = data / f"{name}.tsv"
        if path.exists():
            with path.open("rb") as file:
                if not re.fullmatch(rb"[^\t]+\t\d{4}-\d\d-\d\d\n", file.readline(1000)):
                    raise RunError(
                        f"{path} is there already, and holds something else than dates: choose another --out"
                    )


def settings(data: Path, out: Path, seed: int, *, overwrite: bool) -> TrainConfig:
    """Return how the dates model is trained: characters, two encoder layers, one decoder layer."""
    return TrainConfig(
        source=data / "train.tsv",
        valid_source=data / "valid.tsv",
        source_language="mul",
        target_language="iso",
        out=out,
        overwrite=overwrite,
        tokenizer="char",
        preset="tiny",
        encoder_layers=2,
        decoder_layers=1,
        dropout=0.05,
        batch_tokens=4096,
        learning_rate=3e-3,
        warmup=300,
        max_updates=1400,
        validate_every=100,
        score_pairs=150,
        average=3,
        metric="exact",
        seed=seed,
    )


def write_phrases(path: Path, dates: Sequence[DatePhrase]) -> None:
    """Write the dates as a TSV file that `glassformer train --source` takes."""
    with replacing(path) as file:
        file.writelines(f"{date.phrase}\t{date.iso}\n".encode() for date in dates)


def _report(console: Console, dates: Sequence[DatePhrase], answers: Sequence[str], result: TrainResult) -> None:
    """Print how many answers are right, for each language and each style, a few of them, and what to do next."""
    by_language: dict[str, list[bool]] = defaultdict(list)
    by_style: dict[str, list[bool]] = defaultdict(list)
    for date, iso in zip(dates, answers, strict=True):
        by_language[date.language].append(iso == date.iso)
        by_style[date.style].append(iso == date.iso)
    for title, groups in (("language", by_language), ("style", by_style)):
        table = Table(title=f"Held-out dates by {title}")
        table.add_column(title)
        table.add_column("dates", justify="right")
        table.add_column("exact match", justify="right")
        for name, hits in sorted(groups.items()):
            table.add_row(name, str(len(hits)), f"{100 * sum(hits) / len(hits):.1f} %")
        console.print(table)

    console.print(
        f"\nTrained for {result.seconds:.0f} s, {result.updates:,} updates. "
        "Five held-out dates and what it made of them:"
    )
    for i in range(0, len(dates), len(dates) // EXAMPLES - 1)[:EXAMPLES]:  # the languages take turns: not all one
        mark = "" if answers[i] == dates[i].iso else f"   (wrong: {dates[i].iso})"
        console.print(f"  {dates[i].language:<12} {dates[i].phrase:<36} {answers[i]}{mark}", markup=False)
    program = _program()
    command = f"{program} translate {quote(str(result.folder))}"
    console.print(
        f'\nTry one of your own:     echo "le 14 juillet 1989" | {command}\n'
        f"Train on your own pairs: {program} train --source FILE.tsv --out runs/mine\n"
        "                         (one source<tab>target a line; two parallel files with --source and --target)\n"
        f"More:                    {program} train --help\n",
        markup=False,
    )
    share = sum(map(sum, by_language.values())) / len(dates)
    console.print(f"exact match {100 * share:.1f} %")


def _program() -> str:
    """Return how this program was called, for commands that are to be copied."""
    if Path(sys.argv[0]).name == "__main__.py":
        return "python -m glassformer"
    return "glassformer" if shutil.which("glassformer") else quote(sys.argv[0])
