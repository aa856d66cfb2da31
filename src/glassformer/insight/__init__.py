"""What the heads of a trained model do, which of them matter, and a smaller model without the rest.

It may import `capture`, `training` and what they import. Open `heads` first (statistics and roles), then `gates`
(importance) and `prune`.
"""
