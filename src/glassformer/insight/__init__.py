"""A study of a trained model's heads: their roles and importance, and a smaller model without the rest.

It may import `capture`, `training` and what they import. Open `study` first (statistics and roles), then `gates`
(importance) and `prune`. `alignment` studies any model that `capture` can record.
"""
