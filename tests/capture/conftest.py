"""Models to capture: a torch.nn encoder, Hugging Face models of each family, and a snapshot of what a model holds."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from glassformer import Want

B, S, T, V = 2, 11, 7, 97  # batch, source and target length, vocabulary
SIZES = dict(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40)
PAIR = dict(
    **dict(vocab_size=V, d_model=24, pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2),
    **{
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in dict(layers=2, attention_heads=3, ffn_dim=40).items()
    },
    max_position_embeddings=64,
)
T5 = dict(
    **dict(vocab_size=V, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3),
    **dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0),
)
VISION = dict(
    **dict(hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=3),
    **dict(image_size=16, patch_size=8),
)
CAUSAL = {**SIZES, "num_key_value_heads": 3, "max_position_embeddings": 64}
FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
    "vit": lambda: transformers.ViTModel(
        transformers.ViTConfig(
            **{name: SIZES[name] for name in SIZES if name != "vocab_size"}, image_size=20, patch_size=5
        )
    ),
    "bart": lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(**PAIR)),
    "marian": lambda: transformers.MarianMTModel(transformers.MarianConfig(**PAIR, decoder_vocab_size=V)),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**CAUSAL, "num_attention_heads": 6})),
    "nllb_moe": lambda: transformers.NllbMoeModel(
        transformers.NllbMoeConfig(**PAIR, num_experts=2, encoder_sparse_step=2, decoder_sparse_step=2)
    ),
    "git": lambda: transformers.GitModel(transformers.GitConfig(**SIZES, pad_token_id=1, vision_config=VISION)),
    "gemma": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**CAUSAL, head_dim=8)),
}


def make_family(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    model = FAMILIES[name]().eval()
    if name == "vit":
        return model, {"pixel_values": torch.randn(B, 3, 20, 20)}
    keep = torch.ones(B, S, dtype=torch.long)
    keep[1, 7:] = 0
    inputs = {"input_ids": torch.randint(3, V - 1, (B, S)), "attention_mask": keep}
    if name in ("bart", "marian", "t5", "nllb_moe"):
        inputs["decoder_input_ids"] = torch.randint(3, V - 1, (B, T))
    return model, inputs


def make_encoder(**changes: Any) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 40, batch_first=True, **changes), 2)


@pytest.fixture
def make() -> SimpleNamespace:
    """Functions that make models: `encoder(**changes)`, and `family(name)` with inputs."""
    return SimpleNamespace(encoder=make_encoder, family=make_family)


@pytest.fixture
def state_of() -> Callable[[nn.Module], list[tuple[str, dict[str, Any]]]]:
    """Returns everything that the modules of a model hold."""
    return lambda model: [(name, dict(module.__dict__)) for name, module in model.named_modules()]


@pytest.fixture
def everything() -> Want:
    return Want(weights=True, head_mean=True, entropy=True, received=True, distance=True, lse=True, top=3)
