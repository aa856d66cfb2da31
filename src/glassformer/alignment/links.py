"""Links between the words of two lines: written as Pharaoh's, joined from two directions, scored against others."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from glassformer.errors import ArgumentError, ConfigError, DataError, shown

Symmetrization = Literal["grow-diag-final-and", "intersection", "union", "forward", "backward"]
"""A way to make one alignment of two: that which explains the target's words, and that which explains the source's."""
SYMMETRIZATIONS: tuple[Symmetrization, ...] = get_args(Symmetrization)
_BESIDE = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


class Link(NamedTuple):
    """A word of the source that a word of the target stands for, both counted from 0, and how likely that is.

    >>> link = Link(0, 2, 0.75)
    >>> link.source, link.target, link.probability
    (0, 2, 0.75)
    """

    source: int
    target: int
    probability: float = 1.0


def pharaoh(links: Iterable[Link], *, probabilities: bool = False) -> str:
    """Return links as a line of Pharaoh's format, in the order of the source; with `probabilities` after a colon.

    >>> pharaoh([Link(1, 0, 0.75), Link(0, 1)])
    '0-1 1-0'
    >>> pharaoh([Link(1, 0, 0.75), Link(0, 1)], probabilities=True)
    '0-1:1.000 1-0:0.750'
    """
    ordered = sorted(links)
    if probabilities:
        return " ".join(f"{link.source}-{link.target}:{link.probability:.3f}" for link in ordered)
    return " ".join(f"{link.source}-{link.target}" for link in ordered)


def read_pharaoh(line: str) -> list[Link]:
    """Return the links of a line of Pharaoh's format, with probabilities where it has them.

    Raises DataError for what is no such line.

    >>> read_pharaoh("0-1 1-0:0.75")
    [Link(source=0, target=1, probability=1.0), Link(source=1, target=0, probability=0.75)]
    """
    return [_link(text) for text in line.split()]


def _link(text: str) -> Link:
    found = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})(?::(0|1|[01]?\.[0-9]+))?", text)
    probability = float(found[3] or 1) if found else 2.0
    if not found or probability > 1:
        raise DataError(f"a link must be like 3-4 or 3-4:0.5, source before target, got {shown(text)}")
    return Link(int(found[1]), int(found[2]), probability)


def check_symmetrization(method: str) -> None:
    """Raise ConfigError for a name that is none of SYMMETRIZATIONS."""
    if method not in SYMMETRIZATIONS:
        raise ConfigError(f"symmetrize must be one of {', '.join(SYMMETRIZATIONS)}, got {shown(method)}")


def symmetrize(
    forward: Iterable[Link], backward: Iterable[Link], method: Symmetrization = "grow-diag-final-and"
) -> list[Link]:
    """Return one alignment of a pair made of two, in the order of the source.

    A link that both have gets the mean of its two probabilities; a link that only one has gets half of its probability.
    `grow-diag-final-and` (Koehn et al. 2003) begins with the intersection. Then it adds links of the union that are
    beside a chosen link, diagonally too, if they bring a word that has no link yet. At last it adds links of either
    direction between two words that have no link yet.

    >>> forward, backward = read_pharaoh("0-0 1-1 1-2"), read_pharaoh("0-0 1-1 3-3")
    >>> pharaoh(symmetrize(forward, backward, "intersection"))
    '0-0 1-1'
    >>> pharaoh(symmetrize(forward, backward))
    '0-0 1-1 1-2 3-3'
    """
    check_symmetrization(method)
    here, there = ({link[:2]: link.probability for link in links} for links in (forward, backward))
    if method == "forward":
        return sorted(Link(*places, probability) for places, probability in here.items())
    if method == "backward":
        return sorted(Link(*places, probability) for places, probability in there.items())
    if method == "intersection":
        chosen = here.keys() & there.keys()
    elif method == "union":
        chosen = here.keys() | there.keys()
    else:
        chosen = _grown(set(here), set(there))
    return sorted(Link(*places, (here.get(places, 0.0) + there.get(places, 0.0)) / 2) for places in chosen)


def _grown(forward: set[tuple[int, int]], backward: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the links that grow-diag-final-and chooses."""
    union, chosen = forward | backward, forward & backward
    sources, targets = {source for source, _ in chosen}, {target for _, target in chosen}

    def add(link: tuple[int, int]) -> None:
        chosen.add(link)
        sources.add(link[0])
        targets.add(link[1])

    waiting = sorted(chosen)
    while waiting:
        grown = list[tuple[int, int]]()
        for source, target in waiting:
            for down, right in _BESIDE:
                link = source + down, target + right
                if link in union and link not in chosen and (link[0] not in sources or link[1] not in targets):
                    add(link)
                    grown.append(link)
        waiting = sorted(grown)
    for direction in (forward, backward):
        for link in sorted(direction):
            if link[0] not in sources and link[1] not in targets:
                add(link)
    return chosen


class ErrorRate(NamedTuple):
    """An alignment error rate, with the precision and the recall that it is made of."""

    aer: float
    precision: float
    recall: float


def error_rate(
    found: Sequence[Iterable[Link]], sure: Sequence[Iterable[Link]], possible: Sequence[Iterable[Link]] | None = None
) -> ErrorRate:
    """Return the alignment error rate of pairs against links set by hand (Och and Ney 2003); 0 is best.

    AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|), where A are the links found, S those that are sure and P those that
    are possible, to which the sure ones belong; without `possible` all are sure. Probabilities don't count.

    >>> error_rate([read_pharaoh("0-0 1-2")], [read_pharaoh("0-0 1-1")])
    ErrorRate(aer=0.5, precision=0.5, recall=0.5)
    """
    possible = sure if possible is None else possible
    if not len(found) == len(sure) == len(possible):
        raise ArgumentError(
            f"found, sure and possible must be of the same pairs, got {len(found)}, {len(sure)} and {len(possible)}"
        )
    hit_sure = hit_possible = count = count_sure = 0
    for links, certain, allowed in zip(found, sure, possible, strict=True):
        ours, wanted = ({link[:2] for link in side} for side in (links, certain))
        hit_sure += len(ours & wanted)
        hit_possible += len(ours & (wanted | {link[:2] for link in allowed}))
        count += len(ours)
        count_sure += len(wanted)
    if not count_sure:
        raise ArgumentError("sure must have at least one link, got none")
    aer = 1 - (hit_sure + hit_possible) / (count + count_sure)
    return ErrorRate(aer, hit_possible / count if count else 1.0, hit_sure / count_sure)
