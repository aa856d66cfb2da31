"""Translate under a glossary and with placeholders: what is met, what it does to BLEU, and what it costs.

    python benchmarks/terms.py RUN --train train.en train.de --test test.en test.de

The glossary's pairs of words are learned from the training text by an `Aligner`. Four parts; --only names one:

    glossary      one glossary for all lines: how many terms are met and forced, and lines that have none against the
                  same lines without a glossary, id by id
    references    up to two words of each line whose translations in the reference the model doesn't choose by itself:
                  BLEU of these lines without the terms and with them
    placeholders  5,000 lines with up to three placeholders at random places: those that come back exactly; and one in
                  place of a word and of its translation in the reference: BLEU of these lines
    speed         lines of 50 terms (several sentences in one), and of two: processor time without and with the
                  glossary, A B A B, one thread; also of a base model with random weights
"""

import argparse
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from bench import in_turn, keep

from glassformer import Aligner, ModelConfig, Score, SearchConfig, Transformer, Translation, Translator, score
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.lexical.placeholders import protect
from glassformer.pairs.lines import read_lines
from glassformer.text.units import count_of, units_of

PLACEHOLDERS = ["{name}", "{0}", "{1}", "%s", "%1$d", "%(count)d", "https://example.org/a?b=1", "a.b@example.org"]
PLACEHOLDERS += ["<ph/>", '<x id="1"/>', "{{ user }}", "{数}"]
SURE = 0.7  # of a link of the aligner
Link = tuple[str, str]
Sides = tuple[list[str], list[str]]
"""Lines of the source and of the target."""


@dataclass(frozen=True)
class Given:
    """Holds what every part measures with."""

    translator: Translator
    search: SearchConfig
    links: "Links"
    train: Sides
    test: Sides


def main() -> None:
    """Measure the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--train", type=Path, nargs=2, required=True)
    parser.add_argument("--test", type=Path, nargs=2, required=True)
    parser.add_argument("--only", choices=["glossary", "references", "placeholders", "speed"])
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seconds", type=float, default=20)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    translator = Translator.load(flags.run, "cpu", flags.precision)
    search = SearchConfig(beam=flags.beam)
    train, test = (tuple(list(read_lines(path)) for path in paths) for paths in (flags.train, flags.test))
    given = Given(translator, search, Links(*train), train, test)
    measured: dict[str, object] = {"beam": flags.beam, "precision": str(translator.precision)}
    parts = [flags.only] if flags.only else ["glossary", "references", "placeholders", "speed"]
    if "glossary" in parts:
        measured["glossary"] = glossary(given)
    if "references" in parts:
        measured["references"] = references(given)
    if "placeholders" in parts:
        measured["placeholders"] = placeholders(given)
    if "speed" in parts:
        measured["speed"] = speed(given, flags.seconds)
    for part, figures in measured.items():
        print(f"{part}: {figures}")
    keep("terms", measured)


class Links:
    """Pairs of words that stand for one another, learned from pairs of lines."""

    def __init__(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        self._aligner = Aligner.train([_words(line) for line in sources], [_words(line) for line in targets])

    def of(self, source: str, target: str) -> list[Link]:
        """Return the words of a pair that stand for one another alone, once in each line, of four letters or more."""
        here, there = _words(source), _words(target)
        if not here or not there:
            return []
        ((weights, _),) = self._aligner.probabilities([here], [there])
        found = []
        for j, word in enumerate(there):
            i = int(weights[j].argmax())
            known = here[i]
            is_alone = weights[j, i] > SURE and (weights[:, i] > 0.3).sum() == 1
            if is_alone and min(len(word), len(known)) > 3 and here.count(known) == there.count(word) == 1:
                found.append((known, word))
        return found


def _words(line: str) -> list[str]:
    return [word for word, _, _ in units_of(line)]


def learned(links: Links, sources: Sequence[str], targets: Sequence[str], lines: int = 3000) -> dict[str, str]:
    """Return for each word of the first lines what it is most often linked with, if that is at least three times."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in zip(sources[:lines], targets[:lines], strict=True):
        for source, target in links.of(*pair):
            counts[source][target] += 1
    best = {source: found.most_common(1)[0] for source, found in counts.items()}
    return {source: target for source, (target, count) in best.items() if count >= 3}


def bleu(translations: Sequence[str], targets: Sequence[str]) -> float:
    """Return the BLEU of translations."""
    found: Score = score(list(translations), list(targets), metric="bleu")
    return round(found.value, 2)


def glossary(given: Given) -> dict[str, object]:
    """Translate the test under every third pair of words that was learned."""
    sources, targets = given.test
    terms = Glossary(dict(sorted(learned(given.links, *given.train).items())[::3]))
    plain, found = (given.translator.translations(sources, given.search, glossary=one) for one in (None, terms))
    matched = [i for i, line in enumerate(sources) if terms.find(line)]
    others = [i for i in range(len(sources)) if i not in set(matched)]
    return {
        "entries": len(terms),
        **terms_of(found),
        "lines without": len(others),
        "of these with the same ids": sum(plain[i].tokens == found[i].tokens for i in others),
        "lines with": len(matched),
        "their BLEU without and with": [
            bleu([one[i].text for i in matched], [targets[i] for i in matched]) for one in (plain, found)
        ],
    }


def terms_of(found: Sequence[Translation]) -> dict[str, int]:
    """Return how many terms the sources of translations have, how many are met, and how many were forced."""
    uses = [one.lexical for one in found if one.lexical is not None]
    return {
        "terms": sum(use.terms for use in uses),
        "met": sum(use.terms - len(use.missing) for use in uses),
        "forced": sum(use.forced for use in uses),
    }


def references(given: Given) -> dict[str, object]:
    """Translate lines with words of their references that the model doesn't choose by itself."""
    sources, targets = given.test
    plain = given.translator.translate(sources, given.search)
    glossaries: list[Glossary | None] = []
    for source, target, text in zip(sources, targets, plain, strict=True):
        new = [link for link in given.links.of(source, target) if not count_of([link[1]], text)][:2]
        glossaries.append(Glossary(dict(new)) if new else None)
    chosen = [i for i, one in enumerate(glossaries) if one is not None]
    lines = [sources[i] for i in chosen]
    found = given.translator.translations(lines, given.search, glossary=[glossaries[i] for i in chosen])
    wanted = [targets[i] for i in chosen]
    return {
        "lines": len(chosen),
        **terms_of(found),
        "BLEU without and with": [bleu([plain[i] for i in chosen], wanted), bleu([one.text for one in found], wanted)],
    }


def placeholders(given: Given) -> dict[str, object]:
    """Copy placeholders at random places of 5,000 lines of training, and in place of words of the test."""
    sources, targets = given.test
    draw = random.Random(1)
    lines = []
    for line in given.train[0][:5000]:
        words = line.split(" ")
        for one in draw.choices(PLACEHOLDERS, k=draw.randint(1, 3)):
            words.insert(draw.randint(0, len(words)), one)
        lines.append(" ".join(words))
    found = given.translator.translate(lines, given.search, placeholders="default")
    pairs = zip(lines, found, strict=True)
    exact = sum(sorted(protect(line).placeholders) == sorted(protect(text).placeholders) for line, text in pairs)
    masked = []
    for source, target in zip(sources, targets, strict=True):
        nouns = [link for link in given.links.of(source, target) if link[1][0].isupper()]
        if nouns:
            before, after = draw.choice(nouns)
            masked.append((_replaced(source, before), _replaced(target, after)))
    texts = given.translator.translate([source for source, _ in masked], given.search, placeholders="default")
    return {
        "lines": len(lines),
        "exact": exact,
        "lines with one for a word": len(masked),
        "their BLEU": bleu(texts, [target for _, target in masked]),
    }


def _replaced(line: str, word: str) -> str:
    begin, end = next((begin, end) for found, begin, end in units_of(line) if found == word)
    return f"{line[:begin]}{{0}}{line[end:]}"


def speed(given: Given, seconds: float) -> dict[str, object]:
    """Time lines of 50 terms, and of two, beside the same lines without a glossary."""
    translator, (sources, _) = given.translator, given.test
    terms = Glossary(learned(given.links, *given.train))
    measured: dict[str, object] = {}
    sizes = {"source_vocab_size": translator.source_tokenizer.vocab_size, "shared_vocab": False}
    sizes |= {"target_vocab_size": translator.target_tokenizer.vocab_size}
    torch.manual_seed(1)
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    base = Translator.of(Transformer(ModelConfig.base(**sizes)), *tokenizers, str(translator.precision))
    for model, name, count, each, tokens in (
        (translator, "the run", 32, 2, 20),
        (translator, "the run", 32, 50, 160),
        (base, "base, random weights", 8, 50, 160),
    ):  # both sides write so many tokens: how long a line becomes is no speed
        exactly = replace(given.search, min_length=tokens, max_length=tokens)
        lines, glossaries = (some[:count] for some in _with_terms(sources, terms, each))
        sides = (
            partial(model.translate, lines, exactly, glossary=glossaries),
            partial(model.translate, lines, exactly),
        )
        pair = in_turn(*sides, seconds=seconds / 2, least=3, clock=time.process_time)
        measured[f"{name}: {each} terms a line, {tokens} tokens, {len(lines)} lines; without and with"] = str(pair)
    return measured


def _with_terms(sources: Sequence[str], terms: Glossary, each: int) -> tuple[list[str], list[Glossary]]:
    """Return lines, several joined, until so many terms are in one, with a glossary that has just these."""
    lines, glossaries, parts = list[str](), list[Glossary](), list[str]()
    for source in sources:
        parts.append(source)
        found = terms.find(" ".join(parts))
        if len(found) >= each:
            line = " ".join(parts)
            few = {line[match.begin : match.end]: match.forms[:1] for match in found[:each]}
            lines.append(line)
            glossaries.append(Glossary(few))
            parts = []
    return lines, glossaries


if __name__ == "__main__":
    main()
