"""From the user's files to a run folder that training can start in: checks, then the prepared data, moved in place."""

import shutil
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from glassformer.data.corpus import Corpus
from glassformer.data.directions import seem_turned
from glassformer.data.encode import PairCounts
from glassformer.data.facts import describe_pairs
from glassformer.data.kept import PREPARED, KeptCorpora, read_entry, write_entry
from glassformer.data.preparation import TRAIN, VALID, VALID_TEXT, DataSettings, Preparation, Say, check_known
from glassformer.data.scan import SAMPLED
from glassformer.decoding import read_json
from glassformer.device import pick_device
from glassformer.errors import ConfigError, RunError
from glassformer.files import (
    check_name,
    check_place,
    exchange,
    flush_folder,
    folders_above,
    followed,
    is_empty_folder,
    is_temporary,
    link_or_copy,
    move_folder,
    scratch_folder,
)
from glassformer.pairs.files import Pair
from glassformer.run.config import TrainingRecord, is_run_folder
from glassformer.run.folder import RunFolder, open_run, write_config
from glassformer.run.lock import check_free
from glassformer.run.names import FILES, INITIAL, RESUME
from glassformer.scoring.scores import check_bleu_tokenizer
from glassformer.tensors import write_tensors
from glassformer.text.kinds import SUBWORD_ENDINGS, WHOLE_KINDS
from glassformer.text.loading import load_tokenizer
from glassformer.text.tokenizer import ENDINGS, read_subwords
from glassformer.text.vocabulary import VOCABULARY
from glassformer.training.automatic import settle
from glassformer.training.config import TrainConfig
from glassformer.training.guide import check_guided
from glassformer.training.integrity import write_checksums
from glassformer.training.optimizer import STATE
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import check_memory


class _ValidText(Struct, frozen=True):
    """The validation pairs, as text."""

    pairs: list[tuple[str, str]]


def prepare_run(config: TrainConfig, say: Say, launch: str = "") -> None:
    """Make the run folder `config.out` with tokenizers, config.json and, in resume/, the token arrays.

    `launch` is the id of the launch of several processes for which this is done.

    Everything is made in a hidden folder beside it and moved there when complete, so whatever fails changes nothing.
    Tokenizers and arrays are also kept in `.prepared` beside the run, for further runs with the same text and settings.
    Raises RunError where the folder can't be made or replaced, DataError where the text is unfit.
    """
    check_name(config.out)
    is_there = config.out.exists() and not is_empty_folder(config.out)
    if is_there and not is_run_folder(config.out):
        raise RunError(f"{config.out} exists and is not a run folder: choose another --out")
    if is_there and not config.overwrite:
        unfinished = (config.out / RESUME).is_dir()
        advice = (
            "continue it with --resume, or replace it with --overwrite" if unfinished else "--overwrite replaces it"
        )
        raise RunError(f"{config.out} exists: {advice}, or choose another --out")
    check_place(config.out)
    _check_nothing_is_lost(config)
    out = followed(config.out)
    if out in (Path.cwd(), *Path.cwd().parents):
        raise RunError(f"{config.out} is the current folder: go out of it to replace it, or choose another --out")
    origin = None if config.from_ is None else open_run(config.from_)
    check_origin(config, origin)
    check_bleu_tokenizer(config.tokenize)

    preparation = Preparation.from_files(data_settings(config, origin), say)
    training = preparation.training
    for suspicion in describe_pairs(training.sample).suspicions(are_all=len(training.sample) < SAMPLED):
        say(f"{suspicion} (glassformer check says more)")
    settled = settle(config, training.with_text, describe_pairs(training.usable_sample()), say)
    preparation = replace(preparation, settings=data_settings(settled, origin))

    def check_size(source_vocab_size: int, target_vocab_size: int) -> None:
        check_model(settled, settled.model_config(source_vocab_size, target_vocab_size))

    prepared = KeptCorpora(out.parent / PREPARED)
    with folders_above(out), scratch_folder(out) as building:
        made, entry = building / "prepared", prepared.find(preparation.digest)
        if entry:
            facts, _ = read_entry(entry)
            kept = " and ".join(f"{PairCounts(**counts).kept:,} {name}" for name, counts in facts["pairs"].items())
            say(f"the same text was prepared before, and that is used again: {kept} pairs")
        else:
            if origin is not None:
                say(f"vocabulary and model of {config.from_}")
            facts = preparation.make(made, check_size)  # which is called before the long work
            write_entry(made, facts)
        check_known(PairCounts(**facts["pairs"][TRAIN]), say)
        run = building / "run"
        there = entry or made
        _make_run(config, settled, origin, there, run, launch)
        if config.valid_pairs is not None:
            sides = (load_tokenizer(there / facts[side]) for side in ("source", "target"))
            if seem_turned(Corpus(run / RESUME / TRAIN), read_valid_pairs(run), *sides):
                say(
                    f"{config.valid_pairs.name}: the validation pairs seem the wrong way round, as their sources are "
                    "like the targets of training: exchange their sides, or no score will say anything"
                )
        flush_folder(run)
        if out.exists() and config.overwrite:
            check_free(out)
            _check_nothing_is_lost(config)  # once more, since that was long ago
            exchange(run, out)
        else:
            move_folder(run, out)
        if entry is None and preparation.is_worth_keeping():
            try:
                prepared.keep(made, preparation.digest)
            except OSError as error:
                say(f"what was prepared can't be kept for further runs: {error}")


def check_origin(config: TrainConfig, origin: RunFolder | None) -> None:
    """Raise ConfigError where a setting needs what the run `origin` lacks: several ways to split text, or a head.

    Without a run it is what tokenizers lack that are read from files.
    """
    if origin is None:
        files = {kind for kind in config.tokenizers if kind.endswith(SUBWORD_ENDINGS)}
        is_known = set(config.tokenizers) <= {*files, *WHOLE_KINDS}
        if config.resample and is_known and not any(read_subwords(Path(file)).can_sample for file in files):
            raise config.cannot_resample()
        return
    if config.guide:
        check_guided(origin.model_config)
    if config.resample and not (origin.source_tokenizer.can_sample or origin.target_tokenizer.can_sample):
        raise ConfigError(
            f"resample is for tokenizers that can split text in several ways, and those of {config.from_} can't: leave "
            "it out"
        )


def check_model(config: TrainConfig, model: ModelConfig) -> None:
    """Raise OutOfMemoryError where a training of this model has no room: weights, gradients, the optimizer's state.

    On another device than the CPU only the weights are in the machine's memory; so it is where processes share them.
    """
    alone = pick_device(config.device).type == "cpu" and not config.shard
    numbers = 2 + STATE[config.chosen_optimizer] if alone else 1
    check_memory(model, fix="lower d_model, d_ff, vocab_size or the number of layers", bytes_each=4 * numbers)


def data_settings(config: TrainConfig, origin: RunFolder | None = None) -> DataSettings:
    """Return the settings of the preparation for this training, which may go on from the run `origin`."""
    return DataSettings(
        pairs=config.pairs,
        valid_pairs=config.valid_pairs,
        kinds=config.tokenizers,
        vocab_sizes=(config.source_vocab_size or config.vocab_size, config.target_vocab_size or config.vocab_size),
        shares_vocab=config.shares_vocab,
        character_coverage=config.character_coverage,
        decompose=config.decompose,
        max_tokens=config.max_tokens,
        max_ratio=config.max_ratio,
        score_pairs=config.score_pairs,
        join_lines=config.join_lines,
        seed=config.seed,
        threads=config.threads,
        tokenizers=None if origin is None else origin.tokenizer_files,
    )


def _check_nothing_is_lost(config: TrainConfig) -> None:
    """Raise RunError where replacing the run would remove files that training did not write."""
    if not config.out.exists():
        return
    ours = {*FILES, RESUME}
    ours |= {f"{side}{end}" for side in ("source", "target") for end in (*ENDINGS, VOCABULARY)}
    names = [path.name for path in config.out.iterdir() if not is_temporary(path.name)]
    if foreign := sorted(set(names) - ours):
        raise RunError(f"{config.out} also holds {', '.join(foreign[:3])}: move that away, or choose another --out")


def read_valid_pairs(folder: Path) -> list[Pair]:
    """Return the validation pairs, as text, that `prepare_run` set aside for the score."""
    path = folder / RESUME / VALID_TEXT
    return read_json(path, _ValidText, most=path.stat().st_size).pairs  # as many as --score-pairs asked for


def _make_run(
    config: TrainConfig, settled: TrainConfig, origin: RunFolder | None, prepared: Path, run: Path, launch: str
) -> None:
    """Make the run folder of prepared data. The arrays, which nothing changes, are links; the rest are copies.

    `settled` are the settings of `config` with what the data decided.
    """
    facts, fingerprints = read_entry(prepared)
    source, target = (load_tokenizer(prepared / facts[side]) for side in ("source", "target"))
    for part in (TRAIN, VALID):
        (run / RESUME / part).mkdir(parents=True)
        for file in (prepared / part).iterdir():
            link_or_copy(file, run / RESUME / part / file.name)
    shutil.copyfile(prepared / VALID_TEXT, run / RESUME / VALID_TEXT)
    if origin is None:
        model = settled.model_config(source.vocab_size, target.vocab_size)
    else:
        model = settled.inherited(origin.model_config)
        write_tensors(run / RESUME / INITIAL, dict(origin.weights))
    check_model(config, model)
    settled.peak(model.d_model)  # refuses what can't be
    chosen = {name: value for name, value in settled.to_json().items() if value != config.to_json()[name]}
    inherited = None if origin is None else origin.training.languages
    training = TrainingRecord(
        settings=config.to_json(),
        chosen=chosen,
        pairs=facts["pairs"],
        languages=config.languages or inherited,
        launch=launch or None,
    )
    write_config(run, model, source, target, training)
    write_checksums(run, {f"{RESUME}/{name}": found for name, found in fingerprints.items()})
