"""Compiled code runs uncompiled inside a capture, and compiled as before afterwards."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.testing import assert_close

from glassformer import capture
from glassformer.capture.calls import uncompiled as module
from glassformer.capture.calls.callers import may_call_flex
from glassformer.capture.calls.uncompiled import uncompiled


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


@pytest.fixture
def counter() -> CompileCounter:
    torch._dynamo.reset()
    return CompileCounter()


def test_a_compiled_function_and_a_compiled_module_are_recorded(counter):
    function = torch.compile(F.scaled_dot_product_attention, backend=counter)

    class Outer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x, x, x)

    inner, x = Inner(), torch.randn(2, 3, 5, 11)
    inner.compile(backend=counter)
    model = nn.Sequential(Outer(), inner)
    plain, before = model(x), counter.frame_count
    assert before
    with capture(model) as captured:
        assert_close(model(x), plain)
    assert list(captured) == ["0", "1"]
    assert_close(model(x), plain)
    assert counter.frame_count == before, "nothing was compiled again"


@pytest.mark.filterwarnings("ignore:.*when there are global hooks on modules")
def test_calls_of_a_compiled_model_are_recorded_for_the_model_in_it(counter):
    inner, x = nn.Sequential(Inner()), torch.randn(2, 3, 5, 11)
    model = torch.compile(inner, backend=counter)
    plain = model(x)
    with capture(inner) as captured:
        assert_close(model(x), plain)
    assert list(captured) == ["0"]


def test_contexts_that_overlap_end_with_the_last(counter):
    @torch.compile(backend=counter)
    def double(x: Tensor) -> Tensor:
        return x * 2

    first, second = uncompiled([]), uncompiled([])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    double(torch.ones(1))
    assert counter.frame_count == 0
    second.__exit__(None, None, None)
    double(torch.ones(1))
    assert counter.frame_count == 1
    assert module._count == 0


def test_callers_of_flex_attention_are_known_by_their_file():
    assert not may_call_flex(Inner())
    from torch.nn.attention import flex_attention

    class Flex(nn.Module):
        __module__ = flex_attention.__name__

    assert may_call_flex(Flex())
