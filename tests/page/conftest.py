"""A captured Transformer, a random run, and the reader of a page's data."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer import Want, capture
from glassformer.capture.record import Captured
from glassformer.text.tokenizer import SymbolTokenizer


def numbers(body: Tensor, offset: int, count: int, type: str, scale: float, shape: list[int]) -> Tensor:
    """A tensor of a page, as web/data.js reads it."""
    width = int(type[1])
    raw = body[offset : offset + width * count].view(width, count).T.contiguous()
    if type == "f4":
        return raw.view(torch.float32).view(shape)
    codes = sum(raw[:, n].long() << (8 * n) for n in range(width)).view(shape)
    if type == "p2":
        return torch.where(codes == 0, 0.0, scale * 2.0 ** ((codes >> 11) - 31) * (1 + (codes & 2047) / 2048))
    return torch.where(codes == (1 << 8 * width) - 1, -1, codes)


def read(data: bytes) -> tuple[dict[str, Any], Callable[..., Tensor]]:
    raw = zlib.decompress(data)
    length = int.from_bytes(raw[:4], "little")
    body = torch.frombuffer(bytearray(raw[4 + length :]), dtype=torch.uint8)
    return json.loads(raw[4 : 4 + length]), lambda place: numbers(body, **place)


@pytest.fixture(scope="session")
def read_data() -> Callable[[bytes], tuple[dict[str, Any], Callable[..., Tensor]]]:
    """Returns the header of a page's data, and a function that reads a tensor from its description."""
    return read


@pytest.fixture(scope="session")
def hypotheses_of() -> Callable[[Any], list[dict[str, Any]]]:
    """Returns the hypotheses of a page, their facts as tensors."""

    def hypotheses_of(made: Any) -> list[dict[str, Any]]:
        header, tensor = read(made.data)
        for view in (view for one in header["hypotheses"] for view in one["views"]):
            view["facts"] = {name: tensor(place) for name, place in view["facts"].items()}
        return header["hypotheses"]

    return hypotheses_of


@pytest.fixture(scope="session")
def source() -> list[str]:
    """Tokens some of which would be markup, were they not text."""
    return [
        *["the", "white", "dog", "sat", "by", "the"],
        "<script>document.title='x'</script>",
        "</script>",
        "",
        " a b",
    ]


@pytest.fixture(scope="session")
def target() -> list[str]:
    return ["<pad>", "la", "<b>", "chien", "&amp;"]


@pytest.fixture(scope="session")
def model() -> nn.Transformer:
    torch.manual_seed(3)
    made = nn.Transformer(32, 4, 2, 3, 64, batch_first=True).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "in_proj_weight" in name:
                parameter *= 3
    return made


@pytest.fixture(scope="session")
def record(model) -> Callable[..., Captured]:
    """Captures the model over so many tokens."""

    def record(want: Want, source: int = 10, target: int = 5, batch: int = 1, **settings: Any) -> Captured:
        torch.manual_seed(5)
        mask = nn.Transformer.generate_square_subsequent_mask(target)
        with torch.no_grad(), capture(model, want, **settings) as captured:
            model(torch.randn(batch, source, 32), torch.randn(batch, target, 32), tgt_mask=mask, tgt_is_causal=True)
        return captured

    return record


@pytest.fixture(scope="session")
def captured(record) -> Captured:
    return record(Want(weights=True))


@pytest.fixture(scope="session")
def run(random_run, tmp_path_factory) -> Path:
    letters = SymbolTokenizer.train(["a b c d e f g"], vocab_size=None)
    folder = tmp_path_factory.mktemp("runs") / "random"
    random_run(folder, letters, letters)
    return folder
