"""Translate lines of several sentences: whole, sentence by sentence, and as many at once as a run has learned to read.

    glassformer train train.tsv --out runs/alone --max-updates 4000 --threads 1
    glassformer train train.tsv --out runs/joined --max-updates 4000 --threads 1 --join-lines 3
    python benchmarks/join_lines.py runs/alone runs/joined --test test.en test.de --together 3

So many neighbouring lines of the test files are one line here, and so are their references. Both runs have made as many
updates. BLEU of each way, and the time of so many sentences at once over that of one by one, in turns (A B A B).
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from bench import in_turn, keep

from glassformer import SearchConfig, Translator, score, translate_paragraphs
from glassformer.pairs.lines import read_lines
from glassformer.text.joining import join_sentences


def main() -> None:
    """Measure each run in each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--test", type=Path, nargs=2, required=True)
    parser.add_argument("--together", type=int, default=3)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seconds", type=float, default=20)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    sources, references = (joined(list(read_lines(path)), flags.together) for path in flags.test)
    measured: dict[str, object] = {"together": flags.together, "lines": len(sources)}
    for run in flags.runs:
        measured[run.name] = ways(Translator.load(run, "cpu", flags.precision), sources, references, flags)
        print(f"{run.name}: {measured[run.name]}", flush=True)
    keep("join_lines", measured)


def ways(
    translator: Translator, sources: list[str], references: list[str], flags: argparse.Namespace
) -> dict[str, object]:
    """Return the BLEU of each way, and how long several sentences at once take, as a share of one by one."""
    config = SearchConfig()

    def at_once(count: int) -> list[str]:
        return [one.text for one in translate_paragraphs(translator, sources, config, sentences=count)]

    found = {
        "one by one": at_once(1),
        "at once": at_once(flags.together),
        "whole lines": translator.translate(sources, config),
    }
    bleu = {name: round(score(texts, references, "bleu").value, 2) for name, texts in found.items()}
    pair = in_turn(partial(at_once, 1), partial(at_once, flags.together), seconds=flags.seconds, least=3)
    return {**bleu, "time": round(pair.ratio, 2), "spread": [round(pair.lowest, 2), round(pair.highest, 2)]}


def joined(lines: list[str], together: int) -> list[str]:
    """Return so many neighbouring lines as one each."""
    return [join_sentences(lines[n : n + together]) for n in range(0, len(lines) - together + 1, together)]


if __name__ == "__main__":
    main()
