"""Places for tags in a translation: each element is put on the words that its words became, all well nested.

1. A word of the source belongs to the innermost element that has a character of it. Of elements that share a word the
   one with most of its characters has it, of those with as many the first: a tag inside a word goes to the whole word.
2. A word of the translation belongs to the source word of its best link; without a link, to whatever it stands in.
3. An element that has all words of what it is in stands on all of that. Any other begins and ends with words of its
   own: it is the run in which its own words outnumber linked words of others most, of equal runs the longest, then the
   first. So a gap in it is filled, unless the gap is longer than what is beyond it.
4. Elements beside each other take their places in turn, those with most words first, inside what they are in.
5. What is empty, and what has no word left, stands before the next word that has a place; after the word before it,
   if it follows that without a space and a space follows it. It is never put into an element that it wasn't in.

So every tag is there once, as it was, and elements are nested as they were.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from glassformer.alignment.links import Link
from glassformer.markup.segments import Element, Segment, escape_text
from glassformer.text.words import Word


def place_tags(
    segment: Segment,
    source: Sequence[Word],
    translation: str,
    target: Sequence[Word],
    links: Sequence[Link],
) -> str:
    """Return the translation of a segment as it is to be written, with its tags.

    `source` and `target` are the words of the segment's text and of the translation, in their order.
    """
    lost = "".join(mark for mark in segment.kept if mark not in translation)
    translation += lost
    if not segment.elements:
        return _written(segment, translation)
    if translation == segment.text and len(source) == len(target):  # as of a line of placeholders: nothing moved
        links = [Link(number, number, 1.0) for number in range(len(source))]
    places = _Places(segment.text, source, len(target), links)
    root = _Node(Element("", 0, len(segment.text), "", segment.elements), range(len(source)), 0, len(target))
    marks = _Marks(len(target))
    _assign(root, places)
    _mark(root, marks)
    pieces = list[str]()
    done = 0
    for number, word in enumerate(target):
        gap = translation[done : word.start]
        has_room = gap != "" or (number == 0 and " " in translation)  # not where words have no spaces between them
        pieces += [*marks.before_gap[number], _written(segment, gap)]
        pieces += [tag + " " if wants and has_room else tag for tag, wants in marks.after_gap[number]]
        pieces.append(_written(segment, translation[word.start : word.end]))
        done = word.end
    pieces += [*marks.before_gap[-1], *(tag for tag, _ in marks.after_gap[-1]), _written(segment, translation[done:])]
    return "".join(pieces)


def _written(segment: Segment, text: str) -> str:
    """Return text as it is written between tags, with what marks stand for."""
    text = escape_text(text)
    for mark in segment.kept.keys() & set(text):
        text = text.replace(mark, segment.kept[mark])
    return text


@dataclass(eq=False)
class _Node:
    """An element with its words, and where in the translation it stands."""

    element: Element
    words: Sequence[int]
    """The source words that belong to it and what is in it."""
    begin: int = -1
    """The first of its words in the translation, -1 for an element without any."""
    end: int = -1
    """The end of its words; of an element without any, the word before which it stands."""
    follows: bool = False
    """True where an element without words stands right after the word before it."""
    children: list["_Node"] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return self.begin < 0


class _Places:
    """The words of a pair, and which became which."""

    def __init__(self, text: str, source: Sequence[Word], length: int, links: Sequence[Link]) -> None:
        self.text, self.source = text, source
        best = dict[int, Link]()
        for link in sorted(links):
            if link.target not in best or link.probability > best[link.target].probability:
                best[link.target] = link
        self.became: list[list[int]] = [[] for _ in source]
        """The words of the translation that belong to each source word."""
        for target in sorted(best):
            self.became[best[target].source].append(target)
        self._linked = [0, *accumulate(n in best for n in range(length))]

    def linked(self, begin: int, end: int) -> int:
        """Return how many words of the translation have links, from `begin` up to `end`."""
        return self._linked[end] - self._linked[begin]

    def ends_within(self, word: int, begin: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last word in a part of the translation that a source word became, if any did."""
        became = self.became[word]
        first, last = bisect_left(became, begin), bisect_left(became, end)
        return (became[first], became[last - 1]) if first < last else None


def _assign(root: _Node, places: _Places) -> None:
    """Give every element its words and its place."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        node.children = list(_shared_out(node, places))
        taken = list[tuple[int, int]]()
        own = [(_targets(child, node, places), child) for child in node.children]
        for targets, child in sorted(own, key=lambda one: -len(one[0])):
            if child.words and len(child.words) == len(node.words):
                found = (node.begin, node.end) if node.begin < node.end else None
            else:
                found = _best_run(targets, taken, places)
            if found:
                child.begin, child.end = found
                insort(taken, found)
        empty = [child for child in node.children if child.is_empty]
        if empty:
            _place_empty(empty, node, taken, places)
        waiting += [child for child in node.children if not child.is_empty]


def _shared_out(node: _Node, places: _Places) -> Iterator[_Node]:
    """Yield a node for each child of an element, with the words that belong to it."""
    children, words = node.element.children, places.source
    if len(children) == 1 and (children[0].begin, children[0].end) == (node.element.begin, node.element.end):
        yield _Node(children[0], node.words)
        return
    belongs: list[list[int]] = [[] for _ in children]
    first = 0
    for number in node.words:
        word = words[number]
        while first < len(children) and children[first].end <= word.start:
            first += 1
        best, most, n = -1, 0, first
        while n < len(children) and children[n].begin < word.end:
            shared = min(children[n].end, word.end) - max(children[n].begin, word.start)
            if shared > most:
                best, most = n, shared
            n += 1
        if best >= 0:
            belongs[best].append(number)
    for element, own in zip(children, belongs, strict=True):
        yield _Node(element, own)


def _targets(child: _Node, parent: _Node, places: _Places) -> list[int]:
    """Return the words of the translation that belong to an element, inside what it is in; none if it has all."""
    if len(child.words) == len(parent.words):
        return []
    return sorted(n for word in child.words for n in places.became[word] if parent.begin <= n < parent.end)


def _best_run(own: Sequence[int], taken: Sequence[tuple[int, int]], places: _Places) -> tuple[int, int] | None:
    """Return the run of words in which those of `own` outnumber others most; it overlaps nothing that is `taken`."""
    best, best_score = None, 0
    start, last, score = -1, -1, 0
    for place in own:
        before = bisect_right(taken, (place, place)) - 1
        after = before + 1 < len(taken) and taken[before + 1][0] == place
        if after or (before >= 0 and taken[before][1] > place):
            continue  # another has it
        is_parted = start < 0 or (before >= 0 and taken[before][0] > last)
        score = -1 if is_parted else score - places.linked(last + 1, place)
        if score < 0:
            start, score = place, 0
        score, last = score + 1, place
        if best is None or (score, place + 1 - start) > (best_score, best[1] - best[0]):
            best, best_score = (start, place + 1), score
    return best


def _place_empty(empty: Sequence[_Node], parent: _Node, taken: Sequence[tuple[int, int]], places: _Places) -> None:
    """Find the place of elements that have no words in the translation, in what they are in."""
    words = [(n, ends) for n in parent.words if (ends := places.ends_within(n, parent.begin, parent.end))]
    starts = [places.source[n].start for n, _ in words]
    word_ends = [places.source[n].end for n, _ in words]
    others = {child.begin: child.element for child in parent.children if not child.is_empty}
    for node in empty:
        text, where = places.text, min(node.element.begin, len(places.text))
        is_glued = where > 0 and text[where - 1] != " " and (text[where : where + 1] in ("", " "))
        following, preceding = bisect_right(word_ends, where), bisect_left(starts, where) - 1
        if is_glued and preceding >= 0 and word_ends[preceding] == where:
            node.end, node.follows = words[preceding][1][1] + 1, True
        elif following < len(words):
            node.end = words[following][1][0]
        elif preceding >= 0:
            node.end, node.follows = words[preceding][1][1] + 1, True
        else:
            node.end = parent.begin
        around = bisect_right(taken, (node.end, len(places.text))) - 1
        if around >= 0 and taken[around][1] > node.end:  # inside another, or before it: as it was
            begin, end = taken[around]
            if others[begin].end <= where:
                node.end, node.follows = end, True
            elif begin < node.end:
                node.end, node.follows = begin, False
        if node.end == parent.begin:
            node.follows = False
        elif node.end == parent.end:
            node.follows = True


class _Marks:
    """The tags of a translation: those before the space in front of each word, and those after it."""

    def __init__(self, words: int) -> None:
        self.before_gap: list[list[str]] = [[] for _ in range(words + 1)]
        self.after_gap: list[list[tuple[str, bool]]] = [[] for _ in range(words + 1)]
        """Each with whether a space follows it."""


def _mark(root: _Node, marks: _Marks) -> None:
    """Write the tags of every element to their places, the outer ones around the inner ones."""

    def opened(node: _Node) -> None:
        marks.after_gap[node.begin].append((node.element.open, False))

    def closed(node: _Node) -> None:
        marks.before_gap[node.end].append(node.element.close)

    def whole(node: _Node) -> None:
        tags = _tags(node)
        if node.follows:
            marks.before_gap[node.end].append(" " + tags if node.element.has_space else tags)
        else:
            marks.after_gap[node.end].append((tags, node.element.has_space))

    waiting: list[tuple[Callable[[_Node], None], _Node]] = [(opened, root)]
    while waiting:
        act, node = waiting.pop()
        act(node)
        if act is opened:
            inner = sorted(node.children, key=lambda child: child.end if child.is_empty else child.begin + 0.5)
            waiting.append((closed, node))
            waiting += [(whole if child.is_empty else opened, child) for child in reversed(inner)]


def _tags(node: _Node) -> str:
    """Return the tags of an element without words and of what is in it."""
    pieces, waiting = list[str](), list[str | Element]([node.element])
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            pieces.append(one)
        else:
            waiting += [one.close, *reversed(one.children), one.open]
    return "".join(pieces)
