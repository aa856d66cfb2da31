"""A worker in this process: the same translations as alone whoever is beside, streams, attention, ends, refusals."""

import base64
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from glassformer.attention.want import Want
from glassformer.errors import DataError, GlassformerError
from glassformer.generation.config import SearchConfig
from glassformer.generation.kernels import passes
from glassformer.generation.kernels.quantized import can_quantize
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.lexical.lines import LexicalUse
from glassformer.generation.lexical.placeholders import compiled
from glassformer.generation.segments.paragraphs import translate_paragraphs
from glassformer.generation.translator import Translator
from glassformer.markup.aligning import TagAligner
from glassformer.markup.segments import Document
from glassformer.markup.translate import ONLY_MARKS, translate_markup
from glassformer.page.report import page
from glassformer.serve.schemas import AlternativesAnswer, TranslateAnswer
from glassformer.serve.workers import answers, messages, requests, worker
from glassformer.serve.workers.messages import (
    Alternatives,
    Answer,
    Cancel,
    Check,
    Event,
    Facts,
    Measured,
    Refused,
    Stream,
    Translate,
    TranslateTagged,
)
from glassformer.serve.workers.rows import put_in_documents
from glassformer.serve.workers.worker import Worker, is_exact
from glassformer.text.tokenizer import SubwordTokenizer
from glassformer.text.vocabulary import VocabularyTokenizer

SETTINGS = messages.Settings("", "cpu", "float32", 1, 1, 0.02, 400, 64, True)
SEARCH = dict(seconds=60.0, beam=5, n_best=1, max_length=256, length_penalty=1.0)
"""How a request is searched, where it doesn't say otherwise."""
LINES = ["the cat sat on the mat", "a dog", "", "on a log", "the dog and a cat sat on a log", "cat"]
pytestmark = pytest.mark.usefixtures("unchecked")


@dataclass
class Desk:
    """A worker, and what it has sent."""

    worker: Worker = field(init=False)
    sent: list[Any] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def send(self, message: Any) -> None:
        with self.changed:
            self.sent.append(message)
            self.changed.notify_all()

    def of(self, number: int) -> list[Any]:
        return [message for message in self.sent if getattr(message, "id", None) == number]

    def last(self, number: int) -> Any:
        """The message that ends a request."""
        with self.changed:
            ended = self.changed.wait_for(lambda: any(isinstance(m, Answer | Refused) for m in self.of(number)), 30)
            assert ended
            (found,) = [message for message in self.of(number) if isinstance(message, Answer | Refused)]
            return found

    def texts(self, number: int) -> list[list[str]]:
        answer = self.last(number)
        assert isinstance(answer, Answer), answer
        return [[one["text"] for one in line["translations"]] for line in answer.value]


@pytest.fixture
def desk(run) -> Iterator[Callable[..., Desk]]:
    threads = torch.get_num_threads()

    def make(translator: Translator | None = None, threads: int = 1, **changes: Any) -> Desk:
        torch.set_num_threads(threads)
        made = Desk()
        translator = translator or Translator.load(run, "cpu", "float32")
        settings = structs.replace(SETTINGS, **changes)
        made.worker = Worker(translator, settings, made.send)
        made.worker.start()
        return made

    yield make
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def coded(random_run, tmp_path_factory) -> Path:
    """A random run whose lines may begin with >>deu<<."""
    made = SubwordTokenizer.train(["a cat sat", "a dog", "secret x"] * 5, kind="char", vocab_size=None, seed=1)
    pieces = ["</s>", "<unk>", ">>deu<<", *made.tokens(range(2, made.pad)), "<pad>"]
    tokenizer = VocabularyTokenizer(made.proto, {piece: i for i, piece in enumerate(pieces)})
    folder = tmp_path_factory.mktemp("coded") / "multi"
    random_run(folder, tokenizer, tokenizer, shared=True)
    return folder


def pieces_of(translator: Translator, text: str) -> list[str]:
    """What a worker says that it read."""
    (ids,) = translator.source_tokenizer.encode([text])
    return [*translator.source_tokenizer.tokens(ids), "</s>"] if ids else []


def translate(number: int, lines: list[str], **fields: Any) -> Translate:
    return Translate(id=number, lines=lines, **(SEARCH | fields))


def tagged(number: int, lines: list[str], **fields: Any) -> TranslateTagged:
    return TranslateTagged(id=number, lines=lines, **(SEARCH | fields))


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_lines_are_translated_as_alone_whoever_shares_their_batch(run, desk, precision):
    if precision == "int8" and not can_quantize():
        pytest.skip("this processor or torch has no products of eight bits")
    translator = Translator.load(run, "cpu", precision)
    few = dict(max_length=60)  # the translations of a random model are the longest that may be
    alone = {
        beam: translator.translate_n_best(LINES, SearchConfig(beam=beam, n_best=min(2, beam), **few)) for beam in (1, 4)
    }
    at_work = desk(translator, threads=2, share_batches=False)
    number = 0
    for start in range(len(LINES)):
        for beam in (1, 4):
            number += 1
            lines = LINES[start:] + LINES[:start]
            at_work.worker.receive(translate(number, lines, beam=beam, n_best=min(2, beam), scores=True, **few))
    assert is_exact(translator) is (precision == "int8" and passes.compiled() is not None)
    number = 0
    for start in range(len(LINES)):
        for beam in (1, 4):
            number += 1
            expected = alone[beam][start:] + alone[beam][:start]
            assert at_work.texts(number) == [[one.text for one in best] for best in expected]
            if is_exact(translator):
                scores = [[one["score"] for one in line["translations"]] for line in at_work.last(number).value]
                assert scores == [[one.score for one in best] for best in expected], "the same to the last bit"
    batches = [message for message in at_work.sent if isinstance(message, Measured)]
    assert (max(batch.requests for batch in batches) > 1) is is_exact(translator)


def test_lines_for_tags_have_their_words_and_links_and_marks_are_copied(run, desk):
    at_work, translator = desk(), Translator.load(run, "cpu", "float32")
    lines = ["the cat sat", "a \U000f0000 dog", "", "on a log"]
    few = dict(beam=2, max_length=8)
    at_work.worker.receive(tagged(1, lines, linked=[0, 1], **few))
    expected = translator.translate(lines, SearchConfig(beam=2, max_length=8), placeholders=ONLY_MARKS)
    answer = at_work.last(1)
    assert [row["text"] for row in answer.value] == expected
    assert expected[1].count("\U000f0000") == 1
    pairs = TagAligner(translator).align(lines[:2], expected[:2], compiled(ONLY_MARKS))
    for row, pair in zip(answer.value, pairs, strict=False):
        assert row["source"] == [[word.start, word.end] for word in pair.source]
        assert row["target"] == [[word.start, word.end] for word in pair.target]
        assert row["links"] == [list(link) for link in pair.links]
    assert [row["source"] for row in answer.value[2:]] == [[], []]
    at_work.worker.receive(tagged(2, ["\U000f0000"], **few))
    assert at_work.last(2).value[0]["text"].count("\U000f0000") == 1
    at_work.worker.receive(tagged(3, ["the cat " * 40], **few))
    assert at_work.last(3).code == "too_long"


# The second line's sentence is longer than may be translated at once, and one that may not be cut is in the third.
PARAGRAPHS = ["The cat sat on a mat.  The dog sat! ", "the cat sat, " * 9, "Cat. At www.the.cat The dog. On a log.", ""]


def test_a_line_that_is_copied_has_no_attention_and_the_others_have(desk):
    at_work = desk()
    facts = Facts(["source"], None, None, 8)
    at_work.worker.receive(translate(1, ["{name}", "the cat sat"], placeholders=True, attention=facts, max_length=8))
    assert at_work.texts(1)[0] == ["{name}"]
    copied, other = at_work.last(1).value
    assert copied["attention"] is None
    assert other["attention"]


@pytest.mark.parametrize("placeholders", [None, True])
def test_paragraphs_are_translated_sentence_by_sentence(run, desk, placeholders):
    translator = Translator.load(run, "cpu", "float32")
    config = SearchConfig(beam=2, max_length=60)
    rules = dict(glossary=Glossary({"dog": ["log"]}), placeholders="default" if placeholders else None)
    expected = translate_paragraphs(translator, PARAGRAPHS, config, **rules)
    at_work = desk(translator, terms=[("dog", ["log"])])
    asked = dict(beam=2, max_length=60, paragraphs=True, placeholders=placeholders)
    at_work.worker.receive(translate(1, PARAGRAPHS, **asked))
    assert at_work.texts(1) == [[one.text] for one in expected]
    rows = at_work.last(1).value
    assert [row["translations"][0]["score"] for row in rows] == pytest.approx([one.score for one in expected])
    used = [LexicalUse(**row["terms"] or {}) for row in rows]
    wanted = [one.lexical or LexicalUse() for one in expected]
    assert [(use.terms, use.placeholders) for use in used] == [(use.terms, use.placeholders) for use in wanted]
    whole = desk(translator, terms=[("dog", ["log"])])
    whole.worker.receive(translate(1, PARAGRAPHS[:1], beam=2, max_length=60))
    assert whole.texts(1) != at_work.texts(1)[:1], "a line is translated whole where nobody asks for paragraphs"

    at_work.worker.receive(translate(2, PARAGRAPHS, **asked, n_best=2))
    assert [len(texts) for texts in at_work.texts(2)] == [2, 2, 2, 1]
    assert [best for best, *_ in at_work.texts(2)] == [one.text for one in expected]


def test_as_many_sentences_go_together_as_the_run_has_learned(run, desk):
    translator = Translator.load(run, "cpu", "float32")
    translator.sentences = 2
    lines = ["The cat. The dog. The mat."]
    expected = translator.translate(["The cat. The dog.", "The mat."], SearchConfig(beam=2, max_length=60))
    at_work = desk(translator)
    at_work.worker.receive(translate(1, lines, beam=2, max_length=60, paragraphs=True))
    assert at_work.texts(1) == [[" ".join(expected)]]


def test_tags_of_paragraphs_are_those_of_their_sentences(run, desk):
    translator = Translator.load(run, "cpu", "float32")
    texts = [
        "<p>The <b>cat</b> sat. The <code>x. Y</code> dog <i>sat on</i> a log.</p> The mat.",
        "<b>Dog!</b>",
    ]
    expected = translate_markup(translator, texts, "html", SearchConfig(beam=2, max_length=60), segment="paragraph")
    documents = [Document(text, "html") for text in texts]
    segments = [segment for document in documents for segment in document.segments]
    at_work = desk(translator)
    linked = [n for n, segment in enumerate(segments) if segment.elements]
    lines = [segment.text for segment in segments]
    at_work.worker.receive(tagged(1, lines, linked=linked, paragraphs=True, beam=2, max_length=60))
    assert len(linked) < len(lines)
    assert put_in_documents(documents, at_work.last(1).value) == expected


@pytest.mark.parametrize("kind", [translate, tagged])
def test_a_code_that_no_sentence_may_have_and_too_many_sentences_are_refused_and_the_worker_goes_on(
    desk, monkeypatch, kind
):
    at_work = desk()
    encode = type(at_work.worker._translator.source_tokenizer).encode

    def refusing(self: object, lines: list[str]) -> list[list[int]]:
        if any(line.startswith(">>") for line in lines):
            raise DataError("the model knows no language >>fra<<, but >>deu<<")
        return encode(self, lines)

    monkeypatch.setattr(type(at_work.worker._translator.source_tokenizer), "encode", refusing)
    asked = dict(beam=1, max_length=8, paragraphs=True)
    what = "a line" if kind is translate else "a line, or what follows a placeholder,"
    at_work.worker.receive(kind(1, [">>fra<< the cat. The dog."], **asked))
    assert (at_work.last(1).code, at_work.last(1).error) == (
        "invalid",
        f"{what} begins with the code of a language that the model doesn't know",
    )
    monkeypatch.setattr(requests, "MOST_SENTENCES", 5)
    at_work.worker.receive(kind(2, ["The cat. The dog. The mat.", "The cat. The dog. The mat."], **asked))
    assert (at_work.last(2).code, at_work.last(2).error) == (
        "too_long",
        "the text has more than 5 sentences: send it in parts",
    )
    at_work.worker.receive(kind(3, ["The cat. The dog.", ""], **asked))
    assert isinstance(at_work.last(3), Answer)


def test_a_part_of_a_paragraph_that_is_too_long_is_told_of_by_its_line(desk):
    at_work = desk(max_source_tokens=20)
    lines = ["The cat. The dog.", "A dog. At www." + "the.cat." * 20 + " The mat."]
    at_work.worker.receive(translate(1, lines, paragraphs=True, placeholders=True))
    assert (at_work.last(1).code, at_work.last(1).error[:20]) == ("too_long", "a part of line 2 has")
    at_work.worker.receive(translate(2, [lines[1]], first_line=33))  # the first line of another part of a file
    assert (at_work.last(2).code, at_work.last(2).error[:11]) == ("too_long", "line 33 has")


def test_requests_that_come_together_share_a_batch(desk):
    at_work = desk(gather_seconds=0.3)
    for number, line in enumerate(LINES[:2] * 3, start=1):
        at_work.worker.receive(translate(number, [line], beam=2))
    assert at_work.texts(1) == at_work.texts(3) == at_work.texts(5)
    batches = [message for message in at_work.sent if isinstance(message, Measured)]
    assert sum(batch.lines for batch in batches) == 6
    assert len(batches) <= 2, "long and short lines"
    assert batches[0].seconds > 0
    assert batches[0].target_tokens > 0


def test_a_request_that_was_left_over_waits_for_those_whose_batch_was_just_answered(run, desk):
    translator = Translator.load(run, "cpu", "float32")
    at_work, step_best, goes_on = desk(translator, gather_seconds=0.05), translator.engine.step_best, threading.Event()

    def held(*arguments: Any) -> Any:
        assert goes_on.wait(30)
        return step_best(*arguments)

    translator.engine.step_best = held
    at_work.worker.receive(translate(1, ["a dog"], beam=2))
    time.sleep(0.3)  # its batch is under way
    at_work.worker.receive(translate(2, ["a dog"], beam=2))
    time.sleep(0.2)  # longer than a batch waits
    goes_on.set()
    at_work.last(1)
    at_work.worker.receive(translate(3, ["a dog"], beam=2))
    assert at_work.texts(2) == at_work.texts(3) == at_work.texts(1)
    assert [message.requests for message in at_work.sent if isinstance(message, Measured)] == [1, 2]


def test_an_answer_fits_its_schema_and_says_what_the_translator_says(run, desk):
    at_work, translator = desk(), Translator.load(run, "cpu", "float32")
    at_work.worker.receive(translate(1, LINES, beam=3, n_best=2, scores=True, confidence=True))
    answer = TranslateAnswer(run="tiny", source="en", target="de", lines=at_work.last(1).value)
    expected = translator.translate_n_best(LINES, SearchConfig(beam=3, n_best=2))
    for line, best, text in zip(answer.lines, expected, LINES, strict=True):
        assert line.source_pieces == pieces_of(translator, text)
        for made, one in zip(line.translations, best, strict=True):
            assert (made.text, made.score) == (one.text, pytest.approx(one.score))
            assert [piece.piece for piece in made.pieces][: len(one.tokens)] == one.tokens
            likely = [piece.probability for piece in made.pieces]
            assert likely == pytest.approx([math.exp(p) for p in one.token_log_probs])
            assert made.text.split() == [word.text for word in made.words]
    at_work.worker.receive(translate(2, ["a dog"]))
    (plain,) = at_work.last(2).value
    assert plain["source_pieces"] is plain["attention"] is plain["translations"][0]["pieces"] is None


def test_attention_is_what_a_page_holds(run, desk):
    at_work, translator = desk(), Translator.load(run, "cpu", "float32")
    config = SearchConfig(beam=2, n_best=2)
    wanted = Facts(["encoder", "decoder", "source"], None, None, 8)
    at_work.worker.receive(translate(1, ["the cat sat", "", "a dog"], beam=2, n_best=2, attention=wanted))
    at_work.worker.receive(
        translate(2, ["a dog"], beam=2, n_best=2, attention=Facts(["source"], [1], ["entropy", "top"], 3))
    )
    first, empty, third = at_work.last(1).value
    assert empty["attention"] is None
    for line, text in ((first, "the cat sat"), (third, "a dog")):
        best = translator.translate_n_best([text], config, attention=Want(weights=True))[0]
        assert base64.b64decode(line["attention"]) == page(best, title="").data
        assert line["source_pieces"] == best[0].attention.source_tokens
    best = translator.translate_n_best(["a dog"], config, attention={"source": Want(entropy=True, top=3)}, layers=[1])[
        0
    ]
    assert base64.b64decode(at_work.last(2).value[0]["attention"]) == page(best, title="").data


def test_a_stream_is_the_greedy_translation_and_leaves_others_their_turns(run, desk, monkeypatch):
    monkeypatch.setattr(worker, "SLICE", 0.0)
    send = Desk.send

    def ask_at_the_first(self: Desk, message: Any) -> None:
        send(self, message)
        if len(self.of(1)) == 1 and message.id == 1:  # however fast the stream goes on
            self.worker.receive(translate(2, ["a dog"], beam=1, max_length=2))

    monkeypatch.setattr(Desk, "send", ask_at_the_first)
    at_work, translator = desk(), Translator.load(run, "cpu", "float32")
    at_work.worker.receive(Stream(1, 60.0, "the cat sat on the mat", 200, Facts(["source"], None, None, 8)))
    (line,) = at_work.last(1).value
    [best] = translator.translations(["the cat sat on the mat"], SearchConfig(beam=1, max_length=200))
    start, *pieces = [message for message in at_work.of(1) if isinstance(message, Event)]
    assert (start.kind, start.data["source_pieces"][-1]) == ("start", "</s>")
    assert [event.data["piece"] for event in pieces] == [one["piece"] for one in line["translations"][0]["pieces"]]
    assert pieces[-1].data["text"] == line["translations"][0]["text"] == best.text
    assert line["translations"][0]["score"] == pytest.approx(best.score)
    assert line["attention"]
    assert len(pieces) > 20
    places = [n for n, message in enumerate(at_work.sent) if getattr(message, "id", 0) == 1]
    (done,) = [n for n, message in enumerate(at_work.sent) if isinstance(message, Answer) and message.id == 2]
    assert places[0] < done < places[5], "the short line did not wait for the stream"
    at_work.worker.receive(Stream(3, 60.0, "", 200))
    assert at_work.last(3).value[0]["translations"][0]["text"] == ""


def test_alternatives(run, desk):
    at_work, translator = desk(), Translator.load(run, "cpu", "float32")
    [best] = translator.translations(["a dog"], SearchConfig(beam=1))
    at_work.worker.receive(Alternatives(1, 60.0, "a dog", best.tokens[:2], 4))
    found = AlternativesAnswer(run="tiny", alternatives=at_work.last(1).value).alternatives
    assert found[0].piece == best.tokens[2]
    assert len(found) == 4
    assert sorted((one.probability for one in found), reverse=True) == [one.probability for one in found]


TERMS = [("cat", ["cat sat"]), ("Dog", []), ("mat", ["Grüße", "log"])]


def test_terms_of_the_server_and_of_a_request_are_in_its_translations(run, desk):
    at_work, translator = desk(terms=TERMS), Translator.load(run, "cpu", "float32")
    glossary, few = Glossary(dict(TERMS)), dict(beam=3, max_length=20)
    at_work.worker.receive(translate(1, LINES, scores=True, confidence=True, **few))
    answer = TranslateAnswer(run="tiny", source="en", target="de", lines=at_work.last(1).value)
    alone = translator.translations(LINES, SearchConfig(**few), glossary=glossary)
    for line, one, text in zip(answer.lines, alone, LINES, strict=True):
        assert line.translations[0].text == one.text
        assert [piece.piece for piece in line.translations[0].pieces][: len(one.tokens)] == one.tokens
        assert (line.terms is None) is (glossary.find(text) == [])
        if line.terms is not None:
            assert (line.terms.terms, line.terms.forced) == (one.lexical.terms, one.lexical.forced)
    own = [("cat", ["dog and"]), ("on", ["at"])]
    at_work.worker.receive(translate(2, LINES, terms=own, **few))
    merged = Glossary(dict(TERMS) | dict(own))
    expected = translator.translate(LINES, SearchConfig(**few), glossary=merged)
    assert at_work.texts(2) == [[text] for text in expected]
    assert "dog and" in expected[0]
    at_work.worker.receive(tagged(3, LINES, linked=[0], **few))
    assert [row["text"] for row in at_work.last(3).value] == [one.text for one in alone]
    at_work.worker.receive(translate(4, ["a cat"], prefixes=["the log"], **few))
    [with_prefix] = translator.translate(["a cat"], SearchConfig(**few), prefixes=["the log"], glossary=glossary)
    assert at_work.texts(4) == [[with_prefix]]


def test_placeholders_are_copied_and_words_have_their_places_in_the_text(run, desk):
    at_work, translator = desk(placeholders=r"<\d+>"), Translator.load(run, "cpu", "float32")
    line, few = "the cat <77> sat <8>", dict(beam=2, max_length=16)
    at_work.worker.receive(translate(1, [line, "a dog"], scores=True, confidence=True, **few))
    with_them, without = at_work.last(1).value
    [expected] = translator.translate([line], SearchConfig(**few), placeholders=r"<\d+>")
    (best,) = with_them["translations"]
    assert best["text"] == expected
    assert (with_them["terms"]["placeholders"], without["terms"]) == (2, None)
    assert {"<77>", "<8>"} <= {word["text"] for word in best["words"]}
    assert all(best["text"][word["start"] : word["end"]] == word["text"] for word in best["words"])
    at_work.worker.receive(translate(2, [line], placeholders=False, **few))
    assert at_work.texts(2) == [translator.translate([line], SearchConfig(**few))]
    at_work.worker.receive(translate(3, ["a {dog} <1>"], placeholders=True, **few))
    assert "<1>" in at_work.texts(3)[0][0]
    at_work.worker.receive(Stream(4, 60.0, line, 16, Facts(["source"], None, None, 8)))
    (streamed,) = at_work.last(4).value
    [greedy] = translator.translate([line], SearchConfig(beam=1, max_length=16), placeholders=r"<\d+>")
    assert streamed["translations"][0]["text"] == greedy
    assert streamed["attention"]
    assert [event.kind for event in at_work.of(4) if isinstance(event, Event)] == ["start"]


@pytest.mark.parametrize("more", [{}, {"paragraphs": True, "placeholders": True}])
def test_lines_that_can_be_translated_are_answered_with_nothing(desk, more):
    at_work = desk()
    at_work.worker.receive(Check(1, lines=["the cat. a {dog}", "", "on a log"], **SEARCH | more))
    assert at_work.last(1) == Answer(1, [])


REFUSALS = [
    (translate(1, ["a", "cat " * 70]), "too_long", "line 2 has 70 tokens, and at most 63 are translated"),
    (Check(1, lines=["a", "cat " * 70], **SEARCH), "too_long", "line 2 has 70 tokens, and at most 63 are translated"),
    (Stream(1, 60.0, "cat " * 70, 256), "too_long", "the line has 70 tokens"),
    (
        translate(1, ["a"], prefixes=[["secret"]]),
        "invalid",
        r"prefixes\[0\] has a piece that the vocabulary lacks, at place 0",
    ),
    (
        translate(1, ["a"], prefixes=["the cat"], max_length=1),
        "too_long",
        r"a prefix has \d+ pieces, and max_length is 1",
    ),
    (Alternatives(1, 60.0, "", [], 5), "invalid", "q is empty"),
    (Alternatives(1, 60.0, "a", ["</s>"], 5), "invalid", "prefix has </s> at place 0: it ends a translation, nothing"),
    (Alternatives(1, 60.0, "a", ["</pad>"], 5), "invalid", "prefix has a piece that the vocabulary lacks, at place 0"),
    (translate(1, ["a"], prefixes=[["▁", "</s>"]]), "invalid", r"prefixes\[0\] has </s> at place 1: it ends"),
    (
        translate(1, ["a"], attention=Facts(["source"], [2], None, 8)),
        "invalid",
        "layers must be from 0 to 1 for the source, got 2",
    ),
    (translate(1, LINES, seconds=0.0), "deadline", "the time for it is up"),
    (Stream(1, 0.0, "a dog", 256), "deadline", "the time for it is up"),
]


@pytest.mark.parametrize(
    ("message", "code", "error"), REFUSALS, ids=[f"{code}-{n}" for n, (_, code, _) in enumerate(REFUSALS)]
)
def test_what_cannot_be_done_is_refused_in_a_sentence_without_its_text(desk, message, code, error):
    at_work = desk()
    at_work.worker.receive(message)
    refused = at_work.last(1)
    assert isinstance(refused, Refused)
    assert refused.code == code
    assert re.search(error, refused.error)
    assert "secret" not in refused.error
    at_work.worker.receive(translate(2, ["a dog"]))
    assert at_work.texts(2), "and it goes on"


UNDER_RULES = "a term, or what follows a placeholder,"
UNKNOWN_CODES = [
    (translate(1, ["a"], prefixes=[">>secret<< a"]), "a prefix"),
    (translate(1, [">>deu<< a cat"], terms=[("cat", [">>secret<< b"])]), UNDER_RULES),
    (translate(1, ["{x}>>secret<< a {cat}"], placeholders=True), UNDER_RULES),
    (tagged(1, ["{x}>>secret<< a {cat}"], placeholders=True), UNDER_RULES),
    (Stream(1, 60.0, ">>secret<< a", 256), "a line"),
]


@pytest.mark.parametrize(("message", "what"), UNKNOWN_CODES, ids=["prefix", "term", "placeholder", "tagged", "stream"])
def test_the_code_of_an_unknown_language_is_refused_wherever_it_stands(desk, coded, message, what):
    at_work = desk(Translator.load(coded, "cpu", "float32"))
    at_work.worker.receive(message)
    error = f"{what} begins with the code of a language that the model doesn't know"
    assert at_work.last(1) == Refused(1, "invalid", error)
    at_work.worker.receive(translate(2, [">>deu<< a cat"]))
    assert at_work.texts(2), "and it goes on"


@pytest.mark.parametrize("space", ["\u3000", "\x1f", "\x85", "\u2028", " \t"])
def test_white_space_has_an_empty_translation(desk, space):
    at_work = desk()
    at_work.worker.receive(translate(1, [space, "a cat"]))
    assert at_work.texts(1)[0] == [""]
    assert at_work.texts(1)[1] != [""]
    at_work.worker.receive(tagged(2, [space]))
    assert at_work.last(2).value[0]["text"] == ""
    at_work.worker.receive(Stream(3, 60.0, space, 20))
    assert at_work.texts(3) == [[""]]


@pytest.mark.parametrize("kind", ["plain", "terms", "tags", "free", "stream"])
def test_each_line_is_measured(desk, kind):
    at_work = desk()
    message = {
        "plain": translate(1, ["a cat", ""]),
        "terms": translate(1, ["a cat", ""], terms=[("cat", ["dog"])]),
        "tags": tagged(1, ["a {cat}", ""], placeholders=True),
        "free": tagged(1, ["a cat", ""], placeholders=True),
        "stream": Stream(1, 60.0, "a cat", 20),
    }[kind]
    at_work.worker.receive(message)
    assert isinstance(at_work.last(1), Answer)
    (measured,) = [message for message in at_work.sent if isinstance(message, Measured)]
    assert (measured.lines, measured.requests) == (1, 1)
    assert measured.source_tokens > 1
    assert measured.target_tokens >= 1
    assert measured.seconds > 0


def test_what_is_written_for_a_client_that_leaves_is_measured(run, desk):
    translator = Translator.load(run, "cpu", "float32")
    at_work, step = desk(translator), translator.engine.step_best

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.02)
        return step(*arguments)

    translator.engine.step_best = slowly
    at_work.worker.receive(Stream(1, 60.0, " ".join(["the cat sat on a mat"] * 4), 256))
    while sum(isinstance(message, Event) for message in list(at_work.sent)) < 3:
        time.sleep(0.005)
    at_work.worker.receive(Cancel(1))
    assert at_work.last(1).code == "cancelled"
    (measured,) = [message for message in at_work.sent if isinstance(message, Measured)]
    pieces = [message for message in at_work.sent if isinstance(message, Event) and message.kind == "piece"]
    assert measured.target_tokens == len(pieces) >= 2
    assert measured.seconds >= 0.02 * len(pieces)


@pytest.mark.parametrize("kind", ["plain", "terms", "tags", "stream"])
def test_a_search_ends_at_once_where_its_client_leaves_or_its_time_is_up(run, desk, kind):
    long = dict(beam=5, max_length=256)
    translator = Translator.load(run, "cpu", "float32")
    line = " ".join(["the cat sat on a mat"] * 4)
    at_work = desk(translator, gather_seconds=0.0, terms=[("cat", ["dog"])] if kind == "stream" else [])
    steps, name = [], "step_best" if kind == "plain" else "step"
    step = getattr(translator.engine, name)

    def slowly(*arguments: Any) -> Any:
        steps.append(time.monotonic())
        time.sleep(0.02)
        return step(*arguments)

    def ask(number: int, **fields: Any) -> Translate | TranslateTagged | Stream:
        if kind == "stream":
            return Stream(number, fields.get("seconds", 60.0), line, 256)
        if kind == "tags":
            return tagged(number, [line + " {x}"], placeholders=True, **long | fields)
        terms = [("cat", ["dog"])] if kind == "terms" else []
        return translate(number, [line + " {x}"], terms=terms, placeholders=kind == "terms", **long | fields)

    setattr(translator.engine, name, slowly)
    at_work.worker.receive(ask(1))
    while len(steps) < 3:
        time.sleep(0.005)
    at_work.worker.receive(Cancel(1))
    assert at_work.last(1).code == "cancelled"
    steps.clear()
    began = time.monotonic()
    at_work.worker.receive(ask(2, seconds=0.15))
    assert at_work.last(2).code == "deadline"
    assert time.monotonic() - began > 0.1
    assert len(steps) <= 8, "each takes at least 0.02 s, however slow the machine is"
    at_work.worker.receive(Cancel(99))


def test_numbers_that_overflow_are_a_failure_and_not_the_end(run, desk, monkeypatch):
    translator = Translator.load(run, "cpu", "float32")
    at_work, step_best = desk(translator), translator.engine.step_best

    def spoiled(*arguments: Any) -> Any:
        best, *rest = step_best(*arguments)
        return best * torch.nan, *rest

    translator.engine.step_best = spoiled
    at_work.worker.receive(translate(1, ["a dog"], beam=1))
    at_work.worker.receive(Stream(2, 60.0, "a dog", 256))
    assert [at_work.last(number).code for number in (1, 2)] == ["failed", "failed"]
    translator.engine.step_best = step_best
    at_work.worker.receive(translate(3, ["a dog"], beam=1))
    assert at_work.texts(3)


def test_an_answer_that_cannot_be_made_is_a_failure_and_not_the_end(desk, monkeypatch):
    def overflowing(*arguments: Any, **settings: Any) -> Any:
        raise GlassformerError("the numbers overflowed")

    at_work = desk()
    with monkeypatch.context() as patch:
        patch.setattr(requests, "line_answer", overflowing)
        at_work.worker.receive(translate(1, ["a dog"], beam=1))
        at_work.worker.receive(translate(2, ["a dog"], beam=1, scores=True))
        assert [at_work.last(number).code for number in (1, 2)] == ["failed", "failed"]
    at_work.worker.receive(translate(3, ["a dog"], beam=1))
    assert at_work.texts(3)


def test_what_is_translated_is_answered_before_the_next_turn(desk, monkeypatch):
    monkeypatch.setattr(worker, "SLICE", 0.0)
    at_work = desk(share_batches=False)
    for number in range(1, 4):
        at_work.worker.receive(translate(number, ["The cat. The dog.", "A mat."], paragraphs=True, max_length=8))
        at_work.worker.receive(Alternatives(10 * number, 60.0, "a dog", [], 2))
    for number in range(1, 4):
        at_work.last(10 * number)
    ended = [message.id for message in at_work.sent if isinstance(message, Answer)]
    assert ended == [1, 10, 2, 20, 3, 30]


def test_weights_that_a_page_cannot_hold_are_counted_before_they_are_computed(desk, monkeypatch):
    monkeypatch.setattr(answers, "MOST_WEIGHTS", 50)
    monkeypatch.setattr(requests, "translation_of", None)
    at_work = desk()
    for number, facts in enumerate((["weights"], ["weights", "entropy"]), start=1):
        at_work.worker.receive(translate(number, ["the cat sat"], attention=Facts(["source"], [0], facts, 8)))
        assert at_work.last(number).code == "invalid"
        assert re.search(r"attention has \d+ weights here, and at most 50 are returned", at_work.last(number).error)
