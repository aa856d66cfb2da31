"""SIGTERM at every moment at which Python looks for signals, while files and folders are made: a line for each piece of
work, with the number of moments, and one for each moment after which something half made was left.

Python looks where a function begins and where a compiled one has returned. The program calls the handler that the
package has installed at each of these moments in turn, with the frame that a signal would interrupt there.
"""

import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from glassformer.files import new_folder, remove_at_once, replacing
from glassformer.generation.partial import partial_output
from glassformer.serve.keys import add_key
from glassformer.stopping import Stopped, raising_signals


def make_folder(place: Path) -> None:
    with new_folder(place / "above" / "folder") as made:
        (made / "file").write_text("text")


def fail_to_make_folder(place: Path) -> None:
    with new_folder(place / "above" / "folder"):
        raise ValueError("as every reader of damaged files raises")


def remove_folder(place: Path) -> None:
    (place / "old").mkdir()
    remove_at_once(place / "old")


def replace_file(place: Path) -> None:
    with replacing(place / "file") as file:
        file.write(b"text")


def collect_output(place: Path) -> None:
    with partial_output(place / "file", {}, resume=False) as partial:
        partial.append(["line"], b"its translation\n")


def add_first_key(place: Path) -> None:
    add_key(place / "keys.json", "name")


WORK: dict[Callable[[Path], None], list[list[str]]] = {
    make_folder: [[], ["above", "above/folder", "above/folder/file"]],
    fail_to_make_folder: [[]],
    remove_folder: [[], ["old"]],
    replace_file: [[], ["file"]],
    collect_output: [[], ["file"], ["file.partial", "file.partial.json"]],
    add_first_key: [[], ["keys.json"]],
}
"""Each with what it may leave, whenever it is ended: nothing, all, or what it goes on with."""


MEMORY = Path("/dev/shm")
"""A disk that is quick to flush, on Linux."""
WHERE = ("files.py", "partial.py", "keys.py", "stopping.py", "contextlib.py", "tempfile.py")
"""Files in whose code the signal comes. What they call from others makes one thing, or nothing."""


class Moment:
    """The moment at which the signal comes."""

    def __init__(self, number: int) -> None:
        self.left, self.place = number, ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or not frame.f_code.co_filename.endswith(WHERE):
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, frame)


def strike(work: Callable[[Path], None], moment: Moment) -> tuple[bool, list[str]]:
    """Let the signal come at this moment of the work; return whether it was raised, and what is left."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        raised = False
        try:
            with raising_signals():
                sys.setprofile(moment)
                try:
                    work(Path(folder))
                finally:
                    sys.setprofile(None)
        except ValueError:
            pass
        except Stopped:
            raised = True
        return raised, sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*"))


def main() -> None:
    for work, allowed in WORK.items():
        number, moment = 0, Moment(0)
        while number == 0 or moment.place:
            number += 1
            moment = Moment(number)
            raised, left = strike(work, moment)
            if left not in allowed or raised != bool(moment.place):
                print(f"{work.__name__}, {moment.place}: raised {raised}, left {left}")
        print(f"{work.__name__}: {number - 1} moments")


if __name__ == "__main__":
    main()
