"""Run `glassformer` in forks of one process that has imported torch, which takes a process of its own two seconds.

`python forked.py serve ADDRESS` imports all and waits at a socket; `python forked.py run ADDRESS WORDS` takes the place
of `glassformer WORDS`, with its folder, environment, streams, signals and end. If it is killed its fork is killed too.
Other programs import `serve` and `run`, and do the same with a function of their own.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

IMPORTED = (
    *("glassformer.cli", "glassformer.training.train", "glassformer.data.facts", "glassformer.page.inspection"),
    *("matplotlib.backends.backend_agg", "matplotlib.figure", "numba", "rapidfuzz", "sacrebleu", "torch._dynamo"),
)
"""What most commands import."""


def run(address: str, words: list[str]) -> NoReturn:
    """Have the words run by a fork, hand it the signals that ask for an end, and end as it ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        given = json.dumps([words, os.getcwd(), dict(os.environ)])
        socket.send_fds(server, [given.encode()], [0, 1, 2])

        def forward(number: int, _: object) -> None:
            server.send(str(number).encode())

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, forward)
        status = int(server.recv(16))
    if status < 0:
        if -status in (signal.SIGINT, signal.SIGTERM):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def serve(address: str, main: Callable[[], object]) -> NoReturn:
    """Say that all is imported, then fork for each client; the fork calls `main`, with the words in sys.argv."""
    gc.freeze()  # collecting in a fork would copy what it looks at
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        print(flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
        while True:
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _attend(client, main)
            client.close()


def _attend(client: socket.socket, main: Callable[[], object]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        client.close()
        _become(*json.loads(message), streams, main)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    while ended not in (ready := select.select([client, ended], [], [])[0]):
        number = client.recv(16)
        os.kill(child, int(number) if number else signal.SIGKILL)  # without a number the client is gone
        if not number:
            break
    _, status = os.waitpid(child, 0)
    if ended in ready:
        client.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(
    words: list[str], folder: str, environment: dict[str, str], streams: list[int], main: Callable[[], object]
) -> NoReturn:
    """Be the command, and end as it ends."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = words
    try:
        sys.exit(main())
    except SystemExit as exit_:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_.code or 0)  # taking all modules down would copy their memory, which takes a second


def main() -> None:
    """Serve `glassformer`, or be a client of the process that does."""
    _, role, address, *words = sys.argv
    if role == "run":
        run(address, words)
    for name in IMPORTED:
        import_module(name)
    sys.argv[0] = "glassformer"
    serve(address, import_module("glassformer.cli").main)


if __name__ == "__main__":
    main()
