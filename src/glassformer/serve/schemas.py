"""The JSON of the routes: what requests may hold, and what answers hold. Unknown fields and other types are refused.

How much of it is allowed (characters, lines, beams) is a limit of `config`, and checked where the request is taken.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from glassformer.documents.endings import DocumentKind
from glassformer.generation.config import SearchConfig, Segmentation

Positive = Annotated[int, Field(ge=1)]
Exponent = Annotated[float, Field(ge=0, le=20, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1)]
Texts = Annotated[list[str], Field(fail_fast=True)]
"""A list whose first wrong entry is the only one that is told of: there may be a million."""
Stack = Literal["encoder", "decoder", "source"]
Fact = Literal["weights", "entropy", "received", "top", "tiles"]


class Closed(BaseModel):
    """A model with the fields that it names and no others, whose types are exact: "5" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class Failure(Closed):
    """The answer of every route to a request that it didn't do."""

    error: str
    """Say in one sentence what is wrong, without text of the request."""
    code: str
    """The same as one word for programs: too_long, unauthorized, busy, deadline and so on; docs/howto/serve.md."""


FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": Failure} for status in (400, 401, 403, 408, 413, 415, 431, 500, 503)
}
"""Describe the failures that any route can have."""
TOO_MUCH: dict[int | str, dict[str, Any]] = {429: {"model": Failure}}
"""Describe the failure of routes that count characters."""

# LibreTranslate's API


class LibreRequest(Closed):
    """A request of LibreTranslate's `POST /translate`."""

    q: str | Texts
    """The text, or several."""
    source: str
    """The language's code, or "auto" where one run translates to the target."""
    target: str
    """Code of the language to translate to."""
    format: Literal["text", "html"] | None = "text"
    """html: text between block elements is translated, tags stand on the words that their words became."""
    alternatives: Annotated[int, Field(ge=0)] | None = 0
    """How many further translations to return."""
    api_key: str | None = None
    """The key, if the server has keys."""
    secret: str | None = None
    """Read by nobody: some clients of LibreTranslate send it."""


class DetectRequest(Closed):
    """A request of LibreTranslate's `POST /detect`."""

    q: str | Texts
    """The text, or several. Nobody looks at it."""
    api_key: str | None = None
    """The key, if the server has keys."""
    secret: str | None = None
    """Read by nobody, as in a translation."""


class DetectedLanguage(Closed):
    """A source language, told without a look at the text: there was no other that it could be."""

    confidence: int = 100
    """A percentage. It is a whole number because some clients read no other."""
    language: str
    """The language's code."""


class LibreAnswer(Closed):
    """The answer of `POST /translate`; lists where `q` was a list."""

    translatedText: str | list[str]
    """The best translation."""
    alternatives: list[str] | list[list[str]] | None = None
    """Further translations, best first, if some were asked for."""
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None
    """Given where `source` was "auto"."""


class Language(Closed):
    """A language of `GET /languages`."""

    code: str
    """Its code, as in BCP 47."""
    name: str
    """Its name in English, or the code again."""
    targets: list[str]
    """Codes of the languages to which it is translated."""


# Runs


class Run(Closed):
    """A run that is served."""

    run: str
    """Its name: that of its folder."""
    source: str
    """Code of the source language; empty where neither the run nor the server's settings say it."""
    target: str
    """Code of the target language."""
    source_name: str
    """Name of the source language in English."""
    target_name: str
    """Name of the target language in English."""
    encoder_layers: int
    """Number of layers of the encoder."""
    decoder_layers: int
    """Number of layers of the decoder."""
    heads: int
    """Number of heads of each attention, before any are pruned."""
    precision: str
    """Precision in which it computes, such as int8; empty until a worker is ready."""
    parameters: int
    """Number of its parameters; 0 until a worker is ready."""
    segment: Segmentation
    """paragraph: the page and LibreTranslate's routes translate a line sentence by sentence. line: they translate it
    whole, because the run reads words or symbols."""
    ready: bool
    """True once a worker is ready."""


class Runs(Closed):
    """The answer of `GET /v1/runs`."""

    runs: list[Run]
    """The runs that are served."""
    limits: dict[str, int | float]
    """The server's limits by the names of its flags: max_lines, max_line_chars, max_beam and so on."""


# Translation


class Choosing(Closed):
    """The fields by which a request chooses a run: its name, or both languages, or nothing where one is served."""

    run: str | None = None
    """Name of the run."""
    source: str | None = None
    """Code of the language to translate from."""
    target: str | None = None
    """Code of the language to translate to."""


class AttentionWanted(Closed):
    """The facts of attention that are wanted, as the page shows them."""

    stacks: Annotated[list[Stack], Field(fail_fast=True, min_length=1)] = ["encoder", "decoder", "source"]
    """encoder: the source's attention to itself; decoder: the translation's to what is written; source: its
    attention to the source."""
    layers: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 16)]], Field(fail_fast=True, min_length=1)] | None = None
    """Layers, from 0; all by default."""
    facts: Annotated[list[Fact], Field(fail_fast=True, min_length=1)] | None = None
    """By default all weights; of texts with too many of them tiles, the largest weights, entropy and received."""
    top: Annotated[int, Field(ge=1, le=64)] = 8
    """How many of the largest weights of each query, where `facts` has top."""


class Term(Closed):
    """A term of a request's glossary."""

    source: str
    """If it stands in a line, the translation of the line has its target."""
    target: str | Texts = ""
    """The target, or several forms of which one does; left out, the term is kept as it is."""


class TranslateRequest(Choosing):
    """A request of `POST /v1/translate`."""

    q: str | Texts
    """The line, or several."""
    segment: Segmentation = "line"
    """paragraph: each line is translated sentence by sentence. The answer then has one text with its score for each."""
    beam: Positive | None = None
    """By default 5, or what the server allows where that is less; at least `n_best`."""
    n_best: Positive = 1
    """How many translations of each line to return."""
    length_penalty: Exponent = SearchConfig.length_penalty
    """Divide the log-probability by the length to this power; 0 prefers short translations."""
    max_length: Positive | None = None
    """By default 256, or what the server allows where that is less."""
    prefixes: Annotated[list[str | Texts], Field(fail_fast=True)] | None = None
    """One for each line: the text that its translation begins with, or the pieces; "" or [] leaves it free. Nothing can
    follow `</s>`."""
    glossary: Annotated[list[Term], Field(fail_fast=True)] | None = None
    """Terms for this request alone, beside those of the server; of two with the same source its own counts."""
    placeholders: bool | None = None
    """Copy {name}, %s, URLs and what else the server counts as placeholders; left out, as the server was told to."""
    scores: bool = False
    """Return the pieces with their probabilities."""
    confidence: bool = False
    """Return the words with their probabilities."""
    attention: AttentionWanted | None = None
    """Return the attention, in these facts."""


class Piece(Closed):
    """A piece of a translation: a token of the vocabulary."""

    piece: str
    """Name it as the vocabulary does: ▁ begins a word, and `</s>` ends the translation."""
    probability: Probability
    """Probability of the piece after those before it."""


class Word(Closed):
    """A word of a translation."""

    text: str
    """The word."""
    start: int
    """Where it begins in the translation's text, in characters (code points)."""
    end: int
    """Where it ends there."""
    first: int
    """Number of its first piece, from 0."""
    last: int
    """Number of the piece after its last."""
    probability: Probability
    """Probability of all its pieces together: the product of theirs."""
    right: Probability | None = None
    """Probability that it is right, by the run's calibration; null where the run has none, and in a translation that a
    term was forced upon, or a placeholder put into."""


class Translated(Closed):
    """One translation of a line."""

    text: str
    """The translation."""
    score: float
    """Log-probability, in nats, divided by the length penalty."""
    probability: Probability
    """Probability of the whole translation."""
    pieces: list[Piece] | None = None
    """With `scores`. The last one is `</s>`, unless the translation came to its longest."""
    words: list[Word] | None = None
    """With `confidence`."""


class TermsUse(Closed):
    """The terms and placeholders of a line, and of its best translation."""

    terms: int
    """Number of terms that stand in the line."""
    forced: int
    """Number of those that weren't among the likeliest words where they stand."""
    missing: list[str]
    """The terms that the translation lacks for want of room, each by its first form."""
    placeholders: int
    """Number of placeholders in the line, which are copied."""


class TranslatedLine(Closed):
    """The translations of a line, best first."""

    translations: list[Translated]
    """One, or `n_best` of them."""
    terms: TermsUse | None = None
    """Given for a line that has terms or placeholders."""
    source_pieces: list[str] | None = None
    """With `scores` or `attention`: the pieces that the model read, the last one `</s>`."""
    attention: str | None = None
    """With `attention`: the numbers of all translations of the line, packed as in a page and coded in base64."""


class OfRun(Closed):
    """The fields by which an answer says which run made it."""

    run: str
    """Name of the run that translates."""
    source: str
    """Code of its source language; empty where nobody says it."""
    target: str
    """Code of its target language; empty where nobody says it."""


class TranslateAnswer(OfRun):
    """The answer of `POST /v1/translate`."""

    lines: list[TranslatedLine]
    """One for each line of the request."""


# Streaming


class StreamRequest(Choosing):
    """A request of `POST /v1/translate/stream`: one line, translated greedily."""

    q: str
    """The line."""
    max_length: Positive | None = None
    """By default 256, or what the server allows where that is less."""
    attention: AttentionWanted | None = None
    """Wanted in the event `done`."""


class StreamStart(OfRun):
    """The data of the event `start`."""

    source_pieces: list[str]
    """The pieces that the model read, the last one `</s>`."""


class StreamPiece(Piece):
    """The data of an event `piece`."""

    text: str
    """The translation so far, in whole characters."""


# Alternatives


class AlternativesRequest(Choosing):
    """A request of `POST /v1/alternatives`: what may follow the first pieces of a translation."""

    q: str
    """The line."""
    prefix: Texts = []
    """The pieces before the one that is asked for."""
    count: Annotated[int, Field(ge=1, le=50)] = 10
    """How many pieces to return."""


class Alternative(Piece):
    """A piece that may follow, with its probability."""

    text: str
    """The text of the prefix and this piece."""


class AlternativesAnswer(Closed):
    """The answer of `POST /v1/alternatives`, likeliest first."""

    run: str
    """Name of the run that was asked."""
    alternatives: list[Alternative]
    """The likeliest pieces, likeliest first."""


# Jobs

JobState = Literal["waiting", "running", "done", "failed", "cancelled"]
JobKind = Literal["text", DocumentKind]


class Job(Closed):
    """A file that is translated."""

    id: str
    """The job's id, which nobody can guess."""
    state: JobState
    """waiting and running come before one of the others."""
    run: str
    """Name of the run that translates."""
    kind: JobKind
    """Kind of the file."""
    lines: int
    """Number of lines."""
    done: int
    """Number of lines that are translated."""
    error: str | None = None
    """Why the job failed, in one sentence."""


class Status(Closed):
    """The answer of the routes of health."""

    status: str
    """ok; or ready, starting or stopping."""
