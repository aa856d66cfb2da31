"""The encoder-decoder Transformer (Vaswani et al. 2017), post-norm, in the conventions of the Marian layout."""
