"""The files that a training reads are those that were prepared for it: checked at its start, and before it writes.

resume/checksums.json   size and checksum of each, by its name in the run folder

Arrays of many pairs take seconds to read. Their content is checked while the training begins, and it writes nothing
before that is done.
"""

import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread

from msgspec import Struct

from glassformer.data.corpus import Corpus, damaged
from glassformer.data.kept import PREPARED, Fingerprint, KeptCorpora, fingerprint
from glassformer.decoding import check_regular, read_json
from glassformer.errors import RunError
from glassformer.files import followed, write_json
from glassformer.run.names import CHECKSUMS, CONFIG, METRICS, RESUME

CHECKED_FIRST = 1 << 26
"""Bytes that are checked before a training begins; where there are more, they are checked meanwhile."""


class _Checksums(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of checksums.json."""

    files: dict[str, Fingerprint]


def write_checksums(run: Path, known: Mapping[str, Fingerprint]) -> None:
    """Write the checksums of all files of a new run folder; those that are `known` aren't read once more.

    config.json is left out: a training that goes on with other settings writes them there.
    """
    paths = sorted(path for path in run.rglob("*") if path.is_file() and path.name != CONFIG)
    names = {path.relative_to(run).as_posix(): path for path in paths}
    files = {name: known[name] if name in known else fingerprint(path) for name, path in names.items()}
    write_json(run / RESUME / CHECKSUMS, {"files": files})


class Integrity:
    """The check of a run folder's files, whose failure is raised at once or by `wait`."""

    def __init__(self, run: Path) -> None:
        """Check that all files are there; RunError says which isn't, or isn't what it was, and what to do about it."""
        self._run = run
        self._done: Future[None] | None = None
        for path in (run / RESUME, *(run / RESUME).rglob("*")):
            if path.is_symlink():
                raise RunError(f"{path} is a link, and what training reads and writes must be its own: copy it there")
        if (run / METRICS).exists():
            check_regular(run / METRICS)
        path = run / RESUME / CHECKSUMS
        if path.exists():
            self._files = read_json(path, _Checksums).files
        else:
            self._files = dict[str, Fingerprint]()
            warnings.warn(f"{path} is missing, so it can't be known whether a file has changed", stacklevel=2)
        for name, (size, _) in self._files.items():
            if not (run / name).is_file():
                raise damaged(run / name, "it is missing")
            if (run / name).stat().st_size != size:
                raise damaged(run / name, "its size is another")

    def check(self, corpora: Mapping[str, Corpus], vocab_sizes: Sequence[int]) -> None:
        """Check the content of all files: RunError says what is wrong, at once or, if they are large, in `wait`."""
        self._done = Future()
        if sum(size for size, _ in self._files.values()) <= CHECKED_FIRST:
            self._check(self._done, corpora, vocab_sizes)
            self.wait()
        else:
            # A daemon: a training that is stopped doesn't wait for it.
            Thread(target=self._check, args=[self._done, corpora, vocab_sizes], daemon=True).start()

    def _check(self, done: Future[None], corpora: Mapping[str, Corpus], vocab_sizes: Sequence[int]) -> None:
        """Check the content of all files, and leave in `done` that it is whole, or what is wrong."""
        try:
            for name, expected in self._files.items():
                if fingerprint(self._run / name) != expected:
                    self._drop_kept()
                    raise damaged(self._run / name, "its checksum is another")
            for corpus in corpora.values():
                for side, vocab_size in zip((corpus.source, corpus.target), vocab_sizes, strict=True):
                    side.check_ids(vocab_size)
        except BaseException as error:  # of any class: `wait` raises it
            done.set_exception(error)
        else:
            done.set_result(None)

    def _drop_kept(self) -> None:
        """Remove what is kept for further runs if it is damaged too, as links are: else training anew would use it."""
        with suppress(OSError):  # a folder that may only be read: what is said is the damage
            KeptCorpora(followed(self._run).parent / PREPARED).drop_damaged()

    def wait(self) -> None:
        """Return when all is found whole; RunError says which file isn't."""
        if self._done is not None:
            self._done.result()
