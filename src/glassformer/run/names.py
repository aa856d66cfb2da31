"""Names of the files of a run folder, and the version of their format. Loads no torch."""

FORMAT = 1
CONFIG, WEIGHTS, METRICS, CURVES = "config.json", "model.safetensors", "metrics.jsonl", "curves.png"
HEADS, HEADS_PICTURE, PRUNED, PRUNED_PICTURE = "heads.json", "heads.png", "prune.json", "prune.png"
WATCHED, EVALUATIONS, ALIGNING = "attention.jsonl", "scores.json", "aligning.json"
FILES = frozenset(
    {CONFIG, WEIGHTS, METRICS, CURVES, WATCHED, EVALUATIONS, HEADS, HEADS_PICTURE, PRUNED, PRUNED_PICTURE, ALIGNING}
)
"""All files but those of the tokenizers, whose names stand in config.json."""
RESUME, LOCK, CHECKSUMS = "resume", "lock", "checksums.json"
INITIAL, ALIGNMENT = "initial.safetensors", "alignment.safetensors"
"""The folder that only an unfinished training needs. In it: the lock of the process at work, the checksums of what was
prepared, the weights that a training from another run begins with, and the alignment that a guided head learns from."""
