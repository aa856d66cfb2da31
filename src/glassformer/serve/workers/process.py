"""The process of a worker.

`python -m glassformer.serve.workers.process` reads messages from its standard input and writes its own to what was its
standard output. It ends where its input ends, so that none stays without a server. It takes no notice of signals that
a terminal or a service manager sends to all processes.
"""

import os
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch
from msgspec import Struct

from glassformer.data.processes import end_with_parent
from glassformer.device import tame_memory, use_threads
from glassformer.errors import GlassformerError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.serve.workers import messages
from glassformer.serve.workers.requests import Send
from glassformer.serve.workers.worker import Worker, is_exact
from glassformer.transformer.model import count_parameters

CANARY = SearchConfig(beam=2, max_length=8)


def sing(translator: Translator) -> None:
    """Translate something, as the canary of the coal mine: what can't be done is said before anybody asks for it."""
    tokenizer = translator.source_tokenizer
    (text,) = tokenizer.decode([[i for i in (2, 3, 4) if i < tokenizer.pad]])
    translator.translate([text or "a"], CANARY)


def load(settings: messages.Settings) -> Translator:
    """Load the run, to compute with the threads of the settings."""
    tame_memory()
    use_threads(settings.threads)
    translator = Translator.load(Path(settings.run), settings.device, settings.precision)
    if settings.threads is None and translator.device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // settings.workers))
    return translator


def _end_of_thread(failed: threading.ExceptHookArgs) -> None:
    """End the process as `end_without_text` does, after an error in a thread."""
    end_without_text(failed.exc_type, failed.exc_value, failed.exc_traceback)


def end_without_text(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Print where an error came, without its message, which may hold text, and end the process at once."""
    print(f"glassformer: a worker failed with {kind.__name__}:", file=sys.stderr)
    print("".join(traceback.format_tb(trace)), end="", file=sys.stderr, flush=True)
    os._exit(1)


def _writer(stream: BinaryIO) -> Send:
    """Return a function that writes a message to the stream; several threads may call it."""
    lock = threading.Lock()

    def send(message: Struct) -> None:
        data = messages.frame(message)
        with lock:
            stream.write(data)
            stream.flush()

    return send


def main() -> None:
    """Be a worker until the input ends."""
    end_with_parent()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    warnings.simplefilter("ignore")  # a warning may hold text
    sys.excepthook = end_without_text
    threading.excepthook = _end_of_thread
    coming, going = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not come between the frames
    send = _writer(going)
    content = messages.read_content(coming)
    if content is None:
        return
    settings = messages.settings.decode(content)
    try:
        translator = load(settings)
        sing(translator)
    except (GlassformerError, ImportError, OSError) as error:
        send(messages.Broken(str(error)))
        return
    worker = Worker(translator, settings, send)
    worker.start()
    shares = settings.share_batches or is_exact(translator)
    parameters = count_parameters(translator.engine.config)
    send(messages.Ready(translator.device.type, str(translator.precision), parameters, shares))
    while (content := messages.read_content(coming)) is not None:
        worker.receive(messages.to_worker.decode(content))
    os._exit(0)  # the threads that compute are not waited for


if __name__ == "__main__":
    main()
