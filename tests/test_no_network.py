"""No command reaches for a network: each runs in a process that has no names to resolve and no sockets.

And a process that does reach for one is seen: else the first test would prove nothing.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.cli import COMMANDS
from glassformer.tracking.tracker import TRACKERS

PROGRAM = Path(__file__).with_name("without_network.py")
RUN = """
train PAIRS TINY --separate-vocab --threads 2 --max-updates 2 --out run
check pairs.tsv
check memory.tmx
runs .
translate run "a b c" --device cpu
translate run --device cpu --input source.txt --output out.txt
evaluate run --device cpu --source valid.tsv
inspect run "a b c" --device cpu
heads run --device cpu --data pairs.tsv
align --source pairs.tsv --output links.txt
prune run --device cpu --data pairs.tsv --out pruned --rounds 1 --updates 2 --keep 0.5 --sentences 7
distill run pairs.tsv --text source.txt --beam 1 --max-length 5 --keep-copies TINY --max-updates 2 --out student
backtranslate run pairs.tsv --beam 1 --max-length 5 --keep-copies TINY --max-updates 2 --out better
export run --to huggingface --out marian
export run --to ctranslate2 --out ct2
export run --to onnx --out onnx
import --from marian --out imported
demo
""".strip().splitlines()
SERVED = "serve run --port 0"
"""The one command that listens; it reaches for nobody, but there are no sockets here at all."""
REFUSED = [
    f"evaluate run --source valid.tsv --tokenize {name}" for name in ("spm", "flores101", "flores200", "spBLEU-1K")
]
MEMORY = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "http://www.example.org/tmx14.dtd">
<tmx version="1.4"><header srclang="en" segtype="sentence" datatype="plaintext" adminlang="en" o-tmf="x"
 creationtool="x" creationtoolversion="1"/><body>{}</body></tmx>
"""
UNIT = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv></tu>'


AGAINST = ("ORT_DISABLE_TELEMETRY",)
"""Variables by which the suite keeps libraries from the network: the commands must do so themselves."""


def run_program(folder: Path, commands: list[list[str]], **others: str) -> tuple[subprocess.CompletedProcess, list]:
    """Run the commands in one process without a network; return what came of it and the lines that it noted.

    `others` are variables of its environment.
    """
    given = "".join(f"{json.dumps(command)}\n" for command in commands)
    environment = {name: value for name, value in os.environ.items() if name not in AGAINST}
    environment |= {"SACREBLEU": str(folder / "models of sacreBLEU"), "XDG_CACHE_HOME": str(folder / "cache"), **others}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", PROGRAM, folder / "noted"],
        input=given,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )
    return done, [json.loads(line) for line in (folder / "noted").read_text(encoding="utf-8").splitlines()]


def test_no_command_reaches_for_a_network(tmp_path, run_command, reversed_symbols):
    # Takes seconds: every command there is, in one new process.
    for name, lines in (("pairs", reversed_symbols(60, 1)), ("valid", reversed_symbols(11, 2))):
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "source.txt").write_text("a b\nc d e\n", encoding="utf-8")
    units = "".join(UNIT.format(*line.split("\t")) for line in reversed_symbols(60, 3))
    (tmp_path / "memory.tmx").write_text(MEMORY.format(units), encoding="utf-8")
    commands = [run_command.arguments(command) for command in RUN + REFUSED]
    commands[0][commands[0].index("symbols")] = "bpe"  # what is exported
    assert {command[0] for command in commands} | {SERVED.split()[0]} == COMMANDS.keys()
    done, noted = run_program(tmp_path, commands)
    statuses = [0] * len(RUN) + [2] * len(REFUSED)
    assert noted == [[" ".join(command), status] for command, status in zip(commands, statuses, strict=True)], (
        done.returncode,
        done.stderr,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    # Its messages would go to Microsoft seconds later, when this process has ended unless the machine is busy.
    assert not list((tmp_path / "cache").rglob("*onnxruntime*")), "onnxruntime has made a number for its messages"


def test_no_tracker_reaches_for_a_network(samples, tmp_path, run_command):
    # Takes seconds: a new process. trackio would ask huggingface.co whose the token is.
    for name in TRACKERS:
        pytest.importorskip(name, reason="pip install 'glassformer[tracking]'")
    shutil.copytree(samples / "run", tmp_path / "run")
    line = f"evaluate run --source {samples}/valid.tsv SHORT --track"
    commands = [run_command.arguments(f"{line} {name}") for name in TRACKERS]
    environment = dict(HF_HUB_OFFLINE="0", HF_TOKEN="hf_nobody", TRACKIO_DIR="")
    done, noted = run_program(tmp_path, commands, **environment)
    assert (noted, done.returncode) == ([[" ".join(command), 0] for command in commands], 0), done.stderr
    assert "failed" not in done.stderr
    assert [(tmp_path / name).is_dir() for name in ("run/tensorboard", "trackio")] == [True, True]


@pytest.mark.parametrize(
    "reach",
    [
        "ctypes.CDLL(None).socket(socket.AF_INET, socket.SOCK_STREAM, 0)",
        "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
        "signal.raise_signal(-subprocess.run([sys.executable, '-c', 'import socket; socket.socket()']).returncode)",
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's filter is Linux's")
def test_a_socket_ends_the_process(reach):
    imports = "import ctypes, signal, socket, subprocess, sys, without_network"
    program = f"{imports}; without_network.forbid_sockets(); socket.socketpair(); {reach}"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROGRAM.parent)
    assert done.returncode == -signal.SIGSYS


@pytest.mark.parametrize("reach", ["socket.getaddrinfo('localhost', 1)", "urllib.request.urlopen('http://localhost')"])
def test_a_name_is_noted_even_where_the_error_is_swallowed(reach, tmp_path):
    program = f"""
import contextlib, socket, sys, urllib.request, without_network
without_network.forbid_names(sys.argv[1])
with contextlib.suppress(Exception):
    {reach}
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "noted"], cwd=PROGRAM.parent, check=True)
    assert "localhost" in (tmp_path / "noted").read_text(encoding="utf-8")
