"""Bulk translation on a local cluster: the plain command's bytes, whatever is lost on the way.

The cluster and each run's workers take seconds to start, so one run shows several things.
"""

import gzip
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

from glassformer.cluster.config import ClusterConfig
from glassformer.errors import ConfigError, DataError
from glassformer.generation.config import SearchConfig
from glassformer.generation.files import translate_file
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import SymbolTokenizer

pytest.importorskip("ray", reason="pip install 'glassformer[cluster]'")

from glassformer.cluster import bulk
from glassformer.cluster.dataset import translate_dataset
from glassformer.cluster.weights import pack_run, unpack_run

CONFIG = SearchConfig(beam=1, max_length=6, max_source_tokens=20)
BEAM = SearchConfig(beam=2, max_length=6, max_source_tokens=20)
SETTINGS = dict(config=CONFIG, cluster=ClusterConfig(workers=1), precision="float32")


def lines(count: int, seed: int = 1) -> list[str]:
    """Lines of letters of different lengths, some of them empty."""
    return [" ".join("abcdefg"[(n * seed + i * i) % 7] for i in range(n % 8)) for n in range(count)]


def write(path: Path, rows: list[str]) -> None:
    content = "".join(f"{row}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files of text, of three blocks and of two."""
    folder = tmp_path_factory.mktemp("source")
    write(folder / "a.txt", lines(5000))
    write(folder / "b.txt.gz", lines(2049, 3))
    return folder


@pytest.fixture(scope="module")
def plain(run: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the plain command writes for each file."""
    translator, folder = Translator.load(run, "cpu", "float32"), tmp_path_factory.mktemp("plain")
    for name in ("a.txt", "b.txt.gz"):
        translate_file(translator, source / name, folder / name.removesuffix(".gz"), config=CONFIG)
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder, and of those in it."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def after_block(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, str], None]], None]:
    """Calls a function after each block that is counted, with how many these are, and who did it."""

    def install(act: Callable[[int, str], None]) -> None:
        count = bulk._Work._count

        def counting(self: Any, row: dict[str, Any]) -> int:
            new = count(self, row)
            act(len(self.done), row["worker"])
            return new

        monkeypatch.setattr(bulk._Work, "_count", counting)

    return install


@pytest.mark.usefixtures("two_nodes")
def test_each_form_and_each_poisoned_line_gives_one_row_for_each_row(run, source, plain, tmp_path):
    good = lines(40, 5)
    rows = [{"id": n, "text": line} for n, line in enumerate(good)]
    folder = tmp_path / "source"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).hardlink_to(path)
    write(folder / "c.jsonl", [json.dumps(row) for row in rows])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "d.parquet")
    poisoned = [line.encode() for line in good]
    poisoned[3], poisoned[7], poisoned[11], poisoned[13] = b"a\xff b", b"a" * (1 << 21), b"a \0 b", b"a " * 30
    (folder / "e.txt").write_bytes(b"\n".join(poisoned))

    result = bulk.translate_folder(run, folder, tmp_path / "out", **SETTINGS)

    made = contents(tmp_path / "out")
    assert (result.files, result.rows) == (5, 5000 + 2049 + 3 * 40)
    assert sorted(made) == ["_problems.jsonl", "a.txt", "b.txt", "c.jsonl", "d.parquet", "e.txt"]
    assert {name: made[name] for name in plain} == plain
    translator = Translator.load(run, "cpu", "float32")
    expected = translator.translate(good, CONFIG)
    assert [json.loads(line) for line in made["c.jsonl"].splitlines()] == [
        {**row, "translation": text} for row, text in zip(rows, expected, strict=True)
    ]
    table = pyarrow.parquet.read_table(tmp_path / "out" / "d.parquet")
    assert table.to_pylist() == [{**row, "translation": text} for row, text in zip(rows, expected, strict=True)]
    others = {n: text for n, text in enumerate(expected) if n not in (3, 7, 11, 13)}
    written = made["e.txt"].decode().split("\n")
    assert len(written) == 41
    assert {n: written[n] for n in others} == others
    assert (written[3], written[7]) == ("", "")
    problems = [json.loads(line) for line in made["_problems.jsonl"].splitlines()]
    told = {row["row"]: row["what"] for row in problems if row["file"] == "e.txt" and "its limit" not in row["what"]}
    assert {number: what.partition(" (")[0][:30] for number, what in told.items()} == {
        4: "not UTF-8",
        8: "it has more than 1,048,576 byte",
        12: "it has the character U+0000, o",
        14: "it has 30 tokens, and was cut ",
    } | {8: "it has more than 1,048,576 byt"}
    assert result.problems == len(problems)


def test_a_stopped_translation_continues_to_the_same_bytes(
    two_nodes, run, source, plain, tmp_path, after_block, monkeypatch, run_command, capsys
):
    def stop(done: int, worker: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        after_block(stop)
        with pytest.raises(KeyboardInterrupt) as stopped:
            bulk.translate_folder(run, source, tmp_path / "out", **SETTINGS)
        patch.undo()
    monkeypatch.undo()
    assert "2 blocks of the translation: continue with --resume" in stopped.value.__notes__[0]
    assert "a.txt" not in contents(tmp_path / "out")
    next((tmp_path / "out").glob("_unfinished/blocks/*/*")).unlink()  # the others may be finished by now
    with pytest.raises(DataError, match="has a translation that was stopped: continue with --resume"):
        bulk.translate_folder(run, source, tmp_path / "out", **SETTINGS)
    with pytest.raises(ConfigError, match="was started with beam 1, and is to be continued with beam 2"):
        bulk.translate_folder(run, source, tmp_path / "out", **SETTINGS | {"config": BEAM}, resume=True)
    seen = []
    after_block(lambda done, worker: seen.append(done))
    search = "--beam 1 --max-length 6 --max-source-tokens 20 --precision float32"
    command = f"translate {run} --input '{source}/*.txt|*.gz' --output {tmp_path}/out --resume {search}"
    assert run_command(f"{command} --cluster {two_nodes.address} --workers 1") == 0
    assert 1 <= len(seen) <= 4
    made = contents(tmp_path / "out")
    made.pop("_problems.jsonl", None)
    assert made == plain
    assert "7,049 rows of 2 files are translated" in capsys.readouterr().err


def test_a_dataset_gets_a_column_of_translations(two_nodes, run):
    import ray.data

    texts = lines(30)
    dataset = ray.data.from_items([{"id": n, "line": text} for n, text in enumerate(texts)])
    made = translate_dataset(
        dataset, run, CONFIG, column="line", into="german", cluster=ClusterConfig(workers=1), precision="float32"
    ).take_all()
    expected = Translator.load(run, "cpu", "float32").translate(texts, CONFIG)
    assert sorted(made, key=lambda row: row["id"]) == [
        {"id": n, "line": text, "german": german} for n, (text, german) in enumerate(zip(texts, expected, strict=True))
    ]


def test_a_worker_knows_how_many_sentences_its_run_reads_at_once(two_nodes, random_run, tmp_path):
    random_run(tmp_path / "run", SymbolTokenizer("ab"), SymbolTokenizer("AB"), settings={"join_lines": 3})
    packed = pack_run(tmp_path / "run")
    assert unpack_run(packed, "cpu", "float32", threads=torch.get_num_threads()).sentences == 3
    (tmp_path / "source").mkdir()
    write(tmp_path / "source" / "a.txt", ["a b. b a."])
    places = (tmp_path / name for name in ("run", "source", "out"))
    with pytest.warns(match=r"learned to read 3 sentences at once: given 4, .*; train with --join-lines 4"):
        assert bulk.translate_folder(*places, **SETTINGS, segment="paragraph", sentences=4).rows == 1


def test_a_teacher_writes_on_the_cluster_what_it_writes_here(two_nodes, run, tmp_path, monkeypatch, run_command):
    monkeypatch.chdir(tmp_path)
    write(Path("text.txt"), lines(40, 5))
    flags = "--text text.txt --sample --n-best 2 --max-length 6 --keep-copies --length-factor 99 --max-updates 1 TINY"
    command = f"distill {run} {flags} --writing-precision float32 --device cpu"
    assert run_command(f"{command} --out here") == 0
    assert run_command(f"{command} --out there --cluster {two_nodes.address} --workers 1") == 0
    here, there = contents(Path("here.pairs")), contents(Path("there.pairs"))
    assert sorted(name.partition("-")[0] for name in here if name.endswith(".txt")) == ["text", "written"]
    assert here == there
    assert (Path("there") / "model.safetensors").read_bytes() == (Path("here") / "model.safetensors").read_bytes()


def test_killed_workers_and_a_lost_machine_change_no_byte(two_nodes, run, source, plain, tmp_path, after_block):
    """Last, for one node is left."""

    def lose(done: int, worker: str) -> None:
        if done == 1:
            os.kill(int(worker.split()[1]), signal.SIGKILL)
        if done == 3:
            two_nodes.lose_second()

    after_block(lose)
    settings = SETTINGS | {"cluster": ClusterConfig(workers=2)}
    result = bulk.translate_folder(run, source, tmp_path / "out", **settings)
    made = contents(tmp_path / "out")
    made.pop("_problems.jsonl", None)
    assert made == plain
    assert (result.files, result.rows) == (2, 7049)
