"""Distillation and back-translation whose text is translated on a cluster."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from glassformer.cluster.bulk import translate_once
from glassformer.cluster.config import ClusterConfig
from glassformer.errors import ConfigError
from glassformer.files import remove_at_once
from glassformer.generation.config import SearchConfig
from glassformer.synthesis.config import SynthesisConfig
from glassformer.synthesis.written import Writer


def cluster_writer(
    config: SynthesisConfig, cluster: ClusterConfig | None = None, say: Callable[[str], None] | None = None
) -> Writer:
    """Return what `distill`, `backtranslate` and `write_pairs` take as `writer` to let a Ray cluster translate.

    What it writes is to the byte what this machine would write in the same precision. The folder of the stages
    (`config.folder`) must be one that all machines of the cluster reach. `config` is that of the distillation, whose
    `writing_precision` and whose student's `device` are those of the workers; `say` is told of the progress now and
    then where there is no terminal. Raises ConfigError for an ensemble.

    Example: docs/howto/distill.md.
    """
    if config.ensemble:
        raise ConfigError("a cluster translates with one run: leave out the ensemble")
    return partial(
        write_on_cluster,
        cluster=cluster or ClusterConfig(),
        device=config.student.device,
        precision=config.writing_precision,
        say=say,
    )


def write_on_cluster(
    runs: Sequence[Path],
    text: Path,
    output: Path,
    search: SearchConfig,
    *,
    cluster: ClusterConfig,
    device: str,
    precision: str,
    say: Callable[[str], None] | None,
) -> None:
    """Translate the lines of a file on a cluster, as a `Writer` does; blocks are kept beside `output` meanwhile."""
    (run,) = runs
    folder = output.with_name(f"{output.name}.blocks")
    if not output.exists():
        cut = translate_once(*(run, text, folder, search), cluster=cluster, device=device, precision=precision, say=say)
        if cut and say is not None:
            say(f"{cut:,} of the lines were not translated whole: they or their translations reached a limit of tokens")
        (folder / text.name).replace(output)
    if folder.exists():
        remove_at_once(folder)
