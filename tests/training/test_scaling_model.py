"""The formulae of benchmarks/scaling_model.py: limits, numbers worked out by hand, and counts of the real thing."""

import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from glassformer.text.batching import Batch
from glassformer.training import loss
from glassformer.training.objective import Objective
from glassformer.training.optimizer import Optimizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scaling.md"
LENGTHS = [16, 16, 16, 16, 16]


@pytest.fixture(scope="module")
def scaling() -> SimpleNamespace:
    """The benchmark's script and its modules."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import scaling_model as script
        from scaling import cluster, collectives, fit, local, memory, tables, translation, waiting, work, worker
    finally:
        del sys.path[0]
    parts: list[ModuleType] = [cluster, collectives, fit, local, memory, tables, translation, waiting, work, worker]
    return SimpleNamespace(script=script, **{part.__name__.rpartition(".")[2]: part for part in parts})


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    sizes = dict(source_vocab_size=53, target_vocab_size=53, d_model=24, heads=3, d_ff=40)
    return ModelConfig(**sizes, encoder_layers=2, decoder_layers=3)


@pytest.fixture(scope="module")
def batch(config) -> Batch:
    ids = [torch.arange(2, 2 + length) for length in LENGTHS]
    return Batch.of(ids, ids, config.source_pad, config.target_pad)


def test_answers_are_in_the_seconds_of_one_yardstick_and_counts_stay(scaling):
    slow = {"seconds": [2.0, 4.0], "peak": 7, "reduce": [[4096, 1.0]], "traffic": {"gather": [3, 8]}}
    half = {"seconds": [1.0, 2.0], "peak": 7, "reduce": [[4096, 0.5]], "traffic": {"gather": [3, 8]}}
    assert scaling.worker.scaled(slow, 2 * scaling.worker.YARDSTICK) == half


def test_a_ring_and_a_tree_by_hand(scaling):
    collectives = scaling.collectives
    slow, fast = collectives.Link(1.0, math.inf), collectives.Link(0.0, 1e9)
    assert collectives.ring_reduce(1e9, 4, fast) == pytest.approx(2 * 3 / 4)
    assert collectives.ring_reduce(1e9, 5, slow) == 8
    assert collectives.ring_gather(1e9, 1, slow) == 0
    assert collectives.tree_reduce(1e9, 8, slow) == 6
    assert collectives.tree_reduce(1e9, 9, slow) == 8
    assert collectives.tree_reduce(1e9, 1000, fast) == pytest.approx(2)


def test_rings_carry_the_large_and_trees_the_small(scaling):
    network = scaling.cluster.DGX
    assert network.tree(8, 1000) < network.ring(8, 1000) / 50
    assert network.ring(1e10, 64) < 1.01 * network.tree(1e10, 64)
    assert network.reduce(1e9, 1) == 0
    for size in (8, 1e6, 1e9):
        times = [network.reduce(size, devices) for devices in (2, 8, 16, 64, 256, 1000)]
        assert times == sorted(times)
    # All eight links of a node carry what leaves it: 400 GB/s, and almost everything goes round twice.
    assert network.ring(4e11, 8000) == pytest.approx(2, rel=0.1)


def test_the_largest_of_many(scaling):
    largest_of = scaling.waiting.largest_of
    assert largest_of(1) == 0
    assert largest_of(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    assert largest_of(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-6)
    assert 0.8 * math.sqrt(2 * math.log(10_000)) < largest_of(10_000) < math.sqrt(2 * math.log(10_000))


def test_checkpoints_as_often_as_loses_least(scaling):
    waiting = scaling.waiting
    cost, mtbf = 2.0, 1e6
    assert waiting.checkpoint_interval(cost, mtbf) == pytest.approx(math.sqrt(2 * cost * mtbf) - cost, rel=1e-3)
    assert waiting.checkpoint_interval(5.0, 2.0) == 2.0  # they fail before one is written
    best = waiting.checkpoint_interval(60.0, 3600.0)
    lost = [waiting.lost_share(factor * best, 60.0, 120.0, 3600.0) for factor in (0.5, 0.8, 1.0, 1.25, 2.0)]
    assert min(lost) == lost[2]
    assert waiting.lost_share(100.0, 1.0, 0.0, 1e12) == pytest.approx(0.01, rel=1e-3)


def test_costs_are_found_and_none_is_negative(scaling):
    amounts = [[1.0, 5.0, 2.0], [2.0, 1.0, 3.0], [4.0, 3.0, 9.0], [1.0, 7.0, 1.0]]
    seconds = [sum(a * c for a, c in zip(row, (3.0, 0.5, 0.0), strict=True)) for row in amounts]
    assert scaling.fit.fit(amounts, seconds) == pytest.approx([3.0, 0.5, 0.0], abs=1e-6)
    assert scaling.fit.fit([[1.0, 1.0], [1.0, 2.0]], [2.0, 1.0])[1] == 0


def test_products_are_those_that_torch_counts(scaling, config, batch):
    objective = Objective(Transformer(config).train(), torch.float32, 0.1)
    with FlopCounterMode(display=False) as counter:
        objective(batch)[0].backward()
    counts = counter.get_flop_counts()["Global"]
    counted = sum(count for operator, count in counts.items() if str(operator) in ("aten.mm", "aten.addmm"))
    work = scaling.work.count_work(config, scaling.work.Rows.of(LENGTHS, LENGTHS))
    assert work.products == counted
    assert work.weights == sum(parameter.numel() for parameter in objective.parameters())


def test_rows_are_those_of_a_batch(scaling, batch):
    rows = scaling.work.Rows.of(LENGTHS, LENGTHS)
    assert (rows.source, rows.target) == (batch.source.shape[1], batch.target_in.shape[1])
    assert rows.cross_scores == len(LENGTHS) * 16 * 16


def test_muon_takes_what_the_optimizer_gives_it(scaling, config):
    model = Transformer(config)
    muon = Optimizer(model, "muon", torch.float32).muon
    work = scaling.work.count_optimizer_work(config, "muon")
    assert work.muon == sum(parameter.numel() for parameter in muon.momentum)
    assert work.matrices == sum(muon._parts.values())
    assert work.muon + work.adam == sum(parameter.numel() for parameter in model.parameters())
    assert scaling.work.count_optimizer_work(config, "adam").adam == work.muon + work.adam
    # 24 x 24: four times two products of 24 x 24 by 24 x 24, and one more.
    alone = ModelConfig(source_vocab_size=5, target_vocab_size=5, d_model=24, heads=3, d_ff=24, encoder_layers=1)
    matrices = scaling.work.count_optimizer_work(replace(alone, decoder_layers=1), "muon").matrices
    products = scaling.work.muon_products(replace(alone, decoder_layers=1))
    assert products == matrices * 4 * 3 * 2 * 24**3


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_layers_keep_as_many_bytes_as_counted(scaling, config, batch, stack):
    more = replace(config, **{f"{stack}_layers": 1 + getattr(config, f"{stack}_layers")})
    kept = saved_bytes(more, batch) - saved_bytes(config, batch)
    d, ff = config.d_model, config.d_ff
    copies = 2 * ((4 if stack == "encoder" else 8) * d * d + 2 * d * ff)
    counted = dict(zip(("encoder", "decoder"), scaling.memory.activation_bytes(config, 16, "cpu"), strict=True))
    assert kept - copies == pytest.approx(counted[stack] * batch.source.shape[1], rel=0.01)


def saved_bytes(config: ModelConfig, batch: Batch) -> int:
    """Bytes of all that the backward pass of a batch needs, weights left out."""
    model = Transformer(config).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.Tensor.contiguous):
        objective = Objective(model, torch.bfloat16, 0.1)
        _ = objective(batch)
    return sum(kept.values())


def test_a_chunk_of_logits_is_that_of_the_loss(scaling):
    assert scaling.memory.LOGITS == loss._CHUNK_ELEMENTS


def test_sharded_memory_falls_and_activations_stay(scaling, config):
    rows = scaling.work.Rows.alike(1000, 30)
    whole, part = (
        scaling.memory.count_memory(config, rows, length=30, optimizer="adam", mode=mode, processes=4)
        for mode in ("ddp", "shard")
    )
    assert part.weights == whole.weights / 4
    assert part.optimizer == whole.optimizer / 4
    assert whole.optimizer == 2 * whole.weights
    assert part.activations == whole.activations
    assert part.gathered > whole.gathered == 0


def test_memory_is_about_what_was_measured(scaling):
    error = {"plain": 0.16, "ddp": 0.03, "shard": 0.11}
    found = [one for one in scaling.script.checked() if one["what"] == "update"]
    assert {one["mode"] for one in found} == set(error)
    for one in found:
        assert one["predicted_bytes"] == pytest.approx(one["measured_bytes"], rel=error[one["mode"]]), one["model"]


def test_gradients_are_summed_once_and_weights_gathered_as_counted(scaling):
    config = scaling.cluster.SIZES["base"]
    weights = 4 * scaling.work.count_weights(config)
    ddp, shard = (scaling.local.traffic(config, mode) for mode in ("ddp", "shard"))
    large = [(kind, count * size) for kind, count, size in (*ddp, *shard) if size > 8]
    assert sum(size for kind, size in large if kind == "reduce") == weights
    assert sum(size for kind, size in large if kind == "scatter") == weights
    assert weights < sum(size for kind, size in large if kind == "gather") < 5 * weights


def test_the_counts_of_messages_are_those_of_real_updates(scaling):
    for one in scaling.script.checked():
        if one["mode"] != "shard":
            continue
        counted = dict.fromkeys(("gather", "scatter", "reduce"), 0)
        for kind, count, _ in scaling.local.traffic(scaling.script.CHECKED[one["model"]].config, "shard"):
            counted[kind] += count
        counted["reduce"] -= 1  # what the loop agrees on is no part of the update
        assert counted == {kind: one["counted"][kind][0] for kind in counted}


def test_with_no_messages_noise_or_starts_n_devices_are_n_times_as_fast(scaling):
    cluster = scaling.cluster
    gpu = replace(cluster.H100, call=0.0, mtbf=math.inf, copy=math.inf, memory=1e15)
    links = [scaling.collectives.Link(0.0, math.inf)] * 2
    network = scaling.collectives.Network(8, *links, 0.0)
    plan = cluster.Plan(64, 64 * 65_536)
    config = cluster.SIZES["big"]
    parts = cluster.predict(gpu, network, config, plan)
    assert parts.messages == parts.agreeing == parts.waiting == parts.starts == 0
    alone = cluster.predict(gpu, network, config, replace(plan, devices=1))
    assert alone.passes == pytest.approx(64 * parts.passes, rel=0.01)  # weights are copied anew
    assert alone.optimizer == parts.optimizer  # everyone steps along all weights
    assert alone.seconds == alone.passes + alone.optimizer


def test_a_device_waits_for_its_host_if_that_is_slower(scaling):
    cluster = scaling.cluster
    plan, config = cluster.Plan(8, 8 * 64), cluster.SIZES["base"]
    update = cluster.predict(cluster.H100, cluster.DGX, config, plan)
    assert update.seconds == update.starts == pytest.approx(70.9e-3)  # as measured with 2,048 tokens
    recorded = cluster.predict(cluster.H100, cluster.DGX, config, replace(plan, recorded=True))
    assert recorded.seconds == recorded.passes + recorded.optimizer + recorded.messages < update.starts / 16


def test_more_devices_take_no_longer_per_token_and_never_gain_more_than_their_number(scaling):
    cluster, recorded = scaling.cluster, scaling.script.recorded()
    for config in cluster.SIZES.values():
        ups = [
            cluster.speed_up(
                cluster.H100, cluster.DGX, config, cluster.fitted(cluster.H100, config, recorded.plan(n, 400_000))
            )
            for n in (1, 8, 64)
        ]
        assert ups[0] == pytest.approx(1)
        assert all(up <= 1.0001 * n for up, n in zip(ups, (1, 8, 64), strict=True))


def test_blocks_are_shared_out_and_the_last_one_is_waited_for(scaling):
    fleet = scaling.translation.Fleet(workers=4, rate=10.0, block=100, start=0.0, mtbf=math.inf)
    assert fleet.seconds(4000) == pytest.approx(100 + 0.75 * 10)
    assert replace(fleet, workers=1).seconds(4000) == pytest.approx(400)
    assert replace(fleet, mtbf=100.0).seconds(4000) == pytest.approx(100 + 0.75 * 10 + 1 * 5)
    assert replace(fleet, workers=1).useful(4000) == pytest.approx(1)


def test_a_process_alone_waits_for_nobody(scaling):
    rows = scaling.work.Rows.of(LENGTHS, LENGTHS)
    known, case = scaling.script.constants(), scaling.script.CHECKED["tiny"]
    alone = scaling.local.predict_update(known, case, [rows], "plain")
    assert set(alone) == {"gradients", "optimizer"}
    several = scaling.local.predict_update(known, case, [rows] * 4, "ddp")
    # Four processes on two cores: each has half of one, at the least.
    assert several["optimizer"] >= 1.9 * alone["optimizer"]
    assert min(asdict(scaling.work.count_work(case.config, rows)).values()) > 0


def test_messages_interrupt_sharded_processes_alone(scaling):
    rows = [scaling.work.Rows.of(LENGTHS, LENGTHS)] * 2
    known, case = scaling.script.constants(), scaling.script.CHECKED["small"]
    none = replace(known, interruptions={"2": 0.0, "4": 0.0})
    some = replace(known, interruptions={"2": 0.001, "4": 0.0})
    times = {
        mode: [sum(scaling.local.predict_update(one, case, rows, mode).values()) for one in (none, some)]
        for mode in ("ddp", "shard")
    }
    assert times["ddp"][0] == times["ddp"][1]
    count = scaling.local.count_messages(case.config, "shard")
    assert times["shard"][1] - times["shard"][0] == pytest.approx(0.001 * count)


def test_the_tables_of_the_docs_follow_from_the_records(scaling):
    text = PAGE.read_text(encoding="utf-8")
    recorded, found = scaling.script.recorded(), scaling.script.checked()
    made = {name: make(recorded) for name, make in scaling.tables.TABLES.items()}
    made |= {"checks": scaling.tables.checks(found), "memories": scaling.tables.memories(found)}
    for name, expected in made.items():
        begin, end = f"<!-- {name}: benchmarks/scaling_model.py --markdown -->", f"<!-- end of {name} -->"
        assert begin in text, "run benchmarks/scaling_model.py --markdown"
        assert text.split(begin)[1].split(end)[0].strip() == expected
