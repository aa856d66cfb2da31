"""What the other tests rest on: the types of the library's calls are checked, and that changes nothing else."""

import random

import jaxtyping
import pytest

from glassformer.generation.consensus import by_agreement


def test_a_wrong_item_is_refused_and_random_is_left_as_it_was():
    before = random.getstate()
    assert by_agreement(["a b", "a b", "c d"])[-1] == 2
    with pytest.raises(jaxtyping.TypeCheckError, match="by_agreement"):
        by_agreement([1, 2, 3])
    assert random.getstate() == before
