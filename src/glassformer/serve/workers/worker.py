"""A worker: it owns a model, and batches for it.

Its threads compute, each a batch or a step at a time, and share out torch's threads as
`glassformer.generation.batches` does. `process` is the program that runs one.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from msgspec import Struct

from glassformer.confidence.calibration import read_calibration
from glassformer.confidence.estimate import ConfidenceEstimator
from glassformer.errors import ArgumentError, ConfigError, DataError, GlassformerError
from glassformer.generation.attention import Translation
from glassformer.generation.batches import MOST_WORKERS, batch_limits, search_batch
from glassformer.generation.config import SearchConfig
from glassformer.generation.constraints import Prefixes
from glassformer.generation.kernels import passes
from glassformer.generation.lexical.lines import LexicalLine
from glassformer.generation.lexical.placeholders import compiled
from glassformer.generation.search import Hypothesis
from glassformer.generation.segments.paragraphs import segments_that_fit
from glassformer.generation.segments.sentences import Segments
from glassformer.generation.translator import Translator, ids_of_prefixes, rules_of, search_lexically, translation_of
from glassformer.insight.heads import Head, read_heads
from glassformer.run.names import HEADS
from glassformer.serve.workers import messages
from glassformer.serve.workers.answers import as_probability, line_answer, packed, paragraph_answer, wants_of
from glassformer.serve.workers.batching import Line, Lines, Steps, Task, Turns
from glassformer.serve.workers.messages import Facts, Refusal
from glassformer.serve.workers.tagged import tagged_rows, with_marks
from glassformer.serve.workers.terms import LEXICAL_AT_ONCE, Rules, ServerRules
from glassformer.text.tokenizer import EOS

SLICE = 0.05
"""Seconds that a task which goes step by step may compute before it is another's turn."""
MOST_SENTENCES = 4000
"""Sentences of a request. No other request is read while its lines are taken apart, 0.2 ms a sentence."""
MOST_WAITS = 5
"""A batch waits for further requests at most so many times `gather_seconds`, or longer after one that took long."""
WAITED_SHARE, LONGEST_WAIT = 1 / 25, 0.1
"""It may wait this share of the time that the batch before it took, and never longer than these seconds.

That batch's clients ask again one after the other, and thirty of them need longer than a few waits.
"""

Send = Callable[[Struct], None]


class Worker:
    """Does what messages ask for, and sends what comes of it."""

    def __init__(self, translator: Translator, settings: messages.Settings, send: Send) -> None:
        self._translator = translator
        self._settings = settings
        self._send = send
        self._tasks: dict[int, Task] = {}
        self._turns = Turns(self._limits, shares=settings.share_batches or is_exact(translator))
        self._changed = threading.Condition()
        self._idle = 0
        self._batch_seconds = 0.0  # of the last batch
        heads = translator.folder / HEADS if translator.folder else None
        self._heads: list[Head] = read_heads(heads) if heads and heads.exists() else []
        calibration = read_calibration(translator.folder, translator.engine.config) if translator.folder else None
        self._estimator = ConfidenceEstimator(translator, calibration) if calibration else None
        self._rules = ServerRules(settings)
        self._sentences = translator.sentences or 1

    def start(self) -> None:
        """Start the threads that compute."""
        threads = torch.get_num_threads()
        count = min(threads, MOST_WORKERS) if self._translator.device.type == "cpu" else 1
        for _ in range(count):
            threading.Thread(target=self._compute, args=(max(1, threads // count),), daemon=True).start()

    def receive(self, message: messages.ToWorker) -> None:
        """Take a request on, or give one up."""
        if isinstance(message, messages.Cancel):
            with self._changed:
                if task := self._tasks.get(message.id):
                    task.cancelled = True
                    self._changed.notify_all()
            return
        until = time.monotonic() + message.seconds
        try:
            if isinstance(message, messages.Translate):
                task = self._lines(message, until)
            elif isinstance(message, messages.TranslateTagged):
                task = self._tagged(message, until)
            elif isinstance(message, messages.Stream):
                task = self._stream(message, until)
            else:
                task = self._alternatives(message, until)
        except Refusal as failure:
            self._send(messages.Refused(message.id, failure.code, str(failure)))
            return
        with self._changed:
            self._tasks[message.id] = task
            self._turns.add(task)
            self._changed.notify_all()

    # From messages to tasks

    def _lines(self, message: messages.Translate, until: float) -> Task:
        config = SearchConfig(
            beam=message.beam,
            n_best=message.n_best,
            length_penalty=message.length_penalty,
            max_length=message.max_length,
            max_source_tokens=self._settings.max_source_tokens,
            batch_tokens=self._settings.batch_tokens,
        )
        rules = self._rules.of(message.lines, message.terms, message.placeholders)
        lines = self._as_segments(message, config, rules)
        texts = [text for line in lines for text in line.texts]
        sources = self._sources(texts, _lines_of(lines))
        prefixes = self._prefixes(message.prefixes, message.max_length) if message.prefixes else [[] for _ in texts]
        task = Lines(message.id, until, config=config, alone=any(prefixes))
        found: list[list[Hypothesis]] = [[Hypothesis([], [], 0.0, 0.0)] for _ in sources]
        concerned = [n for n, text in enumerate(texts) if sources[n] and rules.concern(text)]
        later = set(concerned)
        task.put([Line(task, n, ids, prefixes[n]) for n, ids in enumerate(sources) if ids and n not in later])

        task.found = found
        task.finish = partial(self._finish, task, message, lines, sources, config, rules, concerned)
        return task if task.missing else Steps(message.id, until, steps=_at_once(task.finish))

    def _finish(
        self,
        task: Lines,
        message: messages.Translate,
        lines: Sequence[Segments],
        sources: list[list[int]],
        config: SearchConfig,
        rules: Rules,
        concerned: Sequence[int],
    ) -> None:
        """Answer a request of which all is translated but the texts of these numbers, which the rules concern.

        It is answered at once, or step by step where that takes longer.
        """
        texts = [text for line in lines for text in line.texts]
        wanted = dict(scores=message.scores, confidence=message.confidence, with_source=bool(message.attention))

        def steps() -> Iterator[None]:
            lexical = dict[int, LexicalLine]()
            for first in range(0, len(concerned), LEXICAL_AT_ONCE):
                numbers = concerned[first : first + LEXICAL_AT_ONCE]
                prefixes = [message.prefixes[n] for n in numbers] if message.prefixes else None
                under = self._search_under(rules, [texts[n] for n in numbers], config, prefixes)
                for n, one in zip(numbers, under, strict=True):
                    lexical[n], sources[n], task.found[n] = one
                yield
            if message.paragraphs:
                found = iter([(best, lexical.get(n)) for n, best in enumerate(task.found)])
                rows = []
                for line in lines:
                    own = list(islice(found, len(line.texts)))
                    rows.append(paragraph_answer(self._translator, line, own, config))
                    yield
                self._answer(task, rows)
                return
            answers = []
            for n, (ids, best) in enumerate(zip(sources, task.found, strict=True)):
                answer = line_answer(
                    self._translator, ids, best, config, **wanted, estimator=self._estimator, lexical=lexical.get(n)
                )
                if message.attention is not None and ids:
                    answer["attention"] = yield from self._attention(message.attention, ids, best, config)
                answers.append(answer)
                yield
            self._answer(task, answers)

        if concerned or any(wanted.values()):
            self._go_on(task, steps())
        else:
            self._run(Steps(task.id, task.until, steps=steps()))

    def _search_under(
        self, rules: Rules, lines: Sequence[str], config: SearchConfig, prefixes: Prefixes | None = None
    ) -> list[tuple[LexicalLine, list[int], list[Hypothesis]]]:
        """Return lines that the rules concern, their ids, and what was found for them."""
        lexical = rules_of(self._translator, *rules)
        assert lexical is not None
        return search_lexically(self._translator, lines, config, prefixes, lexical)

    def _tagged(self, message: messages.TranslateTagged, until: float) -> Task:
        config = SearchConfig(
            beam=message.beam,
            n_best=message.n_best,
            max_length=message.max_length,
            max_source_tokens=self._settings.max_source_tokens,
            batch_tokens=self._settings.batch_tokens,
        )
        rules = with_marks(self._rules.of(message.lines, [], message.placeholders))
        lines = self._as_segments(message, config, rules)
        texts = [text for line in lines for text in line.texts]
        sources = self._sources(texts, _lines_of(lines))
        task = Lines(message.id, until, config=config, found=[[] for _ in texts])
        free = [n for n, text in enumerate(texts) if sources[n] and not rules.concern(text)]
        task.put([Line(task, n, sources[n], []) for n in free])

        def steps() -> Iterator[None]:
            rows = yield from tagged_rows(self._translator, lines, task.found, message.linked, config, rules)
            self._answer(task, rows)

        def finish() -> None:
            self._go_on(task, steps())

        task.finish = finish
        return task if task.missing else Steps(message.id, until, steps=steps())

    def _go_on(self, task: Lines, steps: Iterator[None]) -> None:
        """Let what remains of a request wait for its turns."""
        following = Steps(task.id, task.until, steps=steps)
        with self._changed:
            if task.id in self._tasks:
                following.cancelled = task.cancelled
                self._tasks[task.id] = following
                self._turns.add(following)
                self._changed.notify_all()

    def _run(self, task: Steps) -> None:
        """Work on a task until it is done."""
        for _ in task.steps:
            pass

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

    def _stream(self, message: messages.Stream, until: float) -> Task:
        config = SearchConfig(beam=1, max_length=message.max_length, max_source_tokens=self._settings.max_source_tokens)
        (source,) = self._sources([message.line])
        tokenizer = self._translator.source_tokenizer
        rules = self._rules.of([message.line], [], None)

        def steps() -> Iterator[None]:
            self._send(messages.Event(message.id, "start", {"source_pieces": tokenizer.tokens(source)}))
            if source and rules.concern(message.line):
                ((lexical, ids, found),) = self._search_under(rules, [message.line], config)
            else:
                lexical, ids, found = None, source, (yield from self._written(message, config))
            asked = dict(scores=True, confidence=True)
            estimator = self._estimator
            answer = line_answer(self._translator, ids, found, config, **asked, estimator=estimator, lexical=lexical)
            if message.attention is not None and ids:
                answer["attention"] = yield from self._attention(message.attention, ids, found, config)
            self._answer(task, [answer])

        task = Steps(message.id, until, steps=steps())
        return task

    def _written(self, message: messages.Stream, config: SearchConfig) -> Generator[None, None, list[Hypothesis]]:
        """Write a line's translation, a token a step, and tell of each; return it."""
        ids, log_probs = list[int](), list[float]()
        for one in self._translator.write(message.line, config):
            ids.append(one.id)
            log_probs.append(one.log_prob)
            piece = {"piece": one.token, "probability": as_probability(one.log_prob), "text": one.text}
            self._send(messages.Event(message.id, "piece", piece))
            yield
        total = sum(log_probs)
        score = total / config.normaliser(len(log_probs)) if log_probs else 0.0
        return [Hypothesis([i for i in ids if i != EOS], log_probs, total, score)]

    def _alternatives(self, message: messages.Alternatives, until: float) -> Task:
        (source,) = self._sources([message.line])
        if not source:
            raise Refusal("invalid", "q is empty: its translation is empty too")
        self._known(message.prefix, "prefix")

        def answer() -> None:
            most = self._settings.max_source_tokens
            found = self._translator.alternatives(message.line, message.prefix, message.count, max_source_tokens=most)
            rows = [{"piece": p.token, "probability": as_probability(p.log_prob), "text": p.text} for p in found]
            self._answer(task, rows)

        task = Steps(message.id, until, steps=_at_once(answer))
        return task

    def _as_segments(
        self, message: messages.Translate | messages.TranslateTagged, config: SearchConfig, rules: Rules
    ) -> list[Segments]:
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
                raise _unknown_code() from None
            count += len(found[-1].texts)
            if count > MOST_SENTENCES:
                raise Refusal("too_long", f"the text has more than {MOST_SENTENCES:,} sentences: send it in parts")
        return found

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
        return [[*ids, EOS] if ids else [] for ids in encoded]

    def _prefixes(self, prefixes: Prefixes, most: int) -> list[list[int]]:
        """Return the ids of the prefixes of a request's lines, which may have `most` pieces."""
        for number, prefix in enumerate(prefixes):
            if not isinstance(prefix, str):
                self._known(prefix, f"prefixes[{number}]")
        ids = ids_of_prefixes(self._translator.target_tokenizer, prefixes)
        if (longest := max(map(len, ids), default=0)) > most:
            raise Refusal("too_long", f"a prefix has {longest:,} pieces, and max_length is {most:,}: raise it")
        return ids

    def _known(self, pieces: Sequence[str], name: str) -> None:
        """Raise Refusal where the vocabulary lacks one of the pieces."""
        for place, piece in enumerate(pieces):
            if not self._translator.target_tokenizer.id_of(piece):
                raise Refusal("invalid", f"{name} has a piece that the vocabulary lacks, at place {place}")

    # From tasks to answers

    def _compute(self, threads: int) -> None:
        """Work on what waits, a batch or a slice of steps at a time, with so many of torch's threads."""
        torch.set_num_threads(threads)
        answered = 0.0
        while True:
            work = self._next(answered)
            if isinstance(work, Steps):
                self._advance(work)
                answered = 0.0
            elif work:
                self._search(work)
                answered = time.monotonic()

    def _next(self, answered: float) -> list[Line] | Steps | None:
        """Wait for something to do, and return it; the thread's batch was answered at this time, 0 if it had none."""
        with self._changed:
            self._idle += 1
            while not self._turns:
                self._changed.wait()
            while self._turns.may_grow(self._idle):
                now, until = time.monotonic(), self._gathers_until(answered)
                if now >= until:
                    break
                self._changed.wait(until - now)
            for task in self._turns.drop(time.monotonic()):
                self._give_up(task)
            work = self._turns.take(self._idle)
            self._idle -= 1
            return work

    def _gathers_until(self, answered: float) -> float:
        """Return until when the next batch waits for further requests.

        Those whose batch was just answered may ask again. A few requests that have waited for long must not become a
        small batch meanwhile, which would take a quarter of a large one's time.
        """
        gather, turns = self._settings.gather_seconds, self._turns
        if not gather:
            return 0.0
        most = max(MOST_WAITS * gather, min(WAITED_SHARE * self._batch_seconds, LONGEST_WAIT))
        if turns.last <= answered:
            return answered + most
        return min(turns.last + gather, max(turns.first, answered) + most)

    def _search(self, batch: Sequence[Line]) -> None:
        config, began = batch[0].task.config, time.monotonic()
        generator = torch.Generator(self._translator.device)
        prefixes = [line.prefix for line in batch] if any(line.prefix for line in batch) else None

        def abandoned() -> set[int]:
            now = time.monotonic()
            return {b for b, line in enumerate(batch) if line.task.is_over(now)}

        engine = self._translator.engine
        try:
            found = search_batch(engine, [line.ids for line in batch], prefixes, config, generator, abandoned=abandoned)
        except GlassformerError as error:  # numbers that overflowed
            for task in {id(line.task): line.task for line in batch}.values():
                self._refuse(task, "failed", str(error))
            return
        now = time.monotonic()
        self._batch_seconds = now - began
        self._send(
            messages.Measured(
                lines=len(batch),
                requests=len({id(line.task) for line in batch}),
                source_tokens=sum(len(line.ids) for line in batch),
                target_tokens=sum(len(best[0].token_log_probs) for best in found),
                seconds=now - began,
            )
        )
        for line, best in zip(batch, found, strict=True):
            task = line.task
            if task.is_over(now):
                self._give_up(task)
                continue
            task.found[line.number] = best
            with self._changed:
                task.missing -= 1
                is_last = not task.missing
            if is_last:
                task.finish()

    def _advance(self, task: Steps) -> None:
        """Work on a task step by step until its slice is over, and let it wait for its next turn."""
        until = time.monotonic() + SLICE
        try:
            for _ in task.steps:
                now = time.monotonic()
                if task.is_over(now):
                    self._give_up(task)
                    return
                if now >= until:
                    with self._changed:
                        self._turns.add(task)
                    return
        except (ConfigError, ArgumentError) as error:  # a layer that the model lacks, or too many weights for a page
            self._refuse(task, "invalid", str(error))
        except GlassformerError as error:  # numbers that overflowed
            self._refuse(task, "failed", str(error))

    def _give_up(self, task: Task) -> None:
        if task.cancelled:
            self._refuse(task, "cancelled", "nobody waits for it")
        else:
            self._refuse(task, "deadline", "the time for it is up: ask for less at once, or for a smaller beam")

    def _answer(self, task: Task, value: list[dict]) -> None:
        if self._tasks.pop(task.id, None):
            self._send(messages.Answer(task.id, value))

    def _refuse(self, task: Task, code: str, error: str) -> None:
        task.cancelled = True  # its other lines are searched for nobody
        if self._tasks.pop(task.id, None):
            self._send(messages.Refused(task.id, code, error))

    def _limits(self, config: SearchConfig) -> tuple[int, int]:
        return batch_limits(config, self._translator.engine.config.target_vocab_size)


def is_exact(translator: Translator) -> bool:
    """Return whether a line's numbers are the same to the last bit whatever else is in its batch."""
    return translator.precision.int8 and passes.compiled() is not None


def _unknown_code() -> Refusal:
    """Return what to say where the tokenizer's own message has text of the request."""
    return Refusal("invalid", "a line begins with the code of a language that the model doesn't know")


def _lines_of(lines: Sequence[Segments]) -> list[int]:
    """Return the number of the line of each of its texts, from 1."""
    return [number for number, line in enumerate(lines, start=1) for _ in line.texts]


def _at_once(act: Callable[[], None]) -> Iterator[None]:
    """Do something in one step."""
    act()
    yield
