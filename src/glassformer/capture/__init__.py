"""Recording the attention of any model while it runs, without a change to the model.

It may import `attention` only. Open `capture` first: it is the public function. `torch_nn` and `huggingface` attach to
the two kinds of models, and `record` holds what they record.
"""
