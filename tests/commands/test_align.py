"""`glassformer align`, and `translate --alignments`: what they write, and what they are told for bad input."""

import json
import shutil

import pytest
from msgspec import structs

from glassformer import Aligner, Translator
from glassformer.alignment.attention import AttentionAligner, align_translation
from glassformer.alignment.choice import choose_heads
from glassformer.alignment.heads import AligningHeads, read_aligning_heads, write_heads
from glassformer.alignment.links import pharaoh, symmetrize
from glassformer.text.tokenizer import train_tokenizer

HEADS = AligningHeads(layer=0, heads=(1,), shift=1, agreement=0.5, chance=0.25, pairs=100)


def lines_of(text: str) -> list[str]:
    return text.splitlines()


@pytest.fixture
def both(here) -> tuple[list[str], list[str]]:
    return tuple(lines_of((here / name).read_text()) for name in ("source.txt", "target.txt"))


def test_without_a_run_it_writes_what_the_pairs_teach(both, run_command, capsys):
    assert run_command("align --source source.txt --target target.txt") == 0
    found = lines_of(capsys.readouterr().out)
    assert found == [pharaoh(links) for links in Aligner.train(*both).align(*both)]
    assert run_command("align --source pairs.tsv --symmetrize union --probabilities --output new.txt") == 0
    expected = Aligner.train(*both).align(*both, "union")
    with open("new.txt") as file:
        assert lines_of(file.read()) == [pharaoh(links, probabilities=True) for links in expected]


def test_data_are_learned_from_too(both, run_command, capsys):
    assert run_command("align --source seven.txt --target seven.txt --data pairs.tsv") == 0
    sources, targets = both
    seven = sources[:7]
    aligner = Aligner.train([*seven, *sources], [*seven, *targets])
    assert lines_of(capsys.readouterr().out) == [pharaoh(links) for links in aligner.align(seven, seven)]


def test_columns_are_those_of_the_table_where_other_pairs_are_two_files(both, here, run_command, capsys):
    assert run_command("align --source seven.txt --target seven.txt --data pairs.tsv") == 0
    expected = capsys.readouterr().out
    rows = "".join(f"{n}\t{line}\n" for n, line in enumerate(lines_of((here / "pairs.tsv").read_text())))
    (here / "table.tsv").write_text(f"id\tasked\tanswered\n{rows}")
    columns = "--columns asked answered"
    assert run_command(f"align --source seven.txt --target seven.txt --data table.tsv {columns}") == 0
    assert capsys.readouterr().out == expected
    assert run_command("align --source pairs.tsv --data source.txt target.txt") == 0
    expected = capsys.readouterr().out
    assert run_command(f"align --source table.tsv --data source.txt target.txt {columns}") == 0
    assert capsys.readouterr().out == expected
    assert run_command(f"align --source seven.txt --target seven.txt --data source.txt target.txt {columns}") == 2
    assert "--columns are for one file of both sides, got two files" in capsys.readouterr().err


@pytest.fixture
def run(here):
    write_heads(here / "run", HEADS)
    return here / "run"


def test_a_run_aligns_by_the_heads_that_it_keeps(both, run, run_command, capsys):
    aligner = AttentionAligner(Translator.load(run, "cpu"))
    assert aligner.heads == HEADS
    expected = aligner.align(*both)
    assert run_command("align run --source pairs.tsv --device cpu") == 0
    assert lines_of(capsys.readouterr().out) == [pharaoh(one.links) for one in expected]
    assert run_command("align run --source pairs.tsv --device cpu --format jsonl --pieces") == 0
    first = json.loads(lines_of(capsys.readouterr().out)[0])
    assert first == {
        "source": both[0][0].split(),
        "target": both[1][0].split(),
        "links": [list(link) for link in expected[0].links],  # symbols: each is a word and a token
    }


def test_two_runs_are_joined(both, run, run_command, capsys):
    shutil.copytree(run, "other")
    write_heads(run.parent / "other", structs.replace(HEADS, heads=(0,), shift=0))
    assert run_command("align run --source pairs.tsv --reverse other --symmetrize intersection --device cpu") == 0
    forward = AttentionAligner(Translator.load(run, "cpu")).align(*both)
    backward = AttentionAligner(Translator.load("other", "cpu")).align(*both[::-1])
    turned = [[link._replace(source=link.target, target=link.source) for link in one.links] for one in backward]
    expected = [symmetrize(one.links, other, "intersection") for one, other in zip(forward, turned, strict=True)]
    assert lines_of(capsys.readouterr().out) == [pharaoh(links) for links in expected]


def test_heads_are_chosen_at_first_use_and_kept(taught, run_command, capsys):
    folder, model = taught.folder, Translator.load(taught.folder, "cpu").engine.config
    (folder / "aligning.json").unlink(missing_ok=True)
    assert run_command(f"align {folder} --source {folder.parent / 'pairs.tsv'} --device cpu") == 0
    out, err = capsys.readouterr()
    assert len(lines_of(out)) == len(taught.sources)
    heads = read_aligning_heads(folder, model)
    assert f"{folder}: {heads}" in err
    assert run_command(f"align {folder} --source {folder.parent / 'pairs.tsv'} --device cpu") == 0
    assert capsys.readouterr() == (out, "")


def test_pairs_the_wrong_way_round_are_said(taught, tmp_path, run_command, capsys):
    folder, turned = taught.folder, tmp_path / "turned.tsv"
    pairs = list(zip(taught.targets, taught.sources, strict=True))
    turned.write_text("".join(f"{source}\t{target}\n" for source, target in [("", ""), *pairs]))
    write_heads(folder, HEADS)
    told = (
        f"{folder}: the model predicts the sources of these pairs better than their targets: are the two sides swapped?"
    )
    for command in (f"align {folder} --source {turned}", f"heads {folder} --data {turned} --sentences 7"):
        assert run_command(f"{command} --device cpu") == 0
        assert capsys.readouterr().err == f"{told}\n"
        assert run_command(f"{command.replace(str(turned), str(folder.parent / 'pairs.tsv'))} --device cpu") == 0
        assert capsys.readouterr().err == ""
    (folder / "aligning.json").unlink()


def test_heads_names_those_that_align_and_keeps_nothing(taught, run_command, capsys):
    folder = taught.folder
    (folder / "aligning.json").unlink(missing_ok=True)
    assert run_command(f"heads {folder} --data {folder.parent / 'pairs.tsv'} --sentences 7 --device cpu") == 0
    out, err = capsys.readouterr()
    heads = choose_heads(Translator.load(folder, "cpu", "float32"), taught.sources, taught.targets)
    assert heads.heads[0] == 0, "the one that was guided"
    assert f"\naligns best: {heads}\n" in out
    assert err == ""
    assert not (folder / "aligning.json").exists()


def test_an_imported_marian_names_the_heads_that_the_run_named(taught, tmp_path, run_command, capsys):
    assert run_command(f"export {taught.folder} --to huggingface --out {tmp_path / 'marian'}") == 0
    assert run_command(f"import --from {tmp_path / 'marian'} --out {tmp_path / 'back'}") == 0
    capsys.readouterr()
    chosen = [
        choose_heads(Translator.load(folder, "cpu", "float32"), taught.sources, taught.targets)
        for folder in (taught.folder, tmp_path / "back")
    ]
    assert chosen[0] == chosen[1]
    assert chosen[0].heads[0] == 0, "the one that was guided"
    assert run_command(f"align {tmp_path / 'back'} --source {taught.folder.parent / 'pairs.tsv'} --device cpu") == 0
    assert f"{tmp_path / 'back'}: {chosen[0].attention} head" in capsys.readouterr().err


def test_an_imported_model_of_random_weights_is_refused_with_a_reason(
    random_run, tmp_path, taught, run_command, capsys
):
    letters = train_tokenizer([*taught.sources, *taught.targets], kind="char", vocab_size=None, seed=1)
    random_run(tmp_path / "run", letters, letters, shared=True)
    assert run_command(f"export {tmp_path / 'run'} --to huggingface --out {tmp_path / 'marian'}") == 0
    assert run_command(f"import --from {tmp_path / 'marian'} --out {tmp_path / 'back'}") == 0
    capsys.readouterr()
    lines = lines_of((taught.folder.parent / "pairs.tsv").read_text())
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\n" for line in lines[:100]))
    reason = "no head of this run aligns: the best, "
    assert run_command(f"align {tmp_path / 'back'} --source {tmp_path / 'pairs.tsv'} --device cpu") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err
    assert not (tmp_path / "back" / "aligning.json").exists()
    assert run_command(f"heads {tmp_path / 'back'} --data {tmp_path / 'pairs.tsv'} --sentences 7 --device cpu") == 0
    out, err = capsys.readouterr()
    assert "aligns best" not in out
    assert err.startswith(f"which heads align best can't be told: {reason}")


def test_translations_come_with_their_alignments(run, run_command, capsys):
    flags = "--device cpu --beam 2 --n-best 2 --max-length 7"
    assert run_command(f"translate run --input seven.txt --output out.txt --alignments links.txt {flags}") == 0
    assert run_command(f"translate run --input seven.txt --output plain.txt {flags}") == 0
    written, plain, links = ((run.parent / name).read_text() for name in ("out.txt", "plain.txt", "links.txt"))
    assert written == plain
    sources = lines_of((run.parent / "seven.txt").read_text())
    translator = Translator.load(run, "cpu")
    pairs = [line.split("\t") for line in lines_of(written)]
    expected = [align_translation(translator, sources[int(number) - 1], text).links for number, text in pairs]
    assert lines_of(links) == [pharaoh(one) for one in expected]


def test_too_long_a_pair_is_refused_before_anything_is_learned(here, run_command, monkeypatch, capsys):
    monkeypatch.setattr("glassformer.alignment.aligner.MOST_ALIGNED", 3)
    assert run_command("align --source pairs.tsv --output new.txt") == 2
    said = capsys.readouterr().err
    assert "pair 1 is too long to be aligned" in said
    assert "learning" not in said
    assert not (here / "new.txt").exists()


BAD = {
    "align": "align needs --source, and --target unless one file has both sides",
    "align --source source.txt --target short.txt": "source.txt has 60, short.txt has 57",
    "align --source missing.tsv": "missing.tsv: no such file",
    "align --source pairs.tsv --pieces": "--pieces is for a run folder: name one before all flags",
    "align --source pairs.tsv --reverse run": "--reverse is for a run folder: name one before all flags",
    "align --source pairs.tsv --device cpu": "--device is for a run folder: name one before all flags",
    "align --source pairs.tsv --precision int3": "--precision is for a run folder: name one before all flags",
    "align --source pairs.tsv --symmetrize all": "--symmetrize: expected one of grow-diag-final-and, intersection",
    "align run --source pairs.tsv --symmetrize union": "--symmetrize joins two directions: give --reverse",
    "align run --source pairs.tsv --device cpu": "takes at least 100 pairs to learn an alignment from, got 60",
    "align thesis --source pairs.tsv": "thesis is not a run folder",
    "align --source /dev/null": "/dev/null is a pipe or device, and is read several times: save it to a file first",
    "align run --source pairs.tsv --data /dev/null": "/dev/null is a pipe or device, and is read several times",
    "align --source untrainable.tsv": "no pair has words on both sides",
    "translate run --input seven.txt --alignments new.txt SHORT": "run has no aligning heads chosen for its weights",
    "translate run --input seven.txt --alignments - SHORT": "--alignments must be a file, got -: standard output",
    "translate run --input seven.txt --confidence - SHORT": "--confidence must be a file, got -: standard output",
    "translate run --input seven.txt --output new --alignments new.txt --resume SHORT": "exclude each other",
    "translate run --input seven.txt --output new.txt --alignments ./new.txt SHORT": "must be two files, got new.txt",
    "translate run --input seven.txt --output ./seven.txt SHORT": "--output and --input must be two files, got seven",
    "translate run --input seven.txt --confidence seven.txt SHORT": "--confidence and --input must be two files",
    "translate run --glossary seven.txt --output seven.txt SHORT": "--output and --glossary must be two files",
    "translate run --output run/source.symbols SHORT": "--output and the run's source.symbols must be two files",
    "align --source source.txt --target target.txt --output source.txt": "--output and --source must be two files",
    "align --source pairs.tsv --data valid.tsv --output ./valid.tsv": "--output and --data must be two files",
    "align thesis --source pairs.tsv --output out.txt": "thesis is not a run folder",
    "align run --source pairs.tsv --output run/config.json": "--output and the run's config.json must be two files",
    "evaluate run --source pairs.tsv --output pairs.tsv SHORT": "--output and --source must be two files",
    "evaluate run --source pairs.tsv --output run/model.safetensors": "the run's model.safetensors must be two files",
}


@pytest.mark.parametrize(("command", "message"), BAD.items(), ids=BAD)
def test_bad_input_is_told_in_one_line(command, message, here, run_command, capfd, tree):
    before = tree(here)
    assert run_command(command) == 2
    out, err = capfd.readouterr()
    assert out == ""
    said = [line for line in lines_of(err) if not line.startswith(("run: choosing", "learning an alignment from"))]
    assert message in run_command.complaint("\n".join(said))
    assert tree(here) == before
