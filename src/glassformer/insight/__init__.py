"""What the heads of a trained model do, which of them matter, and a model without the rest.

It may import `capture`, `training` and what they import. Open `heads` first, then `prune`.
"""
