"""The attention of any model, recorded while the model runs.

It may import `attention`. Open `capture` first; `torch_nn` and `huggingface` say how each kind of model is listened
to, and `record` is what a user gets.
"""
