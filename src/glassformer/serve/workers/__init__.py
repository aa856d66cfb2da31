"""The processes that own the models of a server: one for each copy of a model, which batches for it.

`pool` is the server's side: it starts the processes, hands out requests and replaces a process that was lost.
`process` is the program of such a process, `requests` makes tasks of what it is asked, `batching` is their queue, and
`worker` has the threads that compute. `messages` is what server and process say to each other. Nothing here imports
FastAPI, and the server's side doesn't import torch.
"""
