"""Pieces that several commands share."""

from pathlib import Path

from glassformer.errors import ConfigError


def check_new_folder(path: Path) -> None:
    """Raise ConfigError unless `path` may become a folder to write: nothing is there, or an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"--out {path} is already there: give a new name, or remove it first")
