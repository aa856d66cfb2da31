import copy
import math
import pickle
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.attention.observation import Observation, Top
from glassformer.attention.observe import observe
from glassformer.attention.want import SUMMARY, Want
from glassformer.errors import ArgumentError

B, H, Q, K, D, M = 2, 3, 5, 7, 11, 2  # distinct primes: a swapped axis cannot pass
FLAGS = ("entropy", "received", "distance", "lse", "max_score", "head_mean", "weights")
MASS, ALIGNED = torch.arange(K) % 3 == 0, torch.eye(Q, K, dtype=torch.bool)[None]
WANT = Want(
    **dict.fromkeys(FLAGS, True),
    **{"sink": M, "mass": MASS[None, None, None], "agreement": ALIGNED, "top": M},
    **{"rows": (1,), "pooled": 3, "pooled_heads": 4},
)
SHAPES = {
    **dict.fromkeys(("entropy", "distance", "lse", "max_score", "sink", "mass"), (B, H, Q)),
    "agreement": (B, H),
    **dict.fromkeys(("top", "top_keys"), (B, H, Q, M)),
    "received": (B, H, K),
    "rows": (B, H, 1, K),
    "pooled": (B, 3, 3),
    "pooled_heads": (B, H, 3, 4),
    "head_mean": (B, Q, K),
    "weights": (B, H, Q, K),
}


def see(want: Want = WANT, dtype: torch.dtype = torch.float32, **given: object) -> Observation:
    q, k, v = (torch.randn(B, H, n, D, dtype=dtype, requires_grad=True) for n in (Q, K, K))
    return observe(q, k, v, want=want, **given)[1]


def tensors(seen: Observation) -> dict[str, Tensor]:
    found = {name: getattr(seen, name) for name in seen.want.asked if name != "top"}
    return {**found, "top": seen.top.weights, "top_keys": seen.top.keys} if seen.want.top else found


def assert_same(seen: Observation, expected: dict[str, Tensor]) -> None:
    found = tensors(seen)
    assert found.keys() == expected.keys()
    assert all(torch.equal(x, expected[name]) for name, x in found.items())


def test_each_fact_is_a_tensor_of_its_name():
    seen = see()
    assert {name: tuple(x.shape) for name, x in tensors(seen).items()} == SHAPES
    assert isinstance(seen.top, Top)
    assert seen.top.keys.dtype == torch.int64
    assert seen.want is WANT


# Indexing by batch


@pytest.mark.parametrize("entry", [0, 1, -1, -2])
def test_one_entry_has_no_batch_axis(entry):
    seen = see()
    assert seen[entry].batch is None
    assert_same(seen[entry], {name: x[entry] for name, x in tensors(seen).items()})


@pytest.mark.parametrize(
    "entries", [slice(1, None), slice(None, None, 2), slice(0, 0), [1, 0, 1], torch.tensor([1])], ids=str
)
def test_several_entries_keep_it(entries):
    seen = see()
    assert len(seen[entries]) == seen[entries].batch == len(torch.arange(B)[entries])
    assert_same(seen[entries], {name: x[entries] for name, x in tensors(seen).items()})


@pytest.mark.parametrize("want", [Want(**{n: getattr(WANT, n)}) for n in WANT.asked], ids=lambda want: want.asked[0])
def test_the_batch_is_known_from_any_fact(want):
    seen = see(want)
    assert len(seen) == seen.batch == B
    assert seen[0].batch is None


def test_iteration_goes_through_the_batch():
    seen = see()
    for one, entropy in zip(seen, seen.entropy, strict=True):
        assert torch.equal(one.entropy, entropy)


@pytest.mark.parametrize("entry", [B, -B - 1])
def test_entries_that_do_not_exist_are_an_index_error(entry):
    with pytest.raises(IndexError, match=f"entry {entry} of a batch of 2"):
        see()[entry]


@pytest.mark.parametrize("entries", [0, slice(0, 1), [0]], ids=str)
def test_one_entry_cannot_be_indexed(entries):
    # Its first axis is the heads of one fact and the tiles of another.
    with pytest.raises(ArgumentError, match="this is the Observation of one entry already: index its tensors"):
        see()[0][entries]


@pytest.mark.parametrize("count", [len, list])
def test_one_entry_has_no_length(count):
    with pytest.raises(TypeError, match="the Observation of one entry has no length"):
        count(see()[0])


# What wasn't asked for


WISHES = {
    **dict.fromkeys(FLAGS, "True"),
    **dict.fromkeys(("sink", "top", "pooled", "pooled_heads"), "8"),
    **{"rows": r"\(0,\)", "mass": "mask", "agreement": "alignment"},
}


@pytest.mark.parametrize("name", WISHES)
def test_a_fact_not_asked_for_says_how_to_ask(name):
    seen, wish = see(Want()), rf"{name}={WISHES[name]}"
    unfit = ", or not for these lengths" if name in ("rows", "mass", "agreement") else ""
    with pytest.raises(
        AttributeError, match=rf"^{name} was not asked for{unfit}: add {wish} to the Want that you give$"
    ):
        getattr(seen, name)
    assert not hasattr(seen, name)


@pytest.mark.parametrize("name", ["entropie", "row_heads"])
def test_another_name_says_which_there_are(name):
    with pytest.raises(AttributeError, match=f"an Observation has no '{name}'; this one has entropy, lse$"):
        getattr(see(Want(entropy=True, lse=True)), name)


# Elsewhere


def test_detached_it_has_no_graph():
    seen = see()
    assert all(x.requires_grad for name, x in tensors(seen).items() if name != "top_keys")
    assert not any(x.requires_grad for x in tensors(seen.detach()).values())
    assert_same(seen.detach(), tensors(seen))


def test_to_another_device():
    moved = see().to("meta")
    assert {x.device.type for x in tensors(moved).values()} == {"meta"}
    assert {name: tuple(x.shape) for name, x in tensors(moved).items()} == SHAPES


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copy_and_pickle(again):
    seen = see().detach()
    assert again(seen).want == WANT
    assert_same(again(seen), tensors(seen))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_to_numpy(dtype):
    seen = see(dtype=dtype)
    found = seen.to_numpy()
    assert {name: x.shape for name, x in found.items()} == SHAPES
    maps = {torch.float64: np.float64, torch.float16: np.float16}.get(dtype, np.float32)
    numbers = np.float64 if dtype == torch.float64 else np.float32
    for name, x in found.items():
        expected = np.int64 if name == "top_keys" else maps if name in ("head_mean", "weights") else numbers
        assert x.dtype == expected
        np.testing.assert_array_equal(x, tensors(seen)[name].detach().double().numpy())


def test_to_pandas():
    pytest.importorskip("pandas", reason="needs pandas: pip install 'glassformer[pandas]'")
    seen = see()
    columns = {"entropy": seen.entropy, "distance": seen.distance, "lse": seen.lse}
    columns |= {"max_score": seen.max_score, "sink": seen.sink, "mass": seen.mass}
    for name, of_top in (("top", seen.top.weights), ("top_keys", seen.top.keys)):
        columns |= {f"{name}_{n + 1}": of_top[..., n] for n in range(M)}
    tables = seen.to_pandas()
    assert set(tables) == {"queries", "keys", "heads"}
    for axis, table, expected in (
        (["query"], tables["queries"], columns),
        (["key"], tables["keys"], {"received": seen.received}),
        ([], tables["heads"], {"agreement": seen.agreement}),
    ):
        assert list(table.index.names) == ["entry", "head", *axis]
        assert list(table.columns) == list(expected)
        for name, x in expected.items():
            assert len(table) == x.numel()
            assert all(table[name][place] == number for place, number in np.ndenumerate(x.detach().numpy()))


def test_to_pandas_of_one_entry_and_of_maps():
    pytest.importorskip("pandas", reason="needs pandas: pip install 'glassformer[pandas]'")
    seen = see()
    queries = seen[1].to_pandas()["queries"]
    assert queries.index.get_level_values("entry").unique().tolist() == [0]
    assert queries["entropy"].tolist() == pytest.approx(seen.entropy[1].flatten().tolist())
    assert seen[1].to_pandas()["heads"]["agreement"].tolist() == pytest.approx(seen.agreement[1].tolist())
    assert set(see(Want(received=True)).to_pandas()) == {"keys"}
    assert see(Want(weights=True, pooled=2)).to_pandas() == {}


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas needs pandas: pip install 'glassformer\[pandas\]'"):
        see().to_pandas()


# As text


def by_hand() -> Observation:
    """2 heads, 2 queries, 3 keys; query 1 of head 1 sees nothing."""
    found = {
        "entropy": torch.tensor([[[0.5, 1.0], [0.25, 0.0]]]),
        "received": torch.tensor([[[0.5, 1.0, 0.5], [0.0, 0.25, 0.75]]]),
        "distance": torch.tensor([[[1.0, 1.0], [2.0, 0.0]]]),
        "lse": torch.tensor([[[-1.5, 2.0], [1.0, -math.inf]]]),
        "max_score": torch.tensor([[[-2.0, 1.5], [0.5, -math.inf]]]),
        "sink": torch.tensor([[[0.5, 0.75], [0.25, 0.0]]]),
        "mass": torch.tensor([[[1.0, 0.5], [0.0, 0.0]]]),
        "agreement": torch.tensor([[0.5, 0.25]]),
        "top": torch.tensor([[[[0.5, 0.25], [0.75, 0.125]], [[0.75, 0.25], [0.0, 0.0]]]]),
        "top_keys": torch.tensor([[[[0, 1], [1, 2]], [[2, 1], [-1, -1]]]]),
        "pooled": torch.zeros(1, 2, 3),
    }
    names = ("entropy", "received", "distance", "lse", "max_score")
    masks = {"mass": torch.ones(1, 1, 1, 3, dtype=torch.bool), "agreement": torch.ones(1, 2, 3, dtype=torch.bool)}
    return Observation(found, Want(**dict.fromkeys(names, True), **masks, sink=1, top=2, pooled=3), batch=1)


def test_its_text_is_a_line_for_each_fact():
    assert repr(by_hand()).splitlines() == [
        "Observation of a batch of 1",
        "  entropy      0.58 nats on average; head 1 0.25, head 0 0.75  (1 x 2 x 2)",
        "  received     most by key 1 of head 0: 50.0% of that head's attention  (1 x 2 x 3)",
        "  distance     1.33 positions on average; head 0 1.00, head 1 2.00  (1 x 2 x 2)",
        "  lse          -1.50 to 2.00  (1 x 2 x 2)",
        "  max_score    -2.00 to 1.50  (1 x 2 x 2)",
        "  sink         50.0% of a query's weight on average; head 1 25.0%, head 0 62.5%  (1 x 2 x 2)",
        "  mass         50.0% of a query's weight on average; head 1 0.0%, head 0 75.0%  (1 x 2 x 2)",
        "  agreement    37.5% of an aligned query's weight on average; head 1 25.0%, head 0 50.0%  (1 x 2)",
        "  top          the first 50.0%, all 2 65.6% of a query's weight  (1 x 2 x 2 x 2)",
        "  pooled       1 x 2 x 3",
    ]
    assert repr(by_hand()[0]).splitlines()[:2] == [
        "Observation of one entry",
        "  entropy      0.58 nats on average; head 1 0.25, head 0 0.75  (2 x 2)",
    ]


def test_its_text_names_a_head_once_where_all_are_alike():
    q = torch.zeros(1, 2, 2, 4)
    _, seen = observe(q, q, q, want=Want(mass=torch.ones(1, 1, 1, 2, dtype=torch.bool)))
    line = "  mass         100.0% of a query's weight on average; head 0 100.0%  (1 x 2 x 2)"
    assert repr(seen).splitlines()[1:] == [line]


def test_its_text_has_every_fact_that_was_wanted():
    seen = see()
    for of, first in ((seen, "a batch of 2"), (seen[0], "one entry"), (seen[0:0], "a batch of 0")):
        lines = repr(of).splitlines()
        assert lines[0] == f"Observation of {first}"
        assert sorted(line.split()[0] for line in lines[1:]) == sorted(WANT.asked)


def test_its_text_where_nothing_is_seen_or_wanted():
    keep = torch.zeros(1, 1, 1, K, dtype=torch.bool)
    assert "lse          nothing seen" in repr(see(SUMMARY, keep=keep))
    assert repr(see(Want())) == "Observation of nothing: want=Want() asks for nothing"


NO_ENTRY = "an Observation is indexed by an entry, a slice or a list of them, got"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        *((x, NO_ENTRY) for x in ((0, 1), None, Ellipsis, 1.0, True, torch.zeros(2, 2, dtype=torch.long))),
        ("entropy", r"facts are attributes: \.entropy$"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_only_entries_index_it(entries, message):
    with pytest.raises(ArgumentError, match=message):
        see()[entries]


def test_facts_complete_in_a_shell():
    assert {"entropy", "top", "plot"} <= set(dir(see(Want(entropy=True, top=2))))
    assert "received" not in dir(see(Want(entropy=True)))


# As a picture


def plotted(want: Want, **given: object) -> Observation:
    pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")
    return see(want, **given).detach()


def titles(figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


def panel(figure, title: str):
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def written(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_panel_for_each_fact(tmp_path):
    figure = plotted(WANT).plot()
    assert titles(figure) == [
        "weights, mean of heads, summed in tiles",
        "weights, mean of heads",
        *(f"head {n}, summed in tiles" for n in range(H)),
        *(f"head {n}" for n in range(H)),
        "entropy of each query, nats",
        "how far each query looks, positions",
        "attention received by each key",
        "log-sum-exp of each query's scores",
        "largest score of each query",
        "weight of each query on the first keys",
        "weight of each query inside the mask",
        "largest weight of each query",
        "weights of single queries, mean of heads",
        "weight of aligned queries on their keys",
    ]
    assert figure.get_suptitle() == "entry 0 of 2"
    figure.savefig(tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000


def test_it_draws_the_numbers():
    one = plotted(Want(entropy=True, head_mean=True))[1]
    figure = one.plot()
    for title, numbers in (("entropy of each query, nats", one.entropy), ("weights, mean of heads", one.head_mean)):
        assert torch.equal(torch.from_numpy(panel(figure, title).images[0].get_array().data), numbers)
    assert figure.get_suptitle() == ""


def test_agreement_is_a_bar_for_each_head():
    one = plotted(Want(agreement=ALIGNED))[1]
    bars = panel(one.plot(), "weight of aligned queries on their keys").patches
    assert [bar.get_height() for bar in bars] == pytest.approx(one.agreement.tolist())


def test_what_is_nowhere_seen_is_left_blank(tmp_path):
    keep = torch.ones(1, 1, Q, K, dtype=torch.bool)
    keep[:, :, 3] = False
    figure = plotted(SUMMARY, keep=keep).plot()
    lse = panel(figure, "log-sum-exp of each query's scores").images[0].get_array()
    assert lse.mask[:, 3].all()
    figure.savefig(tmp_path / "blank.png")
    nothing = plotted(SUMMARY, keep=torch.zeros(1, 1, 1, K, dtype=torch.bool)).plot()
    nothing.savefig(tmp_path / "nothing.png")


def test_many_heads_are_cut_and_it_says_so():
    pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")
    figure = observe(*torch.randn(3, 1, 20, Q, D), want=Want(pooled_heads=2))[1].plot()
    assert len(titles(figure)) == 16
    assert figure.get_suptitle() == "maps of the first 16 heads"


def test_tokens_stand_along_keys_and_queries(tmp_path):
    keys, queries = ["the", "$_{$", "dog", "", "▁sat", "down", "."], ["der", "Hund", "saß", "da", "."]
    want = Want(head_mean=True, entropy=True, received=True, rows=(1,), pooled=3)
    figure = plotted(want).plot(keys, queries)
    weights, entropy = panel(figure, "weights, mean of heads"), panel(figure, "entropy of each query, nats")
    assert (written(weights.xaxis), written(weights.yaxis)) == (keys, queries)
    assert {label.get_rotation() for label in weights.get_xticklabels()} == {90}
    assert written(entropy.xaxis) == queries
    assert written(panel(figure, "attention received by each key").xaxis) == keys
    rows = panel(figure, "weights of single queries, mean of heads")
    assert written(rows.xaxis) == keys
    assert [text.get_text() for text in rows.get_legend().get_texts()] == ["query 1 “Hund”"]
    tiles = panel(figure, "weights, mean of heads, summed in tiles")
    figure.savefig(tmp_path / "tokens.png")
    assert "the" not in written(tiles.xaxis)


@pytest.mark.parametrize(("length", "left_out"), [(40, False), (41, True)])
def test_many_tokens_are_left_out(length, left_out):
    pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")
    _, seen = observe(*torch.randn(3, 1, 2, length, D), want=Want(weights=True))
    head = panel(seen.plot([f"t{n}" for n in range(length)]), "head 0")
    for axis in (head.xaxis, head.yaxis):  # queries as many as keys have the keys' tokens
        assert ("t39" in written(axis)) is not left_out


@pytest.mark.parametrize(("queries", "keys", "aspect"), [(5, 7, 1), (5, 25, 1), (5, 26, "auto"), (26, 5, "auto")])
def test_cells_of_maps_are_square_unless_the_map_is_very_long(queries, keys, aspect):
    pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")
    q, k = torch.randn(1, 2, queries, D), torch.randn(1, 2, keys, D)
    _, seen = observe(q, k, k, want=Want(weights=True))
    assert panel(seen.plot(), "head 1").get_aspect() == aspect


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": ["a"] * Q}, "tokens must be 7 tokens, one for each key, got 5"),
        ({"target": ["a"] * K}, "target must be 5 tokens, one for each query, got 7"),
        ({"tokens": "abcdefg"}, "tokens must be a list of str, one for each key, got 'abcdefg'"),
    ],
)
def test_tokens_that_do_not_fit_are_errors(given, message):
    with pytest.raises(ArgumentError, match=message):
        plotted(WANT).plot(**given)


def test_tokens_that_what_is_shown_does_not_have_are_errors():
    with pytest.raises(ArgumentError, match="tokens must be 5, one for each query: nothing that is shown has keys"):
        plotted(Want(entropy=True)).plot(["a"] * K)
    with pytest.raises(ArgumentError, match=r"target must have a token for each of the queries \(0, -1\), got 0"):
        plotted(Want(rows=(0, -1))).plot(target=[])
    assert plotted(Want(pooled=2)).plot(["a"] * K).axes  # of tiles alone nobody knows how many keys there are


def test_nothing_to_plot_is_an_error():
    with pytest.raises(ArgumentError, match="there is nothing to plot: observe"):
        plotted(Want()).plot()
    with pytest.raises(ArgumentError, match="the batch is empty"):
        plotted(SUMMARY)[0:0].plot()
