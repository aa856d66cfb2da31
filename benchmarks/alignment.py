"""Alignment error rate on links set by hand: the Greek New Testament and an English one, beside eflomal.

    pip download --no-deps bible-alignments==0.4.2
    python benchmarks/alignment.py bible_alignments-0.4.2-py3-none-any.whl [--eflomal PYTHON] [--runs RUN ...]

The wheel of bible-alignments (data CC BY 4.0, Clear Bible; code MIT) holds the SBL Greek New Testament, the Berean
Standard Bible in words, and links between the two that people set: 7,936 verses, 137,712 Greek words. All verses are
learned from, without their links; scored are Mark, John, Romans and Hebrews. Luke and 1 Corinthians were looked at
while settings were chosen. Punctuation, which the data exclude, is left out; all links count as sure.

PYTHON is that of an environment with eflomal 2.0.0 installed, a program in C under the GPL, which is run as it is by
default (model 3, three samplers). The model of fast_align is our own IBM model 2 with its diagonal. RUN is a run folder
of glassformer trained on these verses, which `--write FOLDER` writes as grc.txt and en.txt. Appends to
benchmarks/results/alignment.jsonl.
"""

import csv
import io
import json
import subprocess
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bench
import tyro

from glassformer import Aligner, Translator
from glassformer.alignment import learning
from glassformer.alignment.attention import AttentionAligner
from glassformer.alignment.choice import choose_heads
from glassformer.alignment.hmm import Direction
from glassformer.alignment.links import Link, error_rate, read_pharaoh, symmetrize

SCORED = {"41": "Mark", "43": "John", "45": "Romans", "58": "Hebrews"}
METHODS = ("forward", "backward", "intersection", "union", "grow-diag-final-and")
Verses = list[str]
Alignments = list[list[Link]]


def main(
    wheel: tyro.conf.Positional[Path],
    eflomal: Path | None = None,
    runs: tuple[Path, ...] = (),
    write: Path | None = None,
) -> None:
    """Print the table.

    Args:
        wheel: The wheel of bible-alignments.
        eflomal: The Python of an environment with eflomal.
        runs: Run folders that translate the Greek into the English.
        write: A folder to write the verses to, for training; nothing else is done.
    """
    books, greek, english, links = read(wheel)
    if write is not None:
        write.mkdir(parents=True, exist_ok=True)
        for name, lines in (("grc.txt", greek), ("en.txt", english)):
            (write / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return
    scored = [n for n, book in enumerate(books) if book in SCORED]
    gold = [links[n] for n in scored]
    print(f"{bench.machine()}; {len(greek):,} verses, {len(scored):,} scored, {sum(map(len, gold)):,} links")
    sides: dict[str, tuple[Alignments, Alignments]] = {}
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    aligner = Aligner.train(greek, english)
    seconds["Aligner"] = time.perf_counter() - began
    sides["Aligner"] = tuple(aligner.align(greek, english, way) for way in ("forward", "backward"))
    began = time.perf_counter()
    sides["fast_align's kind (IBM model 2, diagonal)"] = model_2(greek, english)
    seconds["fast_align's kind (IBM model 2, diagonal)"] = time.perf_counter() - began
    if eflomal is not None:
        began = time.perf_counter()
        sides["eflomal 2.0.0"] = of_eflomal(eflomal, greek, english)
        seconds["eflomal 2.0.0"] = time.perf_counter() - began
    measured: dict[str, Any] = {}
    print(f"{'':44}{'seconds':>8}" + "".join(f"{method:>21}" for method in METHODS))
    for name, (forward, backward) in sides.items():
        joined = {m: [symmetrize(forward[n], backward[n], m) for n in scored] for m in METHODS}
        measured[name] = {m: error_rate(found, gold).aer for m, found in joined.items()} | {"seconds": seconds[name]}
        rates = "".join(f"{measured[name][method]:21.3f}" for method in METHODS)
        print(f"{name:44}{seconds[name]:8.1f}{rates}")
    for run in runs:
        translator = Translator.load(run, "cpu")
        heads = choose_heads(translator, greek, english)
        found = AttentionAligner(translator, heads).align([greek[n] for n in scored], [english[n] for n in scored])
        rate = error_rate([one.links for one in found], gold)
        measured[f"attention of {run.name}"] = {"forward": rate.aer, "heads": str(heads)}
        print(f"{f'attention of {run.name}':52}{rate.aer:21.3f}  {heads}")
    bench.keep("alignment", {"alignment": measured})


def read(wheel: Path) -> tuple[list[str], Verses, Verses, Alignments]:
    """Return the number of each verse's book, the verses on both sides, words between spaces, and their links."""
    with zipfile.ZipFile(wheel) as packed:
        greek, english = defaultdict[str, list[tuple[str, str]]](list), defaultdict[str, list[tuple[str, str]]](list)
        for row in _rows(packed, "data/sources/SBLGNT.tsv"):
            greek[row["id"][1:9]].append((row["id"], row["text"]))
        for row in _rows(packed, "data/eng/targets/BSB/nt_BSB.tsv"):
            if row["exclude"] != "y":
                english[row["source_verse"]].append((row["id"], row["text"]))
        records = json.loads(packed.read("data/eng/alignments/BSB/SBLGNT-BSB-manual.json"))["records"]
    verses = [verse for verse in sorted(greek) if verse in english]
    places = [
        {word: (verse, n) for verse in verses for n, (word, _) in enumerate(side[verse])} for side in (greek, english)
    ]
    links = defaultdict[str, set[Link]](set)
    for record in records:
        for source in record["source"]:
            for target in record["target"]:
                (verse, s), (other, t) = places[0].get(source, ("", 0)), places[1].get(target, ("-", 0))
                if verse == other:  # a few go from one verse to another
                    links[verse].add(Link(s, t))
    lines = [[" ".join(text for _, text in side[verse]) for verse in verses] for side in (greek, english)]
    return [verse[:2] for verse in verses], *lines, [sorted(links[verse]) for verse in verses]


def _rows(packed: zipfile.ZipFile, name: str) -> Iterator[dict[str, str]]:
    with packed.open(name) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield from csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)


def model_2(greek: Verses, english: Verses) -> tuple[Alignments, Alignments]:
    """Return the likeliest link of each word by IBM model 2 with a diagonal, as fast_align takes it, in five rounds."""
    rounds = {"INDEPENDENT": 5, "CHAINED": 0, "FERTILE": 0, "BACKED": 0.0}
    with patch.multiple(learning, **rounds):
        aligner = Aligner.train(greek, english)
    with patch.object(Direction, "posterior", _independently):
        probabilities = aligner.probabilities(greek, english)
    return (
        [_likeliest(forward) for forward, _ in probabilities],
        [[Link(s, t) for t, s, _ in _likeliest(backward.mT)] for _, backward in probabilities],
    )


def _independently(direction: Direction, source: Any, target: Any, sources: Any, targets: Any) -> Any:
    return direction.independent(direction.emissions(source, target), target, targets, sources)


def _likeliest(shares: Any) -> list[Link]:
    """Return the likeliest link of each row, unless that it has none is likelier."""
    best, place = shares.max(1)
    none = 1 - shares.sum(1)
    return [Link(int(place[t]), t) for t in range(len(best)) if best[t] > none[t]]


def of_eflomal(python: Path, greek: Verses, english: Verses) -> tuple[Alignments, Alignments]:
    """Return both directions of eflomal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, lines in (("source", greek), ("target", english)):
            (folder / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        program = (
            "import sys; from eflomal import Aligner; folder = sys.argv[1]\n"
            "with open(f'{folder}/source') as source, open(f'{folder}/target') as target:\n"
            "    Aligner().align(source, target, f'{folder}/forward', f'{folder}/backward')\n"
        )
        subprocess.run([python, "-c", program, name], check=True)
        return _read(folder / "forward"), _read(folder / "backward")


def _read(path: Path) -> Alignments:
    return [read_pharaoh(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    tyro.cli(main)
