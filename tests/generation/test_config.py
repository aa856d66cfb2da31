import math
import re

import pytest

from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig


@pytest.mark.parametrize(
    ("penalty", "alpha", "length", "expected"),
    [("plain", 0.5, 4, 2.0), ("plain", 0.0, 5, 1.0), ("wu", 2.0, 13, 9.0), ("wu", 0.5, 19, 2.0)],
)
def test_normaliser_by_hand(penalty, alpha, length, expected):
    assert SearchConfig(penalty=penalty, length_penalty=alpha).normaliser(length) == pytest.approx(expected)


BOUNDS = {
    ("beam", "at least 1"): (0,),
    ("n_best", "at least 1"): (0,),
    ("max_length", "at least 1"): (-3,),
    ("max_source_tokens", "at least 2 (with </s>)"): (0,),
    ("batch_tokens", "at least 1"): (0,),
    ("length_penalty", "at least 0 and at most 20"): (-0.1, 21.0, math.nan),
    ("seed", "at least 0 and less than 2^32"): (-1, 1 << 32),
    ("penalty", "one of wu, plain"): ("wo",),
    ("stopping", "one of exact, heuristic, first"): ("last",),
    ("min_length", "at least 0"): (-1,),
    ("no_repeat_ngram", "at least 0"): (-2,),
    ("coverage_penalty", "at least 0 and finite"): (-0.5, math.nan, math.inf),
    ("temperature", "at least 1e-6 and at most 1e6"): (0.0, math.nan, math.inf),
    ("top_k", "at least 0"): (-1,),
    ("top_p", "above 0 and at most 1"): (0.0, 1.1),
}
NO_BEAM = "coverage_penalty chooses among the hypotheses of a beam: it needs a `beam` above 1, and no `sample`"
NOTHING_TO_CHOOSE = (
    "`consensus` chooses among several translations: it needs a `beam` above 1, or `sample` with n_best above 1"
)
TOGETHER = [
    (dict(beam=2, n_best=3), "n_best must be at most the beam, got n_best 3 and beam 2"),
    (dict(min_length=8, max_length=7), "min_length must be at most max_length, got min_length 8, max_length 7"),
    (dict(coverage_penalty=0.5, beam=1), NO_BEAM),
    (dict(coverage_penalty=0.5, sample=True), NO_BEAM),
    (dict(consensus=True, beam=1), NOTHING_TO_CHOOSE),
    (dict(consensus=True, sample=True), NOTHING_TO_CHOOSE),
    (dict(temperature=0.7), "temperature is for draws: give `sample` too, or leave it out"),
    (dict(top_k=3, top_p=0.9), "top_k is for draws: give `sample` too, or leave it out"),
]


@pytest.mark.parametrize(
    ("settings", "message"),
    TOGETHER
    + [
        ({name: value}, f"{name} must be {bound}, got {value!r}")
        for (name, bound), values in BOUNDS.items()
        for value in values
    ],
)
def test_a_setting_that_cannot_work_says_which_and_what_came(settings, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        SearchConfig(**settings)


def test_draws_may_be_more_than_the_beam():
    assert SearchConfig(sample=True, beam=1, n_best=7).n_best == 7
