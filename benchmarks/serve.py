"""The server under load: beside offline translation, beside CTranslate2 behind FastAPI, and the memory it holds.

    python benchmarks/serve.py --data DIR [--only load memory] [--rounds 3] [--workers 2] [--models FOLDER]

DIR holds Multi30k's text (train.en and others). The model is the 61M base model with random weights and 32,000 pieces
of vocabulary made from that text, whose `</s>` is never chosen: each line has 25 tokens, and so has each translation.

`load`: 1, 8 and 64 clients send a line, wait for its translation, and send the next, over loopback and connections
that stay open. Each side has processes of its own and two threads; they take turns, and the others wait. Theirs is
CTranslate2 in int8 behind a route of FastAPI, as two workers of one thread (one of two is slower, see generation.py),
in two forms, of which the faster counts: each request by itself, or requests gathered into batches. Offline is
`Translator.translate` with batches of 64 lines. All sides share the processor with the clients, whose share of a core
is printed. What a request costs in seconds of a core is measured too: other work on the machine adds little to that.
Before anything is timed, the answers of the server must be the offline translations, and in float32 those of
CTranslate2.

`memory`: 20,000 short lines from 16 clients to a tiny model; what the server's processes hold after 4,000 and at the
end.

Prints requests/s, and the median and the 99th percentile of the times that clients waited; the ratios come last and
go, with the rest, to benchmarks/results/serve.jsonl. `--models` keeps the models in a folder for the next time. Needs
the extras serve, huggingface and ctranslate2.
"""

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, get_args

import bench
import torch
import tyro

from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.interop.huggingface import export_marian, import_marian
from glassformer.run.folder import Run
from glassformer.text.tokenizer import EOS, SubwordTokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

VOCABULARY, TOKENS, LINES, THREADS = 32_000, 25, 256, 2
CLIENTS, SECONDS = (1, 8, 64), 6.0
MEMORY_REQUESTS, MEMORY_CLIENTS, SETTLED = 20_000, 16, 4_000
MOST, GATHER = 64, 0.003
"""Lines of all their batches, and the seconds for which these wait for further requests, as ours do."""
FIGURES = (
    "{rate:6.2f} requests/s ({lowest:.2f} to {highest:.2f}), median {median:5.0f} ms, p99 {p99:5.0f} ms, {cost:5.1f} "
    "ms of a core each; clients take {clients:.1%} of a core, the process that speaks HTTP {front:.1%}"
)
FORMS = ("alone", "gathered")
Part = Literal["load", "memory"]


def main(
    data: Path,
    only: tuple[Part, ...] = get_args(Part),
    rounds: int = 3,
    clients: tuple[int, ...] = CLIENTS,
    beam: int = 4,
    workers: int = 2,
    models: Path | None = None,
) -> None:
    """Measure the parts named by `only`.

    Args:
        data: Folder with Multi30k's train.en, train.de and so on.
        only: load, memory.
        rounds: Turns of each side.
        clients: Numbers of clients.
        beam: Beam of all searches.
        workers: Processes of our server under load, which share out its two threads: 2, as it chooses itself, or 1.
        models: Folder in which the models are kept, and found the next time.
    """
    print(bench.machine())
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = models or Path(scratch)
        if not (folder / "lines").exists():
            build(data, folder)
        measured: dict[str, Any] = {}
        if "load" in only:
            measured["load"] = load(folder, rounds, clients, beam, workers)
        if "memory" in only:
            measured["memory"] = memory(folder)
    bench.keep("serve", measured)
    for part, found in measured.items():
        print(f"{part}: {found['summary']}")


# The models


def build(data: Path, folder: Path) -> None:
    """Make the model as a run and as a model of CTranslate2, a tiny run, and choose the lines."""
    from ctranslate2.converters import TransformersConverter

    texts = [line for path in sorted(data.glob("train.*")) for line in path.read_text(encoding="utf-8").splitlines()]
    tokenizer = SubwordTokenizer.train(texts, kind="bpe", vocab_size=VOCABULARY, seed=1, coverage=0.9995)
    sizes = dict(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY)
    model = endless(ModelConfig.base(**sizes, activation="swish"))
    print(f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f} million parameters")
    for name, made in (("base", model), ("tiny", endless(ModelConfig.tiny(**sizes, activation="swish")))):
        export_marian(Run(made, tokenizer, tokenizer, {}), folder / f"{name}.marian")
        import_marian(folder / f"{name}.marian", folder / name)
    TransformersConverter(str(folder / "base.marian")).convert(str(folder / "base.ctranslate2"))
    fitting = [text for text, ids in zip(texts, tokenizer.encode(texts), strict=True) if len(ids) == TOKENS - 1]
    chosen = random.Random(1).sample(fitting, LINES)
    compare(folder, chosen[:16])
    (folder / "lines").write_text("\n".join(chosen), encoding="utf-8")


def endless(config: ModelConfig) -> Transformer:
    """Return a model with random weights that never chooses `</s>`: its row is zero, and others have larger logits."""
    torch.manual_seed(1)
    model = Transformer(config).eval()
    with torch.no_grad():
        model.target_embedding.weight[EOS] = 0.0
    return model


def compare(folder: Path, lines: list[str]) -> None:
    """Exit unless both sides translate alike in float32, ties apart."""
    ours = Translator.load(folder / "base", "cpu", "float32").translate(lines, SearchConfig(beam=4, max_length=TOKENS))
    theirs = Theirs(folder, "float32", 1, THREADS).translate(lines, 4, TOKENS)
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    print(f"  float32: CTranslate2 gives our translation for {same} of {len(lines)} lines")
    if same < len(lines) - 1:
        raise SystemExit("the sides don't do the same work")


# The load


def load(folder: Path, rounds: int, clients: tuple[int, ...], beam: int, workers: int) -> dict[str, Any]:
    """Measure requests per second, and how long clients wait."""
    lines = (folder / "lines").read_text(encoding="utf-8").split("\n")
    found: dict[str, Any] = {"beam": beam, "workers": workers}
    summary: list[str] = []
    with ExitStack() as stack:
        servers = {"ours": stack.enter_context(our_server(folder / "base", workers))}
        servers |= {form: stack.enter_context(their_server(folder, form)) for form in FORMS}
        sides = stack.enter_context(bench.Sides(__file__, ("offline",), folder))
        check(servers["ours"], lines, sides.ask("offline", "texts", LINES, beam), beam)
        for count in clients:
            turns: dict[str, list[Turn]] = {name: [] for name in servers}
            offline: list[Sequence[float]] = []
            for turn in range(rounds + 1):  # the first warms up
                if turn and count == CLIENTS[-1]:
                    offline.append(sides.ask("offline", "rate", LINES, beam))
                for name, server in servers.items():
                    one = asyncio.run(burden(server, lines, beam, count, SECONDS if turn else 1.5))
                    time.sleep(bench.REST)
                    if turn:
                        turns[name].append(one)
            figures = found[str(count)] = {name: joined(kept) for name, kept in turns.items()}
            for name, of in figures.items():
                print(f"  {count:>2} clients  {name:12} " + FIGURES.format(**of), flush=True)
            best = max((figures[form] for form in FORMS), key=itemgetter("rate"))
            ratios = found[f"ratios, {count} clients"] = {
                "requests/s": figures["ours"]["rate"] / best["rate"],
                "a core": best["cost"] / figures["ours"]["cost"],
            }
            if offline:
                pairs = list(zip(turns["ours"], offline, strict=True))
                ratios["requests/s, of offline"] = statistics.median(turn.rate / rate for turn, (rate, _) in pairs)
                ratios["a second of a core, of offline"] = statistics.median(
                    cost / turn.cost for turn, (_, cost) in pairs
                )
                for rate, cost in offline:
                    print(f"  offline, batches of 64: {rate:.2f} lines/s, {1000 * cost:.1f} ms of a core each")
            found[f"MiB, {count} clients"] = [round(held(one)) for one in children(servers["ours"].process.pid)]
            print(f"  MiB of each of its workers: {found[f'MiB, {count} clients']}")
            summary.append(f"{count} clients: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    return found | {"summary": "; ".join(summary)}


@dataclass
class Server:
    """A server under load."""

    process: subprocess.Popen[str]
    port: int
    path: str

    def request(self, line: str, beam: int, max_length: int) -> bytes:
        """Return a request for the translation of a line."""
        body = json.dumps({"q": line, "beam": beam, "max_length": max_length}).encode()
        fields = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return f"POST {self.path} HTTP/1.1\r\n{fields}".encode() + body


@contextmanager
def our_server(run: Path, workers: int) -> Iterator[Server]:
    """Start `glassformer serve`, wait until it is ready, and end it."""
    command = [sys.executable, "-W", "ignore", "-m", "glassformer", "serve", str(run), "--port", "0"]
    command += ["--workers", str(workers), "--threads", str(THREADS // workers), "--max-chars-per-minute", "0"]
    with started(command, "/v1/translate") as server:
        while asyncio.run(ask(server.port, b"GET /health/ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))[0] != 200:
            time.sleep(0.1)
        yield server


@contextmanager
def their_server(folder: Path, form: str) -> Iterator[Server]:
    """Start CTranslate2 behind FastAPI, and end it."""
    with started([sys.executable, "-W", "ignore", __file__, "--serve", form, str(folder)], "/translate") as server:
        yield server


@contextmanager
def started(command: list[str], path: str) -> Iterator[Server]:
    """Start a server whose first line is its address, and end it."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield Server(process, int(process.stdout.readline().rsplit(":", 1)[1]), path)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@dataclass
class Turn:
    """Holds the figures of a turn of some clients."""

    rate: float
    """Requests that were answered in a second."""
    waits: list[float]
    """Seconds that each client waited."""
    clients: float
    """The share of a core that the clients took."""
    front: float
    """The share of a core that the process took that speaks HTTP."""
    cost: float
    """Seconds that the server's processes computed for each request."""


def joined(turns: Sequence[Turn]) -> dict[str, float]:
    """Return the figures of several turns together; times in milliseconds."""
    waits = sorted(1000 * wait for turn in turns for wait in turn.waits)
    return {
        "rate": statistics.median(turn.rate for turn in turns),
        "lowest": min(turn.rate for turn in turns),
        "highest": max(turn.rate for turn in turns),
        "median": statistics.median(waits),
        "p99": waits[int(0.99 * (len(waits) - 1))],
        "requests": len(waits),
        "clients": statistics.median(turn.clients for turn in turns),
        "front": statistics.median(turn.front for turn in turns),
        "cost": 1000 * statistics.median(turn.cost for turn in turns),
    }


@dataclass
class Clients:
    """Clients that send one request after the other, each over a connection of its own."""

    port: int
    requests: Iterator[bytes]
    waits: list[float] = field(default_factory=list)
    """Seconds that each answer took."""

    async def work(self, count: int, goes_on: Callable[[], bool]) -> None:
        """Let so many clients work."""
        await asyncio.gather(*(self._work(goes_on) for _ in range(count)))

    async def _work(self, goes_on: Callable[[], bool]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while goes_on() and (request := next(self.requests, None)) is not None:
            began = time.monotonic()
            status, body = await exchange(reader, writer, request)
            if status != 200:
                raise SystemExit(f"a request was answered with {status}: {body[:200]!r}")
            self.waits.append(time.monotonic() - began)
        writer.close()


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, bytes]:
    """Send a request, and return the status and the body of its answer."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


async def ask(port: int, request: bytes) -> tuple[int, bytes]:
    """Send a request over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = await exchange(reader, writer, request)
    writer.close()
    return answer


async def burden(server: Server, lines: list[str], beam: int, count: int, seconds: float) -> Turn:
    """Let so many clients send requests for so many seconds."""
    clients = Clients(server.port, cycle([server.request(line, beam, TOKENS) for line in lines]))
    family = [server.process.pid, *children(server.process.pid)]
    began, own = time.monotonic(), time.process_time()
    before = [processor_seconds(process) for process in family]
    await clients.work(count, lambda: time.monotonic() < began + seconds)
    spent, own = time.monotonic() - began, time.process_time() - own
    front, *workers = (processor_seconds(process) - had for process, had in zip(family, before, strict=True))
    # All clients wait all the time, so that answers come at this rate, whether one by one or in bursts.
    rate = count / statistics.mean(clients.waits)
    return Turn(rate, clients.waits, own / spent, front / spent, (front + sum(workers)) / len(clients.waits))


def processor_seconds(process: int) -> float:
    """Return the seconds that a process has computed."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check(server: Server, lines: list[str], expected: list[str], beam: int) -> None:
    """Exit unless the server, asked by many at once, gives the translations that are expected."""

    async def texts() -> list[str]:
        answers = await asyncio.gather(*(ask(server.port, server.request(line, beam, TOKENS)) for line in lines[:64]))
        return [json.loads(body)["lines"][0]["translations"][0]["text"] for _, body in answers]

    if (found := asyncio.run(texts())) != expected[:64]:
        different = sum(a != b for a, b in zip(found, expected, strict=False))
        raise SystemExit(f"{different} of 64 answers of the server are not the offline translations")
    print("  64 answers of the server are the offline translations")


class Offline:
    """The code of the side that translates without a server."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(THREADS)
        self._translator = Translator.load(folder / "base", "cpu", "auto")
        self._lines = (folder / "lines").read_text(encoding="utf-8").split("\n")

    def answer(self, what: str, number: int, beam: int) -> Any:
        """Return the translations of so many lines, or lines per second and a core's seconds for each."""
        config = SearchConfig(beam=beam, max_length=TOKENS, batch_lines=MOST, batch_tokens=1 << 24)
        began, own = time.perf_counter(), time.process_time()
        found = self._translator.translations(self._lines[:number], config)
        seconds, own = time.perf_counter() - began, time.process_time() - own
        if any(len(one.tokens) != TOKENS for one in found):
            raise SystemExit(f"a translation has not {TOKENS} tokens")
        return [one.text for one in found] if what == "texts" else (number / seconds, own / number)


# The other side


class Theirs:
    """A model of CTranslate2 with its tokenizer."""

    def __init__(self, folder: Path, kind: str, workers: int, threads: int) -> None:
        import ctranslate2
        from sentencepiece import SentencePieceProcessor

        self._pieces = SentencePieceProcessor(model_file=str(folder / "base.marian" / "source.spm"))
        self._translator = ctranslate2.Translator(
            str(folder / "base.ctranslate2"), compute_type=kind, inter_threads=workers, intra_threads=threads
        )

    def translate(self, lines: list[str], beam: int, max_length: int) -> list[str]:
        """Return the translations of a batch, which its own option divides among the workers."""
        results = self._translator.translate_batch(
            [[*pieces, "</s>"] for pieces in self._pieces.encode(lines, out_type=str)],
            beam_size=beam,
            max_batch_size=32,
            max_decoding_length=max_length,
            length_penalty=1.0,
        )
        return self._pieces.decode([result.hypotheses[0] for result in results])


def serve_theirs(form: str, folder: Path) -> None:
    """Serve a model of CTranslate2 in one of its forms, and print the address."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Wanted(BaseModel):
        q: str
        beam: int
        max_length: int

    workers = THREADS
    model = Theirs(folder, "int8", workers, 1)
    waiting: asyncio.Queue[tuple[Wanted, asyncio.Future[str]]] = asyncio.Queue()

    async def gather() -> None:
        """Translate what waits, a batch at a time: one task for each worker."""
        while True:
            batch = [await waiting.get()]
            await asyncio.sleep(GATHER)
            while not waiting.empty() and len(batch) < MOST // workers:
                batch.append(waiting.get_nowait())
            first = batch[0][0]  # all clients ask for the same search
            lines = [wanted.q for wanted, _ in batch]
            texts = await asyncio.to_thread(model.translate, lines, first.beam, first.max_length)
            for (_, future), text in zip(batch, texts, strict=True):
                future.set_result(text)

    app = FastAPI()

    if form == "alone":

        @app.post("/translate")
        def translate(wanted: Wanted) -> dict[str, str]:
            (text,) = model.translate([wanted.q], wanted.beam, wanted.max_length)
            return {"translatedText": text}

    else:

        @app.post("/translate")
        async def translate(wanted: Wanted) -> dict[str, str]:
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            waiting.put_nowait((wanted, future))
            return {"translatedText": await future}

    async def serve() -> None:
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", access_log=False))
        tasks = [asyncio.create_task(gather()) for _ in range(workers)] if form == "gathered" else []
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", flush=True)
        await serving
        for task in tasks:
            task.cancel()

    asyncio.run(serve())


# Memory


def memory(folder: Path) -> dict[str, Any]:
    """Measure what the server's processes hold while 20,000 requests are answered."""
    lines = [line[:20] for line in (folder / "lines").read_text(encoding="utf-8").split("\n")]
    levels: dict[int, float] = {}
    with our_server(folder / "tiny", THREADS) as server:
        every = cycle([server.request(line, 1, 4) for line in lines])
        began = time.monotonic()
        while (done := 1000 * len(levels)) < MEMORY_REQUESTS:
            clients = Clients(server.port, (next(every) for _ in range(1000)))
            asyncio.run(clients.work(MEMORY_CLIENTS, lambda: True))
            levels[done + 1000] = held(server.process.pid)
        rate = MEMORY_REQUESTS / (time.monotonic() - began)
    print("  MiB: " + ", ".join(f"{count:,} {mib:.1f}" for count, mib in levels.items() if count % 4000 == 0))
    growth = levels[MEMORY_REQUESTS] / levels[SETTLED]
    summary = f"{growth:.3f} of what {SETTLED:,} requests left, after {MEMORY_REQUESTS:,}, at {rate:.0f} a second"
    return {"MiB": {str(count): mib for count, mib in levels.items()}, "growth": growth, "summary": summary}


def held(process: int) -> float:
    """Return the MiB of a process and those that it started, without files, whose pages others may share."""
    kib = 0
    for one in [process, *children(process)]:
        lines = Path(f"/proc/{one}/smaps_rollup").read_text(encoding="utf-8").splitlines()
        kib += int(next(line for line in lines if line.startswith("Anonymous:")).split()[1])
    return kib / 1024


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    return [
        int(child)
        for thread in Path(f"/proc/{process}/task").iterdir()
        for child in (thread / "children").read_text(encoding="utf-8").split()
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        bench.serve(Offline(Path(sys.argv[3])).answer)
    elif sys.argv[1:2] == ["--serve"]:
        serve_theirs(sys.argv[2], Path(sys.argv[3]))
    else:
        tyro.cli(main)
