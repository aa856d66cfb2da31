"""From the messages of clients to tasks: what is searched for, and what the answer is made of."""

import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from msgspec import Struct

from glassformer.confidence.calibration import read_calibration
from glassformer.confidence.estimate import ConfidenceEstimator
from glassformer.errors import DataError
from glassformer.generation.attention import Translation
from glassformer.generation.batches import with_end
from glassformer.generation.config import SearchConfig
from glassformer.generation.constraints import Prefixes
from glassformer.generation.lexical.lines import LexicalLine
from glassformer.generation.lexical.placeholders import compiled
from glassformer.generation.search import NOTHING, Hypothesis
from glassformer.generation.segments.paragraphs import segments_that_fit
from glassformer.generation.segments.sentences import Segments
from glassformer.generation.translator import Translator, ids_of_prefixes, rules_of, search_lexically, translation_of
from glassformer.insight.heads import Head, read_heads
from glassformer.serve.workers import messages
from glassformer.serve.workers.answers import as_probability, line_answer, packed, paragraph_answer, wants_of
from glassformer.serve.workers.batching import Client, Line, Lines, Rows, Steps, Task
from glassformer.serve.workers.messages import Facts, Refusal
from glassformer.serve.workers.tagged import Found, tagged_rows, with_marks
from glassformer.serve.workers.terms import LEXICAL_AT_ONCE, Rules, ServerRules
from glassformer.text.tokenizer import EOS

MOST_SENTENCES = 4000
"""Sentences of a request. No other request is read while its lines are taken apart, 0.2 ms a sentence."""

Send = Callable[[Struct], None]


class RequestReader:
    """Makes a task of each request for a translator, after checking what its server couldn't."""

    def __init__(self, translator: Translator, settings: messages.Settings, send: Send) -> None:
        """`send` is for the events of a stream."""
        self._translator = translator
        self._settings = settings
        self._send = send
        self._heads: list[Head] = read_heads(translator.folder) if translator.folder else []
        calibration = read_calibration(translator.folder, translator.engine.config) if translator.folder else None
        self._estimator = ConfidenceEstimator(translator, calibration) if calibration else None
        self._rules = ServerRules(settings)
        self._sentences = translator.sentences or 1

    def task_of(self, message: messages.Request, client: Client) -> Task:
        """Return the task of a request of this client; Refusal for one that can't be done."""
        if isinstance(message, messages.Translate):
            return self._lines(message, client)
        if isinstance(message, messages.TranslateTagged):
            return self._tagged(message, client)
        if isinstance(message, messages.Check):
            return Steps(message.id, client, steps=self._checked(message))
        if isinstance(message, messages.Stream):
            return Steps(message.id, client, steps=self._stream(message, client))
        assert isinstance(message, messages.Alternatives)
        return Steps(message.id, client, steps=self._alternatives(message))

    # Lines

    def _lines(self, message: messages.Translate, client: Client) -> Task:
        rules = self._rules.of(message.lines, message.terms, message.placeholders)
        config, lines, texts, sources = self._read(message, rules)
        prefixes = self._prefixes(message.prefixes, message.max_length) if message.prefixes else [[] for _ in texts]
        concerned = [n for n, text in enumerate(texts) if sources[n] and rules.concern(text)]
        found = [[NOTHING] for _ in sources]
        wanted = dict(scores=message.scores, confidence=message.confidence, with_source=bool(message.attention))

        def rest() -> Rows:
            lexical = dict[int, LexicalLine]()
            for first in range(0, len(concerned), LEXICAL_AT_ONCE):
                numbers = concerned[first : first + LEXICAL_AT_ONCE]
                given = [message.prefixes[n] for n in numbers] if message.prefixes else None
                under = self._search_under(rules, config, client, [texts[n] for n in numbers], given)
                for n, one in zip(numbers, under, strict=True):
                    lexical[n], sources[n], found[n] = one
                yield
            if message.paragraphs:
                return (yield from self._joined(lines, found, lexical, config))
            answers = []
            for n, (ids, best) in enumerate(zip(sources, found, strict=True)):
                answer = line_answer(
                    self._translator, ids, best, config, **wanted, estimator=self._estimator, lexical=lexical.get(n)
                )
                if message.attention is not None and ids:
                    answer["attention"] = yield from self._attention(message.attention, ids, best, config)
                answers.append(answer)
                yield
            return answers

        waits = bool(concerned) or any(wanted.values())
        later = set(concerned)
        task = Lines(message.id, client, config=config, alone=any(prefixes), found=found, rest=rest(), rest_waits=waits)
        task.put([Line(task, n, ids, prefixes[n]) for n, ids in enumerate(sources) if ids and n not in later])
        return task

    def _joined(
        self,
        lines: Sequence[Segments],
        found: Sequence[Sequence[Hypothesis]],
        lexical: dict[int, LexicalLine],
        config: SearchConfig,
    ) -> Rows:
        """Return the answers for lines of which each sentence is translated, a line a step."""
        coming = iter([(best, lexical.get(n)) for n, best in enumerate(found)])
        rows = []
        for line in lines:
            own = list(islice(coming, len(line.texts)))
            rows.append(paragraph_answer(self._translator, line, own, config))
            yield
        return rows

    def _tagged(self, message: messages.TranslateTagged, client: Client) -> Task:
        rules = with_marks(self._rules.of(message.lines, [], message.placeholders))
        config, lines, texts, sources = self._read(message, rules)
        found = [[] if ids else [NOTHING] for ids in sources]
        search = partial(self._search_under, rules, config, client)
        rest = tagged_rows(self._translator, lines, found, message.linked, config, rules, search)
        task = Lines(message.id, client, config=config, found=found, rest=rest, rest_waits=True)
        free = [n for n, text in enumerate(texts) if sources[n] and not rules.concern(text)]
        task.put([Line(task, n, sources[n], []) for n in free])
        return task

    def _checked(self, message: messages.Check) -> Rows:
        """Return no rows, in one step; Refusal for a line that can't be translated."""
        self._read(message, self._rules.of(message.lines, [], message.placeholders))
        return _at_once([])

    def _read(
        self, message: messages.OfLines, rules: Rules
    ) -> tuple[SearchConfig, list[Segments], list[str], list[list[int]]]:
        """Return how to search, each line as what goes through the model, and all these texts with their ids."""
        config = SearchConfig(
            beam=message.beam,
            n_best=message.n_best,
            length_penalty=message.length_penalty,
            max_length=message.max_length,
            max_source_tokens=self._settings.max_source_tokens,
            batch_tokens=self._settings.batch_tokens,
        )
        lines = self._as_segments(message, config, rules)
        texts = [text for line in lines for text in line.texts]
        numbers = [number for number, line in enumerate(lines, start=message.first_line) for _ in line.texts]
        return config, lines, texts, self._sources(texts, numbers)

    def _as_segments(self, message: messages.OfLines, config: SearchConfig, rules: Rules) -> list[Segments]:
        """Return each line as what goes through the model: whole, or its sentences."""
        if not message.paragraphs:
            return [Segments([line], ["", ""]) for line in message.lines]
        pattern = None if rules.placeholders is None else compiled(rules.placeholders)
        rest: dict[str, Any] = dict(glossary=rules.glossary, pattern=pattern)
        found, count = list[Segments](), 0
        for line in message.lines:
            try:
                found.append(segments_that_fit(self._translator, line, config, self._sentences, **rest))
            except DataError:
                raise _unknown_code("a line" if pattern is None else "a line, or what follows a placeholder,") from None
            count += len(found[-1].texts)
            if count > MOST_SENTENCES:
                raise Refusal("too_long", f"the text has more than {MOST_SENTENCES:,} sentences: send it in parts")
        return found

    def _search_under(
        self,
        rules: Rules,
        config: SearchConfig,
        client: Client,
        lines: Sequence[str],
        prefixes: Prefixes | None = None,
    ) -> list[Found]:
        """Return what a search under the rules finds for lines that they concern, as far as its client waits for it."""
        lexical = rules_of(self._translator, *rules)
        assert lexical is not None
        began = time.monotonic()
        try:
            found = search_lexically(
                *(self._translator, lines, config, prefixes, lexical), lambda: client.is_gone(time.monotonic())
            )
        except DataError:
            raise _unknown_code("a term, or what follows a placeholder,") from None
        sources, hypotheses = [ids for _, ids, _ in found], [best for _, _, best in found]
        self._send(measured_as(sources, hypotheses, time.monotonic() - began))
        return found

    def _attention(
        self, facts: Facts, ids: list[int], found: Sequence[Hypothesis], config: SearchConfig
    ) -> Generator[None, None, str]:
        """Return the attention of a line's translations as JSON holds it, one translation a step."""
        wants = wants_of(self._translator, facts, ids, found)
        seen: list[Translation] = []
        for hypothesis in found:
            seen.append(translation_of(self._translator, "", ids, hypothesis, config, wants))
            yield
        return packed(seen, self._heads)

    # A line that is written token by token, and what else may follow

    def _stream(self, message: messages.Stream, client: Client) -> Rows:
        config = SearchConfig(beam=1, max_length=message.max_length, max_source_tokens=self._settings.max_source_tokens)
        (source,) = self._sources([message.line])
        rules = self._rules.of([message.line], [], None)
        return self._write_line(message, config, client, source, rules)

    def _write_line(
        self, message: messages.Stream, config: SearchConfig, client: Client, source: list[int], rules: Rules
    ) -> Rows:
        """Write a line's translation, tell of it meanwhile, and return its answer."""
        pieces = self._translator.source_tokenizer.tokens(source)
        self._send(messages.Event(message.id, "start", {"source_pieces": pieces}))
        if source and rules.concern(message.line):
            ((lexical, ids, found),) = self._search_under(rules, config, client, [message.line])
            yield
        else:
            lexical, ids, found = None, source, (yield from self._write_pieces(message, config, source))
        asked = dict(scores=True, confidence=True)
        answer = line_answer(self._translator, ids, found, config, **asked, estimator=self._estimator, lexical=lexical)
        if message.attention is not None and ids:
            answer["attention"] = yield from self._attention(message.attention, ids, found, config)
        return [answer]

    def _write_pieces(
        self, message: messages.Stream, config: SearchConfig, source: list[int]
    ) -> Generator[None, None, list[Hypothesis]]:
        """Write a line's translation, a token a step, and tell of each; return it."""
        ids, log_probs = list[int](), list[float]()
        seconds, began = 0.0, time.monotonic()
        try:
            for one in self._translator.write(message.line, config):
                ids.append(one.id)
                log_probs.append(one.log_prob)
                piece = {"piece": one.token, "probability": as_probability(one.log_prob), "text": one.text}
                self._send(messages.Event(message.id, "piece", piece))
                seconds += time.monotonic() - began
                yield
                began = time.monotonic()
        finally:  # a client that leaves ends it before its last token
            total = sum(log_probs)
            score = total / config.normaliser(len(log_probs)) if log_probs else 0.0
            found = [Hypothesis([i for i in ids if i != EOS], log_probs, total, score)]
            if source:
                self._send(measured_as([source], [found], seconds))
        return found

    def _alternatives(self, message: messages.Alternatives) -> Rows:
        (source,) = self._sources([message.line])
        if not source:
            raise Refusal("invalid", "q is empty: its translation is empty too")
        self._check_pieces(message.prefix, "prefix")
        return self._likeliest(message)

    def _likeliest(self, message: messages.Alternatives) -> Rows:
        """Return the likeliest tokens after a prefix, in one step."""
        yield from ()  # no step comes between the rows and their answer
        most = self._settings.max_source_tokens
        found = self._translator.alternatives(message.line, message.prefix, message.count, max_source_tokens=most)
        return [{"piece": one.token, "probability": as_probability(one.log_prob), "text": one.text} for one in found]

    # Ids

    def _sources(self, texts: Sequence[str], lines: Sequence[int] = (1,)) -> list[list[int]]:
        """Return the ids of texts with `</s>`, none of an empty text; `lines` has the number of each one's line."""
        most = self._settings.max_source_tokens
        try:
            encoded = self._translator.source_tokenizer.encode(texts)
        except DataError:
            raise _unknown_code() from None
        for number, ids in zip(lines, encoded, strict=True):
            if len(ids) >= most:
                where = f"line {number}" if lines[-1] > 1 else "the line"
                where = where if lines.count(number) == 1 else f"a part of {where}"
                raise Refusal("too_long", f"{where} has {len(ids):,} tokens, and at most {most - 1:,} are translated")
        return [with_end(ids, text) for ids, text in zip(encoded, texts, strict=True)]

    def _prefixes(self, prefixes: Prefixes, most: int) -> list[list[int]]:
        """Return the ids of the prefixes of a request's lines, which may have `most` pieces."""
        for number, prefix in enumerate(prefixes):
            if not isinstance(prefix, str):
                self._check_pieces(prefix, f"prefixes[{number}]")
        try:
            ids = ids_of_prefixes(self._translator.target_tokenizer, prefixes)
        except DataError:
            raise _unknown_code("a prefix") from None
        if (longest := max(map(len, ids), default=0)) > most:
            raise Refusal("too_long", f"a prefix has {longest:,} pieces, and max_length is {most:,}: raise it")
        return ids

    def _check_pieces(self, pieces: Sequence[str], name: str) -> None:
        """Raise Refusal where one of the pieces ends a translation, or the vocabulary lacks it."""
        for place, piece in enumerate(pieces):
            found = self._translator.target_tokenizer.id_of(piece)
            if found == EOS:
                raise Refusal("invalid", f"{name} has </s> at place {place}: it ends a translation, nothing can follow")
            if found is None:
                raise Refusal("invalid", f"{name} has a piece that the vocabulary lacks, at place {place}")


def _at_once(rows: list[dict[str, Any]]) -> Rows:
    """Return rows in one step."""
    yield from ()
    return rows


def _unknown_code(what: str = "a line") -> Refusal:
    """Return what to say where the tokenizer's own message has text of the request."""
    return Refusal("invalid", f"{what} begins with the code of a language that the model doesn't know")


def measured_as(
    sources: Sequence[Sequence[int]], found: Sequence[Sequence[Hypothesis]], seconds: float, requests: int = 1
) -> messages.Measured:
    """Return the message that counts a search: its lines, its tokens, and how long it took for so many requests."""
    return messages.Measured(
        lines=len(sources),
        requests=requests,
        source_tokens=sum(map(len, sources)),
        target_tokens=sum(len(best[0].token_log_probs) for best in found),
        seconds=seconds,
    )
