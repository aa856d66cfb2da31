"""Fields in the docstrings of dataclasses."""

from dataclasses import dataclass, fields

import pytest

from glassformer import (
    BacktranslateConfig,
    DistillConfig,
    ModelConfig,
    PruneConfig,
    SearchConfig,
    TrainConfig,
    Want,
)
from glassformer.settings.docstrings import FIELDS, field_docs


@pytest.mark.parametrize(
    "kind", [BacktranslateConfig, DistillConfig, ModelConfig, PruneConfig, SearchConfig, TrainConfig, Want]
)
def test_every_field_is_described_where_help_shows_it(kind):
    text, found, described = (kind.__doc__ or "").partition(f"\n\n{FIELDS}\n")
    assert text
    assert found
    docs = field_docs(kind)
    assert list(docs) == [field.name for field in fields(kind)]
    assert all(docs.values()), "a field without a docstring"
    for name, doc in docs.items():
        assert f"{name}: {doc}" in " ".join(described.split())


@dataclass(frozen=True)
class Above:
    """The first of a line."""

    kept: int = 1
    """A number."""
    told_anew: int = 2
    """Some number."""


@dataclass(frozen=True)
class Below(Above):
    """The last of the line."""

    told_anew: int = 3
    """Another number."""


def test_a_field_of_a_class_above_is_described_there_or_anew():
    assert field_docs(Below) == {"kept": "A number.", "told_anew": "Another number."}
