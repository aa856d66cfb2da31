"""Fields in the docstrings of dataclasses."""

from dataclasses import fields

import pytest

from glassformer import ModelConfig, PruneConfig, SearchConfig, TrainConfig, Want
from glassformer.docstrings import FIELDS, field_docs


@pytest.mark.parametrize("kind", [ModelConfig, PruneConfig, SearchConfig, TrainConfig, Want])
def test_every_field_is_described_where_help_shows_it(kind):
    text, found, described = (kind.__doc__ or "").partition(f"\n\n{FIELDS}\n")
    assert text
    assert found
    docs = field_docs(kind)
    assert list(docs) == [field.name for field in fields(kind)]
    assert all(docs.values()), "a field without a docstring"
    for name, doc in docs.items():
        assert f"{name}: {doc}" in " ".join(described.split())
