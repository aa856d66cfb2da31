"""The size and shape of a model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from glassformer.errors import ConfigError, shown
from glassformer.settings.checks import Choice, Probability, VocabularySize, Whole, check_settings
from glassformer.settings.docstrings import with_fields

MOST_HEADS = 1024
ACTIVATIONS = ("relu", "swish", "gelu")
LATER = ("norm_first", "final_norm", "heads_left")
"""Settings that older run folders don't name; there they have the default."""


@with_fields
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a Transformer. The defaults are the base model of Vaswani et al. 2017, table 3.

    Token ids: `</s>` = 0, `<unk>` = 1, `<pad>` = the last id of each vocabulary. Raises ConfigError for sizes that
    don't fit one another.

    >>> config = ModelConfig.tiny(source_vocab_size=100, target_vocab_size=100, dropout=0.1)
    >>> config.d_model, config.encoder_layers, config.all_heads
    (128, 4, 48)
    """

    source_vocab_size: VocabularySize
    """Number of source token ids, `<pad>` included."""
    target_vocab_size: VocabularySize
    """Number of target token ids, `<pad>` included."""
    shared_vocab: bool = True
    """One vocabulary, and so one embedding matrix, for source, target and output."""
    d_model: Annotated[int, Whole(at_least=1, limit=1 << 16)] = 512
    """Width of every position's vector."""
    heads: Annotated[int, Whole(at_least=1, limit=MOST_HEADS)] = 8
    """Attention heads; each is d_model / heads wide."""
    encoder_layers: Annotated[int, Whole(at_least=1, limit=1024)] = 6
    """Number of the encoder's layers."""
    decoder_layers: Annotated[int, Whole(at_least=1, limit=1024)] = 6
    """Number of the decoder's layers."""
    d_ff: Annotated[int, Whole(at_least=1, limit=1 << 20)] = 2048
    """Width of the feed-forward layers."""
    dropout: Probability = 0.1
    """Probability of dropping a number at the end of a sub-layer and after the embeddings."""
    attention_dropout: Probability = 0.0
    """Probability of dropping an attention weight."""
    activation: Annotated[str, Choice(*ACTIVATIONS)] = "relu"
    """Activation of the feed-forward layers: relu, swish (x sigmoid(x)) or gelu."""
    scale_embedding: bool = True
    """Multiply embeddings by sqrt(d_model)."""
    tied_output: bool = True
    """The target embeddings are the output projection too."""
    output_bias: bool = False
    """Add a learned number to each predicted token's logit."""
    norm_first: bool = False
    """Pre-norm layers, x + sublayer(LayerNorm(x)), in place of the paper's LayerNorm(x + sublayer(x))."""
    final_norm: bool = False
    """One more LayerNorm after the last encoder layer and one after the last decoder layer, as nn.Transformer has."""
    heads_left: Mapping[str, int] = field(default_factory=dict)
    """Number of heads left in each attention that lost some, by its path, such as encoder.0.self_attention."""

    def __post_init__(self) -> None:
        check_settings(self)
        if min(self.source_vocab_size, self.target_vocab_size) < 4:
            raise ConfigError(
                "a vocabulary needs at least 4 ids (</s>, <unk>, one token, <pad>), got "
                f"source_vocab_size {self.source_vocab_size}, target_vocab_size {self.target_vocab_size}"
            )
        if self.d_model % self.heads:
            fits = [h for h in range(1, min(self.d_model, MOST_HEADS) + 1) if self.d_model % h == 0]
            near = min(fits, key=lambda h: abs(h - self.heads))
            raise ConfigError(
                f"d_model must be a multiple of heads, got d_model {self.d_model} and heads {self.heads}: "
                f"{near} heads of width {self.d_model // near} would fit"
            )
        if not isinstance(self.heads_left, Mapping):
            raise ConfigError(
                f"heads_left must map paths of attentions to numbers of heads, got {shown(self.heads_left)}"
            )
        known = frozenset(self.attentions)
        for name, left in self.heads_left.items():
            if name not in known:
                raise ConfigError(f"heads_left must name attentions, from {self.attentions[0]} on, got {shown(name)}")
            if not isinstance(left, int) or not 0 <= left <= self.heads:
                raise ConfigError(f"heads_left must be from 0 to {self.heads} for {name}, got {shown(left)}")
        if self.shared_vocab and self.source_vocab_size != self.target_vocab_size:
            raise ConfigError(
                "a shared vocabulary has one size, got source_vocab_size "
                f"{self.source_vocab_size} and target_vocab_size {self.target_vocab_size}"
            )

    @property
    def source_pad(self) -> int:
        """The source id of padding, the last one."""
        return self.source_vocab_size - 1

    @property
    def target_pad(self) -> int:
        """The target id of padding, the last one; so it is also the number of ids that can be predicted."""
        return self.target_vocab_size - 1

    @property
    def attentions(self) -> tuple[str, ...]:
        """The paths of all attentions in the model, layer by layer."""
        encoder = (f"encoder.{n}.self_attention" for n in range(self.encoder_layers))
        decoder = (f"decoder.{n}.{kind}_attention" for n in range(self.decoder_layers) for kind in ("self", "source"))
        return (*encoder, *decoder)

    def heads_of(self, attention: str) -> int:
        """Return how many heads the attention of this path has."""
        return self.heads_left.get(attention, self.heads)

    @property
    def source_heads(self) -> dict[int, int]:
        """Return how many heads look at the source in each decoder layer that has any left."""
        heads = {n: self.heads_of(f"decoder.{n}.source_attention") for n in range(self.decoder_layers)}
        return {layer: count for layer, count in heads.items() if count}

    @property
    def all_heads(self) -> int:
        """The number of heads of all attentions together."""
        return sum(map(self.heads_of, self.attentions))

    @classmethod
    def tiny(cls, **changes: Any) -> "ModelConfig":
        """Return 4+4 layers of width 128, 4 heads: for tens of thousands of pairs on a laptop (Wu et al. 2021)."""
        sizes = dict(d_model=128, heads=4, encoder_layers=4, decoder_layers=4, d_ff=256, dropout=0.3)
        return cls(**{**sizes, **changes})

    @classmethod
    def small(cls, **changes: Any) -> "ModelConfig":
        """Return 3+3 layers of width 256, 4 heads: learns more from each pass than tiny, at twice its cost."""
        sizes = dict(d_model=256, heads=4, encoder_layers=3, decoder_layers=3, d_ff=512, dropout=0.3)
        return cls(**{**sizes, **changes})

    @classmethod
    def base(cls, **changes: Any) -> "ModelConfig":
        """Return the base model of Vaswani et al. 2017, table 3: 6+6 layers of width 512, 8 heads."""
        return cls(**changes)

    @classmethod
    def big(cls, **changes: Any) -> "ModelConfig":
        """Return the big model of Vaswani et al. 2017, table 3: 6+6 layers of width 1024, 16 heads."""
        return cls(**{**dict(d_model=1024, heads=16, d_ff=4096, dropout=0.3), **changes})

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "ModelConfig":
        """Return the preset of this name (one of `PRESETS`), with changes."""
        if name not in PRESETS:
            raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
        return getattr(cls, name)(**changes)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ModelConfig":
        """Return the config that `to_json` gave; ConfigError for unknown names, and missing ones not in `LATER`."""
        known = {field.name for field in fields(cls)}
        examples = asdict(cls(source_vocab_size=4, target_vocab_size=4))
        values = {name: examples[name] for name in LATER} | values
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"unknown model settings {', '.join(unknown)}: written by a newer glassformer?")
        if missing := sorted(known - set(values)):
            raise ConfigError(f"model settings without {', '.join(missing)}")
        return cls(**values)


PRESETS = ("tiny", "small", "base", "big")
