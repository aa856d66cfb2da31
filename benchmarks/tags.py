"""Translate random lines with tags, and count the tags that are lost, doubled or ill-formed: all must be 0.

    python benchmarks/tags.py --lines 10000
    python benchmarks/tags.py --run RUN --text FILE

Lines are made from the text's words with random nestings of elements, empty elements, comments, entities, elements
that stay as they are, and tags inside words. Without --run a small model learns to reverse letters first. A tag is lost
or doubled where the output doesn't have it as often as the input, byte for byte; a line is ill-formed where an XML
parser refuses it. Text is changed where, without its tags, it isn't the plain translation of the line without its tags.

Of the small model it is known which word became which. An element is on its words where it has their capitals and no
other letter, in lines that the model has translated rightly.
"""

import argparse
import random
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

import torch

from glassformer import PairFiles, SearchConfig, TrainConfig, Translator, train, translate_markup
from glassformer.alignment.choice import choose_heads
from glassformer.alignment.heads import write_heads
from glassformer.markup.segments import Document, escape_text
from glassformer.markup.translate import ONLY_MARKS
from glassformer.pairs.lines import read_lines

TAG = re.compile(r"<[^<>]*>")
KEPT = re.compile(r'<(code|s translate="no")>.*?</\w+>')
NAMES = ("b", "i", "u", "a", "em", "span")


def taught(folder: Path) -> Path:
    """Return the run folder of a small model that reverses letters and writes them as capitals, its heads chosen."""
    draw = random.Random(1)
    lines = [draw.sample("abcdefghijklmnop", draw.randint(2, 7)) for _ in range(400)]
    (folder / "pairs.tsv").write_text("".join(f"{' '.join(x)}\t{' '.join(x[::-1]).upper()}\n" for x in lines))
    sizes = dict(d_model=32, heads=2, encoder_layers=1, decoder_layers=2, d_ff=64, dropout=0.0, guide=1.0)
    steps = dict(max_updates=300, batch_tokens=192, learning_rate=1e-2, validate_every=300, average=1, score_pairs=1)
    settings = TrainConfig(
        source=folder / "pairs.tsv", out=folder / "run", tokenizer="char", device="cpu", **sizes, **steps
    )
    run = train(settings).folder
    sources, targets = zip(*PairFiles(folder / "pairs.tsv"), strict=True)
    heads = choose_heads(Translator.load(run, "cpu"), sources, targets)
    write_heads(run, heads)
    print(f"{heads}")
    return run


def tagged(words: list[str], draw: random.Random) -> str:
    """Return words with tags at random: elements around any run of them, and empty ones anywhere."""
    words = [escape_text(word) for word in words]
    pieces = [part for word in words for part in (word, " ")][:-1]

    def dress(pieces: list[str], depth: int) -> str:
        if not pieces or depth > 4 or draw.random() < 0.25:
            return "".join(pieces)
        begin, end = sorted(draw.choices(range(len(pieces) + 1), k=2))
        name, number = draw.choice(NAMES), draw.randrange(1000)
        inner = dress(pieces[begin:end], depth + 1)
        around = f'<{name} id="{number}" title="a &gt; b">{inner}</{name}>'
        return dress(pieces[:begin], depth + 1) + around + dress(pieces[end:], depth + 1)

    for _ in range(draw.randint(0, 3)):
        extra = draw.choice(
            ["<br-x/>", "<img src='1'/>", "<!-- c -->", "<i></i>", "<code>x</code>", '<s translate="no">k</s>']
        )
        pieces.insert(draw.randrange(len(pieces) + 1), extra)
    if draw.random() < 0.3:  # a tag inside a word
        place = draw.randrange(len(pieces))
        if len(pieces[place]) > 2 and pieces[place].isalpha():
            pieces[place] = f"{pieces[place][0]}<b>{pieces[place][1:]}</b>"
    return dress(pieces, 0)


def is_well_formed(text: str) -> bool:
    parser = expat.ParserCreate()
    try:
        parser.Parse(f"<g>{text}</g>", True)
    except expat.ExpatError:
        return False
    return True


def letters_of(text: str) -> list[tuple[str, str]]:
    """Return each element's tag with its capital letters in their order of the alphabet, but for those kept as is."""
    root = ElementTree.fromstring(f"<g>{KEPT.sub('', text)}</g>")
    return [(str(one.attrib), "".join(sorted("".join(one.itertext()).upper().split()))) for one in root.iter()]


def text_of(tagged_text: str) -> str:
    """Return what is between the tags, without spaces."""
    return "".join(TAG.sub("", tagged_text).split())


def is_reversed(words: list[str], translated: list[str]) -> bool:
    """Return whether these are single letters and their translation, and none twice."""
    is_plain = all(len(word) == 1 and word.isalpha() for word in words) and len(set(words)) == len(words)
    return is_plain and [word.upper() for word in reversed(words)] == translated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--beam", type=int, default=2)
    parser.add_argument("--format", choices=["html", "xml"], default="html")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or taught(Path(folder))
        measure(Translator.load(run, "cpu"), options, draw)


def measure(translator: Translator, options: argparse.Namespace, draw: random.Random) -> None:
    """Translate random lines with tags, and print what came of the tags."""
    if options.text:
        plain = [line.split() for line in read_lines(options.text) if line.strip()]
    else:
        plain = [draw.sample("abcdefghijklmnop", draw.randint(2, 7)) for _ in range(3000)]
        plain += [draw.choices("abcdefghijklmnop&<", k=draw.randint(1, 9)) for _ in range(1000)]
        plain += [["".join(draw.choices("abcdef", k=3)) for _ in range(draw.randint(1, 5))] for _ in range(1000)]
    lines = [tagged(draw.choice(plain), draw) for _ in range(options.lines)]
    config = SearchConfig(beam=options.beam, max_length=64)
    counts = Counter[str](lines=len(lines), tags=sum(len(TAG.findall(line)) for line in lines))
    seconds = {"tagged": 0.0, "plain": 0.0}
    for first in range(0, len(lines), 1000):
        chunk = lines[first : first + 1000]
        began = time.perf_counter()
        found = translate_markup(translator, chunk, options.format, config)
        seconds["tagged"] += time.perf_counter() - began
        documents = [Document(line, options.format) for line in chunk]
        texts = [segment.text for document in documents for segment in document.segments]
        began = time.perf_counter()
        coming = iter(translator.translate(texts, config, placeholders=ONLY_MARKS))
        seconds["plain"] += time.perf_counter() - began
        for line, document, output in zip(chunk, documents, found, strict=True):
            before, after = Counter(TAG.findall(line)), Counter(TAG.findall(output))
            counts["lost"] += (before - after).total()
            counts["doubled"] += (after - before).total()
            counts["ill-formed"] += not is_well_formed(output)
            expected = [
                "".join(segment.kept.get(letter, escape_text(letter)) for letter in next(coming))
                for segment in document.segments
            ]
            counts["text changed"] += text_of(document.joined(expected)) != text_of(output)
            words, made = (KEPT.sub("", one) for one in (line, output))
            if options.run is None and is_reversed(TAG.sub("", words).split(), TAG.sub("", made).split()):
                there = Counter(letters_of(output))
                counts["elements"] += len(letters_of(line))
                counts["on their words"] += (Counter(letters_of(line)) & there).total()
    for name in ("lines", "tags", "lost", "doubled", "ill-formed", "text changed", "elements", "on their words"):
        print(f"{name:>14}: {counts[name]:,}")
    print(f"with tags {seconds['tagged'] / seconds['plain']:.2f} times the time without (torch {torch.__version__})")


if __name__ == "__main__":
    main()
