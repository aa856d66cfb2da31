"""Recording the attention of any model while it runs, without a change to the model.

It may import `attention` and `reference` only. Open `capture` first: it is the public function. `torch_nn`,
`huggingface`, `reference` and `adapters` attach to modules that are known, and `sdpa` to torch's attention functions,
whoever calls them. `running` knows which module that is, and `record` holds what all of them record.
"""
