"""The messages between the server and a worker: typed, as MessagePack, in frames with their length. No pickle."""

import struct
from typing import Any, BinaryIO

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

Terms = list[tuple[str, list[str]]]
"""Terms of a glossary, each with what may stand for it in a translation; without any it is kept."""
HEAD = struct.Struct("<I")
"""The head of a frame: the number of bytes that follow."""


class Settings(Struct, frozen=True):
    """Tell a worker how to load its run, and how much to do at once. It is the first frame."""

    run: str
    """The run folder."""
    device: str
    precision: str
    threads: int | None
    """CPU threads of each worker; None shares out torch's choice among the workers of a run that computes on a CPU."""
    workers: int
    """The number of workers that the run has, or may have on a CPU."""
    gather_seconds: float
    """How long a batch waits for a further request, after each that came."""
    batch_tokens: int
    max_source_tokens: int
    share_batches: bool
    """Let requests share a batch even where that may change the last bits of their numbers."""
    terms: Terms = []
    """The terms for all requests."""
    placeholders: str | None = None
    """The pattern of what is copied, for all requests that don't say otherwise."""


class Facts(Struct, frozen=True):
    """The facts of attention that a request wants; see `schemas.AttentionWanted`."""

    stacks: list[str]
    layers: list[int] | None
    facts: list[str] | None
    top: int


class Request(Struct, frozen=True, tag=True):
    """Something to do for a client."""

    id: int
    seconds: float
    """The time that is left for it."""


class OfLines(Request, frozen=True, kw_only=True):
    """A request for translations of lines, and how to search for them."""

    lines: list[str]
    first_line: int = 1
    """The number of the first line in what they are part of, for what is said of a line."""
    paragraphs: bool = False
    """Translate each line sentence by sentence, as many of them at once as the run has learned to read."""
    placeholders: bool | None = None
    """True copies placeholders, False translates them; None leaves the choice to the server."""
    beam: int
    n_best: int
    max_length: int
    length_penalty: float


class Translate(OfLines, frozen=True, tag=True, kw_only=True):
    """Lines to translate. The answer is a list of `schemas.TranslatedLine`.

    The answer for paragraphs has no pieces, words or attention, and paragraphs can't have prefixes.
    """

    prefixes: list[str | list[str]] | None = None
    terms: Terms = []
    """Its own terms; of those with the same source they count, and not the server's."""
    scores: bool = False
    confidence: bool = False
    attention: Facts | None = None


class TranslateTagged(OfLines, frozen=True, tag=True, kw_only=True):
    """Lines with marks for what stays as it is. The answer has for each line its `text`, and of those that are linked
    where the words of `source` and `target` begin and end, and their `links` (source, target, probability)."""

    linked: list[int] = []
    """The numbers of the lines whose words are wanted with their links."""


class Check(OfLines, frozen=True, tag=True, kw_only=True):
    """Ask whether lines can be translated: a job has to know before it begins. The answer is empty."""


class Stream(Request, frozen=True, tag=True):
    """A line to translate greedily, token by token. Events come first, then an answer as that of Translate."""

    line: str
    max_length: int
    attention: Facts | None = None


class Alternatives(Request, frozen=True, tag=True):
    """A question for the tokens that may follow. The answer is a list of `schemas.Alternative`."""

    line: str
    prefix: list[str]
    count: int


class Cancel(Struct, frozen=True, tag=True):
    """Nobody waits for a request any more."""

    id: int


class Ready(Struct, frozen=True, tag=True):
    """The model is loaded, and has translated something."""

    device: str
    """The kind of device: cpu, cuda or mps."""
    precision: str
    parameters: int
    shares: bool
    """Requests share batches."""


class Broken(Struct, frozen=True, tag=True):
    """The model can't be loaded, or can't translate."""

    error: str


class Event(Struct, frozen=True, tag=True):
    """Something that happened on the way to an answer: `start` or `piece`."""

    id: int
    kind: str
    data: dict[str, Any]


class Answer(Struct, frozen=True, tag=True):
    """The answer to a request."""

    id: int
    value: list[dict[str, Any]]


class Refused(Struct, frozen=True, tag=True):
    """A request that was not done: a code, and a sentence without any of its text."""

    id: int
    code: str
    error: str


class Refusal(Exception):
    """A request that the server didn't do. It is answered with the code and the sentence, which has none of its text.

    Raised inside `glassformer serve` alone. Example: docs/howto/serve.md.
    """

    def __init__(self, code: str, error: str, retry_after: int | None = None) -> None:
        super().__init__(error)
        self.code = code
        self.retry_after = retry_after


class Measured(Struct, frozen=True, tag=True):
    """Tell what a batch came to, for the metrics."""

    lines: int
    requests: int
    source_tokens: int
    target_tokens: int
    seconds: float


ToWorker = Translate | TranslateTagged | Check | Stream | Alternatives | Cancel
FromWorker = Ready | Broken | Event | Answer | Refused | Measured

_encoder = Encoder()
to_worker, from_worker, settings = Decoder(ToWorker), Decoder(FromWorker), Decoder(Settings)
"""Read the content of a frame."""


def frame(message: Struct) -> bytes:
    """Return a message as a frame."""
    content = _encoder.encode(message)
    return HEAD.pack(len(content)) + content


def read_content(stream: BinaryIO) -> bytes | None:
    """Return the content of the next frame; None at the stream's end, even in the middle of a frame."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (length,) = HEAD.unpack(head)
    content = stream.read(length)
    return content if len(content) == length else None
