"""A process with no names to resolve and no sockets, which runs commands of `glassformer` one after the other.

On Linux the kernel ends a process that asks for a socket, other than one between processes of this machine. This holds
for processes that it starts too, and for code that isn't Python's. Elsewhere Python's own sockets are refused.

The argument is a file, to which each command adds a line of JSON, itself and its exit status; so does each reach for a
network. Commands come on standard input, a JSON list of arguments in each line.
"""

import ctypes
import json
import platform
import socket
import struct
import sys
from dataclasses import replace
from pathlib import Path

NUMBERS = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Of each processor: its number in the kernel's audit, and that of the system call `socket`."""
REACHES = ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto", "urllib.Request")
"""Events of Python that reach for a network."""
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, END_PROCESS = 0x7FFF0000, 0x80000000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def forbid_sockets() -> None:
    """Let the kernel end this process, or one that it starts, with SIGSYS where it asks for a socket."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in NUMBERS:
        return
    audit, call = NUMBERS[machine]
    steps = [  # operation, how far to jump if equal and if not, operand
        (LOAD, 0, 0, 4),  # the processor
        (JUMP_IF_EQUAL, 0, 4, audit),
        (LOAD, 0, 0, 0),  # the system call
        (JUMP_IF_EQUAL, 0, 2, call),
        (LOAD, 0, 0, 16),  # its first argument, the family of addresses
        (JUMP_IF_EQUAL, 0, 1, socket.AF_UNIX),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, END_PROCESS),
    ]
    program = _Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
        if prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


def note(path: str, *what: object) -> None:
    """Add a line of JSON to a file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{json.dumps(what)}\n")


def forbid_names(path: str) -> None:
    """Refuse and note each name that Python's code wants resolved, and each connection that it wants to make."""

    def refuse(event: str, arguments: tuple) -> None:
        if event in REACHES:
            note(path, event, str(arguments))
            raise RuntimeError(f"reached for a network: {event} {arguments}")

    sys.addaudithook(refuse)


def shorten() -> None:
    """Let the demonstration make three updates on few dates, and let pruning measure hardly any speed."""
    from glassformer.demo import demonstration
    from glassformer.insight import prune, speed

    settings, make_dates = demonstration.settings, demonstration.make_dates
    small = dict(d_model=16, heads=2, d_ff=16, max_updates=3, validate_every=3, score_pairs=5, device="cpu")
    demonstration.make_dates = lambda seed, train: make_dates(seed=seed, train=64, valid=7, test=16)
    demonstration.settings = lambda *a, **more: replace(settings(*a, **more), **small)
    prune.SPEED_LINES = 1
    speed.TURNS = 2
    speed._PROCESS_STATUS = Path("none")  # no processes that measure memory, seconds each


def main(path: str) -> None:
    """Run the commands of standard input."""
    forbid_names(path)
    forbid_sockets()
    shorten()
    from glassformer import cli

    for line in sys.stdin:
        arguments = json.loads(line)
        try:
            cli.main(arguments)
        except SystemExit as exit_:
            note(path, " ".join(arguments), exit_.code)


if __name__ == "__main__":
    main(sys.argv[1])
