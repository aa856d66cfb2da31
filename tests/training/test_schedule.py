import math

import pytest

from glassformer.training.schedule import cooled, inverse_square_root


@pytest.mark.parametrize("update", [1, 3999, 4000, 4001, 100_000])
def test_equals_equation_3_of_the_paper(update):
    d_model, warmup = 512, 4000
    paper = d_model**-0.5 * min(update**-0.5, update * warmup**-1.5)
    assert inverse_square_root(update, peak=1 / math.sqrt(d_model * warmup), warmup=warmup) == pytest.approx(paper)


@pytest.mark.parametrize(
    ("done", "share", "factor"),
    [(0.0, 0.25, 1.0), (0.75, 0.25, 1.0), (0.875, 0.25, 0.5), (1.0, 0.25, 0.0), (0.5, 1.0, 0.5), (1.0, 0.0, 1.0)],
)
def test_cooled_falls_to_nothing_over_the_last_share(done, share, factor):
    assert cooled(done, share) == pytest.approx(factor)
