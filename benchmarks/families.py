"""Which Hugging Face families `capture` covers: the weights that it records beside those of the model's own eager form.

    python benchmarks/families.py [--only bert gpt2 ...] [--markdown]

Every family is a model of random weights, two layers and three heads, made from its config. No network is used. A
family is covered where `capture` records as many attentions as the model returns under `output_attentions=True`, and
each weight is within 1e-5 of it in float32. Queries that are padding are left out: where they may look nowhere their
weights are zeros here, and equal ones in the eager form. A family that is not covered is printed with the reason. A run
of all families is kept in results/families.jsonl. `--markdown` prints the table of docs/inside.md, which
tests/capture/test_adapters.py compares with that file.
"""

import copy
import os
import sys
import warnings
from dataclasses import dataclass
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is loaded

import bench
import torch
import transformers
import tyro
from torch import Tensor, nn

from glassformer import Want, capture

BATCH, SOURCE, TARGET, VOCABULARY = 2, 11, 7, 97
CLOSE, LARGER = 1e-5, 5
TEXT = dict(
    **dict(vocab_size=VOCABULARY, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40),
    **dict(max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2),
)
DECODER = {**TEXT, "num_key_value_heads": 3}
GROUPED = {**TEXT, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}
EXPERTS = dict(num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
PAIR = dict(
    **dict(vocab_size=VOCABULARY, d_model=24, pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2),
    **{
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in dict(layers=2, attention_heads=3, ffn_dim=40).items()
    },
    max_position_embeddings=64,
)
IMAGE = dict(
    **dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40),
    **dict(image_size=20, patch_size=5),
)
T5 = dict(
    **dict(vocab_size=VOCABULARY, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3),
    **dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0),
)
OLD = dict(vocab_size=VOCABULARY, pad_token_id=1, bos_token_id=0, eos_token_id=2)
SPEECH = dict(
    **dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, vocab_size=VOCABULARY),
    **dict(conv_dim=(8, 8), conv_stride=(3, 2), conv_kernel=(5, 3), num_feat_extract_layers=2),
    **dict(num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2),
)
TOWER = {name: TEXT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
TOWERS = dict(
    text_config={**TOWER, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "projection_dim": 16},
    vision_config={**TOWER, "image_size": 20, "patch_size": 5, "projection_dim": 16},
)
"""Sizes under the names that families use for them."""


BERTS = (
    *("bert", "roberta", "electra", "camembert", "xlm-roberta", "mpnet", "ernie", "nomic_bert"),
    *("megatron-bert", "roformer", "convbert", "esm", "layoutlm", "data2vec-text", "ibert"),
)
LLAMAS = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"),
    *("olmo2", "stablelm", "cohere", "granite", "starcoder2", "smollm3", "glm4"),
    *("olmo", "cohere2", "helium", "persimmon"),
)
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss")
GPTS = ("gpt2", "gpt_bigcode", "openai-gpt")
BARTS = ("bart", "marian", "mbart", "pegasus", "m2m_100", "blenderbot")
"""Families whose settings have the same names."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family's settings, and what its models are given: text, pair, image, both (text and image), sound or wave."""

    given: str
    settings: dict[str, Any]
    not_returned: str = "nothing"
    """The path of an attention that the model doesn't return, such as the one that pools the vision tower."""
    by_module: bool = False
    """Take the weights from each attention module, where the model returns only some of theirs."""


FAMILIES: dict[str, Family] = {
    **{name: Family(given="text", settings=TEXT) for name in BERTS},
    "distilbert": Family(given="text", settings={**OLD, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40}),
    "albert": Family(given="text", settings={**TEXT, "embedding_size": 16}),
    **{
        name: Family(
            given="text",
            settings={**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
        )
        for name in ("deberta", "deberta-v2")
    },
    "rembert": Family(given="text", settings={**TEXT, "input_embedding_size": 24}),
    "mobilebert": Family(
        given="text", settings={**TEXT, "embedding_size": 24, "true_hidden_size": 24, "intra_bottleneck_size": 24}
    ),
    "squeezebert": Family(given="text", settings={**TEXT, "embedding_size": 24}),
    "big_bird": Family(given="text", settings={**TEXT, "attention_type": "original_full"}),
    "longformer": Family(given="text", settings={**TEXT, "attention_window": 4}),
    "nystromformer": Family(given="text", settings={**TEXT, "num_landmarks": 4, "segment_means_seq_len": 12}),
    "xlm": Family(given="text", settings={**OLD, "emb_dim": 24, "n_layers": 2, "n_heads": 3}),
    "modernbert": Family(given="text", settings={**TEXT, "cls_token_id": 0, "sep_token_id": 2, "local_attention": 6}),
    **{
        name: Family(given="text", settings={**OLD, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64})
        for name in GPTS
    },
    "ctrl": Family(
        given="text", settings={**OLD, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64, "dff": 40}
    ),
    "codegen": Family(
        given="text", settings={**OLD, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
    ),
    "gpt_neo": Family(
        given="text",
        settings={
            **dict(OLD, hidden_size=24, num_layers=2, num_heads=3, window_size=4, max_position_embeddings=64),
            **dict(attention_types=[[["global", "local"], 1]], intermediate_size=40),
        },
    ),
    "gptj": Family(
        given="text", settings={**OLD, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64, "rotary_dim": 4}
    ),
    "gpt_neox": Family(given="text", settings=TEXT),
    "opt": Family(given="text", settings={**TEXT, "ffn_dim": 40, "word_embed_proj_dim": 24}),
    "bloom": Family(given="text", settings={**OLD, "hidden_size": 24, "n_layer": 2, "n_head": 3}),
    "falcon": Family(given="text", settings=TEXT),
    **{name: Family(given="text", settings=GROUPED) for name in LLAMAS},
    "phi": Family(given="text", settings={**GROUPED, "partial_rotary_factor": 0.5}),
    **{name: Family(given="text", settings={**GROUPED, **EXPERTS}) for name in MIXTURES},
    "deepseek_v3": Family(
        given="text",
        settings={
            **dict(DECODER, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8),
            **dict(n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=24),
            **dict(first_k_dense_replace=1),
        },
    ),
    "mpt": Family(
        given="text",
        settings={**OLD, "d_model": 24, "n_layers": 2, "n_heads": 3, "max_seq_len": 64, "expansion_ratio": 2},
    ),
    "xlnet": Family(given="text", settings={**OLD, "d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 40}),
    **{name: Family(given="pair", settings=T5) for name in ("t5", "mt5", "umt5")},
    "longt5": Family(given="pair", settings={**T5, "encoder_attention_type": "local", "local_radius": 3}),
    "led": Family(given="pair", settings={**PAIR, "attention_window": 4}),
    **{name: Family(given="pair", settings=PAIR) for name in BARTS},
    "nllb-moe": Family(
        given="pair", settings={**PAIR, "num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2}
    ),
    "whisper": Family(
        given="sound", settings={**PAIR, "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 16}
    ),
    **{name: Family(given="image", settings=IMAGE) for name in ("vit", "deit", "dinov2", "dinov3_vit", "ijepa")},
    "beit": Family(given="image", settings={**IMAGE, "use_relative_position_bias": True}),
    **{
        name: Family(
            given="image",
            settings=dict(image_size=32, patch_size=2, embed_dim=24, depths=[2, 2], num_heads=[3, 3], window_size=4),
            by_module=True,
        )
        for name in ("swin", "swinv2")
    },
    "clip": Family(given="both", settings=TOWERS),
    "siglip": Family(given="both", settings=TOWERS, not_returned="vision_model.head.attention"),
    **{name: Family(given="wave", settings=SPEECH) for name in ("wav2vec2", "hubert", "sew")},
}
"""The families, in the order of the table, by Hugging Face's `model_type`."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a family: the attentions recorded, the largest difference, and why it isn't covered."""

    attentions: int = 0
    apart: float = 0.0
    why: str = ""


def main(only: tuple[str, ...] = (), markdown: bool = False) -> None:
    """Print which families are covered.

    Args:
        only: These families in place of all.
        markdown: Print a Markdown table.
    """
    warnings.filterwarnings("ignore", "capture could not record")  # it is counted
    outcomes = {name: examine(name) for name in only or FAMILIES}
    if not only:
        kept = {name: vars(outcome) for name, outcome in outcomes.items()}
        bench.keep("families", {"families": kept, "transformers": transformers.__version__})
    if markdown:
        print(table(outcomes))
        return
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for name, outcome in outcomes.items():
        words = outcome.why or f"{outcome.attentions} attentions, within {outcome.apart:.0e}"
        print(f"{name:14} {'refused' if outcome.why else 'covered'}  {words}")
    print(f"covered: {sum(not one.why for one in outcomes.values())} of {len(outcomes)}")


def table(outcomes: dict[str, Outcome]) -> str:
    """Return a Markdown table: covered families by what they are given, then the others by their reasons."""
    words = {
        "text": "text",
        "pair": "text to text",
        "image": "images",
        "both": "text and images",
        "sound": "speech to text",
        "wave": "speech",
    }
    lines = ["| models of | families |", "|---|---|"]
    for given, label in words.items():
        names = [name for name in outcomes if FAMILIES[name].given == given and not outcomes[name].why]
        lines.append(f"| {label} | {', '.join(names)} |")
    reasons = dict.fromkeys(one.why for one in outcomes.values() if one.why)
    refused = {why: [name for name, one in outcomes.items() if one.why == why] for why in reasons}
    lines += [f"| not covered: {why} | {', '.join(names)} |" for why, names in refused.items()]
    return "\n".join(lines)


def examine(name: str) -> Outcome:
    """Return what became of a family."""
    model, inputs = make(name)
    try:
        with torch.no_grad(), capture(model, Want(weights=True)) as captured:
            model(**inputs)
    except ValueError as error:
        first = str(error).split(": ")[0]
        return Outcome(why="refused, for it has code of its own" if "has none" in first else first)
    if captured.unseen:
        return Outcome(why="a warning names the layers that have code of their own")
    paths = [path for path in captured if path != FAMILIES[name].not_returned]
    found = [captured[path].weights for path in paths]
    expected = eager_weights(model, inputs, paths if FAMILIES[name].by_module else [])
    if [one.shape for one in found] != [one.shape for one in expected]:
        return Outcome(why=f"recorded {len(found)} attentions of {len(expected)}, or others")
    apart = max(
        (one - other).mul(real(one, inputs)).abs().max().item() for one, other in zip(found, expected, strict=True)
    )
    return Outcome(attentions=len(found), apart=apart, why=f"off by {apart:.1e}" if apart > CLOSE else "")


def real(weights: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Return which queries are not padding, for weights (batch, heads, queries, keys)."""
    keep = inputs.get("attention_mask")
    if keep is None or keep.shape[1] != weights.shape[2]:
        return torch.ones(1, dtype=torch.bool)
    return keep.bool()[:, None, :, None]


def make(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a small model of a family, with random weights, and inputs."""
    torch.manual_seed(0)
    family = FAMILIES[name]
    config = transformers.AutoConfig.for_model(name, **family.settings)
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():  # first weights are so small that all keys get about the same
        for parameter in model.parameters():
            parameter.mul_(LARGER if parameter.dim() > 1 else 1)
    keep = torch.ones(BATCH, SOURCE, dtype=torch.long)
    keep[1, 7:] = 0
    text = {"input_ids": torch.randint(3, VOCABULARY - 1, (BATCH, SOURCE)), "attention_mask": keep}
    target = {"decoder_input_ids": torch.randint(3, VOCABULARY - 1, (BATCH, TARGET))}
    image = {
        "pixel_values": torch.randn(
            BATCH, 3, 32 if name.startswith("swin") else 20, 32 if name.startswith("swin") else 20
        )
    }
    match family.given:
        case "text":
            return model, text
        case "pair":
            return model, text | target
        case "image":
            return model, image
        case "both":
            return model, {"input_ids": text["input_ids"]} | image
        case "sound":
            return model, {"input_features": torch.randn(BATCH, 8, 24)} | target
        case _:
            return model, {"input_values": torch.randn(BATCH, 150)}


@torch.no_grad()
def eager_weights(model: Any, inputs: dict[str, Tensor], paths: list[str]) -> list[Tensor]:
    """Return the weights that the eager form returns, in the order of the model's modules, or these modules' alone."""
    eager = transformers.AutoModel.from_config(copy.deepcopy(model.config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    seen: list[Tensor] = []
    for path in paths:
        eager.get_submodule(path).register_forward_hook(lambda module, inputs, output: seen.append(output[1]))
    output = eager(**inputs, output_attentions=True)
    if paths:
        return seen
    towers = [output[name] for name in ("text_model_output", "vision_model_output") if name in output]
    if towers:
        return [weights for tower in towers for weights in tower.attentions]
    alone, encoder, decoder, cross = (
        output.get(name) or ()
        for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    )
    return [*alone, *encoder, *(weights for pair in zip(decoder, cross, strict=True) for weights in pair)]


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
