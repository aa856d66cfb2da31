"""The data of a page against the tensors that it shows."""

import base64
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from glassformer import Want, capture, observe, page
from glassformer.errors import ArgumentError, DataError
from glassformer.insight.heads import Head
from glassformer.page import report
from glassformer.reference import MultiHeadAttention


def test_it_carries_tokens_and_weights_as_they_are(hypotheses_of, captured, source, target):
    (hypothesis,) = hypotheses_of(page(captured, source, target))
    assert hypothesis["axes"] == {"source": source, "target": target}
    views = {view["path"]: view for view in hypothesis["views"]}
    assert views.keys() == captured.keys()
    assert [(view["group"], view["layer"]) for view in views.values()] == [
        *(("encoder", n) for n in range(2)),
        *((group, n) for group in ("decoder", "source") for n in range(3)),
    ]
    for path, view in views.items():
        weights = captured[path].weights[0]
        assert torch.equal(view["facts"]["weights"], weights)
        assert view["exact"]
        assert view["rows"] == pytest.approx([1, 1])
        assert_close(view["facts"]["entropy"], torch.special.entr(weights).sum(-1))
        assert_close(view["facts"]["received"], weights.sum(1))
        assert view["sizes"] == list(weights.shape[1:])
        assert len(view["heads"]) == 4
    cross = views["decoder.layers.0.multihead_attn"]
    assert (cross["queries"], cross["keys"]) == ("target", "source")


def test_many_weights_are_rounded_to_sixteen_bits_and_it_says_so(hypotheses_of, record):
    captured = record(Want(weights=True), source=83)
    for view in hypotheses_of(page(captured))[0]["views"]:
        assert_close(view["facts"]["weights"], captured[view["path"]].weights[0], rtol=1 / 4096, atol=2**-31)
        assert not view["exact"]


def test_long_inputs_are_tiles_and_the_largest_weights(hypotheses_of, record):
    captured = record(Want(pooled_heads=8, top=3, entropy=True, received=True), source=83, target=31)
    views = {view["path"]: view for view in hypotheses_of(page(captured))[0]["views"]}
    for path, view in views.items():
        one, facts = captured[path][0], view["facts"]
        assert "weights" not in facts
        assert_close(facts["tiles"], one.pooled_heads, rtol=1 / 4096, atol=1e-7)
        assert_close(facts["top"], one.top.weights, rtol=1 / 4096, atol=2**-31)
        assert torch.equal(facts["keys"], one.top.keys)
        assert_close(facts["entropy"], one.entropy, rtol=1 / 4096, atol=1e-7)
    assert views["decoder.layers.0.multihead_attn"]["tile"] == [4, 11]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch's own, of a mask in inference
def test_a_padded_entry_is_cut_to_its_tokens(hypotheses_of, model, source, target):
    lengths = [torch.tensor([10, 7, 8])[:, None], torch.tensor([5, 3, 5])[:, None]]
    padding, target_padding = (torch.arange(n) >= length for n, length in zip((10, 5), lengths, strict=True))
    masks = dict(src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_key_padding_mask=target_padding)
    with torch.no_grad(), capture(model, Want(weights=True)) as captured:
        model(torch.randn(3, 10, 32), torch.randn(3, 5, 32), **masks)
    views = hypotheses_of(page(captured, source[:7], target[:3], entry=1))[0]["views"]
    for view in views:
        queries, keys = view["sizes"]
        assert torch.equal(view["facts"]["weights"], captured[view["path"]].weights[1, :, :queries, :keys])
    assert {tuple(view["sizes"]) for view in views} == {(7, 7), (3, 3), (3, 7)}


def test_the_mean_of_the_heads_is_shown_as_one(hypotheses_of, record):
    captured = record(Want(head_mean=True, entropy=True))
    known = [head(head=0), head(attention="encoder.layers.1.self_attn", head=0)]
    for view in hypotheses_of(page(captured, heads=known))[0]["views"]:
        assert torch.equal(view["facts"]["weights"], captured[view["path"]].head_mean)
        assert view["heads"] == [{}]  # what is known of head 0 is not said of the mean
        assert view["mean"]
    captured = record(Want(pooled=4))
    for view in hypotheses_of(page(captured))[0]["views"]:
        assert_close(view["facts"]["tiles"], captured[view["path"]].pooled, rtol=1 / 4096, atol=1e-7)
        assert view["mean"]


def test_tiles_of_one_weight_each_are_weights(hypotheses_of, record, captured):
    for view in hypotheses_of(page(record(Want(pooled_heads=64, top=3))))[0]["views"]:
        assert set(view["facts"]) == {"weights", "entropy", "received"}
        assert_close(view["facts"]["weights"], captured[view["path"]].weights[0])


def test_positions_that_are_looked_at_are_not_cut_off(captured, source):
    lost = captured["encoder.layers.0.self_attn"].weights[0, :, :4, 4:].sum(-1).max()
    with pytest.raises(ArgumentError, match=f"carry up to {lost:.1%} of a query's weight.*give all 10 tokens"):
        page(captured, source[:4])


def test_it_says_what_rows_sum_to(hypotheses_of, record):
    (hypothesis,) = hypotheses_of(page(torch.tensor([[0.5, 0.25], [0.0, 0.0]])))  # dropout; a query that looks nowhere
    assert hypothesis["views"][0]["rows"] == [0.0, 0.75]
    for view in hypotheses_of(page(record(Want(pooled_heads=4), source=29, target=31)))[0]["views"]:
        assert view["rows"] == pytest.approx([1, 1], abs=1e-5)


def test_layers_keep_their_numbers_if_some_are_captured(hypotheses_of, record):
    made = page(record(Want(weights=True), layers=["encoder.layers.1.self_attn", "decoder.layers.2.*"]))
    views = hypotheses_of(made)[0]["views"]
    assert [(view["group"], view["layer"]) for view in views] == [("encoder", 1), ("decoder", 2), ("source", 2)]


def test_what_a_budget_left_out_is_said(hypotheses_of, record):
    captured = record(Want(weights=True), source=83, target=71, budget=8 * 60_000)
    assert captured.dropped
    views = hypotheses_of(page(captured))[0]["views"]
    assert {view["path"]: view["dropped"] for view in views if view["dropped"]} == captured.dropped


def test_patches_of_a_picture_have_their_grid(hypotheses_of):
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    with torch.no_grad(), capture(model, Want(weights=True)) as captured:
        model(torch.randn(1, 13, 32))
    (hypothesis,) = hypotheses_of(page(captured, grid=(3, 4)))
    assert hypothesis["grids"] == {"tokens": [3, 4]}
    assert hypothesis["axes"]["tokens"] == [str(n) for n in range(13)]
    with pytest.raises(ArgumentError, match="target is for an encoder-decoder; this model has one text"):
        page(captured, target=["a"])


@pytest.mark.parametrize("image", [torch.rand(3, 5, 7), torch.rand(5, 7), torch.randint(256, (3, 5, 7)).byte()])
def test_an_image_lies_under_its_patches(read_data, image):
    header, tensor = read_data(page(torch.full((6, 6), 1 / 6), grid=(2, 3), image=image).data)
    (hypothesis,) = header["hypotheses"]
    assert hypothesis["grids"] == {"tokens": [2, 3]}
    expected = image if image.dtype == torch.uint8 else (image * 255).round()
    assert torch.equal(tensor(hypothesis["images"]["tokens"]), expected.expand(3, -1, -1).permute(1, 2, 0).long())


def test_a_large_image_is_made_smaller(read_data):
    image = torch.linspace(0, 1, 896).expand(448, -1)
    header, tensor = read_data(page(torch.full((6, 6), 1 / 6), grid=(2, 3), image=image).data)
    pixels = tensor(header["hypotheses"][0]["images"]["tokens"])
    assert pixels.shape == (224, 448, 3)
    assert_close(pixels[0, :, 0] / 255, image[0].view(448, 2).mean(1), atol=1 / 255, rtol=0)


def test_nothing_in_the_page_is_markup_or_reaches_out(captured, source, target):
    made = page(captured, source, target, title="</title><script>alert(1)</script>")
    text = made.html()
    assert "&lt;/title&gt;&lt;script&gt;" in text
    assert text.count("<script") == text.count("</script>") == 2
    assert not re.search(r"(src|href)\s*=|url\(|@import", re.sub(r"createObjectURL\(", "", text).split("<script")[0])
    assert "default-src 'none'" in text
    data = re.search(r'id="data">([^<]*)<', text)
    assert data is not None
    assert base64.b64decode(data[1]) == made.data


def test_it_is_written_whole_or_not_at_all(captured, tmp_path):
    path = page(captured).save(tmp_path / "one.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(DataError, match="no such folder"):
        page(captured).save(tmp_path / "none" / "one.html")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(tokens="a text"), r"source must be a sequence of tokens, got one str: pass text\.split"),
        (dict(tokens=["x"] * 11), r"there are 10 positions of the source, got 11 tokens for them"),
        (dict(tokens=[]), r"there are 10 positions of the source, got 0 tokens for them"),
        (dict(grid=(-1, -1)), r"grid must be \(rows, columns\) of at most 10 patches, got \(-1, -1\)"),
        (dict(grid=(4, 4)), r"grid must be \(rows, columns\) of at most 10 patches, got \(4, 4\)"),
        (dict(image=torch.zeros(3, 8, 8)), r"image needs grid: the rows and columns of its patches"),
        (dict(grid=(2, 5), image=torch.zeros(8, 8, 4)), r"image must be a tensor .*got \(8, 8, 4\)"),
        (dict(grid=(2, 5), image=torch.full((3, 8, 8), -1.0)), r"image must be from 0 to 1.* before it was normalised"),
        (dict(entry=1), r"entry must be one of the batch's 1, from 0 to 0, got 1"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(captured, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        page(captured, **arguments)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_observation_is_named():
    with pytest.raises(ArgumentError, match=r"seen\['layer 0'\] must be an Observation, got 5: observe returns"):
        page({"layer 0": 5})
    with pytest.raises(
        ArgumentError, match=r"seen must have a name for each attention, such as 'layer 0', got 3: of a"
    ):
        page({3: 5})


def test_what_cannot_be_drawn_is_refused(record, model, monkeypatch):
    def refused(captured: Any, message: str, *tokens: list[str]) -> None:
        with pytest.raises(ArgumentError, match=message):
            page(captured, *tokens)

    refused(record(Want(distance=True)), r"nothing was captured that a page can draw: capture with Want\(weights")
    with capture(model) as captured:
        pass
    refused(captured, "nothing was captured: call the model inside the context")
    refused([], "seen must be what capture or observe recorded, weights, or translations with .* got list")
    monkeypatch.setattr(report, "MOST_WEIGHTS", 100)
    refused(record(Want(weights=True)), r"a page holds at most 100 weights, got .*top=8, pooled_heads=64")
    refused(record(Want(pooled_heads=4)), "tiles can't be cut to 3 x 3 tokens", ["a", "b", "c"])
    beyond = "the largest weights of some queries lie beyond the 3 tokens given"
    refused(record(Want(top=4, entropy=True)), beyond, ["a", "b", "c"])
    with torch.no_grad(), capture(model, Want(weights=True), layers=["encoder.layers.0.self_attn"]) as captured:
        model(torch.full((1, 3, 32), torch.nan), torch.randn(1, 2, 32))
    refused(captured, r"encoder.layers.0.self_attn has weights that are not numbers")


def head(**changes: Any) -> Head:
    numbers = dict.fromkeys(("confidence", "entropy", "positional", "previous", "next", "end", "importance"), 0.5)
    plain = dict(attention="encoder.layers.0.self_attn", head=1, offset=-1, without=0.25, role="positional")
    return replace(Head(**numbers, **plain, rare=None, syntax=None), **changes)


def test_roles_and_importance_where_they_are_known(hypotheses_of, captured):
    (hypothesis,) = hypotheses_of(page(captured, heads=[head()]))
    assert hypothesis["views"][0]["heads"] == [{}, {"role": "positional", "importance": 0.25}, {}, {}]
    assert hypothesis["importance"] == 0.25
    sharpest = captured["decoder.layers.2.multihead_attn"].weights[0]
    sharpest = torch.special.entr(sharpest).sum(-1).mean(-1).argmin()
    assert hypothesis["start"] == {"at": "decoder.layers.2.multihead_attn", "head": sharpest}
    known = [head(), head(attention="decoder.layers.1.multihead_attn", head=3)]
    (hypothesis,) = hypotheses_of(page(captured, heads=known))
    assert hypothesis["start"] == {"at": "decoder.layers.1.multihead_attn", "head": 3}


def test_a_page_of_one_text_opens_at_the_sharpest_head_of_all(hypotheses_of, record):
    captured = record(Want(weights=True), layers="encoder.*")
    entropy = {path: torch.special.entr(one.weights[0]).sum(-1).mean(-1) for path, one in captured.items()}
    path = min(entropy, key=lambda path: float(entropy[path].min()))
    assert hypotheses_of(page(captured))[0]["start"] == {"at": path, "head": int(entropy[path].argmin())}


# Plain weights


def views_of(hypotheses_of, *arguments, **options) -> Any:
    (hypothesis,) = hypotheses_of(page(*arguments, **options))
    (view,) = hypothesis["views"]
    return hypothesis, view


@pytest.mark.parametrize("leading", [(), (3,), (1, 3)])
def test_plain_weights_are_shown_with_their_tokens(hypotheses_of, leading):
    weights = torch.randn(*leading, 5, 5).softmax(-1)
    hypothesis, view = views_of(hypotheses_of, weights, ["the", "dog", "sleeps", "all", "day"])
    assert hypothesis["axes"] == {"tokens": ["the", "dog", "sleeps", "all", "day"]}
    assert (view["group"], len(view["heads"])) == ("self", leading[-1] if leading else 1)
    assert torch.equal(view["facts"]["weights"], weights.reshape(-1, 5, 5))


def test_weights_to_another_text_and_one_entry_of_a_batch(hypotheses_of):
    weights = torch.randn(2, 3, 5, 7).softmax(-1)
    hypothesis, view = views_of(hypotheses_of, weights, list("abcdefg"), list("uvwxy"), entry=1)
    assert hypothesis["axes"] == {"target": list("uvwxy"), "source": list("abcdefg")}
    assert view["group"] == "source"
    assert torch.equal(view["facts"]["weights"], weights[1])
    with pytest.raises(ArgumentError, match="entry must be one of the batch's 2, from 0 to 1, got 2"):
        page(weights, entry=2)


def test_weights_that_a_sequence_first_attention_keeps(hypotheses_of):
    attention, x = MultiHeadAttention(2, 8, dropout_prob=0.0), torch.randn(5, 3, 8)
    attention(x, x, x)
    assert attention.attn is not None
    _, view = views_of(hypotheses_of, attention.attn, list("abcde"), entry=2)
    assert_close(view["facts"]["weights"], attention.attn[:, :, 2].permute(2, 0, 1))


def test_several_attentions_that_were_observed_are_a_page(hypotheses_of):
    q, k, v = torch.randn(3, 2, 3, 5, 4)
    _, first = observe(q, k, v, want=Want(weights=True))
    _, second = observe(k, q, v, want=Want(weights=True))
    (hypothesis,) = hypotheses_of(page({"layer 4": first, "layer 7": second[0]}, list("abcde")))
    assert [(view["path"], view["layer"]) for view in hypothesis["views"]] == [("layer 4", 4), ("layer 7", 7)]
    assert torch.equal(hypothesis["views"][0]["facts"]["weights"], first.weights[0])
    assert torch.equal(hypothesis["views"][1]["facts"]["weights"], second.weights[0])


def test_weights_of_several_layers_are_a_page(hypotheses_of, unchecked):
    layers = tuple(torch.randn(2, 3, 4, 4).softmax(-1) for _ in range(2))
    (found,) = hypotheses_of(page(layers, list("abcd"), entry=1))
    assert [view["path"] for view in found["views"]] == ["layer 0", "layer 1"]
    assert found["axes"]["tokens"] == list("abcd")
    with pytest.raises(ArgumentError, match=r"seen must be what capture or observe recorded, .* got ndarray"):
        page(layers[0].numpy(), list("abcd"))


@pytest.mark.parametrize("sources", [5, 3])
def test_weights_of_several_layers_on_another_text_are_a_page(hypotheses_of, sources):
    """As outputs.cross_attentions of Hugging Face has them; a square one looks at the other text where there is one."""
    layers = [torch.randn(1, 2, 3, sources).softmax(-1) for _ in range(2)]
    source, target = list("abcde")[:sources], list("xyz")
    (found,) = hypotheses_of(page(layers, source, target))
    assert [(view["path"], view["layer"]) for view in found["views"]] == [
        ("source_attention.0", 0),
        ("source_attention.1", 1),
    ]
    assert (found["axes"]["source"], found["axes"]["target"]) == (source, target)
    assert torch.equal(found["views"][1]["facts"]["weights"], layers[1][0])
    (alone,) = hypotheses_of(page(layers[0], source, target))
    assert (alone["axes"], alone["views"][0]["group"]) == (found["axes"], found["views"][0]["group"])


@pytest.mark.usefixtures("unchecked")
def test_the_output_beside_an_observation_is_not_taken():
    attended = observe(*torch.randn(3, 2, 3, 5, 4), want=Want(weights=True))
    with pytest.raises(ArgumentError, match="without the output that observe returns beside it; or of several"):
        page(attended)


@pytest.mark.parametrize("scores", [torch.tensor([[0.5, -0.5], [0.0, 1.0]]), torch.rand(1, 2, 4, 4) + 1])
def test_scores_are_not_taken_for_weights(scores):
    with pytest.raises(ArgumentError, match=r"weights must be at least 0 and sum to at most 1.*pass scores.softmax"):
        page(scores)


def test_what_observe_saw_is_a_page(hypotheses_of):
    q, k, v = (torch.randn(2, 3, n, 4) for n in (5, 7, 7))
    _, seen = observe(q, k, v, want=Want(weights=True))
    assert torch.equal(views_of(hypotheses_of, seen, entry=1)[1]["facts"]["weights"], seen.weights[1])
    assert torch.equal(views_of(hypotheses_of, seen[1])[1]["facts"]["weights"], seen.weights[1])
    _, seen = observe(q, k, v, want=Want(pooled_heads=2, top=2, entropy=True, received=True))
    _, view = views_of(hypotheses_of, seen)
    assert_close(view["facts"]["tiles"], seen.pooled_heads[0], rtol=1 / 4096, atol=1e-7)
    _, seen = observe(q, k, v, want=Want(lse=True))
    with pytest.raises(ArgumentError, match="a page of an Observation needs weights, or for long inputs"):
        page(seen)
    with pytest.raises(ArgumentError, match=r"weights must be floating-point, .* got torch.int64 \(5,\)"):
        page(torch.arange(5))


def test_attention_without_queries_is_nothing_to_show():
    heads = torch.randn(1, 2, 3, 4)
    _, seen = observe(heads[:, :, :0], heads, heads, want=Want(weights=True))
    with pytest.raises(ArgumentError, match="nothing was captured that a page can draw"):
        page(seen)
