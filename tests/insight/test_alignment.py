"""Which head follows an alignment: one that is planted is found, and the shares are those of the weights themselves."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers
from torch import Tensor, nn

from glassformer import Want, capture
from glassformer.capture.record import Captured
from glassformer.errors import ArgumentError
from glassformer.insight.alignment import AlignedHead, study_alignment
from glassformer.insight.chart import plot_alignment

BATCH, HEADS, LENGTH, LAYERS = 2, 3, 11, 5
PATH = "encoder.albert_layer_groups.0.albert_layers.0.attention"


@pytest.fixture(scope="module")
def atom_mapping() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        import atom_mapping
    finally:
        del sys.path[0]
    return atom_mapping


@pytest.fixture
def albert() -> nn.Module:
    """An ALBERT of random weights: its layers share them, so each has a name for each of its calls."""
    torch.manual_seed(1)
    sizes = dict(hidden_size=24, embedding_size=16, intermediate_size=40, vocab_size=97, initializer_range=0.5)
    config = transformers.AlbertConfig(num_attention_heads=HEADS, num_hidden_layers=LAYERS, **sizes)
    return transformers.AlbertModel(config).eval()


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    """Two texts of tokens, of which the second has four of padding."""
    torch.manual_seed(2)
    keep = torch.ones(BATCH, LENGTH, dtype=torch.long)
    keep[1, 7:] = 0
    return {"input_ids": torch.randint(3, 97, (BATCH, LENGTH)), "attention_mask": keep}


def record(model: nn.Module, inputs: dict[str, Tensor], want: Want) -> Captured:
    with torch.no_grad(), capture(model, want) as captured:
        model(**inputs)
    return captured


def random_alignment(length: int, keep: Tensor) -> Tensor:
    """Up to three keys for about half of the queries, none for padding."""
    alignment = (torch.rand(BATCH, length, length) < 0.15) & (torch.rand(BATCH, length, 1) < 0.5)
    return alignment & keep.bool()[:, :, None]


def test_the_head_that_an_alignment_was_taken_from_is_found(albert, inputs):
    keys = record(albert, inputs, Want(top=1))[f"{PATH}@3"].top.keys[:, 2, :, 0]
    planted = nn.functional.one_hot(keys, LENGTH).bool() & inputs["attention_mask"].bool()[..., None]
    heads = study_alignment(record(albert, inputs, Want(agreement=planted, top=1)))
    assert [(head.attention, head.head) for head in heads] == [(f"{PATH}@{n}", h) for n in range(5) for h in range(3)]
    best = max(heads, key=lambda head: head.found)
    assert (best.attention, best.head, best.found) == (f"{PATH}@3", 2, 1.0)
    assert all(head.found < 1 for head in heads if head is not best)
    assert str(best).startswith(f"{PATH}@3 head 2: 100.0% found (")


def test_shares_are_those_of_the_weights_over_all_batches(albert, inputs):
    torch.manual_seed(3)
    shorter = {name: x[:, :7] for name, x in inputs.items()}
    captures, queries, hits, weight, offsets = [], 0, 0, 0.0, []
    for batch in (inputs, shorter):
        length = batch["input_ids"].shape[1]
        alignment = random_alignment(length, batch["attention_mask"])
        captures.append(record(albert, batch, Want(agreement=alignment, top=1)))
        weights = record(albert, batch, Want(weights=True))[f"{PATH}@4"].weights[:, 1]
        for entry in range(BATCH):
            for query in range(length):
                keys = set(alignment[entry, query].nonzero().flatten().tolist())
                queries += bool(keys)
                hits += int(weights[entry, query].argmax()) in keys
                weight += sum(float(weights[entry, query, key]) for key in keys)
                offsets += [key - query for key in keys]
    (head,) = [one for one in study_alignment(*captures) if (one.attention, one.head) == (f"{PATH}@4", 1)]
    assert 0 < hits < queries < 2 * BATCH * LENGTH
    assert head.found == pytest.approx(hits / queries)
    assert head.weight == pytest.approx(weight / queries)
    assert head.by_position == pytest.approx(max(map(offsets.count, offsets)) / queries)


def test_an_alignment_of_two_texts_is_that_of_the_attention_to_the_source():
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 2, 32, batch_first=True).eval()
    words = torch.zeros(1, 5, 7, dtype=torch.bool)
    words[0, [0, 1, 2], [2, 0, 1]] = True
    with torch.no_grad(), capture(model, Want(agreement=words, top=1)) as captured:
        model(torch.randn(1, 7, 16), torch.randn(1, 5, 16))
    assert len(captured) == 5
    names = ["decoder.layers.0.multihead_attn", "decoder.layers.1.multihead_attn"]
    assert [head.attention for head in study_alignment(captured)] == [name for name in names for _ in range(2)]


def test_a_query_that_looks_nowhere_finds_nothing():
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 3, 8)
    blocked = torch.zeros(3, 3, dtype=torch.bool)
    blocked[0] = True
    alignment = torch.zeros(1, 3, 3, dtype=torch.bool)
    alignment[0, 0] = True
    with torch.no_grad(), capture(attention, Want(agreement=alignment, top=1)) as captured:
        attention(x, x, x, attn_mask=blocked)
    assert [(head.found, head.weight) for head in study_alignment(captured)] == [(0.0, 0.0)] * 2


@pytest.mark.usefixtures("unchecked")
def test_what_has_no_alignment_is_refused(albert, inputs):
    everything = torch.ones(1, LENGTH, LENGTH, dtype=torch.bool)
    message = r"captures must have recorded .* got none that has: capture\(model, Want\(agreement=alignment, top=1\)\)"
    for want in (Want(top=1), Want(agreement=everything), Want(agreement=everything[:, 1:], top=1)):
        with pytest.raises(ArgumentError, match=message):
            study_alignment(record(albert, inputs, want))
    with pytest.raises(ArgumentError, match=message):
        study_alignment()
    with pytest.raises(
        ArgumentError, match=r"captures must be what capture gives, .*: of a list, study_alignment\(\*cap"
    ):
        study_alignment([record(albert, inputs, Want(top=1))])
    with pytest.raises(ArgumentError, match="agreement must give at least one query a key, got an alignment that is"):
        study_alignment(record(albert, inputs, Want(agreement=~everything, top=1)))


def aligned(names: list[str], heads: int = 2) -> list[AlignedHead]:
    shares = dict(by_position=0.1, weight=0.2)
    return [AlignedHead(attention=name, head=n, found=0.9 * n, **shares) for name in names for n in range(heads)]


@pytest.mark.parametrize(
    ("names", "labels", "path"),
    [
        ([f"layer.attention@{n}" for n in (10, 11)], ["10", "11"], "layer.attention@*"),
        ([f"encoder.layer.{n}.self" for n in (9, 10)], ["9", "10"], "encoder.layer.*.self"),
        (["encoder.self", "decoder.cross"], ["encoder.self", "decoder.cross"], ""),
        (["attention"], ["attention"], ""),
        (["a.1.b", "a.1.1.b"], ["a.1.b", "a.1.1.b"], ""),  # what they begin with and what they end with overlaps
    ],
)
def test_the_picture_names_the_layers_by_what_differs(names, labels, path):
    axes, bar = plot_alignment(aligned(names)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == labels
    assert axes.get_title(loc="left") == path
    assert [text.get_text() for text in axes.texts] == ["0%", "90%"] * len(names)
    assert bar.get_ylabel() == "queries whose largest weight is on their key"


def test_a_picture_of_many_heads_has_no_numbers_and_one_of_none_is_refused():
    axes, _ = plot_alignment(aligned(["a.0", "a.1"], 64)).axes
    assert (len(axes.texts), axes.images[0].get_array().shape) == (0, (2, 64))
    with pytest.raises(ArgumentError, match="heads must be those of study_alignment, got none"):
        plot_alignment([])


def test_partners_in_the_reactions_are_atoms_of_the_same_element(atom_mapping):
    lines = atom_mapping.REACTIONS.read_text(encoding="utf-8").splitlines()
    reactions = [atom_mapping.Reaction.read(line) for line in lines]
    assert len(reactions) == len({line.split("\t")[1] for line in lines}) == 224

    def element(token: str) -> str:
        return re.sub(r"[\[\]+\-\d]|(?<=.)H", "", token).lower()

    for one in reactions:
        assert "".join(one.tokens) == f"[CLS]{lines[reactions.index(one)].split(chr(9))[1]}[SEP]"
        assert one.partners
        for place, partners in one.partners.items():
            assert partners
            assert {element(one.tokens[n]) for n in partners} == {element(one.tokens[place])}
            assert max(partners) < one.tokens.index(">>") < place


def test_the_benchmark_ranks_the_heads_of_a_package(atom_mapping, tmp_path, monkeypatch, capsys):
    kept = {}
    monkeypatch.setattr(atom_mapping.bench, "keep", lambda name, measured: kept.update({name: measured}))
    with pytest.raises(SystemExit, match=r"^atom_mapping\.py: error: --package must be the folder rxnmapper"):
        atom_mapping.main(package=tmp_path)
    monkeypatch.setattr(atom_mapping.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"^atom_mapping\.py: skipped: rxnmapper isn't there: pip install"):
        atom_mapping.main()
    lines = atom_mapping.REACTIONS.read_text(encoding="utf-8").splitlines()[::40]
    tokens = dict.fromkeys(token for line in lines for token in atom_mapping.Reaction.read(line).tokens)
    vocabulary = ["[PAD]", "[UNK]", *tokens]
    folder = tmp_path / atom_mapping.MODEL
    folder.mkdir(parents=True)
    sizes = dict(hidden_size=24, embedding_size=16, intermediate_size=40, num_attention_heads=6, num_hidden_layers=11)
    config = transformers.AlbertConfig(vocab_size=len(vocabulary), **sizes)
    (folder / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary), encoding="utf-8")
    torch.save(transformers.AlbertForMaskedLM(config).state_dict() | pooler(config), folder / "pytorch_model.bin")
    (tmp_path / "some.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    atom_mapping.main(package=tmp_path, reactions=tmp_path / "some.tsv", png=tmp_path / "heads.png")
    printed = capsys.readouterr().out
    assert "6 reactions, " in printed
    assert printed.count("  the authors'\n") == 1
    assert re.search(r"the authors' head is number \d+ of 66; heads with another number find at most \d", printed)
    found = [one["found"] for one in kept["atom_mapping"]["heads"]]
    assert found == sorted(found, reverse=True)
    assert kept["atom_mapping"]["apart"] < 1e-4
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


def pooler(config: transformers.AlbertConfig) -> dict[str, Tensor]:
    """The last layer of the whole model, which the package's file has too."""
    size = config.hidden_size
    return {"albert.pooler.weight": torch.zeros(size, size), "albert.pooler.bias": torch.zeros(size)}
