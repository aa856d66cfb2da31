"""Words to words and words to sounds: one recipe for pronunciation, segmentation, inflection and normalisation.

    python recipes/characters.py --data DIR [--task inflection] [--languages deu fin] [--seeds 1 2 3] [--score-test]
    python recipes/characters.py --data DIR --compare [--score-test]
    python recipes/characters.py --table

DIR holds a folder for each task, with the files as their repositories have them:

    sigmorphon2020_g2p   train, dev, test: task1/data of https://github.com/sigmorphon/2020
    segmentation2022     LANGUAGE.word.*.tsv: data and data/surprise of https://github.com/sigmorphon/2022SegmentationST
    inflection2023       LANGUAGE.{trn,dev,tst}: part1/data of https://github.com/sigmorphon/2023InflectionST
    histnorm             the files of datasets/historical of https://github.com/coastalcph/histnorm

Each data set and seed is a model of its own, trained by `glassformer train --task characters` and by no other settings
than what its text asks for: the same everywhere. Settings are chosen on dev, and test is scored only with --score-test.
Trainings end by updates, on one thread: a busy machine gets the same weights. Stopped, the same command goes on, and
what is trained already is only scored. For two at a time start it twice, with other languages or seeds.

`--settings wu2021` trains a plain Transformer by the same code with the settings of S. Wu et al. 2021 (Applying the
Transformer to character-level transduction): 4+4 layers of width 256, 400 words a batch, 20,000 updates, Adam with 1e-3
after 4,000 updates, falling with 1 / sqrt(update), dropout 0.3. It differs from theirs in that a LayerNorm comes after
its sub-layer, and that features have positions. --compare says how far apart the two are where both are trained, and
the interval that 95 % of paired bootstrap samples of the words lie in.

Scores are added to benchmarks/results/characters.jsonl, from which --table writes the tables of docs/quality.md.
"""

import json
import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from character_tasks import RARE, TASKS, Example, Lookup, StandIns, Task

from glassformer import GlassformerError, SearchConfig, TrainConfig, Translator, open_run, train_once

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import bench

NAME = "characters"
RESULTS = bench.RESULTS / f"{NAME}.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "quality.md"
BEGIN, END = "<!-- made by python recipes/characters.py --table -->\n", "<!-- end of what it makes -->\n"
SEARCH = SearchConfig(beam=5)
SAMPLES = 1_000
"""Bootstrap samples of a comparison."""
TRIED = 50
"""Words that are scored after a number of --updates, most of which a model of so few writes without an end."""
WORDS_A_BATCH = 400
"""Words in a batch of S. Wu et al. 2021."""
WU2021 = dict(
    d_model=256,
    heads=4,
    encoder_layers=4,
    decoder_layers=4,
    d_ff=1024,
    dropout=0.3,
    attention_dropout=0.3,
    label_smoothing=0.1,
    learning_rate=1e-3,
    warmup=4000,
    cooldown=0.0,
    optimizer="adam",
    weight_decay=0.0,
    max_updates=20_000,
    average=1,
    separate_vocab=True,
)


class DataSet:
    """A data set of a task: its examples, and the pairs that a model is trained on."""

    def __init__(self, task: Task, language: str, data: Path, rare: int = RARE) -> None:
        """Give rare characters stand-ins: those that fewer words have. With 0, or where symbols are written, none."""
        self.task, self.language = task, language
        self._folder = data / task.folder
        train = self.examples("train")
        copies = rare > 0 and not task.symbols
        self._stand_ins = StandIns((source for source, _ in train), rare) if copies else None
        self.memory = Lookup(train)
        """What the training text has for each of its words."""

    def examples(self, part: str) -> list[Example]:
        """Return the examples of train, dev or test."""
        return self.task.read(self._folder, self.language, part)

    def pairs(self, part: str) -> list[tuple[str, str]]:
        """Return the different pairs of a part as the model reads and writes them.

        Of dev, those whose words are looked up are left out: the model isn't asked for them.
        """
        examples = dict.fromkeys(self.examples(part))
        asked = [one for one in examples if part == "train" or not (self.task.looks_up and one.source in self.memory)]
        return [self._hidden(source, self.task.to_model(reference))[:2] for source, reference in asked]

    def translate(self, translator: Translator, sources: Sequence[str]) -> list[str]:
        """Return what a model makes of the words of a part, each different one translated once."""
        different = list(dict.fromkeys(sources))
        hidden = [self._hidden(source) for source in different]
        lines = translator.translate([source for source, _, _ in hidden], SEARCH)
        shown = [StandIns.show(line, names) for line, (_, _, names) in zip(lines, hidden, strict=True)]
        written = dict(zip(different, map(self.task.from_model, shown), strict=True))
        found = [written[source] for source in sources]
        return self.memory.correct(sources, found) if self.task.looks_up else found

    def _hidden(self, source: str, target: str = "") -> tuple[str, str, dict[str, str]]:
        return (source, target, {}) if self._stand_ins is None else self._stand_ins.hide(source, target)


def main(
    data: Path | None = None,
    task: Literal["all", "pronunciation", "segmentation", "inflection", "normalisation"] = "all",
    languages: tuple[str, ...] = (),
    settings: Literal["characters", "wu2021"] = "characters",
    seeds: tuple[int, ...] = (1,),
    out: Path = Path("runs/characters"),
    updates: int | None = None,
    change: tuple[str, ...] = (),
    rare: int = RARE,
    compare: bool = False,
    score_test: bool = False,
    table: bool = False,
) -> None:
    """Train a model for each data set and seed, and score it on dev.

    Args:
        data: Folder with a folder for each task.
        task: Which task, or all.
        languages: Which of its data sets, by the codes in the files' names; left out, all.
        settings: Those of the task characters, or those of a published Transformer.
        seeds: One model each.
        out: Where to write the run folders.
        updates: Updates of each training in place of its own number, to try the data: few words are scored, and nothing
            is recorded. Such trials have folders of their own below --out.
        change: Settings of `TrainConfig` to try on dev, such as dropout=0.3 optimizer=muon.
        rare: Characters that fewer words of the training text have get stand-ins; 0: none do. To try on dev, too.
        compare: Compare the two settings where both are scored, and train nothing.
        score_test: Score test too, once the settings are chosen.
        table: Write the tables of docs/quality.md from the recorded scores, and train nothing.
    """
    if table:
        write_tables()
        return
    if data is None:
        raise GlassformerError("--data is missing: give the folder with a folder for each task")
    chosen = [one for one in TASKS.values() if task in ("all", one.name)]
    known = [code for one in chosen for code in one.languages]
    if unknown := sorted(set(languages) - set(known)):
        raise GlassformerError(f"--languages must be of {', '.join(known)}, got {', '.join(unknown)}")
    changes = {name: as_value(value) for name, _, value in (one.partition("=") for one in change)}
    changes |= {} if updates is None else dict(max_updates=updates, score_pairs=TRIED)
    trial = [*change, *([] if updates is None else [f"updates={updates}"]), *([] if rare == RARE else [f"rare={rare}"])]
    if trial and score_test:
        raise GlassformerError("--score-test is for the recipe as it stands: leave out --updates, --change and --rare")
    if trial:
        out = out / "tried" / " ".join(trial).replace(os.sep, "_")
    sets = [DataSet(one, code, data, rare) for one in chosen for code in one.languages if code in (languages or known)]
    parts = ("dev", "test") if score_test else ("dev",)
    for data_set in sets:
        for seed in seeds:
            if compare:
                compare_settings(data_set, seed, out, parts)
                continue
            run(data_set, config_of(data_set, settings, seed, out, changes), settings, parts, trial=bool(trial))


def run(data_set: DataSet, config: TrainConfig, settings: str, parts: Sequence[str], *, trial: bool) -> None:
    """Train a model, unless it is trained already, print its scores, and record those that aren't of a trial.

    Where words of a part stand in the training text too, the score of the others is another one, and so are those of
    looking words up: without a model where the task looks them up, else beside it.
    """
    task, language = data_set.task, data_set.language
    result = train_once(config)
    if not result.finished:
        sys.exit("interrupted: the same command goes on")
    translator = Translator.load(config.out)
    for part in parts:
        examples = data_set.examples(part)[: TRIED if config.score_pairs == TRIED else None]
        sources, references = zip(*examples, strict=True)
        written = data_set.translate(translator, sources)
        value = task.score(written, references)
        new = [
            (line, reference)
            for line, (source, reference) in zip(written, examples, strict=True)
            if source not in data_set.memory
        ]
        written_to(config.out, part).write_text("\n".join([*written, ""]), encoding="utf-8")
        name = f"{task.name}, {task.languages[language]}, {settings}, seed {config.seed}, {part}"
        took = f"{result.updates:,} updates, {result.seconds / 60:.1f} min"
        others, apart = list[str](), dict[str, float]()
        if 0 < len(new) < len(examples):
            of_new = task.score(*zip(*new, strict=True))
            others.append(f"{of_new:.2f} of the {len(new):,} that aren't in the training text")
            apart |= {"score_of_new": of_new, "new": len(new), "all": len(examples)}
        if task.looks_up:
            alone = task.score(data_set.memory.correct(sources, sources), references)
            others.append(f"{alone:.2f} by memory alone")
        elif len(new) < len(examples):
            with_memory = task.score(data_set.memory.correct(sources, written), references)
            others.append(f"{with_memory:.2f} with the others looked up there")
            apart |= {"with_memory": with_memory}
        also = f" ({'; '.join(others)})" if others else ""
        print(f"{name}: {task.measure} {value:.2f}{also}, {took}", flush=True)
        if not trial:
            about = dict(task=task.name, language=language, settings=settings, seed=config.seed, part=part)
            spent = dict(updates=result.updates, minutes=result.seconds / 60)
            parameters = open_run(config.out).parameters
            bench.keep(NAME, {**about, "score": value, **apart, **spent, "parameters": parameters})


def written_to(run: Path, part: str) -> Path:
    """Return the file of what a run makes of a part, a word a line."""
    return run.with_name(f"{run.name}.{part}.txt")


def compare_settings(data_set: DataSet, seed: int, out: Path, parts: Sequence[str]) -> None:
    """Print how far apart the two settings are on what they have written, as far as both have."""
    task, language = data_set.task, data_set.language
    for part in parts:
        files = [written_to(run_folder(data_set, one, seed, out), part) for one in ("characters", "wu2021")]
        if not all(file.exists() for file in files):
            continue
        references = [reference for _, reference in data_set.examples(part)]
        both = [file.read_text(encoding="utf-8").split("\n")[:-1] for file in files]
        low, high = interval(*([task.counts(*pair) for pair in zip(one, references, strict=True)] for one in both))
        ours, theirs = (task.score(one, references) for one in both)
        name = f"{task.name}, {task.languages[language]}, seed {seed}, {part}"
        print(
            f"{name}: {task.measure} {ours:.2f}, wu2021 {theirs:.2f}: {ours - theirs:+.2f} ({low:+.2f} to {high:+.2f})"
        )


def interval(ours: Sequence[tuple[int, int]], theirs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the bounds of the middle 95 % of the differences of two scores, over paired bootstrap samples of words.

    Each word has its two counts (see `Task`); a sample has as many words, drawn with replacement (Koehn 2004).
    """
    draw, words = torch.Generator().manual_seed(1), len(ours)
    counts = torch.tensor([theirs, ours], dtype=torch.float64)
    differences = []
    for _ in range(SAMPLES):
        part, whole = counts[:, torch.randint(words, (words,), generator=draw)].sum(dim=1).unbind(dim=1)
        differences.append(100 * float((part / whole).diff()))
    low, high = torch.tensor(differences).quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


def run_folder(data_set: DataSet, settings: str, seed: int, out: Path) -> Path:
    """Return the run folder of a data set, settings and seed."""
    return out / settings / data_set.task.name / data_set.language / f"seed-{seed}"


def as_value(text: str) -> Any:
    """Return a setting's value: a number, true or false where the text is one, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def config_of(
    data_set: DataSet, settings: str, seed: int, out: Path, changes: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Return the settings of a training, whose pairs are written below `out` first."""
    name = f"{data_set.task.name}/{data_set.language}"
    files = {part: out / "pairs" / f"{name}.{part}.tsv" for part in ("train", "dev")}
    for part, path in files.items():
        write_pairs(path, data_set.pairs(part))
    own: dict[str, Any] = dict(
        source=files["train"],
        valid_source=files["dev"],
        out=run_folder(data_set, settings, seed, out),
        task="characters",
        seed=seed,
        threads=1,
        patience=0,
        score_pairs=1000,
        **data_set.task.settings,
    )
    if settings == "wu2021":
        own |= WU2021 | dict(batch_tokens=WORDS_A_BATCH * longer_side(data_set))
    own |= changes or {}
    if unknown := sorted(set(own) - {field.name for field in fields(TrainConfig)}):
        raise GlassformerError(f"--change must name settings of TrainConfig, got {unknown[0]}")
    return TrainConfig(**own)


def longer_side(data_set: DataSet) -> int:
    """Return the mean number of tokens of the longer side, with one for the end, rounded up."""
    pairs = data_set.pairs("train")
    sources = sum(len(StandIns.plain(source)) + source.count("<") + 1 for source, _ in pairs)
    symbols = data_set.task.symbols
    targets = sum(
        (len(target.split()) if symbols else len(StandIns.plain(target)) + target.count("<")) + 1 for _, target in pairs
    )
    return math.ceil(max(sources, targets) / len(pairs))


def write_pairs(path: Path, pairs: Sequence[tuple[str, str]]) -> None:
    """Write a file of pairs, unless it is there as it is to be: prepared data are known by their file's time."""
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")  # the same command may run beside this one
    unfinished.write_text(text, encoding="utf-8", newline="\n")
    unfinished.replace(path)


# The tables of docs/quality.md

Scores = dict[tuple[str, str, str], dict[str, dict[int, float]]]
"""Scores by task, settings and part, then by data set and by seed; the latest of each, of models of the latest size."""


def write_tables() -> None:
    """Put the tables of the recorded scores into docs/quality.md, and print them."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    text = "\n".join([*tables([json.loads(line) for line in lines]), ""])
    page = PAGE.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        raise GlassformerError(f"{PAGE} must have the lines {BEGIN.strip()} and {END.strip()}: put them back")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    print(text)


def tables(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table of all tasks, and of one for each task of many data sets."""
    scores: Scores = defaultdict(lambda: defaultdict(dict))
    minutes: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    sizes = {(one["task"], one["settings"], one["language"]): one["parameters"] for one in records}
    for one in records:
        if one["parameters"] != sizes[one["task"], one["settings"], one["language"]]:
            continue  # the task characters chose another width then
        scores[one["task"], one["settings"], one["part"]][one["language"]][one["seed"]] = one["score"]
        if one["settings"] == "characters":
            minutes[one["task"]][one["language"]][one["seed"]] = one["minutes"]
    head = ["task", "data", "score", "dev", "test", "test, settings of S. Wu et al. 2021", "others, test"]
    yield f"| {' | '.join([*head, 'minutes a model'])} |"
    yield "|---|---|---|---|---|---|---|---|"
    for task in TASKS.values():
        many = len(task.languages) > 2
        for code in ["mean"] if many else task.languages:
            data = f"mean of {len(task.languages)} languages" if many else task.languages[code]
            better = " (lower is better)" if task.lower_is_better else ""
            cells = [cell(task, scores[task.name, *key], code) for key in COLUMNS]
            languages = task.languages if many else [code]
            spent = [minutes[task.name][one].values() for one in languages]
            took = [one for each in spent for one in each] if all(spent) else []
            cells += [cell_of_others(task, code), f"{statistics.median(took):.0f}" if took else NOTHING]
            yield f"| {' | '.join([task.name, data, task.measure + better, *cells])} |"
    for task in TASKS.values():
        if len(task.languages) > 2 and any(scores[task.name, *key] for key in COLUMNS):
            yield ""
            compared = any(code in task.others for code in task.languages)
            head = ["dev", "test", "test, settings of S. Wu et al. 2021", *(["others, test"] if compared else [])]
            yield f"| {' | '.join([f'{task.name}: {task.measure}', *head])} |"
            yield "|" + "---|" * (1 + len(head))
            for code, name in task.languages.items():
                cells = [cell(task, scores[task.name, *key], code) for key in COLUMNS]
                cells += [cell_of_others(task, code)] if compared else []
                yield f"| {' | '.join([name, *cells])} |"


COLUMNS = (("characters", "dev"), ("characters", "test"), ("wu2021", "test"))
NOTHING = "–"


def cell(task: Task, scores: Mapping[str, Mapping[int, float]], code: str) -> str:
    """Return the mean of the seeds of a data set, or of all data sets, with the lowest and the highest of several."""
    if code != "mean":
        values = list(scores.get(code, {}).values())
    else:
        seeds = set.intersection(*(set(scores.get(one, {})) for one in task.languages))
        values = [statistics.mean(scores[one][seed] for one in task.languages) for seed in sorted(seeds)]
    if not values:
        return NOTHING
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def cell_of_others(task: Task, code: str) -> str:
    """Return the scores of other systems on a data set, or on the mean of all, computed where it isn't stated."""
    known = dict(task.others.get(code, {}))
    if code == "mean" and not known:
        each = [task.others.get(one, {}) for one in task.languages]
        known = {who: statistics.mean(one[who] for one in each) for who in each[0] if all(who in one for one in each)}
    return "; ".join(f"{value:.2f}, {who}" for who, value in known.items()) or NOTHING


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except GlassformerError as error:
        sys.exit(f"characters.py: error: {error}")
