"""Make the dates, train on them, and show how well dates never seen are read."""

import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from glassformer.demo.dates import DatePhrase, make_dates
from glassformer.files import replacing
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.run.folder import is_run_folder, read_config
from glassformer.training.config import TrainConfig
from glassformer.training.loop import TrainResult, train

EXAMPLES = 5


def demonstrate(out: Path, seed: int) -> bool:
    """Train the dates model into the run folder `out` and print what it does on held-out dates.

    The test's dates and phrases are not in training (see `make_dates`). The dates themselves are left beside the run,
    in `<out>-data`; a run made from them is replaced, another one is not. The last line is `exact match NN.N %`.
    Returns False if it was interrupted.
    """
    console = Console(highlight=False, soft_wrap=True)
    splits = make_dates(seed=seed, train=60_000)
    console.print(f"{len(splits.train):,} dates to learn from, for example [b]{splits.train[0].phrase}[/b]")
    data = out.with_name(f"{out.name}-data")
    data.mkdir(parents=True, exist_ok=True)
    for name, dates in (("train", splits.train), ("valid", splits.valid), ("test", splits.test)):
        write_phrases(data / f"{name}.tsv", dates)
    mine = is_run_folder(out) and read_config(out)["training"]["settings"]["source"] == str(data / "train.tsv")
    result = train(settings(data, out, seed, overwrite=mine))
    if not result.finished:
        console.print("The demonstration was interrupted; run it again for its results.")
        return False
    found = Translator.load(out).translate([date.phrase for date in splits.test], SearchConfig(beam=1))
    _report(console, splits.test, found, result)
    return True


def settings(data: Path, out: Path, seed: int, *, overwrite: bool) -> TrainConfig:
    """How the dates model is trained: characters, two encoder layers, one decoder layer."""
    return TrainConfig(
        source=data / "train.tsv",
        valid_source=data / "valid.tsv",
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
        max_minutes=1.5,
        validate_every=100,
        score_pairs=150,
        average=3,
        metric="exact",
        seed=seed,
    )


def write_phrases(path: Path, dates: Sequence[DatePhrase]) -> None:
    """The dates as a TSV file that `glassformer train --source` takes."""
    with replacing(path) as file:
        file.writelines(f"{date.phrase}\t{date.iso}\n".encode() for date in dates)


def _report(console: Console, dates: Sequence[DatePhrase], found: Sequence[str], result: TrainResult) -> None:
    right: dict[str, list[bool]] = defaultdict(list)
    by_style: dict[str, list[bool]] = defaultdict(list)
    for date, iso in zip(dates, found, strict=True):
        right[date.language].append(iso == date.iso)
        by_style[date.style].append(iso == date.iso)
    for title, groups in (("language", right), ("style", by_style)):
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
        mark = "" if found[i] == dates[i].iso else f"   (wrong: {dates[i].iso})"
        console.print(f"  {dates[i].language:<12} {dates[i].phrase:<36} {found[i]}{mark}", markup=False)
    program = "glassformer" if shutil.which("glassformer") else sys.argv[0]
    command = f"{program} translate {result.folder}"
    console.print(
        f'\nTry one of your own:     echo "le 14 juillet 1989" | {command}\n'
        f"Train on your own pairs: {program} train --source FILE.tsv --out runs/mine\n"
        "                         (one source<tab>target a line; two parallel files with --source and --target)\n"
        f"More:                    {program} train --help\n"
    )
    total = sum(map(sum, right.values()))
    console.print(f"exact match {100 * total / len(dates):.1f} %")
