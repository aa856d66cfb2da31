"""Equal minutes on the same two cores: glassformer, JoeyNMT and Eole on Multi30k, English to German.

    python benchmarks/peers_training.py --data DIR [--minutes 30] [--joeynmt PYTHON] [--eole PYTHON] [--part val]

DIR is that of recipes/multi30k.py: tokenised, lowercased text, scored by plain words. PYTHON is that of an environment
of the toolkit's own, made in a minute on a machine without a GPU:

    python -m venv /tmp/joeynmt
    /tmp/joeynmt/bin/pip install torch==2.13.0 setuptools importlib_metadata packaging sacrebleu sacremoses
    /tmp/joeynmt/bin/pip install sentencepiece subword-nmt tensorboard datasets matplotlib plotly pyyaml numpy pandas
    /tmp/joeynmt/bin/pip install --no-deps joeynmt==2.3.0

    python -m venv /tmp/eole
    /tmp/eole/bin/pip install torch==2.13.0 setuptools aiohttp configargparse "ctranslate2<5" fastapi huggingface_hub
    /tmp/eole/bin/pip install datasets pandas pyahocorasick "pyonmttok<2" pyyaml rapidfuzz rich sacrebleu safetensors
    /tmp/eole/bin/pip install "sentencepiece<=0.2.2" six spacy subword-nmt tensorboard tokenizers torch-optimi uvicorn
    /tmp/eole/bin/pip install waitress pydantic
    /tmp/eole/bin/pip install --no-deps eole==0.6.4

Every side has two threads (`--threads`) and the minutes asked for, from where updates begin, with its own validations.
It takes its best checkpoint by the validation text and searches as it recommends, a beam of 5 for all but "recipe".
glassformer has its defaults; "recipe" are the settings of recipes/multi30k.py, without the written pairs. Each toolkit
is tried with its own model and with one of the sizes that glassformer chose, since two cores don't train a large one in
half an hour. peers_toolkits.py says what each is told, and what had to differ.

A side that is trained is not trained again: with `--sides` they may be made one after the other on a quiet machine, and
the last command prints all in one table, with sacreBLEU's 95 % intervals and paired bootstrap against glassformer.
`--part test_2016_flickr` scores the test. Appends the table to benchmarks/results/peers_training.jsonl. Needs PyYAML.

To see in a few minutes that it runs: --minutes 1 --out /tmp/peers-trial.
"""

import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import bench
import torch
import tyro
from peers_toolkits import Corpus, Eole, JoeyNMT, Size, Toolkit, Trained, read_lines

from glassformer import (
    GlassformerError,
    SearchConfig,
    TrainConfig,
    Translator,
    open_run,
    train_once,
)
from glassformer.run.metrics import read_metrics
from glassformer.run.names import METRICS
from glassformer.scoring.bootstrap import paired_bootstrap

sys.path.append(str(Path(__file__).parents[1] / "recipes"))
import multi30k

OURS = "glassformer"
Side = Literal["glassformer", "recipe", "joeynmt", "joeynmt-sized", "eole", "eole-sized"]
NAMES: dict[Side, str] = {
    "glassformer": "glassformer, the defaults",
    "recipe": "glassformer, settings of recipes/multi30k.py",
    "joeynmt": "JoeyNMT 2.3.0, its own settings",
    "joeynmt-sized": "JoeyNMT 2.3.0, glassformer's sizes",
    "eole": "Eole 0.6.4, its own settings",
    "eole-sized": "Eole 0.6.4, glassformer's sizes",
}


@dataclass(frozen=True)
class Glassformer:
    """glassformer with these settings."""

    config: TrainConfig
    search: SearchConfig

    def train(self, minutes: float) -> Trained:
        """Train for so many minutes, or go on with that training."""
        result = train_once(replace(self.config, max_minutes=minutes, threads=torch.get_num_threads()))
        if not result.finished:
            sys.exit("interrupted: the same command goes on")
        reports = read_metrics(self.config.out / METRICS).reports
        return Trained(
            parameters=open_run(self.config.out).parameters,
            updates=result.updates,
            minutes=result.seconds / 60,
            tokens_per_second=statistics.mean(one.tokens_per_second for one in reports if one.tokens_per_second),
        )

    def translate(self, part: Path) -> list[str]:
        """Return translations of PART.en by the weights of the run folder."""
        sources = read_lines(part.with_name(f"{part.name}.en"))
        return Translator.load(self.config.out, "cpu").translate(sources, self.search)


def main(
    data: Path,
    minutes: float = 30.0,
    joeynmt: Path | None = None,
    eole: Path | None = None,
    part: Literal["val", "test_2016_flickr"] = "val",
    sides: tuple[Side, ...] = (),
    threads: int = 2,
    out: Path = Path("runs/peers"),
) -> None:
    """Train, translate and print the table.

    Args:
        data: Folder of the tokenised text.
        minutes: Limit of each training.
        joeynmt: The Python of an environment with JoeyNMT.
        eole: The Python of an environment with Eole.
        part: What to score: val, or the test.
        sides: The sides to train; all that have a Python if none is named.
        threads: Threads of every side.
        out: Where everything is written.
    """
    multi30k.check(data)
    torch.set_num_threads(threads)
    pythons = {"joeynmt": joeynmt, "eole": eole}
    for side in sides or [side for side in NAMES if pythons.get(side.partition("-")[0], data)]:
        trained = trained_once(side, data, minutes, pythons, out / side)
        print(f"{NAMES[side]}: {trained.updates:,} updates in {trained.minutes:.1f} min", flush=True)
        path = out / side / f"{part}.txt"
        if not path.exists():
            lines = toolkit(side, data, pythons, out / side).translate(data / f"{part}.lc.norm.tok")
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    references = read_lines(data / f"{part}.lc.norm.tok.de")
    found: list[Side] = [side for side in NAMES if (out / side / f"{part}.txt").exists()]
    costs = {side: trained_once(side, data, minutes, pythons, out / side) for side in found}
    rows = measured(costs, {side: read_lines(out / side / f"{part}.txt") for side in found}, references)
    print(f"{bench.machine()}; BLEU of {part} by plain words", *table(rows), sep="\n")
    bench.keep("peers_training", {"part": part, "minutes": minutes, "threads": threads, "sides": rows})


def trained_once(side: Side, data: Path, minutes: float, pythons: Mapping[str, Path | None], folder: Path) -> Trained:
    """Train a side, unless its training of as many minutes is in the folder; return what it came to."""
    kept = folder / "trained.json"
    if kept.exists():
        before = json.loads(kept.read_text())
        if before["limit"] != minutes:
            sys.exit(f"{folder} was trained for {before['limit']:g} minutes, not {minutes:g}: give another --out")
        return Trained(**before["trained"])
    trained = toolkit(side, data, pythons, folder).train(minutes)
    kept.write_text(json.dumps({"limit": minutes, "trained": asdict(trained)}))
    return trained


def toolkit(side: Side, data: Path, pythons: Mapping[str, Path | None], folder: Path) -> Toolkit:
    """Return a side's toolkit with its settings."""
    corpus = Corpus(data / "train.lc.norm.tok", data / "val.lc.norm.tok")
    run = folder / "run"
    if side == "glassformer":
        return Glassformer(defaults(data, run), SearchConfig())
    if side == "recipe":
        return Glassformer(recipe(data, run), multi30k.SEARCH)
    name, _, sized = side.partition("-")
    if (python := pythons[name]) is None:
        sys.exit(f"{side} needs --{name} PYTHON, that of an environment with the toolkit")
    size = size_of(folder.parent / OURS / "run") if sized else None
    make = {"joeynmt": JoeyNMT, "eole": Eole}[name]
    return make(python.absolute(), corpus, run.absolute(), size)


def defaults(data: Path, out: Path) -> TrainConfig:
    """Return the settings of `glassformer train` where only the files are given."""
    settings = multi30k.settings(data, out, seed=1)
    valid = {"valid_source": settings.valid_source, "valid_target": settings.valid_target}
    return TrainConfig(source=data / "train.lc.norm.tok.en", target=data / "train.lc.norm.tok.de", out=out, **valid)


def recipe(data: Path, out: Path) -> TrainConfig:
    """Return the recipe's settings for the real pairs and a vocabulary learned from them, ended by the clock."""
    files = {"source": data / "train.lc.norm.tok.en", "target": data / "train.lc.norm.tok.de", "out": out}
    settings = multi30k.settings(data, out, seed=1)
    return replace(settings, **files, tokenizer="bpe", vocab_size=10_000, max_updates=None)


def size_of(run: Path) -> Size:
    """Return the sizes of a run's model; SystemExit if it isn't trained yet."""
    try:
        model = open_run(run).model_config
    except GlassformerError as error:
        sys.exit(f"the side {OURS} comes first, since others take its sizes: {error}")
    return Size(model.d_model, model.heads, model.encoder_layers, model.decoder_layers, model.d_ff)


def measured(
    costs: Mapping[Side, Trained], translations: Mapping[Side, list[str]], references: list[str]
) -> list[dict[str, Any]]:
    """Return the rows of the table: each side with its cost, its score, and how it differs from glassformer's."""
    ours = translations.get(OURS)
    rows: list[dict[str, Any]] = []
    for side, lines in translations.items():
        bleu = paired_bootstrap(ours or lines, lines, references, tokenize="none")[0]
        row = {"side": NAMES[side], **asdict(costs[side]), "bleu": bleu.second, "margin": bleu.second_margin}
        compared = ours is not None and side != OURS
        rows.append(row | ({"difference": bleu.difference, "p_value": bleu.p_value} if compared else {}))
    return rows


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table, in Markdown.

    >>> row = {"side": "a", "parameters": 6e6, "minutes": 30.0, "updates": 9e3, "tokens_per_second": 2e3}
    >>> table([row | {"bleu": 40.123, "margin": 1.2, "difference": -0.5, "p_value": 0.01}])[2]
    '| a | 6.0 million | 30.0 | 9,000 | 2,000 | 40.12 ± 1.20 | -0.50 (p = 0.010) |'
    """
    columns = ("", "parameters", "minutes", "updates", "target tokens/s", "BLEU", "less glassformer's")
    lines = ["".join(f"| {column} " for column in columns) + "|", "|---" * len(columns) + "|"]
    for row in rows:
        difference = f"{row['difference']:+.2f} (p = {row['p_value']:.3f})" if "difference" in row else ""
        cells = [row["side"], f"{row['parameters'] / 1e6:.1f} million", f"{row['minutes']:.1f}"]
        cells += [f"{row['updates']:,.0f}", f"{row['tokens_per_second']:,.0f}"]
        cells += [f"{row['bleu']:.2f} ± {row['margin']:.2f}", difference]
        lines.append("".join(f"| {cell} " for cell in cells) + "|")
    return lines


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except GlassformerError as error:
        sys.exit(f"peers_training.py: error: {error}")
