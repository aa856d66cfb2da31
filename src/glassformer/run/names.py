"""Names of the files of a run folder, and the version of their format. Loads no torch."""

FORMAT = 1
CONFIG, WEIGHTS, METRICS, CURVES = "config.json", "model.safetensors", "metrics.jsonl", "curves.png"
HEADS, HEADS_PICTURE, PRUNED, PRUNED_PICTURE = "heads.json", "heads.png", "prune.json", "prune.png"
WATCHED, EVALUATIONS, TRANSLATIONS, ALIGNING = "attention.jsonl", "scores.json", "translations.jsonl", "aligning.json"
CALIBRATION, BOARD = "calibration.json", "tensorboard"
FILES = frozenset(
    {CONFIG, WEIGHTS, METRICS, CURVES, WATCHED, EVALUATIONS, TRANSLATIONS, HEADS, HEADS_PICTURE, PRUNED, PRUNED_PICTURE}
    | {ALIGNING, CALIBRATION, BOARD}
)
"""All files but those of the tokenizers, whose names stand in config.json; and the folder of TensorBoard's files."""
RESUME, LOCK, CHECKSUMS = "resume", "lock", "checksums.json"
INITIAL, ALIGNMENT, TRACKED = "initial.safetensors", "alignment.safetensors", "tracked.json"
"""The folder that only an unfinished training needs. In it: the lock of the process at work, the checksums of what was
prepared, the weights that a training from another run begins with, the alignment that a guided head learns from, and
the run in a tracker that goes on."""
