"""Demands on a translation, and the part of them that a hypothesis has met: its text is followed token by token."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.text.tokenizer import EOS, UNK, Tokenizer
from glassformer.text.units import is_single, is_spaced, places_of

MARK = "\uf8ff"  # a character that no vocabulary has
STAND_IN = "\ufffc"
"""The text, for neighbours, of a token that is put in later."""
BEGINS = ", sentence"
SENTENCE_ENDS = '.!?:;…"“„»«—–('


class Vocabulary:
    """The target's tokens as text, and texts as tokens."""

    def __init__(self, tokenizer: Tokenizer, stand_in: int = UNK) -> None:
        """Read a tokenizer's tokens; `stand_in` is read and rated by the model in place of what is put in."""
        self.stand_in = stand_in
        self.tokenizer = tokenizer
        self.texts = tokenizer.texts(range(tokenizer.pad))
        self.continues_word = [bool(text) and is_spaced(text[0]) for text in self.texts]
        """Tell of each token whether it goes on with the word before it."""
        self._mark = tokenizer.encode([MARK])[0]
        self._known: dict[str, tuple[tuple[tuple[int, ...], ...], ...]] = {}

    def sequences(self, form: str) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the ids of a form at the beginning of a word, and elsewhere.

        Neither where some of it has no id, or where the vocabulary would write it otherwise.
        """
        if form not in self._known:
            (spaced,), (joined,) = self.tokenizer.encode([form]), self.tokenizer.encode([MARK + form])
            if self.tokenizer.decode([spaced]) != [form]:
                spaced = []
            glued = joined[len(self._mark) :]
            if "".join(self.texts[i] for i in glued) != form:
                glued = []
            self._known[form] = tuple(
                (tuple(ids),) if ids and UNK not in ids and EOS not in ids else () for ids in (spaced, glued)
            )
        return self._known[form]

    def most_tokens(self, form: str) -> int:
        """Return how many tokens a form, each part of which has an id, takes at most, wherever it stands."""
        return max(len(ids) for ways in self.sequences(form) for ids in ways)


@dataclass(frozen=True)
class Demand:
    """A text that the translation must contain, in one of its forms, and the source's tokens that it is for."""

    forms: tuple[str, ...]
    positions: tuple[int, ...]
    """Count the source's tokens, `</s>` included."""
    is_put_in: bool = False
    """Tell whether a token stands for it, in place of which the text is put in."""
    entry: int = 0
    """Number what it is a repetition of: an occurrence of a form counts for one of each entry's."""

    def within(self, tokens: int) -> "Demand":
        """Return the same for a source of which the first `tokens` are read."""
        return replace(self, positions=tuple(place for place in self.positions if place < tokens))


class State(NamedTuple):
    """Holds the demands that a hypothesis has met and begun. Sets of demands are the bits of a number."""

    met: int = 0
    loose: int = 0
    """Met demands that end where the text ends: with one letter more they would be part of another word."""
    begun: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Demands whose first tokens were written, each with the tokens that are left."""
    text: str = ""
    """The end of its text."""
    forced: int = 0
    """Demands that the search began although other tokens were likelier."""
    is_forcing: bool = False
    """True while a forced demand is incomplete."""
    is_over: bool = False
    """True where the text would have ended by itself, so that all that follows is demanded."""
    written: int = 0
    """Characters of its whole text."""
    ends: tuple[tuple[int, int], ...] = ()
    """Entries with repetitions, each with the character of the whole text at which the last that counted ends."""


class Options(NamedTuple):
    """The tokens with which demands may begin or go on, and the demand of each."""

    tokens: Int[Tensor, " options"]
    demands: Int[Tensor, " options"]
    extra: Int[Tensor, " options"]
    """Number of tokens that it takes beyond the shortest form of the demand, or shortest end of a forced one."""


class Demands:
    """Holds the texts that the translation of one source must contain.

    Demand n that is put in has the token `first_put_in` + n, which no vocabulary has. `forbids_stand_in` keeps the word
    that stands for it in the source out of the translation.
    """

    def __init__(self, wanted: Sequence[Demand], vocabulary: Vocabulary, *, forbids_stand_in: bool = False) -> None:
        self.wanted = tuple(wanted)
        self.forbids_stand_in = forbids_stand_in
        self.all = (1 << len(self.wanted)) - 1
        self.first_put_in = len(vocabulary.texts) + 1
        self.vocabulary = vocabulary
        self._shortest = [1 if one.is_put_in else min(map(vocabulary.most_tokens, one.forms)) for one in self.wanted]
        self._unread = sum(1 << n for n, one in enumerate(self.wanted) if one.is_put_in and not one.positions)
        self._longest_form = max((len(form) for one in self.wanted for form in one.forms), default=0)
        counts = Counter(one.entry for one in self.wanted)
        self._repeated = {entry for entry, count in counts.items() if count > 1}
        self._starts: dict[str, dict[int, list[tuple[int, tuple[int, ...]]]]] = {}
        self._options: dict[str, Options] = {}
        self._chosen: dict[int, Tensor] = {}
        self._needed: dict[int, int] = {}
        self._unmet_forms: dict[int, dict[int, tuple[list[int], tuple[str, ...]]]] = {}

    def advance(self, state: State, token: int, *, forced: int = -1) -> State:
        """Return the state after one more token; `forced` is the demand that the search chose it for, if it did so."""
        forced_ones = state.forced | (1 << forced if forced >= 0 else 0)
        if token >= self.first_put_in:
            met = state.met | 1 << token - self.first_put_in
            text, written = state.text + STAND_IN, state.written + len(STAND_IN)
            return State(met, 0, (), text, forced_ones, False, state.is_over, written, state.ends)
        vocabulary = self.vocabulary
        piece = vocabulary.texts[token]
        met = state.met & ~state.loose if state.loose and vocabulary.continues_word[token] else state.met
        text, written = state.text + piece, state.written + len(piece)
        ends = self._ends_of_met(state, met)
        left_out = written - len(text)
        starts = {entry: max(0, end - left_out) for entry, end in ends.items()}
        ended = self._ended(met, text, len(piece), starts)
        begun = [(n, left[1:]) for n, left in state.begun if left[0] == token]
        begun += self._starting(state._replace(met=met), token)
        entries = {self.wanted[n].entry for n in ended}
        whole = [n for n, left in begun if not left and not met >> n & 1 and self.wanted[n].entry not in entries]
        ended |= dict.fromkeys(whole, 0)
        loose = 0 if piece else state.loose
        if is_spaced(text[-1:] or " "):
            loose |= sum(1 << n for n, after in ended.items() if not after)
        met |= sum(1 << n for n in ended)
        if self._repeated:
            entries_of = ((self.wanted[n].entry, written - after) for n, after in ended.items())
            ends |= {entry: end for entry, end in entries_of if entry in self._repeated}
        still = tuple((n, left) for n, left in begun if left and not met >> n & 1)
        is_forcing = any(forced_ones >> n & 1 for n, _ in still)
        text = text[-self._longest_form - 32 :]
        return State(
            met, loose & met, still, text, forced_ones, is_forcing, state.is_over, written, tuple(ends.items())
        )

    def _ends_of_met(self, state: State, met: int) -> dict[int, int]:
        """Return `State.ends` but for entries of which a demand was met and is so no longer: they are searched anew."""
        if not state.ends:
            return {}
        unmet = {self.wanted[n].entry for n in bits(state.met & ~met)}
        return {entry: end for entry, end in state.ends if entry not in unmet}

    def options(self, state: State) -> Options:
        """Return the tokens that begin an unmet demand, or go on with one; only these if the search has forced one."""
        if state.is_forcing:
            least = _least_left(state)
            return _options([(left[0], n, len(left) - least[n]) for n, left in state.begun if n in least])
        going_on = [(left[0], n, len(left) - self._shortest[n]) for n, left in state.begun]
        options = self._beginnings(_context(state.text))
        free = self._startable(state)
        if free not in self._chosen:
            self._chosen[free] = torch.tensor([bool(free >> n & 1) for n in range(len(self.wanted))])
        chosen = self._chosen[free][options.demands]
        options = Options(*(column[chosen] for column in options))
        if not going_on:
            return options
        more = _options(going_on)
        return Options(*(torch.cat(both) for both in zip(more, options, strict=True)))

    def needed(self, state: State) -> int:
        """Return how many tokens the unmet demands need at least."""
        unmet = self.all & ~state.met
        if unmet not in self._needed:
            self._needed[unmet] = sum(self._shortest[n] for n in bits(unmet))
        needed = self._needed[unmet]
        if state.is_forcing:
            needed += sum(left - self._shortest[n] for n, left in _least_left(state).items())
        return needed

    def late(self, state: State) -> int:
        """Return the demands that are neither met nor being forced."""
        return self._free(state) if state.is_forcing else self.all & ~state.met

    def _free(self, state: State) -> int:
        """Return the demands that are neither met nor begun."""
        free = self.all & ~state.met
        for n, _ in state.begun:
            free &= ~(1 << n)
        return free

    def _startable(self, state: State) -> int:
        """Return the demands that may begin: a repetition does when the one before it is met.

        So does what is put in for a part of the source that the model doesn't read: nothing else tells their order.
        """
        free, unmet = self._free(state), self.all & ~state.met
        for n in bits(unmet & self._unread)[1:]:
            free &= ~(1 << n)
        if not self._repeated:
            return free
        return free & sum(1 << n for n in {self.wanted[n].entry: n for n in reversed(bits(unmet))}.values())

    def _starting(self, state: State, token: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return which demands a token begins, and what is left of each."""
        context = _context(state.text)
        self._beginnings(context)
        begun = self._starts[context].get(token, ())
        free = self._startable(state) if begun else 0
        return [(n, left) for n, left in begun if free >> n & 1]

    def _beginnings(self, context: str) -> Options:
        """Return the tokens with which any demand may begin in a context."""
        if context not in self._options:
            starts: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
            for n in range(len(self.wanted)):
                for ids in self._sequences(n, context):
                    starts.setdefault(ids[0], []).append((n, ids[1:]))
            self._starts[context] = starts
            self._options[context] = _options(
                [(token, n, 1 + len(left) - self._shortest[n]) for token, begun in starts.items() for n, left in begun]
            )
        return self._options[context]

    def _sequences(self, n: int, context: str) -> list[tuple[int, ...]]:
        """Return the ids that write demand n in a context."""
        if self.wanted[n].is_put_in:
            return [(self.first_put_in + n,)]
        found = dict[tuple[int, ...], None]()
        context, begins = context.removesuffix(BEGINS), context.endswith(BEGINS)
        for form in self.wanted[n].forms:
            spaced, glued = self.vocabulary.sequences(form)
            if not begins and form[0].isupper() and form[0].lower() + form[1:] in self.wanted[n].forms:
                continue  # the capital is for the beginning of a sentence
            if context == "start":
                chosen = spaced
            elif context == "space" or is_single(form[0]):
                chosen = glued
            else:
                chosen = (*spaced, *glued) if context == "unspaced" else spaced
            found |= dict.fromkeys(chosen or spaced or glued)
        return list(found)

    def _ended(self, met: int, text: str, new: int, starts: dict[int, int]) -> dict[int, int]:
        """Return the unmet demands of which a form ends among the `new` last characters, and how many follow each.

        Occurrences of an entry stand side by side, from its character in `starts` on: there the last that counted ends.
        """
        found, window = dict[int, int](), text[-new - self._longest_form - 1 :]
        for entry, (demands, forms) in self._unmet(met).items() if new else ():
            if any(form in window for form in forms):
                places = places_of(forms, text, starts.get(entry, 0))
                found |= zip(demands, (len(text) - end for _, end in places if end > len(text) - new), strict=False)
        return found

    def _unmet(self, met: int) -> dict[int, tuple[list[int], tuple[str, ...]]]:
        """Return by entry the unmet demands that are written, and their forms."""
        if met not in self._unmet_forms:
            found = dict[int, tuple[list[int], tuple[str, ...]]]()
            for n in bits(self.all & ~met):
                if not self.wanted[n].is_put_in:
                    found.setdefault(self.wanted[n].entry, ([], self.wanted[n].forms))[0].append(n)
            self._unmet_forms[met] = found
        return self._unmet_forms[met]


def _least_left(state: State) -> dict[int, int]:
    """Return how many tokens each demand that is being forced still needs: its forms may begin alike."""
    least = dict[int, int]()
    for n, left in state.begun:
        if state.forced >> n & 1:
            least[n] = min(len(left), least.get(n, len(left)))
    return least


def _context(text: str) -> str:
    """Return what a text ends with, as far as the tokens of what follows depend on it."""
    if not text:
        return f"start{BEGINS}"
    begins = BEGINS if text.rstrip()[-1:] in SENTENCE_ENDS else ""
    if text[-1] == " ":
        return f"space{begins}"
    return f"unspaced{begins}" if is_single(text[-1]) else f"other{begins}"


def bits(number: int) -> list[int]:
    """Return the places of the bits of a number that are set."""
    return [n for n in range(number.bit_length()) if number >> n & 1]


def _options(rows: Sequence[tuple[int, int, int]]) -> Options:
    return Options(*(torch.tensor([row[column] for row in rows], dtype=torch.long) for column in range(3)))
