import copy
import math
import re
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.testing import assert_close

from glassformer.attention.replace import replace_attention
from glassformer.errors import ArgumentError, ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.interop.torch_nn import Converted, from_torch
from glassformer.transformer.config import ModelConfig

S, T = 7, 5
pytestmark = pytest.mark.filterwarnings("ignore:.*[Nn]ested tensor", "ignore:enable_nested_tensor")


# The oracle is torch's own: what people write around nn.Transformer, in float64
WIDTH, HEADS, FF = 22, 2, 13
SOURCE_WORDS, WORDS = 19, 23
SOURCE_PAD, START, END, PAD = 7, 5, 11, 2  # none where our model has it
SENTENCES = [[START, 3, 8, 13, END], [START, END], [START, 17, 1, END, 4, 9, 6, END]]
MOST = 7  # tokens of a translation
NORM_FIRST = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])


class Theirs(nn.Module):
    """As in PyTorch's translation tutorial. Biases and norms too are drawn, so that losing one shows."""

    def __init__(
        self,
        *,
        positions: str = "interleaved",
        shared: bool = False,
        tied: bool = False,
        output_bias: bool = True,
        scaled: bool = True,
        width: int = WIDTH,
        heads: int = HEADS,
        batch_first: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.positions, self.scaled, self.batch_first = positions, scaled, batch_first
        self.source_pad: int | None = PAD if shared else SOURCE_PAD
        self.target_embedding = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.source_embedding = self.target_embedding if shared else nn.Embedding(SOURCE_WORDS, width)
        self.transformer = nn.Transformer(width, heads, 2, 3, FF, batch_first=batch_first, **settings)
        self.output = nn.Linear(width, WORDS, bias=output_bias)
        if tied:
            self.output.weight = self.target_embedding.weight
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter)
        self.double().eval()

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        masks: dict[str, Any] = {}
        if self.source_pad is not None:
            padding = source == self.source_pad
            masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        future = torch.ones(target_in.shape[1], target_in.shape[1], dtype=torch.bool).triu(1)
        x, y = self.embed(source, self.source_embedding), self.embed(target_in, self.target_embedding)
        if not self.batch_first:
            x, y = x.transpose(0, 1), y.transpose(0, 1)
        states = self.transformer(x, y, tgt_mask=future, **masks)
        return self.output(states if self.batch_first else states.transpose(0, 1))

    def embed(self, ids: Tensor, table: nn.Embedding) -> Tensor:
        x = table(ids)
        width = x.shape[2]
        scale = math.sqrt(width) if self.scaled else 1.0
        angle = torch.arange(ids.shape[1])[:, None] * 10000.0 ** (-torch.arange(0, width, 2).to(x) / width)
        sinusoids = torch.empty(ids.shape[1], width, dtype=x.dtype)
        if self.positions == "interleaved":
            sinusoids[:, 0::2] = angle.sin()
            sinusoids[:, 1::2] = angle.cos()[:, : width // 2]
        else:
            sinusoids = torch.cat([angle.sin(), angle.cos()[:, : width // 2]], dim=1)
        return x * scale + sinusoids


def converted(theirs: Theirs, **changes: Any) -> Converted:
    """What `from_torch` makes of it; changes are those of the arguments."""
    parts = dict(encoder=theirs.transformer.encoder, decoder=theirs.transformer.decoder, output=theirs.output)
    embeddings = dict(source_embedding=theirs.source_embedding, target_embedding=theirs.target_embedding)
    ids = dict(start=START, end=END, source_pad=theirs.source_pad, target_pad=PAD)
    conventions = dict(scale_embedding=theirs.scaled, positions=theirs.positions)
    return from_torch(**{**parts, **embeddings, **ids, **conventions, **changes})


def sources(theirs: Theirs) -> Tensor:
    """Ids of three sources of different lengths, `START` and `END` among them."""
    pad, lengths = theirs.source_pad, torch.tensor([S, 3, 5])
    ids = torch.randint(0, theirs.source_embedding.num_embeddings, (3, S))
    ids[:, 0], ids[:, 2] = START, END
    if pad is None:
        return ids
    ids = ids.where(ids != pad, 1)
    return ids.where(torch.arange(S) < lengths[:, None], pad)


def target_of(found: Converted) -> tuple[Tensor, Tensor]:
    """Random targets that begin with the start symbol, in the caller's ids and the model's."""
    ours = torch.randint(0, found.model.target_pad, (3, T))
    ours[:, 0] = found.model.target_pad
    return found.target_ids(ours), ours


def assert_same_logits(theirs: Theirs, found: Converted) -> None:
    """Under teacher forcing, of every id that can be predicted."""
    source, (target_in, ours) = sources(theirs), target_of(found)
    expected = theirs(source, target_in)[:, :, found.target_map[:-1]]
    assert_close(found.model(found.source_ids(source), ours), expected, rtol=0, atol=1e-9)


@NORM_FIRST
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("positions", ["interleaved", "split"])
@pytest.mark.parametrize("shared", [False, True], ids=["two embeddings", "one embedding"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_logits_of_a_converted_model_are_theirs(norm_first, activation, bias, positions, shared, tied):
    settings = dict(norm_first=norm_first, activation=activation, bias=bias)
    theirs = Theirs(positions=positions, shared=shared, tied=tied, **settings)
    assert_same_logits(theirs, converted(theirs))


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_first": False},
        {"output_bias": False},
        {"output_bias": False, "tied": True},
        {"scaled": False},
        {"width": 33, "heads": 3},
        {"width": 33, "heads": 3, "positions": "split"},
    ],
    ids=str,
)
def test_logits_are_theirs_in_other_settings(settings):
    theirs = Theirs(**settings)
    assert_same_logits(theirs, converted(theirs))


@NORM_FIRST
def test_without_final_norms(norm_first):
    theirs = Theirs(norm_first=norm_first)
    theirs.transformer.encoder.norm = theirs.transformer.decoder.norm = None
    found = converted(theirs)
    assert found.model.encoder_norm is found.model.decoder_norm is None
    assert_same_logits(theirs, found)


def test_a_final_norm_without_parameters():
    theirs = Theirs()
    theirs.transformer.encoder.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
    assert_same_logits(theirs, converted(theirs))


ACTIVATIONS = {
    "relu": (F.relu, torch.relu, nn.ReLU()),
    "gelu": (F.gelu, nn.GELU()),
    "swish": (F.silu, nn.SiLU()),
}


@pytest.mark.parametrize(
    ("ours", "activation"), [(ours, theirs) for ours, kind in ACTIVATIONS.items() for theirs in kind]
)
def test_activations_given_as_functions_and_modules(activation, ours):
    theirs = Theirs()
    for layer in (*theirs.transformer.encoder.layers, *theirs.transformer.decoder.layers):
        layer.activation = activation
    found = converted(theirs)
    assert found.model.config.activation == ours
    assert_same_logits(theirs, found)


def test_activation_modules_that_torch_loses():
    # Copies of a decoder layer, of which nn.Transformer makes its decoder, compute relu in place of a module.
    theirs = Theirs(activation=nn.GELU())
    assert theirs.transformer.decoder.layers[0].activation is F.relu
    message = "activation must be the same in all layers, got 'gelu' in encoder.layers[0] and 'relu' in "
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}decoder"):
        converted(theirs)


def test_encoder_and_decoder_that_stand_alone():
    theirs = Theirs()
    theirs.transformer.encoder = encoder_of(batch_first=True).eval()
    theirs.transformer.decoder = decoder_of(batch_first=True).eval()
    assert_same_logits(theirs, converted(theirs))


def test_a_model_whose_attention_was_replaced():
    theirs = Theirs()
    found = converted(replace_attention(copy.deepcopy(theirs)))
    assert_same_logits(theirs, found)


def test_a_source_that_nothing_masks():
    theirs = Theirs()
    theirs.source_pad = None
    found = converted(theirs)
    assert_same_logits(theirs, found)
    everything = torch.arange(SOURCE_WORDS)
    assert torch.equal(found.source_ids(everything), everything)
    assert found.model.source_pad == SOURCE_WORDS  # an id of its own, which no source has
    assert not found.model.source_embedding.weight[-1].any()


@pytest.mark.parametrize(
    ("changes", "start"), [({"target_pad": None}, START), ({"start": PAD, "target_pad": PAD}, PAD)]
)
def test_a_target_whose_padding_is_none_or_its_start(changes, start):
    theirs = Theirs()
    found = converted(theirs, **changes)
    assert found.target_map[-1] == start
    assert PAD in found.target_map
    assert found.model.target_pad == WORDS - 1
    assert_same_logits(theirs, found)


@torch.no_grad()
def next_log_probs(theirs: Theirs, source: list[int], target: list[int]) -> Tensor:
    """Log-probabilities of what follows each position of a target, over the ids that can be predicted."""
    logits = theirs(torch.tensor([source]), torch.tensor([[START, *target]]))[0]
    logits[:, [START, PAD]] = -torch.inf
    return logits.log_softmax(-1)


@NORM_FIRST
def test_generated_greedily_as_their_model_would(norm_first):
    theirs = Theirs(norm_first=norm_first)
    found = converted(theirs).generate(SENTENCES, SearchConfig(beam=1, max_length=MOST))
    for source, [best] in zip(SENTENCES, found, strict=True):
        expected: list[int] = []
        while len(expected) < MOST:
            token = int(next_log_probs(theirs, source, expected)[-1].argmax())
            if token == END:
                break
            expected.append(token)
        assert best.ids == expected


def test_a_beam_scores_as_their_model_does():
    theirs = Theirs()
    found = converted(theirs).generate(SENTENCES, SearchConfig(beam=5, n_best=5, max_length=MOST, length_penalty=0.0))
    greedy = converted(theirs).generate(SENTENCES, SearchConfig(beam=1, max_length=MOST, length_penalty=0.0))
    assert [len(all_best) for all_best in found] == [5] * len(SENTENCES)
    for source, all_best, [likeliest] in zip(SENTENCES, found, greedy, strict=True):
        for best in all_best:
            steps = next_log_probs(theirs, source, best.ids)
            chosen = [*best.ids, END] if len(best.token_log_probs) > len(best.ids) else best.ids
            expected = [steps[t, token].item() for t, token in enumerate(chosen)]
            assert best.token_log_probs == pytest.approx(expected, abs=1e-9)
            assert best.log_prob == pytest.approx(sum(expected), abs=1e-9)
        assert all_best[0].score >= likeliest.score - 1e-12


def test_generating_a_source_with_an_id_out_of_range_is_an_error():
    with pytest.raises(ArgumentError, match="source ids"):
        converted(Theirs()).generate([[1, SOURCE_WORDS]])
    with pytest.raises(ConfigError, match=r"^generate can't choose by consensus, which compares words: it has ids"):
        converted(Theirs()).generate(SENTENCES, SearchConfig(consensus=True))
    with pytest.raises(ConfigError, match=r"generate can't replace_unknown, which takes words from the source"):
        converted(Theirs()).generate(SENTENCES, SearchConfig(replace_unknown=True))


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_source_of_ids_is_refused():
    """Numbers with a fraction were cut to whole ones."""
    made, two = converted(Theirs()), SearchConfig(beam=1, max_length=2)
    for sources, message in (
        ([[5.7, 6.2]], r"sources[0] must be ids in one axis, got torch.float32 of shape (2,)"),
        ([[5, 6], [[7]]], r"sources[1] must be ids in one axis, got torch.int64 of shape (1, 1)"),
        ([[True]], r"sources[0] must be ids in one axis, got torch.bool of shape (1,)"),
        ([5, 6], r"sources[0] must be a sequence of ids, got 5: for one give [source]"),
        (["ab"], r"sources[0] must be a sequence of ids, got 'ab': for one give [source]"),
    ):
        with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
            made.generate(sources, two)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = made.generate([[5, 6], []], two)
        for ids in (torch.tensor([5, 6]), torch.tensor([5, 6]).numpy()):
            assert made.generate([ids, []], two) == expected


# Ids


def test_ids_of_either_side():
    found = converted(Theirs())
    assert found.source_ids(torch.tensor([[0, 6, SOURCE_PAD], [8, 18, 7]])).tolist() == [[0, 6, 18], [7, 17, 18]]
    others = [i for i in range(WORDS) if i not in (START, END, PAD)]
    assert found.target_map.tolist() == [END, *others, START]
    assert found.target_ids(torch.tensor([0, 1, 2, 3, 21])).tolist() == [END, 0, 1, 3, START]
    assert found.model.target_pad == 21


def test_ids_keep_their_shape_and_may_be_none():
    found = converted(Theirs())
    assert found.source_ids(torch.zeros(2, 0, dtype=torch.int32)).shape == (2, 0)
    assert found.target_ids(torch.tensor(0)).item() == END


@pytest.mark.parametrize("side", ["source", "target"])
def test_ids_out_of_range(side):
    to, size = (f"{side}_ids", SOURCE_WORDS if side == "source" else WORDS - 1)
    for bad in (-1, size):
        with pytest.raises(ArgumentError, match=f"^{side} ids must be 0 to {size - 1}, got {bad}$"):
            getattr(converted(Theirs()), to)(torch.tensor([[0, bad, 3]]))


# What the converted model is


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_it_has_their_dtype_and_is_in_eval_mode(dtype):
    model = converted(Theirs().to(dtype).train()).model
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert not model.training


def test_it_holds_copies():
    theirs = Theirs(positions="split")
    before = copy.deepcopy(theirs)
    found = converted(theirs)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    assert_same_logits(before, found)


def test_its_config():
    config = converted(Theirs(norm_first=True, activation="gelu", dropout=0.3)).model.config
    sizes = dict(source_vocab_size=SOURCE_WORDS, target_vocab_size=WORDS - 1, d_model=WIDTH, heads=HEADS, d_ff=FF)
    layers = dict(encoder_layers=2, decoder_layers=3, activation="gelu", norm_first=True, final_norm=True)
    output = dict(shared_vocab=False, tied_output=False, output_bias=True)
    assert config == ModelConfig(**sizes, **layers, **output, dropout=0.3, attention_dropout=0.3)


# What can't be held


def own(kind: type) -> type:
    """A class that may compute something else."""
    return type("Own", (kind,), {})


def encoder_of(kind: type = nn.TransformerEncoder, **changes: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(**SIZES | changes)
    return kind(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False).double()


def decoder_of(kind: type = nn.TransformerDecoderLayer, **changes: Any) -> nn.Module:
    return nn.TransformerDecoder(kind(**SIZES | changes), 3, nn.LayerNorm(WIDTH)).double()


SIZES = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": FF}
UNREADABLE = "what another class computes, a custom one, a subclass or a wrapper, can't be read from its weights"
NARROW = "must be as wide as the layers, 22, got"
OUTPUT = "output must be nn.Linear(22, 23), from the layers' width to a logit for each id of target_embedding, got"
EPS = "must have layer_norm_eps = 1e-05, torch's default and the only one of our model, got 1e-06"
ACTIVATION = "activation must be relu, gelu (the exact one) or silu, got {} in encoder.layers[0]"


def unreadable(place: str, kind: str, got: str) -> str:
    return f"{place} must be a torch.nn.{kind}, got {got}: {UNREADABLE}"


def differs(setting: str, encoders: str, decoders: str, part: str = "") -> str:
    at = f"encoder.layers[0]{part}", f"decoder.layers[0]{part}"
    return f"{setting} must be the same in all layers, got {encoders} in {at[0]} and {decoders} in {at[1]}"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("start", END, "start and end must be two ids, got 11 for both: end is predicted and start never"),
        ("start", WORDS, "start must be an id of target_embedding, 0 to 22, got 23"),
        ("end", -1, "end must be an id of target_embedding, 0 to 22, got -1"),
        ("target_pad", 29, "target_pad must be an id of target_embedding, 0 to 22, got 29"),
        ("source_pad", SOURCE_WORDS, "source_pad must be an id of source_embedding, 0 to 18, got 19"),
        (
            "target_pad",
            END,
            "target_pad must be another id than end = 11, which is predicted and padding never: if your model was "
            "trained to predict it, give target_pad=None",
        ),
        (
            "positions",
            "learned",
            "positions must be one of interleaved, split, got 'learned': our model adds sinusoids and can hold no "
            "others",
        ),
        (
            "encoder",
            nn.Transformer(WIDTH, HEADS, 1, 1, FF, batch_first=True),
            "encoder must be a torch.nn.TransformerEncoder, got Transformer: give its encoder and its decoder",
        ),
        ("encoder", nn.Identity(), unreadable("encoder", "TransformerEncoder", "Identity")),
        ("decoder", nn.Identity(), unreadable("decoder", "TransformerDecoder", "Identity")),
        ("encoder", encoder_of(own(nn.TransformerEncoder)), unreadable("encoder", "TransformerEncoder", "Own")),
        (
            "decoder",
            decoder_of(own(nn.TransformerDecoderLayer)),
            unreadable("decoder.layers[0]", "TransformerDecoderLayer", "Own"),
        ),
        ("source_embedding", nn.Sequential(), unreadable("source_embedding", "Embedding", "Sequential")),
        ("output", nn.Identity(), unreadable("output", "Linear", "Identity")),
        ("source_embedding", nn.Embedding(19, 17), f"source_embedding {NARROW} nn.Embedding(19, 17)"),
        ("target_embedding", nn.Embedding(23, 17), f"target_embedding {NARROW} nn.Embedding(23, 17)"),
        (
            "target_embedding",
            nn.Embedding(WORDS, WIDTH, max_norm=1.5),
            "target_embedding must have max_norm=None, got 1.5: our model uses rows as they are",
        ),
        ("output", nn.Linear(WIDTH, WORDS - 2), f"{OUTPUT} nn.Linear(22, 21)"),
        ("output", nn.Linear(17, WORDS), f"{OUTPUT} nn.Linear(17, 23)"),
        (
            "output",
            nn.Linear(WIDTH, WORDS),
            "all weights must have one dtype, got torch.float32 and torch.float64: convert the whole model with "
            ".to(dtype) first",
        ),
        ("encoder", encoder_of(dim_feedforward=29), differs("d_ff", "29", "13", ".linear1")),
        ("decoder", decoder_of(nhead=11), differs("heads", "2", "11", ".self_attn")),
        ("decoder", decoder_of(d_model=26), differs("d_model", "22", "26", ".self_attn")),
        ("decoder", decoder_of(norm_first=True), differs("norm_first", "False", "True")),
        ("encoder", encoder_of(activation="gelu"), differs("activation", "'gelu'", "'relu'")),
        ("encoder", encoder_of(activation=torch.tanh), ACTIVATION.format("tanh")),
        ("encoder", encoder_of(activation=nn.GELU("tanh")), ACTIVATION.format("GELU(approximate='tanh')")),
        ("decoder", decoder_of(layer_norm_eps=1e-6), f"decoder.layers[0].norm1 {EPS}"),
    ],
)
def test_what_cannot_be_held_is_refused(name, value, message):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        converted(Theirs(), **{name: value})


def attention(**settings: Any) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64, **settings)


SOURCE_ATTENTION = "decoder.layers.2.multihead_attn"
FURTHER = (
    "decoder.layers[2].multihead_attn must have one width and add no keys, got kdim {}, vdim {}, add_bias_kv {} and "
    "add_zero_attn {}: our model has no place for these"
)
ONE_NORM = (
    "encoder.norm and decoder.norm must be both a LayerNorm or both None, got {}.norm None and {}.norm a LayerNorm: "
    "our model has both or neither"
)


@pytest.mark.parametrize(
    ("place", "module", "message"),
    [
        ("encoder.norm", None, ONE_NORM.format("encoder", "decoder")),
        ("decoder.norm", None, ONE_NORM.format("decoder", "encoder")),
        ("decoder.norm", nn.LayerNorm(WIDTH, eps=1e-6), f"decoder.norm {EPS}"),
        ("encoder.norm", nn.RMSNorm(WIDTH), unreadable("encoder.norm", "LayerNorm", "RMSNorm")),
        ("encoder.layers", nn.ModuleList(), "encoder must have at least 1 layer, got none"),
        (SOURCE_ATTENTION, attention(add_bias_kv=True), FURTHER.format(22, 22, True, False)),
        (SOURCE_ATTENTION, attention(add_zero_attn=True), FURTHER.format(22, 22, False, True)),
        (SOURCE_ATTENTION, attention(kdim=13, vdim=17), FURTHER.format(13, 17, False, False)),
    ],
)
def test_changed_layers_that_cannot_be_held_are_refused(place, module, message):
    theirs = Theirs()
    parent, _, name = place.rpartition(".")
    setattr(theirs.transformer.get_submodule(parent), name, module)
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        converted(theirs)


@pytest.mark.parametrize(
    ("place", "kind", "change"),
    [
        ("encoder.layers.0.linear1", "weight_mask", lambda part: prune.l1_unstructured(part, "weight", 0.5)),
        ("encoder.norm", "bias_mask", lambda part: prune.random_unstructured(part, "bias", 0.5)),
    ],
)
def test_weights_by_other_names_are_refused(place, kind, change):
    theirs = Theirs()
    change(theirs.transformer.get_submodule(place))
    name = place.replace(".0.", "[0].")
    with pytest.raises(ArgumentError) as error:
        converted(theirs)
    assert str(error.value).startswith(f"{name} must have its weights as they are used, got {kind}: first call ")


def test_too_few_ids_are_refused():
    def convert(words: int, **ids: int) -> Converted:
        target, output = nn.Embedding(words, WIDTH).double(), nn.Linear(WIDTH, words).double()
        return converted(Theirs(), target_embedding=target, output=output, **ids)

    assert convert(5, start=3, end=4).model.config.target_vocab_size == 4
    with pytest.raises(ConfigError, match="a vocabulary needs at least 4 ids"):
        convert(4, start=1, end=3)
