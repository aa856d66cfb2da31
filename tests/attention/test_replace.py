import copy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.replace import replace_attention

B, S, T, E, H = 2, 7, 5, 12, 2  # an even number of heads: else torch's own layers never take their shortcut
pytestmark = pytest.mark.filterwarnings("ignore:.*[Nn]ested tensor", "ignore:enable_nested_tensor")


@pytest.fixture
def calls(monkeypatch) -> list[MultiheadAttention]:
    """Every call of our forward. No hook is registered, since torch's layers look for hooks."""
    seen: list[MultiheadAttention] = []
    original = MultiheadAttention.forward

    def forward(self, *args, **settings):
        seen.append(self)
        return original(self, *args, **settings)

    monkeypatch.setattr(MultiheadAttention, "forward", forward)
    return seen


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad", "inference_mode"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_inside_torchs_layers_ours_is_called_in_every_mode(mode, padded, batch_first, norm_first, calls):
    theirs = nn.Transformer(E, H, 2, 3, 17, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    ours = replace_attention(copy.deepcopy(theirs))
    source, target = torch.randn(B, S, E), torch.randn(B, T, E)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    masks: dict = {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(T), "tgt_is_causal": True}
    if padded:
        padding = torch.arange(S).expand(B, S) >= torch.tensor([[S], [4]])
        masks |= {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    training = mode == "train"
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(mode, torch.enable_grad)
    with context():
        expected = theirs.train(training)(source, target, **masks)
        calls.clear()
        found = ours.train(training)(source, target, **masks)
    attentions = {id(module) for module in ours.modules() if isinstance(module, MultiheadAttention)}
    assert len(attentions) == 2 + 2 * 3  # an encoder layer has one, a decoder layer two
    assert {id(module) for module in calls} == attentions
    assert_close(found, expected)


def test_a_layer_built_with_ours_inside_nn_transformer_encoder(calls):
    layer = nn.TransformerEncoderLayer(E, H, 17, batch_first=True)
    replace_attention(layer)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    with torch.inference_mode():
        encoder(torch.randn(B, S, E), src_key_padding_mask=torch.arange(S).expand(B, S) > 4)
    assert len(calls) == 3
    assert len({id(module) for module in calls}) == 3


def test_parameters_stay_the_same_objects():
    model = nn.Transformer(E, H, 1, 1, 17, batch_first=True)
    before = dict(model.named_parameters())
    assert replace_attention(model) is model
    after = dict(model.named_parameters())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


@pytest.mark.parametrize(
    "settings", [{"kdim": 5, "vdim": 3}, {"add_bias_kv": True, "add_zero_attn": True}, {"bias": False}]
)
def test_an_attention_itself_is_replaced_with_all_it_is(settings):
    theirs = nn.MultiheadAttention(E, H, dropout=0.3, batch_first=True, dtype=torch.float64, **settings).eval()
    fired = []
    theirs.register_forward_hook(lambda *_: fired.append(1))
    theirs.note = "kept"
    ours = replace_attention(theirs)
    assert type(ours) is MultiheadAttention
    assert (ours.note, ours.training, ours.dropout) == ("kept", False, 0.3)
    query = torch.randn(B, T, E, dtype=torch.float64)
    key, value = (torch.randn(B, S, width, dtype=torch.float64) for width in (theirs.kdim, theirs.vdim))
    assert_close(ours(query, key, value), theirs(query, key, value))
    assert len(fired) == 2
    assert not hasattr(ours, "_is_hf_initialized")


def test_a_module_in_several_places_stays_one():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.MultiheadAttention(E, H)
            self.second = self.first
            self.more = nn.ModuleList([self.first, nn.MultiheadAttention(E, H)])

    model = replace_attention(Shared())
    assert type(model.first) is MultiheadAttention
    assert model.first is model.second is model.more[0]
    assert model.more[1] is not model.first


def test_twice_is_once():
    model = replace_attention(nn.TransformerEncoderLayer(E, H))
    attention = model.self_attn
    assert replace_attention(model).self_attn is attention


def test_subclasses_of_torchs_are_left_alone():
    class Own(nn.MultiheadAttention):
        def forward(self, query: Tensor, *_, **__):
            return query, None

    model = replace_attention(nn.ModuleList([Own(E, H), nn.MultiheadAttention(E, H)]))
    assert [type(module) for module in model] == [Own, MultiheadAttention]


def test_a_model_without_attention_is_an_error():
    with pytest.raises(
        ValueError, match=r"must contain a torch\.nn\.MultiheadAttention, and Linear has none: attention"
    ):
        replace_attention(nn.Linear(3, 3))


def test_a_model_with_subclasses_alone_says_that_they_may_compute_something_else():
    class Mine(nn.MultiheadAttention):
        pass

    with pytest.raises(ValueError, match=r"which are left alone \(Mine\): put glassformer\.MultiheadAttention in the"):
        replace_attention(nn.Sequential(Mine(E, H)))


def test_a_model_with_parametrized_attention_alone_says_to_replace_it_before():
    attention = nn.utils.parametrizations.weight_norm(nn.MultiheadAttention(E, H), "in_proj_weight")
    with pytest.raises(
        ValueError, match=r"only classes made from it, which are left alone \(ParametrizedMultiheadAttention\): call re"
    ):
        replace_attention(nn.Sequential(attention))
