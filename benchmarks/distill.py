"""A student of a quarter of the parameters beside its teacher, Multi30k English to German: BLEU, speed and size.

    python benchmarks/distill.py --data DIR [--seeds 1 2 3] [--part val] [--runs runs/distill]

DIR is that of recipes/multi30k.py, from which the pairs and the teachers' settings are: each teacher is its model, one
for each seed, ended by updates. `glassformer.distill` lets it translate all English of these pairs, four translations
each, and trains the student on them beside the pairs. With --alone the same student is also trained on the pairs alone,
for as many updates: what it lacks is what the teacher is worth. All are searched with a beam of 5; speed is measured in
turns, so leave the machine alone. Stopped, the same command goes on. Prints a table, and appends a line a seed to
benchmarks/results/distill.jsonl.

To see in a minute that it runs: --few 40 --teacher-updates 2 --back-updates 2 --student-updates 2.
"""

import statistics
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import bench
import tyro

from glassformer import (
    DistillConfig,
    GlassformerError,
    SearchConfig,
    TrainConfig,
    Translator,
    compare_speed,
    distill,
    open_run,
    score,
)

sys.path.append(str(Path(__file__).parents[1] / "recipes"))
import multi30k

SEARCH = SearchConfig(beam=5)
WRITING = SearchConfig(beam=8, n_best=4)
STUDENT: dict[str, Any] = dict(
    tokenizer="bpe",
    vocab_size=4000,
    d_model=96,
    heads=4,
    encoder_layers=3,
    decoder_layers=1,
    d_ff=192,
    dropout=0.1,
    batch_tokens=4096,
    learning_rate=5e-3,
    warmup=1000,
    cooldown=0.5,
    guide=0.2,
)
"""Settings of the student: 0.72 million parameters, where the teacher has 2.97."""
IDS_OF_FEW = 500
"""Token ids of a vocabulary where only a few pairs are used."""


def teacher_settings(data: Path, out: Path, seed: int, updates: int) -> TrainConfig:
    """Return the settings of the recipe's model of this seed, ended after so many updates."""
    return replace(multi30k.settings(data, out, seed), max_updates=updates)


def back_settings(data: Path, out: Path, updates: int, few: int) -> TrainConfig:
    """Return the settings of the recipe's model to English, ended after so many updates."""
    settings = replace(multi30k.settings_back(data, out), max_updates=updates)
    return replace(settings, vocab_size=IDS_OF_FEW) if few else settings


def few_of(data: Path, folder: Path, count: int) -> Path:
    """Return a folder with the first so many pairs of each file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in multi30k.SHA256:
        with (data / name).open(encoding="utf-8") as lines:
            (folder / name).write_text("".join(islice(lines, count)), encoding="utf-8")
    return folder


def main(
    data: Path,
    seeds: tuple[int, ...] = (1, 2, 3),
    part: Literal["test_2016_flickr", "val"] = "test_2016_flickr",
    runs: Path = Path("runs/distill"),
    teacher_updates: int = 6500,
    back_updates: int = 2000,
    student_updates: int = 12_000,
    alone: bool = False,
    few: int = 0,
) -> None:
    """Train, distill and compare a teacher and a student for each seed.

    Args:
        data: Folder of the tokenised text.
        seeds: One teacher and one student each.
        part: What to score: the test, or val while settings are chosen.
        runs: Where to write the run folders.
        teacher_updates: Updates of each teacher.
        back_updates: Updates of the model that writes English for the German of the pairs.
        student_updates: Updates of each student.
        alone: Train a student without a teacher too.
        few: Pairs of each file that are used, to try it; 0: all.
    """
    multi30k.check(data)
    if few:
        data = few_of(data, runs / "few", few)
    pairs = multi30k.read(data, part)
    multi30k.prepare_pairs(data, runs, back_settings(data, runs, back_updates, few))
    student = STUDENT | ({"vocab_size": IDS_OF_FEW} if few else {})
    rows = []
    for seed in seeds:
        teacher = teacher_settings(data, runs, seed, teacher_updates)
        learning = replace(
            teacher,
            **student,
            out=runs / f"student-{seed}",
            max_updates=student_updates,
            validate_every=max(1, student_updates // 12),
        )
        rows.append({"seed": seed, **row_of(teacher, learning, pairs, runs / f"alone-{seed}" if alone else None)})
    names = list(rows[0])
    print(f"\n{part}, beam {SEARCH.beam}; {bench.machine()}\n")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for row in rows:
        print(f"| {' | '.join(map(shown, row.values()))} |")
        bench.keep("distill", {"part": part, **row})
    means = [statistics.mean(row[name] for row in rows) for name in names[1:]]
    print(f"| mean | {' | '.join(map(shown, means))} |")


def row_of(
    teacher: TrainConfig, learning: TrainConfig, pairs: list[tuple[str, str]], alone: Path | None
) -> dict[str, float]:
    """Train a teacher and its student, and if wished the same student alone; return the row of the table."""
    multi30k.trained(teacher)
    assert isinstance(teacher.source, Path)
    config = DistillConfig(run=teacher.out, text=(teacher.source,), search=WRITING, student=learning)
    if not distill(config).training.finished:
        sys.exit("interrupted: the same command goes on")
    folders = {"teacher": teacher.out, "student": learning.out}
    if alone is not None:
        multi30k.trained(replace(learning, out=alone))
        folders["student alone"] = alone
    bleu = {name: bleu_of(folder, pairs) for name, folder in folders.items()}
    parameters = [open_run(folder).parameters for folder in (teacher.out, learning.out)]
    lines = [source for source, _ in pairs[:200]]
    speed = compare_speed(teacher.out, learning.out, lines, "cpu", SEARCH)
    return {
        **{f"{name}, BLEU": value for name, value in bleu.items()},
        "lost": bleu["teacher"] - bleu["student"],
        "teacher, parameters": parameters[0],
        "student, parameters": parameters[1],
        "times as fast": speed.ratio,
        "from": speed.low,
        "to": speed.high,
    }


def bleu_of(run: Path, pairs: list[tuple[str, str]]) -> float:
    """Return BLEU by plain words."""
    translations = Translator.load(run).translate([source for source, _ in pairs], SEARCH)
    return score(translations, [target for _, target in pairs], "bleu", tokenize="none").value


def shown(value: float) -> str:
    """Return a number of the table."""
    return f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.2f}"


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except GlassformerError as error:
        sys.exit(f"distill.py: error: {error}")
