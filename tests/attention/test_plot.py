import pytest
import torch

from glassformer.attention.observe import observe
from glassformer.attention.want import SUMMARY, Want
from glassformer.errors import ArgumentError

pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")

H, L = 3, 11
EVERYTHING = Want(
    entropy=True,
    received=True,
    distance=True,
    lse=True,
    top=2,
    rows=(0, 7),
    pooled=4,
    pooled_heads=4,
    head_mean=True,
    weights=True,
)


def seen(want: Want, batch: int = 2, heads: int = H, **masks):
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, heads, L, 5) for _ in range(3))
    return observe(q, k, v, want=want, **masks)[1]


def titles(figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_a_panel_for_each_fact(tmp_path):
    figure = seen(EVERYTHING).plot()
    assert titles(figure) == [
        "weights, mean of heads, summed in tiles",
        "weights, mean of heads",
        *(f"head {n}, summed in tiles" for n in range(H)),
        *(f"head {n}" for n in range(H)),
        "entropy of each query, nats",
        "how far a query looks, positions",
        "attention received by each key",
        "log-sum-exp of each query's scores",
        "largest weight of each query",
        "weights of single queries, mean of heads",
    ]
    assert figure.get_suptitle() == "entry 0 of 2"
    figure.savefig(tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000


def test_it_draws_the_numbers():
    one = seen(Want(entropy=True, head_mean=True))[1]
    figure = one.plot()
    pictures = {axes.get_title(): axes.images[0].get_array() for axes in figure.axes if axes.get_title()}
    assert torch.equal(torch.from_numpy(pictures["entropy of each query, nats"].data), one.entropy)
    assert torch.equal(torch.from_numpy(pictures["weights, mean of heads"].data), one.head_mean)
    assert figure.get_suptitle() == ""


def test_what_is_nowhere_seen_is_left_blank(tmp_path):
    keep = torch.ones(1, 1, L, L, dtype=torch.bool)
    keep[:, :, 3] = False
    figure = seen(SUMMARY, keep=keep).plot()
    lse = next(axes.images[0].get_array() for axes in figure.axes if "log-sum-exp" in axes.get_title())
    assert lse.mask[:, 3].all()
    figure.savefig(tmp_path / "blank.png")
    nothing = seen(SUMMARY, keep=torch.zeros(1, 1, 1, L, dtype=torch.bool)).plot()
    nothing.savefig(tmp_path / "nothing.png")


def test_many_heads_are_cut_and_it_says_so():
    figure = seen(Want(pooled_heads=2), batch=1, heads=20).plot()
    assert len(titles(figure)) == 16
    assert figure.get_suptitle() == "maps of the first 16 heads"


def test_nothing_to_plot_is_an_error():
    with pytest.raises(ArgumentError, match="there is nothing to plot: observe"):
        seen(Want()).plot()
    with pytest.raises(ArgumentError, match="the batch is empty"):
        seen(SUMMARY)[0:0].plot()
