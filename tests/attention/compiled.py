"""Run by test_compiled.py, in a process without the shape checks of the test suite, which torch.compile can't trace."""

import warnings

import torch
from torch import nn
from torch.testing import assert_close

from glassformer.attention.attend import attend
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.observe import observe
from glassformer.attention.replace import replace_attention
from glassformer.attention.want import Want
from glassformer.transformer.dropout import Dropout

B, L, E, H = 2, 5, 12, 3
warnings.simplefilter("ignore")  # torch's own, of its compiler

module = MultiheadAttention(E, H, dropout=0.5, batch_first=True).eval()
x = torch.randn(B, L, E)
masks = {"key_padding_mask": torch.arange(L).expand(B, L) > 3, "attn_mask": torch.ones(L, L, dtype=torch.bool).triu(1)}

for need_weights in (True, False):
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
            found = compiled(x, x, x, need_weights=need_weights, **masks)
            assert_close(found, module(x, x, x, need_weights=need_weights, **masks))
    exported = torch.export.export(module, (x, x, x), {"need_weights": need_weights, **masks}).module()
    found = exported(x, x, x, need_weights=need_weights, **masks)
    assert_close(found, module(x, x, x, need_weights=need_weights, **masks))
print("masks: compiled and exported")

free = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=2, max=512)}
for strict in (True, False):
    exported = torch.export.export(module, (x, x, x), dynamic_shapes=(free, free, free), strict=strict).module()
    longer = torch.randn(3, 300, E)
    assert_close(exported(longer, longer, longer), module(longer, longer, longer))
print("dynamic shapes: exported")


class Step(nn.Module):
    """The distance of the last queries, whose position follows from the lengths."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        first = k.shape[2] - q.shape[2]
        return observe(q, k, k, want=Want(distance=True), first_query=first)[1].distance


q, k, more = (torch.randn(1, H, n, 4) for n in (3, 9, 17))
for strict in (True, False):
    growing = {2: torch.export.Dim("keys", min=4, max=512)}
    exported = torch.export.export(Step(), (q, k), dynamic_shapes=({}, growing), strict=strict).module()
    assert_close(exported(q, more), Step()(q, more))
print("a step's position: exported")

traced = torch.jit.trace(module, (x, x, x))
assert_close(traced(longer, longer, longer), module(longer, longer, longer))
print("traced")

long = torch.randn(1, 256, E, requires_grad=True)  # where, eagerly, blocks would be taken
compiled = torch.compile(module.train(), fullgraph=True, backend="aot_eager")
output, weights = compiled(long, long, long)
(output.sum() + weights.square().sum()).backward()
assert (weights == 0).any()
assert long.grad is not None
assert long.grad.isfinite().all()
print("training: compiled")

dropped = torch.compile(Dropout(0.5), fullgraph=True, backend="aot_eager")(torch.ones(1000))
assert set(dropped.tolist()) == {0.0, 2.0}
print("dropout: compiled")

half = torch.randn(1, H, 128, 4, dtype=torch.bfloat16)
compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
for autocast, given in ((False, half), (True, half.float())):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found, expected = compiled(given, given, given), attend(given, given, given)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert_close(found, expected, atol=2e-2, rtol=2e-2)
print("bfloat16: compiled")

model = replace_attention(nn.Transformer(E, H, 1, 1, 16, batch_first=True)).eval()
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
assert_close(compiled(x, x), model(x, x))
assert_close(torch.export.export(model, (x, x)).module()(x, x), model(x, x))
print("nn.Transformer: compiled and exported")
