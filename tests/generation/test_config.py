import math
import re

import pytest

from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig


@pytest.mark.parametrize(
    ("penalty", "alpha", "length", "expected"),
    [
        ("plain", 1.0, 7, 7.0),
        ("plain", 0.5, 4, 2.0),
        ("plain", 2.0, 3, 9.0),
        ("plain", 0.0, 5, 1.0),
        ("wu", 1.0, 7, 2.0),
        ("wu", 0.6, 1, 1.0),
        ("wu", 2.0, 13, 9.0),
        ("wu", 0.5, 19, 2.0),
        ("wu", 0.0, 5, 1.0),
    ],
)
def test_normaliser_by_hand(penalty, alpha, length, expected):
    assert SearchConfig(penalty=penalty, length_penalty=alpha).normaliser(length) == pytest.approx(expected)


NOTHING_TO_CHOOSE = "consensus chooses among several translations: it needs beam above 1, or sample with n_best above 1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(beam=0), "beam must be at least 1, got 0"),
        (dict(n_best=0), "n_best must be at least 1, got 0"),
        (dict(max_length=-3), "max_length must be at least 1, got -3"),
        (dict(max_source_tokens=0), "max_source_tokens must be at least 2 (with </s>), got 0"),
        (dict(batch_tokens=0), "batch_tokens must be at least 1, got 0"),
        (dict(beam=2, n_best=3), "n_best must be at most the beam, got n_best 3 and beam 2"),
        (dict(length_penalty=-0.1), "length_penalty must be at least 0 and at most 20, got -0.1"),
        (dict(length_penalty=math.nan), "length_penalty must be at least 0 and at most 20, got nan"),
        (dict(seed=-1), "seed must be at least 0 and less than 2^32, got -1"),
        (dict(seed=1 << 32), "seed must be at least 0 and less than 2^32, got 4294967296"),
        (dict(penalty="wo"), "penalty must be one of wu, plain, got 'wo'"),
        (dict(stopping="last"), "stopping must be one of exact, heuristic, first, got 'last'"),
        (dict(min_length=-1), "min_length must be at least 0, got -1"),
        (dict(no_repeat_ngram=-2), "no_repeat_ngram must be at least 0, got -2"),
        (dict(min_length=8, max_length=7), "min_length must be at most max_length, got min_length 8, max_length 7"),
        (dict(coverage_penalty=-0.5), "coverage_penalty must be at least 0 and finite, got -0.5"),
        (dict(coverage_penalty=math.nan), "coverage_penalty must be at least 0 and finite, got nan"),
        (
            dict(coverage_penalty=0.5, beam=1),
            "coverage_penalty chooses among the hypotheses of a beam: it needs beam above 1, no sample",
        ),
        (
            dict(coverage_penalty=0.5, sample=True),
            "coverage_penalty chooses among the hypotheses of a beam: it needs beam above 1, no sample",
        ),
        (dict(temperature=0.0), "temperature must be at least 1e-6 and at most 1e6, got 0.0"),
        (dict(temperature=math.inf), "temperature must be at least 1e-6 and at most 1e6, got inf"),
        (dict(length_penalty=21.0), "length_penalty must be at least 0 and at most 20, got 21.0"),
        (dict(consensus=True, beam=1), NOTHING_TO_CHOOSE),
        (dict(consensus=True, sample=True), NOTHING_TO_CHOOSE),
        (dict(coverage_penalty=math.inf), "coverage_penalty must be at least 0 and finite, got inf"),
        (dict(temperature=math.nan), "temperature must be at least 1e-6 and at most 1e6, got nan"),
        (dict(top_k=-1), "top_k must be at least 0, got -1"),
        (dict(top_p=0.0), "top_p must be above 0 and at most 1, got 0.0"),
        (dict(top_p=1.1), "top_p must be above 0 and at most 1, got 1.1"),
    ],
)
def test_a_setting_that_cannot_work_says_which_and_what_came(settings, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        SearchConfig(**settings)


def test_draws_may_be_more_than_the_beam():
    assert SearchConfig(sample=True, beam=1, n_best=7).n_best == 7
