"""The search for failures: hypothesis draws cases, and makes small what fails; each kind of failure is told once."""

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic

from cases import Case
from children import Limits, Outcome
from flags import limits_of
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisWarning
from oracle import INTERRUPTED, TOO_LONG, Failure
from sandbox import Sandbox
from targets import Target

MOST_SHRINKS = 60
"""Cases that are tried to make a failing one smaller."""
SLOW = 3.0
"""Seconds from which on a failing case is taken as it is."""

Say = Callable[[Case, Failure, Path | None], None]


class FoundError(Exception):
    """A case fails in a way that is new."""


class Search:
    """Tries cases, and counts those that were tried and those that failed."""

    def __init__(self, sandbox: Sandbox, say: Say) -> None:
        """`say` is called with each failure of a new kind, and with the file that keeps its case."""
        self.tried = Counter[str]()
        self.failures = Counter[str]()
        self.seconds = Counter[str]()
        self.kinds = set[tuple[str, Failure]]()
        """Targets, and the ways in which they failed."""
        self._sandbox, self._say = sandbox, say
        self._passed = set[Case]()

    def beside(self, number: int) -> "Search":
        """Return a search with a box of its own, which knows the same failures and has counted nothing."""
        other = Search(self._sandbox.beside(number), self._say)
        other.kinds |= self.kinds
        return other

    def add(self, tried: Counter[str], failures: Counter[str], seconds: Counter[str]) -> None:
        """Add what another search has counted."""
        self.tried += tried
        self.failures += failures
        self.seconds += seconds

    def try_kept(self, path: Path, case: Case) -> None:
        """Try a case that failed before."""
        _, failure = self._try(case)
        if failure is not None:
            self.kinds.add((case.target, failure))
            self._say(case, failure, path)

    def try_good(self, target: Target, number: int) -> None:
        """Try one of a target's cases that must succeed, another for another number."""
        case = target.good[number % len(target.good)]
        outcome, failure = self._try(case)
        if failure is None and outcome.status not in (0, INTERRUPTED):
            failure = Failure("refuses what is good", outcome.stderr[-200:])
            self.failures[case.target] += 1
        if failure is not None and (case.target, failure) not in self.kinds:
            self._tell({case: failure})
            self.kinds.add((case.target, failure))

    def try_target(self, target: Target, count: int, number: int, deadline: float | None) -> None:
        """Try so many cases of a target, the same for the same number, unless the deadline comes first."""
        failing: dict[Case, Failure] = {}
        """The cases of a new kind of failure, the first one and smaller ones."""

        def try_case(case: Case) -> None:
            if self._shows_more(case, failing) if failing else self._fails_anew(case, failing, deadline):
                raise FoundError  # the only place: hypothesis takes what is raised elsewhere for another failure

        usual = settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HypothesisWarning)  # of cases that take many words to print
                seed(number)(usual(given(target.cases)(try_case)))()
        except FoundError:
            self._tell(failing)

    def _fails_anew(self, case: Case, failing: dict[Case, Failure], deadline: float | None) -> bool:
        """Return whether a case fails in a new way, and is to be made smaller."""
        if deadline is not None and monotonic() > deadline:
            return False
        outcome, failure = self._try(case)
        if failure is None or (case.target, failure) in self.kinds:
            return False
        self.kinds.add((case.target, failure))
        if outcome.seconds > SLOW:
            self._tell({case: failure})
            return False
        failing[case] = failure
        self._passed.clear()
        return True

    def _shows_more(self, case: Case, failing: dict[Case, Failure]) -> bool:
        """Return whether another case fails in the same way as these; those that were tried are remembered."""
        if case in failing:
            return True
        if len(failing) + len(self._passed) > MOST_SHRINKS or case in self._passed:
            return False
        _, failure = self._sandbox.try_case(case, self._limits(case))
        if failure == next(iter(failing.values())):
            failing[case] = failure
            return True
        self._passed.add(case)
        return False

    def _tell(self, failing: dict[Case, Failure]) -> None:
        """Keep the smallest of the failing cases, and say so."""
        case, failure = min(failing.items(), key=lambda one: len(one[0].to_json()))
        self._say(case, failure, case.keep())

    def _try(self, case: Case) -> tuple[Outcome, Failure | None]:
        outcome, failure = self._sandbox.try_case(case, self._limits(case))
        self.tried[case.target] += 1
        self.failures[case.target] += failure is not None
        self.seconds[case.target] += outcome.seconds
        return outcome, failure

    def _limits(self, case: Case) -> Limits:
        """Return what a case may take: less time where another of its target took too long already."""
        limits = limits_of(case)
        return replace(limits, seconds=SLOW) if (case.target, TOO_LONG) in self.kinds else limits
