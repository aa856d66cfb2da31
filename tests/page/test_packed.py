"""Tensors as bytes: what the page's script reads is what was packed."""

import pytest
import torch
from torch.testing import assert_close

from glassformer.page.packed import PackedTensors


@pytest.mark.parametrize("kind", ["f4", "p2"])
def test_numbers_are_read_back(read_data, kind):
    some = torch.tensor([[0.0, 1.0, 0.5, 0.3], [1e-3, 1e-9, 1e-12, 3e-7]])
    packed = PackedTensors()
    places = [packed.add(x, kind) for x in (some, 700 * some, some)]
    assert places[0]["offset"] == places[2]["offset"]  # equal tensors are stored once
    header, tensor = read_data(packed.pack({"title": "é"}))
    assert header == {"title": "é"}
    for place, scale in zip(places, (1, 700, 1), strict=True):
        if kind == "f4":
            assert torch.equal(tensor(place), scale * some)
        else:
            assert_close(tensor(place), scale * some, rtol=1 / 4096, atol=scale * 2**-31)
            assert tensor(place)[0, :2].tolist() == [0.0, scale]


@pytest.mark.parametrize(("kind", "last"), [("u2", (1 << 16) - 2), ("u4", (1 << 32) - 2)])
def test_positions_are_read_back(read_data, kind, last):
    positions = torch.tensor([[-1, 0], [300, last]])
    packed = PackedTensors()
    place = packed.add(positions, kind)
    assert torch.equal(read_data(packed.pack({}))[1](place), positions)
