"""The processes that own the models of a server: one for each copy of a model, which batches for it.

`pool` is the server's side: it starts the processes, hands out requests and replaces a process that was lost.
`worker` is the process itself, and `batching` its queue. `messages` is what they say to each other. Nothing here
imports FastAPI, and the server's side doesn't import torch.
"""
