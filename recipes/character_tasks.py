"""The data sets of recipes/characters.py: how they are read, how words look to the model, and how they are scored."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from glassformer import GlassformerError

BORDER = "<+>"
"""The feature that the model writes between two morphemes."""
RARE = 5
"""A character that fewer different words of the training text have is rare."""


class Example(NamedTuple):
    """A source as the model reads it, and what it should become, as the data set writes it."""

    source: str
    reference: str


@dataclass(frozen=True)
class Task:
    """A task: some data sets of one format, with one score."""

    name: str
    folder: str
    """Its folder below --data."""
    origin: str
    """Where the files come from."""
    languages: Mapping[str, str]
    """The name of each data set, by its code."""
    read: Callable[[Path, str, str], list[Example]]
    """Return the examples of a part (train, dev or test) of a data set in the folder."""
    measure: str
    counts: Callable[[str, str], tuple[int, int]]
    """Return two numbers of a line, given its reference: the score is the ratio of their sums over all lines."""
    lower_is_better: bool = False
    to_model: Callable[[str], str] = str
    """Return a reference as the model writes it."""
    from_model: Callable[[str], str] = str
    """Return what the model writes as the data set does."""
    symbols: bool = False
    """Results are symbols with spaces between. Otherwise they share letters with the words, and rare ones are copied
    (see `StandIns`)."""
    looks_up: bool = False
    """Words of the training text are given their most frequent result there; the model is asked for the others."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the text asks for beyond the task characters of `glassformer train`."""
    others: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Scores of other systems on test, by the system's name: of a data set, or of the mean of all."""

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> float:
        """Return the score of lines, given their references, in percent."""
        found = [self.counts(*pair) for pair in zip(hypotheses, references, strict=True)]
        return 100 * sum(part for part, _ in found) / sum(whole for _, whole in found)


def rows(path: Path, columns: int, task_origin: str) -> list[list[str]]:
    """Return the columns of a file, line by line; lines without a tab, or of one alone, end sentences: no rows."""
    if not path.exists():
        raise GlassformerError(f"{path} is missing: fetch {task_origin}")
    split = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if "\t" in line and line != "\t"]
    if short := next((line for line in split if len(line) < columns), None):
        raise GlassformerError(f"{path} must have {columns} columns, got the line {short}")
    return split


# Pronunciation


def read_pronunciation(folder: Path, language: str, part: str) -> list[Example]:
    """Read a word and its phones, which stand between spaces."""
    path = folder / part / f"{language}_{part}.tsv"
    return [Example(word, phones) for word, phones, *_ in rows(path, 2, G2P)]


def is_wrong(hypothesis: str, reference: str) -> tuple[int, int]:
    """Count a word that is wrong, of one."""
    return int(hypothesis != reference), 1


def is_right(hypothesis: str, reference: str) -> tuple[int, int]:
    """Count a word that is right, of one."""
    return int(hypothesis == reference), 1


# Segmentation


def read_segmentation(folder: Path, language: str, part: str) -> list[Example]:
    """Read a word and its morphemes, such as `ab @@solv @@ent`. A third column, which isn't to be used, is left out."""
    name = f"{language}.word.{'test.gold' if part == 'test' else part}.tsv"
    return [Example(word, morphemes) for word, morphemes, *_ in rows(folder / name, 2, SEGMENTATION)]


def join_morphemes(line: str) -> str:
    """Return morphemes as the model writes them, one feature between two.

    >>> join_morphemes("ab @@solv @@ent")
    'ab<+>solv<+>ent'
    """
    return re.sub(" *@@", BORDER, line)


def split_morphemes(line: str) -> str:
    """Return what the model writes as the data set does."""
    return line.replace(BORDER, " @@")


def morphemes_of(line: str) -> list[str]:
    """Return the morphemes of a line as the task's own scorer does: a space with @@, and each other one, ends one."""
    return line.replace(" @@", " ").split(" ")


def in_common(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    lengths = [0] * (len(right) + 1)
    for one in left:
        before = 0
        for n, other in enumerate(right, start=1):
            before, lengths[n] = lengths[n], before + 1 if one == other else max(lengths[n], lengths[n - 1])
    return lengths[-1]


def right_morphemes(hypothesis: str, reference: str) -> tuple[int, int]:
    """Count the right morphemes of a word, twice, and all of the hypothesis and the reference.

    The right ones are the longest common subsequence, as in the shared task on morpheme segmentation of 2022. F1 is
    2PR / (P + R), where precision P is right / written and recall R is right / true, over the sums of all words: so it
    is 2 right / (written + true).
    """
    written, true = morphemes_of(hypothesis), morphemes_of(reference)
    return 2 * in_common(written, true), len(written) + len(true)


# Inflection


def read_inflection(folder: Path, language: str, part: str) -> list[Example]:
    """Read a lemma with its features before it, and its form."""
    path = folder / f"{language}.{ {'train': 'trn', 'dev': 'dev', 'test': 'tst'}[part] }"
    lines = rows(path, 3, INFLECTION)
    return [Example("".join(f"<{one}>" for one in features_of(tags)) + lemma, form) for lemma, tags, form, *_ in lines]


def features_of(tags: str, above: str = "") -> list[str]:
    """Return the features of a tag of UniMorph 4, each of which names what it belongs to.

    >>> features_of("V;IMP;ACC(1,PL);NOM(FORM,2,SG)")
    ['V', 'IMP', 'ACC', 'ACC.1', 'ACC.PL', 'NOM', 'NOM.FORM', 'NOM.2', 'NOM.SG']
    >>> features_of("N;NOM(PL;PSS(1,PL))")
    ['N', 'NOM', 'NOM.PL', 'NOM.PSS', 'NOM.PSS.1', 'NOM.PSS.PL']
    """
    found, depth, begin = list[str](), 0, 0
    for place, character in enumerate(f"{tags};"):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth or character not in ";,":
            continue
        name, bracket, within = tags[begin:place].partition("(")
        found.append(above + name)
        found += features_of(within.removesuffix(")"), f"{above}{name}.") if bracket else []
        begin = place + 1
    return found


# Normalisation


def read_normalisation(folder: Path, language: str, part: str) -> list[Example]:
    """Read a historical word and its modern form."""
    return [Example(old, new) for old, new, *_ in rows(folder / f"{language}.{part}.txt", 2, NORMALISATION)]


class Lookup:
    """The most frequent result of each word of a training text, the first in it where several are equally frequent."""

    def __init__(self, examples: Iterable[Example]) -> None:
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for source, reference in examples:
            counts[source][reference] += 1
        self._best = {source: found.most_common(1)[0][0] for source, found in counts.items()}

    def __contains__(self, source: object) -> bool:
        return source in self._best

    def correct(self, sources: Sequence[str], written: Sequence[str]) -> list[str]:
        """Return what was written for these words, but for those that the training text has."""
        return [self._best.get(source, line) for source, line in zip(sources, written, strict=True)]


# Rare characters


class StandIns:
    """Features in place of rare characters, <?1> for the first in a word, which the model copies instead of spelling.

    A character is rare where few words of the training text have it. One that none has can't be written otherwise.
    """

    def __init__(self, sources: Iterable[str], rare: int = RARE) -> None:
        counts = Counter(character for word in set(map(self.plain, sources)) for character in set(word))
        self._common = {character for character, count in counts.items() if count >= rare} | {" "}

    def hide(self, source: str, target: str = "") -> tuple[str, str, dict[str, str]]:
        """Return both sides with stand-ins, and the character of each.

        >>> hide = StandIns(["abc", "bca", "cab"], rare=3).hide
        >>> hide("<V>axbyx", "xyz")
        ('<V>a<?1>b<?2><?1>', '<?1><?2>z', {'<?1>': 'x', '<?2>': 'y'})
        """
        rare = [character for character in dict.fromkeys(self.plain(source)) if character not in self._common]
        names = {character: f"<?{n}>" for n, character in enumerate(rare, start=1)}
        return _replaced(source, names), _replaced(target, names), {name: one for one, name in names.items()}

    @staticmethod
    def show(line: str, hidden: Mapping[str, str]) -> str:
        """Return a line with the characters that were hidden; a stand-in of none is left out."""
        return re.sub(r"<\?\d+>", lambda found: hidden.get(found[0], ""), line)

    @staticmethod
    def plain(line: str) -> str:
        """Return a line without its features."""
        return re.sub("<[^<>]+>", "", line)


def _replaced(line: str, names: Mapping[str, str]) -> str:
    """Return a line with names in place of characters outside of features."""
    parts = re.split("(<[^<>]+>)", line)
    parts[::2] = ["".join(names.get(character, character) for character in part) for part in parts[::2]]
    return "".join(parts)


G2P = "task1/data of https://github.com/sigmorphon/2020"
SEGMENTATION = "the files LANGUAGE.word.* of https://github.com/sigmorphon/2022SegmentationST (data, and data/surprise)"
INFLECTION = "part1/data of https://github.com/sigmorphon/2023InflectionST"
NORMALISATION = "the files of datasets/historical of https://github.com/coastalcph/histnorm"
RULES = "the organisers' rules, run here"
"""The non-neural baseline of the task: part1/baselines/nonneural.py of its repository at e84245c, on the same files."""
MEMORY = "memory alone"
"""The baseline of Bollmann (2019): a word that the training text has gets its most frequent form, others stay."""
TASKS = {
    task.name: task
    for task in (
        Task(
            name="pronunciation",
            folder="sigmorphon2020_g2p",
            origin=G2P,
            languages={
                "arm": "Armenian",
                "bul": "Bulgarian",
                "fre": "French",
                "geo": "Georgian",
                "gre": "Greek",
                "hin": "Hindi",
                "hun": "Hungarian",
                "ice": "Icelandic",
                "kor": "Korean",
                "lit": "Lithuanian",
            },
            read=read_pronunciation,
            measure="word error rate",
            counts=is_wrong,
            lower_is_better=True,
            symbols=True,
            settings=dict(decompose=True),  # Korean syllables are made of letters
            others={"mean": {"LSTM baseline (Gorman et al. 2020)": 18.53, "Transformer baseline (same)": 19.16}},
        ),
        Task(
            name="segmentation",
            folder="segmentation2022",
            origin=SEGMENTATION,
            languages={"ces": "Czech", "mon": "Mongolian"},
            read=read_segmentation,
            measure="F1",
            counts=right_morphemes,
            to_model=join_morphemes,
            from_model=split_morphemes,
            others={
                "ces": {"DeepSPIN-2 (Peters and Martins 2022)": 93.88},
                "mon": {"DeepSPIN-3 (Peters and Martins 2022)": 98.51},
            },
        ),
        Task(
            name="inflection",
            folder="inflection2023",
            origin=INFLECTION,
            languages={
                "deu": "German",
                "eng": "English",
                "fin": "Finnish",
                "fra": "French",
                "heb": "Hebrew",
                "jap": "Japanese",
                "kat": "Georgian",
                "rus": "Russian",
                "spa": "Spanish",
                "tur": "Turkish",
            },
            read=read_inflection,
            measure="accuracy",
            counts=is_right,
            others={
                "deu": {RULES: 79.80},
                "eng": {RULES: 96.60},
                "fin": {RULES: 80.80},
                "fra": {RULES: 77.70},
                "heb": {RULES: 30.92},
                "jap": {RULES: 64.10},
                "kat": {RULES: 82.00},
                "rus": {RULES: 86.00},
                "spa": {RULES: 87.80},
                "tur": {RULES: 64.60},
            },
        ),
        Task(
            name="normalisation",
            folder="histnorm",
            origin=NORMALISATION,
            languages={"german-ridges": "German (RIDGES)", "slovene-goo300k-bohoric": "Slovene (Bohorič)"},
            read=read_normalisation,
            measure="word accuracy",
            counts=is_right,
            looks_up=True,
            others={"german-ridges": {MEMORY: 82.35}, "slovene-goo300k-bohoric": {MEMORY: 85.04}},
        ),
    )
}
"""The tasks by their names."""
