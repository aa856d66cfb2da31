"""What the files of a run folder are called, and the version of their format. Loads no torch."""

FORMAT = 1
CONFIG, WEIGHTS, METRICS, CURVES = "config.json", "model.safetensors", "metrics.jsonl", "curves.png"
HEADS, HEADS_PICTURE, PRUNED, PRUNED_PICTURE = "heads.json", "heads.png", "prune.json", "prune.png"
FILES = frozenset({CONFIG, WEIGHTS, METRICS, CURVES, HEADS, HEADS_PICTURE, PRUNED, PRUNED_PICTURE})
"""All but the tokenizers', whose names config.json says."""
RESUME, LOCK, INITIAL, ALIGNMENT = "resume", "lock", "initial.safetensors", "alignment.safetensors"
"""The folder of what only an unfinished training needs, and in it the file that the process at work holds, the weights
that a training from another run begins with, and what a guided head learns from."""
