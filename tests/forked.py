"""Run `glassformer` in forks of one process that has imported torch, which takes a process of its own two seconds.

`python forked.py serve ADDRESS` imports all and waits at a socket; `python forked.py run ADDRESS WORDS` takes the place
of `glassformer WORDS`, with its folder, environment, streams and exit status. If it is killed its fork is killed too.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
from importlib import import_module
from typing import NoReturn

IMPORTED = (
    *("glassformer.cli", "glassformer.training.train", "glassformer.data.facts", "glassformer.page.inspection"),
    *("matplotlib.backends.backend_agg", "matplotlib.figure", "numba", "rapidfuzz", "sacrebleu", "torch._dynamo"),
)
"""What most commands import."""


def run(address: str, words: list[str]) -> int:
    """Have the words run by a fork, and return its exit status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        given = json.dumps([words, os.getcwd(), dict(os.environ)])
        socket.send_fds(server, [given.encode()], [0, 1, 2])
        return int(server.recv(16))


def serve(address: str) -> NoReturn:
    """Say that all is imported, then fork for each client."""
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # collecting in a fork would copy what it looks at
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        print(flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
        while True:
            client, _ = listening.accept()
            if os.fork() == 0:
                _attend(client)
            client.close()


def _attend(client: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        client.close()
        _become(*json.loads(message), streams)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([client, ended], [], [])
    if ended not in ready:  # the client is gone
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if ended in ready:
        client.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(words: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> NoReturn:
    """Be the command, and end as it ends."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["glassformer", *words]
    try:
        sys.exit(import_module("glassformer.cli").main())
    except SystemExit as exit_:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_.code or 0)  # taking all modules down would copy their memory, which takes a second


if __name__ == "__main__":
    _, role, place, *rest = sys.argv
    sys.exit(run(place, rest) if role == "run" else serve(place))
