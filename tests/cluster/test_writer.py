"""Pairs that `distill` and `backtranslate` write on a cluster; here one process does each block."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from glassformer.generation.config import SearchConfig
from glassformer.synthesis.config import BacktranslateConfig, DistillConfig
from glassformer.synthesis.student import write_pairs
from glassformer.synthesis.written import write_here

pytest.importorskip("ray", reason="pip install 'glassformer[cluster]'")

from glassformer.cluster import bulk, plan, source, worker, writer
from glassformer.cluster.config import ClusterConfig
from glassformer.cluster.plan import Plan, PlannedFile, start, write_block
from glassformer.cluster.source import read_blocks
from glassformer.cluster.storage import Storage
from glassformer.cluster.writer import cluster_writer, write_on_cluster
from glassformer.generation import stream
from glassformer.generation.files import LineDemands
from glassformer.generation.translator import Translator

HERE = dict(cluster=ClusterConfig(), device="cpu", precision="float32", say=None)
BLOCK, ROWS = 11, 29
SEARCHES = {
    "n-best": SearchConfig(beam=3, n_best=2, max_length=4),
    "drawn": SearchConfig(sample=True, n_best=2, max_length=4, seed=3),
    "agreed on": SearchConfig(sample=True, n_best=3, consensus=True, max_length=4),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of three blocks."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    rows = [" ".join("abcdefg"[(n + i * i) % 7] for i in range(1 + n % 3)) for n in range(ROWS)]
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def back(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, which says that it is of the other direction."""
    folder = tmp_path_factory.mktemp("back") / "back"
    shutil.copytree(run, folder)
    config = json.loads((folder / "config.json").read_text())
    config["training"]["languages"].reverse()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of each translation on a cluster, which this process makes in its place."""
    asked: list[dict[str, Any]] = []

    def translate_once(run: Path, text: Path, folder: Path, config: SearchConfig, **settings: Any) -> int:
        folder.mkdir(exist_ok=True)
        asked.append({"run": run, **settings})
        write_here([run], text, folder / text.name, config, device="cpu", precision="float32")
        return 2

    monkeypatch.setattr(writer, "translate_once", translate_once)
    return asked


@pytest.mark.parametrize("name", SEARCHES)
def test_blocks_give_the_same_whichever_worker_does_them_and_when(name, run, text, tmp_path, monkeypatch, unchecked):
    search = SEARCHES[name]
    for module in (stream, plan, source):
        monkeypatch.setattr(module, "LINES_AT_ONCE", BLOCK)
    write_here([run], text, tmp_path / "plain.txt", search, device="cpu", precision="float32")
    monkeypatch.setattr(worker, "unpack_run", lambda *_: Translator.load(run, "cpu", "float32"))
    monkeypatch.setattr(worker.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node"))
    file, storage = PlannedFile(text.name, text.name, "text", ROWS, "", None), Storage.of(str(tmp_path / "out"))
    job = worker.Job(storage, (file,), search, LineDemands(), True, "cpu", "float32", 1)
    blocks = list(read_blocks(Storage.of(str(text.parent)), 0, file, {0, 1, 2}))
    assert len(blocks) == 3
    for block in reversed(blocks):
        worker.BlockWorker(None, job)(block)
    plan.finish_file(storage, 0, file)
    assert storage.read(text.name) == (tmp_path / "plain.txt").read_bytes()


@pytest.mark.filterwarnings("ignore:the model never saw this text")
def test_all_that_a_run_writes_is_written_by_the_cluster(run, back, text, tiny, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("few.txt").write_text("".join(text.read_text().splitlines(keepends=True)[:30]))
    student = tiny(out=Path("new"), source=None, valid_source=None, device="cpu")
    pool, said = ClusterConfig(workers=3), list[str]()
    for kind in (DistillConfig, BacktranslateConfig):
        config = kind(
            run=run,
            text=(Path("few.txt"),),
            round_trip=back,
            min_agreement=0.0,
            writing_precision="float32",
            search=SEARCHES["drawn"],
            written=Path("here"),
            student=student,
        )
        plain = write_pairs(config)
        there = replace(config, written=Path("there"))
        assert write_pairs(there, said.append, writer=cluster_writer(there, pool, said.append)).counts == plain.counts
    files = [{path.relative_to(top) for path in top.rglob("*")} for top in (Path("here"), Path("there"))]
    assert files[0] == files[1]
    written = [name for name in files[0] if name.suffix == ".txt"]
    assert sorted(name.name.partition("-")[0] for name in written) == ["returned"] * 2 + ["text"] * 2 + ["written"] * 2
    assert [("here" / name).read_bytes() for name in written] == [("there" / name).read_bytes() for name in written]
    settings = {"cluster": pool, "device": "cpu", "precision": "float32", "say": said.append}
    assert calls == [{"run": one, **settings} for one in (run, back)] * 2
    assert sum(line.startswith("2 of the lines were not translated whole") for line in said) == 4


def never(*_: object, **__: object) -> NoReturn:
    raise AssertionError("all is done")


def test_a_kill_at_the_end_leaves_nothing_to_write_again(run, text, calls, tmp_path, monkeypatch):
    output, folder = tmp_path / "written.txt", tmp_path / "written.txt.blocks"
    write_on_cluster([run], text, output, SEARCHES["n-best"], **HERE)
    whole = output.read_bytes()
    assert not folder.exists()

    folder.mkdir()  # it came when the file had its name
    write_on_cluster([run], text, output, SEARCHES["n-best"], **HERE)
    assert (output.read_bytes(), folder.exists(), len(calls)) == (whole, False, 1)

    monkeypatch.setattr(writer, "translate_once", bulk.translate_once)
    monkeypatch.setattr(bulk, "_translate", never)
    folder.mkdir()  # or before that
    output.rename(folder / text.name)
    write_on_cluster([run], text, output, SEARCHES["n-best"], **HERE)
    assert (output.read_bytes(), folder.exists()) == (whole, False)


def test_a_stopped_writing_is_gone_on_with(run, text, tmp_path, monkeypatch):
    asked = []

    def translate(order: Any, cluster: ClusterConfig, say: object, *, resume: bool, advice: str) -> bulk.BulkResult:
        asked.append((order.names, order.scores, resume, advice))
        if not resume:
            start(order.target, Plan({}, ()), resume=False)
            write_block(order.target, (0, 0), b"half", [])
            raise KeyboardInterrupt
        order.target.write(text.name, b"all")
        return bulk.BulkResult(1, ROWS, 0)

    monkeypatch.setattr(bulk, "_translate", translate)
    output = tmp_path / "written.txt"
    with pytest.raises(KeyboardInterrupt):
        write_on_cluster([run], text, output, SEARCHES["n-best"], **HERE)
    assert not output.exists()
    write_on_cluster([run], text, output, SEARCHES["n-best"], **HERE)
    assert output.read_bytes() == b"all"
    assert [path.name for path in tmp_path.iterdir()] == ["written.txt"]
    said = (["text.txt"], True), "the same command continues"
    assert [(one[:2], one[3]) for one in asked] == [said, said]
    assert [one[2] for one in asked] == [False, True]
