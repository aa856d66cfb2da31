"""One attention operation: its output, and exact facts about its weights, as fast as the processor allows.

It imports nothing of ours but the leaves (`errors`, `device`, ...). Open `attend` first (the output alone), then
`observe` (the output with facts), then `multihead` (the drop-in for torch.nn.MultiheadAttention); `kernels/` is how
they compute.
"""
