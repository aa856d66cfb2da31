"""Allowances: each client may ask for so much a minute, and save up one minute's at most."""

MOST_CLIENTS = 10_000
"""Clients that are remembered before those are forgotten that have all of theirs again."""


class Allowance:
    """Count what each client may still have of something that comes at so many a minute; 0: any number."""

    def __init__(self, each_minute: int) -> None:
        self._most = each_minute
        self._left: dict[str, tuple[float, float]] = {}
        """Keep what each client has left, and when that was."""

    def take(self, client: str, count: int, now: float) -> float:
        """Take so many off; return the seconds after which there are enough, 0 if there were."""
        if not self._most:
            return 0.0
        if len(self._left) > MOST_CLIENTS:  # those who have saved up a whole minute again needn't be remembered
            self._left = {name: one for name, one in self._left.items() if self._now(one, now) < self._most}
        left = self._now(self._left.get(client, (float(self._most), now)), now)
        if left < min(count, self._most):
            return (min(count, self._most) - left) * 60 / self._most
        self._left[client] = left - count, now
        return 0.0

    def _now(self, one: tuple[float, float], now: float) -> float:
        left, then = one
        return min(float(self._most), left + (now - then) * self._most / 60)
