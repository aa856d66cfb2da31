"""The folder in which a case runs: copies of the samples it needs, with its own files in their places.

box/here    the current folder: samples, and a pipe, a device and links that are no files
box/home    the home folder, with a secret
box/tmp     temporary files
"""

import hashlib
import os
import shutil
import stat
import sys
from functools import partial
from pathlib import Path

from cases import Case, Content
from children import Limits, Outcome, run_in_child
from markup import SECRET
from mutations import Special
from oracle import Failure, judge
from readers import act
from samples import make_samples

Tree = dict[str, str]
"""What every path of a folder holds."""


class Sandbox:
    """A folder of samples, made once, and one in which a case after another runs."""

    def __init__(self, root: Path, samples: Path | None = None) -> None:
        """Make the samples, which takes seconds, in a process of its own; or take those that are there."""
        self._root, self.samples = root, samples or root / "samples"
        self.box, self._streams = root / "box", root / "streams"
        if samples is None:
            self._empty(self.samples, "")
            outcome = self._run(partial(make_samples), self.samples, b"", Limits(seconds=300))
            if outcome.status != 0:
                raise RuntimeError(f"the samples could not be made:\n{outcome.stderr}")

    def beside(self, number: int) -> "Sandbox":
        """Return another box with the same samples."""
        return Sandbox(self._root / str(number), self.samples)

    def names(self) -> set[str]:
        """Return the names of the samples."""
        return {path.name for path in self.samples.iterdir()}

    def read(self, path: str) -> tuple[str, bytes]:
        """Return path and content of the sample that a pattern names."""
        (found,) = self.samples.glob(path)
        return str(found.relative_to(self.samples)), found.read_bytes()

    def try_case(self, case: Case, limits: Limits) -> tuple[Outcome, Failure | None]:
        """Run a case, and return what came of it and what is wrong with that."""
        self._fill(case)
        before = tree(self.box)
        outcome = self._run(partial(act, case.command), self.box / "here", case.stdin, limits)
        return outcome, judge(outcome, before, tree(self.box), case.writes)

    def _run(self, action: partial[object], folder: Path, stdin: bytes, limits: Limits) -> Outcome:
        self._empty(self._streams, "")
        (self._streams / "stdin").write_bytes(stdin)
        return run_in_child(action, folder, self._streams, limits)

    def _fill(self, case: Case) -> None:
        """Put what a case needs into the box."""
        self._empty(self.box, "here", "home", "tmp")
        here = self.box / "here"
        words = {Path(word).parts[0] for word in (*case.command, *case.files, *case.needs) if Path(word).parts}
        for name in sorted(words & self.names()):
            source = self.samples / name
            if source.is_dir():
                shutil.copytree(source, here / name)
            else:
                shutil.copyfile(source, here / name)
        (self.box / "home" / "secret").write_text(SECRET, encoding="utf-8")
        for special in (Special.PIPE, Special.ENDLESS, Special.LOOP, Special.DANGLING):
            _put(here / special.value, special)
        for path, content in case.files.items():
            _put(here / path, content)

    @staticmethod
    def _empty(folder: Path, *inside: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for name in inside or ("",):
            (folder / name).mkdir(parents=True)


def _put(path: Path, content: Content) -> None:
    """Put a content at a path, in place of what is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    match content:
        case bytes():
            path.write_bytes(content)
        case Special.FOLDER:
            path.mkdir()
        case Special.PIPE:
            os.mkfifo(path)
        case Special.ENDLESS:
            _make_endless(path)
        case Special.LOOP:
            path.symlink_to(path.name)
        case Special.DANGLING:
            path.symlink_to("nowhere")


def _make_endless(path: Path) -> None:
    """Make a device as /dev/zero: for root a node of its own, since root could replace the real one."""
    if os.geteuid() != 0:
        path.symlink_to("/dev/zero")
    elif sys.platform == "linux":
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))


def tree(folder: Path) -> Tree:
    """Return what every path below a folder holds; for files a digest, for others what they are."""
    found: Tree = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(root, name)
            found[os.path.relpath(path, folder)] = _state(path)
    return found


def _state(path: str) -> str:
    status = os.lstat(path)
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            return f"{status.st_size} bytes, {hashlib.file_digest(file, 'blake2b').hexdigest()[:16]}"
    return os.readlink(path) if stat.S_ISLNK(status.st_mode) else stat.filemode(status.st_mode)
