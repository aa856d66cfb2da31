"""From a folder of files to a folder of their translations, on a Ray cluster."""

import fnmatch
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import ray
    import ray.data
    from ray.data.exceptions import ExecutionTimeoutError
    from ray.exceptions import RayError

    from glassformer.cluster.config import ClusterConfig
    from glassformer.cluster.forms import Text, form_of, output_name
    from glassformer.cluster.plan import (
        PLAN,
        Block,
        Plan,
        PlannedFile,
        done_blocks,
        finish,
        plan_file,
        start,
        try_to_finish_file,
    )
    from glassformer.cluster.pool import Pool, connected, pick_pool, pick_worker_precision, shrunk
    from glassformer.cluster.source import BlockSource
    from glassformer.cluster.storage import Storage, place_of
    from glassformer.cluster.weights import Packed, pack_run, size_of_run
    from glassformer.cluster.worker import BlockWorker, Job
except ImportError as error:
    raise ImportError(f'a cluster needs {error.name}: pip install "glassformer[cluster]"') from None

from glassformer.documents.endings import kind_of
from glassformer.errors import ConfigError, DataError, RunError, noting
from glassformer.generation.config import SearchConfig, Segmentation, as_config
from glassformer.generation.files import LineDemands, digest_of_run, settings_of_output
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.segments.paragraphs import warn_of_more_than_learned
from glassformer.meter import Meter
from glassformer.run.folder import open_run

FRUITLESS = 3
"""Rounds without a block done after which the translation is given up: what is left ends its workers."""
INIT_DEATHS = 8
"""Workers in a row that may end while they load the run, before a round is given up."""
READ_AHEAD = 1 << 24
"""Bytes of blocks that may wait in the object store, for each worker."""
SEEN_SECONDS = 60.0
"""Seconds for which a worker counts as working after its last block."""


@dataclass(frozen=True)
class BulkResult:
    """The extent of a bulk translation.

    Example: docs/howto/cluster.md.
    """

    files: int
    rows: int
    problems: int
    """Rows that could not be translated, or not whole: they stand in the output's _problems.jsonl."""


def translate_folder(
    run: str | Path,
    input: str | Path,
    output: str | Path,
    *,
    config: SearchConfig | None = None,
    cluster: ClusterConfig | None = None,
    device: str = "auto",
    precision: str = "auto",
    scores: bool = False,
    resume: bool = False,
    segment: Segmentation = "line",
    glossary: Glossary | None = None,
    placeholders: str | None = None,
    sentences: int | None = None,
    say: Callable[[str], None] | None = None,
) -> BulkResult:
    """Translate the files of a folder into another folder, on a Ray cluster.

    `input` is a folder, or one with a pattern, or several with | between them, such as `corpus/*.parquet|*.txt.gz`;
    `output` is a folder. Both may be URIs that pyarrow knows (s3://, gs://). Each file of text gives a file of the same
    name, the same bytes as `translate_file` writes; packed ones are unpacked. JSON lines and parquet give the same rows
    with a column `translation`: for them `n_best` must be 1. `config`, `scores`, `segment`, `glossary`,
    `placeholders` and `sentences` are as in `translate_file`; `say` is told of the progress now and then where there is
    no terminal.

    A row that can't be read has an empty translation and stands in `_problems.jsonl`. Workers and machines may be lost
    at any time. What is done at a stop stays in the output's folder `_unfinished`, and the same call with `resume`
    continues. A document is refused. Raises DataError or ConfigError where files or settings can't be used, and
    RunError where blocks of rows end each worker that gets them: these are named, and `resume` tries them again.

    Example: docs/howto/cluster.md.
    """
    search, wanted = as_config(config), LineDemands(segment, glossary, placeholders, sentences)
    wanted.check(search)
    source, names = find_files(place_of(input) if isinstance(input, Path) else input)
    if documents := [name for name in names if kind_of(output_name(name))]:
        raise DataError(
            f"{documents[0]} in {source} is a document, and a cluster translates lines: translate it by itself, "
            f"without a cluster, or leave it out by a pattern, such as '{source}/*.txt'"
        )
    if search.n_best > 1 and (tables := [name for name in names if form_of(name).name != Text.name]):
        raise ConfigError(
            f"n_best must be 1 for {tables[0]}, which gets a translation in each row, got {search.n_best}"
        )
    target = Storage.of(place_of(output) if isinstance(output, Path) else output)
    if (source.filesystem, source.root) == (target.filesystem, target.root):
        raise DataError(f"{target} has the files to translate: give another folder for the output")
    order = _Order(Path(run), source, names, target, search, wanted, scores, device, precision)
    return _translate(order, cluster or ClusterConfig(), say, resume=resume, advice="continue with --resume")


def translate_once(
    run: Path,
    text: Path,
    folder: Path,
    config: SearchConfig,
    *,
    cluster: ClusterConfig,
    device: str,
    precision: str,
    say: Callable[[str], None] | None = None,
) -> int:
    """Translate a file of text into a folder, with scores; go on where that was stopped, or do nothing if all is there.

    For work that is begun again after a stop, and doesn't know how far it came. Returns how many lines were not
    translated whole.
    """
    target = Storage.of(str(folder.absolute()))
    resume = target.is_file(PLAN)
    if target.is_file(output_name(text.name)) and not resume:
        return 0
    source = Storage.of(str(text.parent.absolute()))
    order = _Order(run, source, [text.name], target, config, LineDemands(), True, device, precision)
    return _translate(order, cluster, say, resume=resume, advice="the same command continues").problems


@dataclass(frozen=True)
class _Order:
    """Files to translate, the folder for their translations, and how they are translated."""

    run: Path
    source: Storage
    names: Sequence[str]
    target: Storage
    config: SearchConfig
    wanted: LineDemands
    scores: bool
    device: str
    precision: str


def _translate(
    order: _Order, cluster: ClusterConfig, say: Callable[[str], None] | None, *, resume: bool, advice: str
) -> BulkResult:
    """Connect to the cluster, and do there what is left; `advice` says how a stopped translation is continued."""
    run = open_run(order.run)  # which says what is missing or wrong in it, before others are asked to read it
    warn_of_more_than_learned(run.training.join_lines, order.wanted.sentences, stacklevel=3)  # a worker's isn't shown
    digest = digest_of_run(order.run)
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # else it tells of each execution
    with connected(cluster, size_of_run(order.run)):
        pool = pick_pool(cluster, order.device)
        picked = pick_worker_precision(pool, order.precision)
        how: dict[str, Any] = dict(config=order.config, wanted=order.wanted, scores=order.scores, device=pool.device)
        settings = settings_of_output(run_digest=digest, precision=picked, **how)
        plan = Plan(settings, survey(order.source, order.names, cluster.column, scores=order.scores))
        start(order.target, plan, resume=resume)
        job = Job(output=order.target, files=plan.files, precision=str(picked), threads=pool.cores, **how)
        done = done_blocks(order.target, plan)
        work = _Work(order.source, plan, job, pool, cluster, pack_run(order.run), done)
        with noting(lambda: f"{order.target} has {len(work.done):,} blocks of the translation: {advice}"):
            work.do(say)
        problems = finish(order.target, plan)
    return BulkResult(len(plan.files), plan.rows, problems)


def find_files(place: str) -> tuple[Storage, list[str]]:
    """Return the folder that a pattern begins with, and the files in it that it fits; DataError where there are none.

    Names that begin with . or _ are passed over.
    """
    folder, patterns = place, ["*"]
    if special := re.search(r"[*?|]", place):
        folder = place[: special.start()].rpartition("/")[0]
        patterns = [pattern.removeprefix(f"{folder}/") for pattern in place.split("|")]
    storage = Storage.of(folder or ".")
    if storage.is_file(""):  # the folder itself is one
        above, _, name = storage.root.rpartition("/")
        storage, patterns = Storage(storage.filesystem, above), [name]
    names = sorted(name for name in storage.names() if name[0] not in "._")
    found = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if not found:
        there = f"{len(names):,} others are in {storage}" if names else f"{storage} has none at all"
        raise DataError(f"{place}: no such files ({there}): give a folder, or one with a pattern in quotes")
    outputs = defaultdict[str, list[str]](list)
    for name in found:
        outputs[output_name(name)].append(name)
    if doubled := [both for both in outputs.values() if len(both) > 1]:
        raise DataError(f"{' and '.join(doubled[0])} would have the same translation: leave out one of them")
    return storage, found


def survey(source: Storage, names: Sequence[str], column: str | None, *, scores: bool) -> tuple[PlannedFile, ...]:
    """Return the plan of each file, which is read for it once; DataError for files that can't be read."""
    ask = ray.remote(plan_file)
    found = ray.get([ask.remote(source, name, column, scores) for name in names])
    if broken := [one for one in found if isinstance(one, str)]:
        raise DataError(broken[0] + (f" (and {len(broken) - 1:,} files more can't be used)" if len(broken) > 1 else ""))
    return tuple(one for one in found if not isinstance(one, str))


@dataclass
class _Work:
    """The blocks that are to be done, and those that are."""

    source: Storage
    plan: Plan
    job: Job
    pool: Pool
    cluster: ClusterConfig
    run: "ray.ObjectRef[Packed]"
    done: set[Block]
    left: dict[int, int] = field(default_factory=dict)
    """How many blocks each file still needs."""
    finishing: list[Any] = field(default_factory=list)
    seen: dict[str, float] = field(default_factory=dict)
    """When each worker was heard of last."""

    def do(self, say: Callable[[str], None] | None) -> None:
        """Translate what is missing, in rounds: what is stuck with a lost machine is left to the next one."""
        for place, file in enumerate(self.plan.files):
            self.left[place] = file.blocks - sum((place, block) in self.done for block in range(file.blocks))
            if not self.left[place]:
                self._finish(place)
        rows = sum(self.plan.files[place].rows_in(block) for place, block in self.done)
        what, fruitless = f"translating in {self.job.precision}", 0
        with Meter(what, "rows", total=self.plan.rows, before=rows, say=say) as meter:
            while missing := [block for block in self.plan.blocks() if block not in self.done]:
                before = len(self.done)
                try:
                    with closing(self._round(missing)) as round_:
                        for row in round_:
                            rows += self._count(row)
                            meter.show(rows, more=[f"{self._workers()} of {self.pool.workers} workers"])
                    reason = "see what Ray says above"
                except RayError as error:
                    reason = str(error).strip().splitlines()[-1]
                except ExecutionTimeoutError:  # its worker's machine is lost, and there is no other one for it
                    reason = f"their workers end, or take more than {self.cluster.patience:g} s for one"
                    self.pool = shrunk(self.pool)
                fruitless = 0 if len(self.done) > before else fruitless + 1
                if fruitless == FRUITLESS:
                    left = [block for block in missing if block not in self.done]
                    raise RunError(
                        f"{self.plan.name_of(left[0])} and {len(left) - 1:,} blocks more can't be translated: {reason}"
                    )
        if broken := [reason for reason in ray.get(self.finishing) if reason is not None]:
            raise DataError(broken[0])

    def _round(self, missing: list[Block]) -> Generator[dict[str, Any], None, None]:
        """Let Ray Data give each missing block to a worker once; yield which are done."""
        wanted = defaultdict[int, set[int]](set)
        for place, block in missing:
            wanted[place].add(block)
        source = BlockSource(self.source, dict(enumerate(self.plan.files)), wanted)
        readers = min(len(wanted), 1 + self.pool.workers // 8)
        blocks = ray.data.read_datasource(source, num_cpus=0, concurrency=readers)
        done = self.pool.map_batches(blocks, BlockWorker, (self.run, self.job), batch_size=1)
        context = done.context
        context.enable_progress_bars = context.print_on_execution_start = False
        context.target_max_block_size = 1  # each row, which is a block of ours, by itself
        context.max_errored_blocks = -1
        context.max_consecutive_actor_init_deaths = INIT_DEATHS
        context.execution_no_progress_timeout_s = self.cluster.patience
        limit = READ_AHEAD * (2 + self.pool.workers)
        context.execution_options.resource_limits = ray.data.ExecutionResources.for_limits(object_store_memory=limit)
        batches: Iterator[Any] = iter(done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
        for batch in batches:
            yield from batch.to_pylist()

    def _count(self, row: dict[str, Any]) -> int:
        """Count a block that is done, and return how many rows are new; finish its file if it was the last."""
        self.seen[row["worker"]] = time.monotonic()
        block = row["file"], row["block"]
        if block in self.done:
            return 0
        self.done.add(block)
        self.left[block[0]] -= 1
        if not self.left[block[0]]:
            self._finish(block[0])
        return row["rows"]

    def _finish(self, place: int) -> None:
        finish_file = ray.remote(num_cpus=0, max_retries=-1)(try_to_finish_file)
        self.finishing.append(finish_file.remote(self.job.output, place, self.plan.files[place]))

    def _workers(self) -> int:
        now = time.monotonic()
        return min(self.pool.workers, sum(now - then < SEEN_SECONDS for then in self.seen.values()))
