"""Hold what the routes share: the runs, their workers, the limits, and the way from a request to its answer."""

import math
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from glassformer.errors import printable
from glassformer.generation.config import SearchConfig
from glassformer.serve.config import ServeConfig
from glassformer.serve.guard.allowance import Allowance
from glassformer.serve.guard.visits import Visit
from glassformer.serve.languages import ServedRun
from glassformer.serve.meters import Meters
from glassformer.serve.schemas import AttentionWanted, Choosing
from glassformer.serve.workers.messages import Answer, Event, Facts, Refusal, Request
from glassformer.serve.workers.pool import Pool

_ENDS = re.compile(r"[\n\r]")


class Service:
    """The runs that are served, by name, and what a request may ask of them."""

    def __init__(
        self, config: ServeConfig, runs: Sequence[ServedRun], pools: Mapping[str, Pool], meters: Meters
    ) -> None:
        self.config = config
        self.runs = {run.name: run for run in runs}
        self.pools = dict(pools)
        self.meters = meters
        self._pairs = {(run.source, run.target): run for run in runs if run.source}
        self._allowance = Allowance(config.max_chars_per_minute)

    @property
    def is_ready(self) -> bool:
        """Return whether each run has a worker that is ready, which has translated something."""
        return all(pool.ready is not None for pool in self.pools.values())

    # Which run

    def chosen(self, wanted: Choosing) -> ServedRun:
        """Return the run that a request chooses: by name, by its languages, or the only one."""
        if wanted.run is not None:
            if (run := self.runs.get(wanted.run)) is None:
                raise Refusal("unknown_run", f"there is no such run: there are {self._shown(self.runs)}")
            its = {"source": run.source, "target": run.target}
            for side, language in its.items():
                if language and getattr(wanted, side) not in (None, "", language):
                    raise Refusal("invalid", f"{side} must be that of the run, {printable(language)}: or leave out run")
            return run
        if wanted.source and wanted.target:
            return self.for_pair(wanted.source, wanted.target)
        fitting = [
            run
            for run in self.runs.values()
            if wanted.source in (None, "", run.source) and wanted.target in (None, "", run.target)
        ]
        if len(fitting) != 1:
            raise Refusal("unknown_run", f"name a run, or source and target: there are {self._shown(self.runs)}")
        return fitting[0]

    def for_pair(self, source: str, target: str) -> ServedRun:
        """Return the run that translates a language to another."""
        if (source, target) in self._pairs:
            return self._pairs[source, target]
        self._check_languages()
        for code, place in ((source, 0), (target, 1)):
            known = sorted({pair[place] for pair in self._pairs})
            if code not in known:
                raise Refusal("unknown_language", f"{('source', 'target')[place]} must be one of {self._shown(known)}")
        raise Refusal("unknown_language", f"this pair is not translated: {self._shown(map('-'.join, self._pairs))} are")

    def _check_languages(self) -> None:
        """Raise Refusal where no run says its languages: then none can be asked for."""
        if not self._pairs:
            raise Refusal(
                "unknown_language",
                "no run of this server says its languages: whoever runs it names them with "
                "--languages RUN=SOURCE-TARGET",
            )

    def for_target(self, target: str) -> ServedRun:
        """Return the only run that translates to a language."""
        self._check_languages()
        runs = [run for pair, run in self._pairs.items() if pair[1] == target]
        if not runs:
            raise Refusal(
                "unknown_language", f"target must be one of {self._shown(sorted({p[1] for p in self._pairs}))}"
            )
        if len(runs) > 1:
            sources = self._shown(sorted(run.source for run in runs))
            raise Refusal("unknown_language", f"source can't be auto for this target: it may be {sources}")
        return runs[0]

    def only_source(self) -> str:
        """Return the language that all runs translate from."""
        self._check_languages()
        sources = sorted({source for source, _ in self._pairs})
        if len(sources) != 1:
            raise Refusal(
                "unknown_language", f"languages are not detected: name the source, which may be {self._shown(sources)}"
            )
        return sources[0]

    def _shown(self, names: Any) -> str:
        return printable(", ".join(list(names)[:20])) or "none"

    # How much

    def admit(self, run: ServedRun, visit: Visit, lines: Sequence[str]) -> None:
        """Raise Refusal for lines that are too many or too long, or more than their client may have translated now.

        Where the run has no room for them, they are refused before they count.
        """
        config = self.config
        if len(lines) > config.max_lines:
            raise Refusal("too_many_lines", f"q may have at most {config.max_lines:,} lines, got {len(lines):,}")
        for number, line in enumerate(lines, start=1):
            if len(line) > config.max_line_chars:
                where = f"line {number}" if len(lines) > 1 else "the line"
                most = f"at most {config.max_line_chars:,}"
                raise Refusal("too_long", f"{where} has {len(line):,} characters, and may have {most}: split it")
        self.check_chars(lines)
        self.note(visit, lines)
        self.pools[run.name].check_room()
        self.allow(visit)

    def check_chars(self, texts: Sequence[str]) -> None:
        """Raise Refusal for texts that have too many characters together."""
        total, most = sum(map(len, texts)), self.config.max_chars
        if total > most:
            raise Refusal("too_long", f"a request may have at most {most:,} characters, got {total:,}")

    def note(self, visit: Visit, lines: Sequence[str]) -> None:
        """Note the size of a request for the log and the counters, and its text where the log has that too."""
        visit.lines, visit.chars = len(lines), sum(map(len, lines))
        if self.config.log_text:
            visit.text = list(lines)

    def allow(self, visit: Visit) -> None:
        """Count the characters of a request; Refusal where its client has had those of this minute."""
        if wait := self._allowance.take(visit.key, visit.chars, time.monotonic()):
            most = self.config.max_chars_per_minute
            raise Refusal(
                "too_many", f"at most {most:,} characters a minute are translated for a client", math.ceil(wait)
            )

    def check_line(self, line: str, name: str = "q") -> None:
        """Raise Refusal for a text that is not one line."""
        if _ENDS.search(line):
            raise Refusal("invalid", f"{name} has an end of line within a line: send a list with an entry for each")
        if "\0" in line:
            raise Refusal("invalid", f"{name} has the character NUL, which is no text: leave it out")

    def search(
        self,
        *,
        beam: int | None = None,
        n_best: int = 1,
        max_length: int | None = None,
        length_penalty: float = SearchConfig.length_penalty,
    ) -> dict[str, Any]:
        """Return a message's fields of the search; Refusal for one that is wider or longer than is allowed.

        What a request leaves out is the default, or the limit where that is less.
        """
        config, default = self.config, SearchConfig()
        if beam is None:
            beam = max(n_best, min(default.beam, config.max_beam))
        if max_length is None:
            max_length = min(default.max_length, config.max_length)
        for name, value, most in (
            ("n_best", n_best, config.max_n_best),
            ("beam", beam, config.max_beam),
            ("max_length", max_length, config.max_length),
        ):
            if value > most:
                raise Refusal("invalid", f"{name} must be at most {most}, got {value}")
        if n_best > beam:
            raise Refusal("invalid", f"n_best must be at most the beam, got n_best {n_best} and beam {beam}")
        return dict(beam=beam, n_best=n_best, max_length=max_length, length_penalty=length_penalty)

    # The answer

    async def ask(
        self, run: ServedRun, kind: type[Request], seconds: float | None = None, **fields: Any
    ) -> list[dict[str, Any]]:
        """Return a worker's answer, within so many seconds or else the deadline."""
        return await self.pools[run.name].ask(kind, seconds or self.config.deadline_seconds, **fields)

    def follow(self, run: ServedRun, kind: type[Request], **fields: Any) -> AsyncGenerator[Event | Answer]:
        """Yield what a worker says on the way to an answer, and the answer."""
        return self.pools[run.name].follow(kind, self.config.deadline_seconds, **fields)


def facts_of(wanted: AttentionWanted | None) -> Facts | None:
    """Return the attention that is wanted as a worker is asked for it."""
    if wanted is None:
        return None
    return Facts(
        stacks=list(wanted.stacks),
        layers=None if wanted.layers is None else list(wanted.layers),
        facts=None if wanted.facts is None else list(wanted.facts),
        top=wanted.top,
    )
