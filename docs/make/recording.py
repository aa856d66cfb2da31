"""The recording of the README: a terminal in which a model is trained on a small file, and translates.

    python docs/make/recording.py [--minutes 2]

Makes dates.tsv (4,000 dates in four languages, and in ISO 8601), runs the commands as a user would, on a terminal of
their own, and draws what it shows every two seconds as an SVG that moves: docs/img/terminal.svg.
"""

import codecs
import itertools
import os
import pty
import re
import select
import shlex
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from fcntl import ioctl
from html import escape
from pathlib import Path
from termios import TIOCSWINSZ

import tyro
from rich.style import Style
from rich.text import Text

from glassformer.demo.dates import make_dates

COLUMNS, ROWS = 92, 22
EVERY, SHOWN, LAST = 2.0, 0.3, 8
"""Seconds between frames, seconds that the picture shows one, and how many times the last one stays."""
WIDTH, HEIGHT = 8.4, 18
"""Pixels of a character."""
PALETTE = {"red": "#e06c75", "green": "#7fbf6a", "yellow": "#d7ba7d", "blue": "#61afef", "magenta": "#d084d0"}
PALETTE |= {"cyan": "#56b6c2", "white": "#dcdfe4"}


@dataclass
class Screen:
    """What a terminal shows, as far as programs of this project make use of it."""

    lines: list[str] = field(default_factory=lambda: [""])
    row: int = 0
    _start: bool = False
    """The next character stands at the start of its line."""

    def feed(self, text: str) -> None:
        """Take what a program printed. Colours stay in the lines as they came."""
        for part in re.split(r"(\x1b\[[?0-9;]*[A-Za-z]|[\r\n])", text):
            if part == "\n":
                self.row += 1
                self._start = True
                if self.row == len(self.lines):
                    self.lines.append("")
            elif part == "\r":
                self._start = True
            elif moved := re.fullmatch(r"\x1b\[(\d*)A", part):
                self.row = max(0, self.row - int(moved[1] or 1))
            elif part == "\x1b[2K":
                self.lines[self.row] = ""
            elif part and not re.fullmatch(r"\x1b\[[?0-9;]*[A-LN-Za-ln-z]", part):
                if self._start:
                    self.lines[self.row], self._start = "", False
                self.lines[self.row] += part

    def shown(self) -> tuple[str, ...]:
        """The last lines, as many as the terminal has."""
        lines = self.lines if self.lines[-1] else self.lines[:-1]
        return tuple(lines[-ROWS:])


def record(command: str, screen: Screen, frames: list[tuple[str, ...]], folder: Path) -> None:
    """Run a command on a terminal of its own, and add a frame now and then."""
    screen.feed(f"\x1b[32m$\x1b[0m {command}\n")
    frames += [screen.shown()] * 2
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "50"}
        words = [sys.executable, "-m", *shlex.split(command)]
        os.execve(sys.executable, words, environment)
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    decoder, last = codecs.getincrementaldecoder("utf-8")(), time.monotonic()
    while True:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                content = os.read(terminal, 1 << 16)
            except OSError:  # the command has ended
                break
            if not content:
                break
            screen.feed(decoder.decode(content))
        if time.monotonic() - last > EVERY:
            last = time.monotonic()
            frames.append(screen.shown())
    os.waitpid(child, 0)
    frames += [screen.shown()] * 3


def draw(frames: list[tuple[str, ...]]) -> str:
    """Return an SVG that shows the frames one after the other, again and again."""
    frames = [frame for n, frame in enumerate(frames) if n == 0 or frame != frames[n - 1]]
    width, height = round(COLUMNS * WIDTH) + 24, ROWS * HEIGHT + 28
    count = len(frames) + LAST
    groups = [
        f'<g id="f{n}" transform="translate({n * width} 0)">{_frame(frame)}</g>' for n, frame in enumerate(frames)
    ]
    last = len(frames) - 1
    groups += [f'<use href="#f{last}" x="{(n + 1) * width}"/>' for n in range(LAST)]
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>A terminal: a model is trained, shows translations of held-out lines as it learns, and translates</title>
<style>
text {{ font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #c8ccd4; white-space: pre }}
.film {{ animation: film {count * SHOWN:.1f}s steps({count}) infinite }}
@keyframes film {{ to {{ transform: translateX(-{count * width}px) }} }}
@media (prefers-reduced-motion) {{ .film {{ animation: none; transform: translateX(-{last * width}px) }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#1e222a"/>
<g class="film">{"".join(groups)}</g>
</svg>
"""


def _frame(lines: tuple[str, ...]) -> str:
    return "".join(f'<text x="12" y="{28 + HEIGHT * n}">{_line(line)}</text>' for n, line in enumerate(lines) if line)


def _line(ansi: str) -> str:
    """Return a line with its colours."""
    text = Text.from_ansi(ansi)
    text.truncate(COLUMNS)
    parts, plain = [], text.plain
    edges = sorted({0, len(plain), *(edge for span in text.spans for edge in (span.start, span.end))})
    for start, end in itertools.pairwise(edges):
        styles = [span.style for span in text.spans if span.start <= start and span.end >= end]
        colour = _colour([style for style in styles if isinstance(style, Style)])
        part = escape(plain[start:end])
        parts.append(f'<tspan fill="{colour}">{part}</tspan>' if colour else part)
    return "".join(parts)


def _colour(styles: list[Style]) -> str:
    for style in reversed(styles):
        if style.color is not None:
            if style.color.name in PALETTE or style.color.name.removeprefix("bright_") in PALETTE:
                return PALETTE[style.color.name.removeprefix("bright_")]
            if style.color.triplet is not None or style.color.number is not None:
                return style.color.get_truecolor().hex
    return ""


def main(minutes: float = 2.0) -> None:
    """Record.

    Args:
        minutes: Limit of the training.
    """
    frames: list[tuple[str, ...]] = []
    screen = Screen()
    with tempfile.TemporaryDirectory() as name:
        made = make_dates(seed=1)
        dates = [date for date in made.train if date.language in ("English", "German", "French", "Spanish")][:4000]
        lines = [f"{date.phrase}\t{date.iso}\n" for date in dates]
        (Path(name) / "dates.tsv").write_text("".join(lines), encoding="utf-8")
        for command in (
            f"glassformer train dates.tsv --out runs/dates --max-minutes {minutes:g}",
            'glassformer translate runs/dates "3 May 2024" "le 14 juillet 1999"',
        ):
            record(command, screen, frames, Path(name))
    path = Path(__file__).parents[1] / "img" / "terminal.svg"
    path.write_text(draw(frames), encoding="utf-8")
    print(f"{path}: {len(frames)} frames, {path.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    tyro.cli(main)
