"""Other libraries: models of torch.nn with our attention in them."""
