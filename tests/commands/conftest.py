"""The translator of the samples' run, in float32: its results don't depend on how lines are chunked."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from glassformer.generation.translator import Translator


@pytest.fixture(scope="session")
def translator(samples: Path) -> Translator:
    return Translator.load(samples / "run", "cpu", "float32")


@contextmanager
def _stopping() -> Iterator[None]:
    """A Ctrl-C comes before the translation of the third chunk."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    calls = iter([Translator.translate_n_best] * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "translate_n_best", lambda *given, **more: next(calls, stop)(*given, **more))
        yield


@pytest.fixture
def stopping() -> Callable[[], AbstractContextManager[None]]:
    return _stopping
