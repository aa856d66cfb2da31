"""The Aligner on pairs whose alignment is known, and what it does with lines it can't align."""

import random

import pytest

from glassformer import Aligner
from glassformer.alignment import aligner as module
from glassformer.alignment import learning
from glassformer.alignment.links import Link, error_rate
from glassformer.errors import ArgumentError, DataError

WORDS = [f"{a}{b}" for a in "bdfgk" for b in "aeiou"]


def shuffled(count: int, seed: int) -> tuple[list[str], list[str], list[list[Link]]]:
    """Words and the same in capitals, a little out of order; every third word is written in two."""
    draw, sources, targets, links = random.Random(seed), [], [], []
    for _ in range(count):
        words = draw.sample(WORDS, draw.randint(2, 9))
        order = sorted(range(len(words)), key=lambda n: n + draw.uniform(0, 3))
        target, of_pair = [], []
        for place in order:
            parts = [words[place].upper() * 2] + ([words[place].upper()] if WORDS.index(words[place]) % 3 == 0 else [])
            of_pair += [Link(place, len(target) + n) for n in range(len(parts))]
            target += parts
        sources.append(" ".join(words))
        targets.append(" ".join(target))
        links.append(of_pair)
    return sources, targets, links


@pytest.fixture(scope="module")
def known() -> tuple[list[str], list[str], list[list[Link]]]:
    return shuffled(400, seed=3)


@pytest.fixture(scope="module")
def aligner(known) -> Aligner:
    return Aligner.train(*known[:2])


def test_it_finds_nearly_all_links_and_hardly_any_others(aligner, known):
    sources, targets, links = known
    assert error_rate(aligner.align(sources, targets), links).aer < 0.05


def test_probabilities_sum_to_one_at_most(aligner, known):
    sources, targets, _ = known
    for (forward, backward), source, target in zip(
        aligner.probabilities(sources[:20], targets[:20]), sources, targets, strict=False
    ):
        assert forward.shape == backward.shape == (len(target.split()), len(source.split()))
        assert forward.min() >= 0 <= backward.min()
        assert forward.sum(1).max() <= 1 + 1e-5
        assert backward.sum(0).max() <= 1 + 1e-5


def test_a_pair_is_aligned_alone_as_among_others(aligner, known):
    sources, targets, _ = known
    together = [[link[:2] for link in links] for links in aligner.align(sources[:30], targets[:30])]
    alone = [[link[:2] for link in aligner.align([x], [y])[0]] for x, y in zip(sources[:30], targets[:30], strict=True)]
    assert together == alone


def test_the_same_pairs_give_the_same_links_whatever_their_capitals(aligner, known):
    sources, targets, _ = known
    again = Aligner.train([line.upper() for line in sources], [line.split() for line in targets])
    assert again.align(sources[:50], targets[:50]) == aligner.align(sources[:50], targets[:50])


@pytest.mark.parametrize(("stem", "right"), [(4, True), (99, False)])
def test_forms_of_a_word_help_each_other(stem, right, monkeypatch):
    """Forms that stand once each are aligned by what their kin stand for."""
    monkeypatch.setattr(module, "STEM", stem)
    draw, sources, targets = random.Random(7), [], []
    for _ in range(150):
        stems = draw.sample(WORDS, 3)
        sources.append(" ".join(2 * word + "".join(draw.choices("lmnprstw", k=5)) for word in stems))
        draw.shuffle(stems)
        targets.append(" ".join(word.upper() for word in stems))
    links = Aligner.train(sources, targets).align(sources, targets, "forward")
    hits = [
        source.split()[link.source].startswith(2 * target.split()[link.target].lower())
        for source, target, of_pair in zip(sources, targets, links, strict=True)
        for link in of_pair
    ]
    assert (sum(hits) > 0.95 * 450) == right


def test_empty_lines_and_unknown_words_have_no_links(aligner):
    assert aligner.align(["", "ba", "", "unseen"], ["BABA", "", "", "NEVER"]) == [[], [], [], []]


def test_letters_of_unspaced_scripts_are_words():
    sources, targets = ["猫 睡", "狗 睡", "猫 跑", "狗 跑"], ["cat sleeps", "dog sleeps", "cat runs", "dog runs"]
    found = Aligner.train([line.replace(" ", "") for line in sources], targets).align(["狗跑"], ["dog runs"])
    assert [link[:2] for link in found[0]] == [(0, 0), (1, 1)]


def test_of_many_pairs_some_are_learned_from(monkeypatch):
    monkeypatch.setattr(module, "CELLS", 2 * 2 * 10)
    sources, targets = ["a b", "c d"] * 10, ["A B", "C D"] * 10  # every second one
    ab, cd = Aligner.train(sources, targets).align(sources[:2], targets[:2], "union")
    assert ab
    assert not cd


def test_a_long_pair_does_not_crowd_out_the_short_ones(monkeypatch):
    monkeypatch.setattr(module, "CELLS", 2 * 2 * 10)
    long = " ".join(WORDS)
    sources, targets = [long, *["a b", "c d"] * 5], [long, *["A B", "C D"] * 5]
    found = Aligner.train(sources, targets).align(sources, targets, "union")
    assert not found[0]
    assert all(found[1:])


@pytest.mark.parametrize("longest", [7, 13])
def test_no_more_cells_are_learned_from_than_there_may_be(monkeypatch, longest):
    learned, train = [], module.AlignmentModel.train

    def counted(source, target, *sizes, **kin):
        learned.append(sum(len(x) * len(y) for x, y in zip(source, target, strict=True)))
        return train(source, target, *sizes, **kin)

    monkeypatch.setattr(module, "CELLS", 200)
    monkeypatch.setattr(module.AlignmentModel, "train", counted)
    lines = [" ".join(["a"] * (longest if n % 5 == 0 else 2)) for n in range(50)]
    Aligner.train(lines, lines)
    assert 100 < learned[0] <= 200


@pytest.mark.parametrize(
    ("sources", "targets", "error", "message"),
    [
        ("a b", ["A B"], ArgumentError, r"sources must be a sequence of lines, got one str: pass \[line\]"),
        (["a b"], [], ArgumentError, "sources and targets must be pairs, got 1 sources, 0 targets"),
        (
            ["a", ""],
            ["", "B"],
            DataError,
            "there is nothing to learn an alignment from: no pair has words on both sides",
        ),
        (
            ["a " * 6000],
            ["A " * 6000],
            DataError,
            r"there is nothing .* may have 1,048,576 cells .*, and the shortest has 36,000,000: split the lines .*",
        ),
    ],
)
def test_what_cannot_be_learned_from_is_refused(sources, targets, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        Aligner.train(sources, targets)


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (iter(["a b"]), ["A B"], r"sources must be a sequence of lines, got list_iterator: pass list\(sources\)"),
        (["a b", None], ["A", "B"], r"sources\[1\] must be a line of text, or its words, got None"),
        (["a b"], [3], r"targets\[0\] must be a line of text, or its words, got 3"),
        ([b"a b"], ["A B"], r"sources\[0\] must be a line of text, or its words, got b'a b'"),
        ([["a", 3]], ["A B"], r"sources\[0\] must be a line of text, or its words, got \['a', 3\]"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_are_no_lines_is_named(sources, targets, message, aligner):
    with pytest.raises(ArgumentError, match=f"^{message}$"):
        Aligner.train(sources, targets)
    with pytest.raises(ArgumentError, match=f"^{message}$"):
        aligner.align(sources, targets)
    assert aligner.align(["a"], [["B"]]) == [[]]


def test_pairs_that_are_too_long_to_learn_from_are_counted_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(module, "LONGEST", 5)
    monkeypatch.setattr(learning, "LONGEST", 5)
    sources, targets = ["a b", "c d", "e f g"], ["A B", "C D", "E F"]
    found = Aligner.train(sources, targets).align(sources, targets, "union")
    assert found[0]
    assert not found[2]
    assert caplog.messages == [
        "not learned from: 1 of 3 pairs, which have more than 5 cells (source words times target words); split their "
        "lines into sentences"
    ]


def test_a_pair_that_is_too_long_is_refused_and_a_line_of_long_words_is_not(aligner, monkeypatch):
    monkeypatch.setattr(module, "MOST_ALIGNED", 6)
    message = (
        "^pair 2 is too long to be aligned: 3 source words times 3 target words are 9, and may be 6: split it into "
        "sentences$"
    )
    for align in (aligner.align, aligner.probabilities):
        with pytest.raises(DataError, match=message):
            align(["ba be", "ba be bi"], ["BABA BEBE BIBI", "BABA BEBE BIBI"])
    assert aligner.align(["ba be"], [["BABA", "BEBE", "BIBI"]])[0]
