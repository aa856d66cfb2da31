"""The translator of the samples' run, in float32: its results don't depend on how lines are chunked."""

from pathlib import Path

import pytest

from glassformer.generation.translator import Translator


@pytest.fixture(scope="session")
def translator(samples: Path) -> Translator:
    return Translator.load(samples / "run", "cpu", "float32")
