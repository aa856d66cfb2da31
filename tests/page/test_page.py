"""The page: its data against the tensors it shows, and in a real browser what a person does with it."""

import base64
import importlib.util
import json
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from glassformer import Translator, Want, capture, cli, page
from glassformer.attention.observation import Observation
from glassformer.demo.dates import DateSplits, make_dates
from glassformer.demo.demonstration import settings, write_phrases
from glassformer.errors import ArgumentError, ConfigError
from glassformer.generation.attention import TranslationAttention
from glassformer.insight.heads import Head
from glassformer.page import assets, inspection, report
from glassformer.page.inspection import inspect
from glassformer.page.packed import PackedTensors
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.training.train import train

BROWSER = shutil.which("chromium")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Debian's chromium, which .ci/run installs")
SOURCE = [*["the", "white", "dog", "sat", "by", "the"], "<script>document.title='x'</script>", "</script>", "", " a b"]
NUMBERED = [[str(n) for n in range(count)] for count in (640, 61, 61)]  # source, written, next
TARGET = ["<pad>", "la", "<b>", "chien", "&amp;"]


def unpacked(data: bytes) -> dict[str, Any]:
    """The header of a page's data, its facts as tensors; as page.js reads it."""
    raw = zlib.decompress(data)
    length = int.from_bytes(raw[:4], "little")
    header, body = json.loads(raw[4 : 4 + length]), torch.frombuffer(bytearray(raw[4 + length :]), dtype=torch.uint8)
    for hypothesis in header["hypotheses"]:
        for view in hypothesis["views"]:
            view["facts"] = {name: numbers(body, **place) for name, place in view["facts"].items()}
    return header


def numbers(body: torch.Tensor, offset: int, count: int, type: str, scale: float, shape: list[int]) -> torch.Tensor:
    width = int(type[1])
    raw = body[offset : offset + width * count].view(width, count).T.contiguous()
    if type == "f4":
        return raw.view(torch.float32).view(shape)
    codes = sum(raw[:, n].long() << (8 * n) for n in range(width)).view(shape)
    if type == "p2":
        return torch.where(codes == 0, 0.0, scale * 2.0 ** ((codes >> 11) - 31) * (1 + (codes & 2047) / 2048))
    return torch.where(codes == (1 << 8 * width) - 1, -1, codes)


@pytest.fixture(scope="module")
def model() -> nn.Transformer:
    torch.manual_seed(3)
    made = nn.Transformer(32, 4, 2, 3, 64, batch_first=True).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "in_proj_weight" in name:
                parameter *= 3
    return made


@pytest.fixture(scope="module")
def look(model) -> Callable[..., Any]:
    """What the model looks at over so many tokens: a Captured."""

    def run(want: Want, source: int = len(SOURCE), target: int = len(TARGET), batch: int = 1, **settings):
        torch.manual_seed(5)
        mask = nn.Transformer.generate_square_subsequent_mask(target)
        with torch.no_grad(), capture(model, want, **settings) as seen:
            model(torch.randn(batch, source, 32), torch.randn(batch, target, 32), tgt_mask=mask, tgt_is_causal=True)
        return seen

    return run


@pytest.fixture(scope="module")
def seen(look):
    return look(Want(weights=True))


# The data


def test_it_carries_tokens_and_weights_as_they_are(seen):
    (hypothesis,) = unpacked(page(seen, SOURCE, TARGET).data)["hypotheses"]
    assert hypothesis["axes"] == {"source": SOURCE, "target": TARGET}
    views = {view["path"]: view for view in hypothesis["views"]}
    assert views.keys() == seen.keys()
    assert [(view["group"], view["layer"]) for view in views.values()] == [
        *(("encoder", n) for n in range(2)),
        *((group, n) for group in ("decoder", "source") for n in range(3)),
    ]
    for path, view in views.items():
        weights = seen[path].weights[0]
        assert torch.equal(view["facts"]["weights"], weights)
        assert view["exact"]
        assert view["rows"] == pytest.approx([1, 1])
        assert_close(view["facts"]["entropy"], torch.special.entr(weights).sum(-1))
        assert_close(view["facts"]["received"], weights.sum(1))
        assert view["sizes"] == list(weights.shape[1:])
        assert len(view["heads"]) == 4
    assert views["decoder.layers.0.multihead_attn"]["queries"] == "target"
    assert views["decoder.layers.0.multihead_attn"]["keys"] == "source"


def test_many_weights_are_rounded_to_sixteen_bits_and_it_says_so(look):
    seen = look(Want(weights=True), source=83)
    for view in unpacked(page(seen).data)["hypotheses"][0]["views"]:
        assert_close(view["facts"]["weights"], seen[view["path"]].weights[0], rtol=1 / 4096, atol=2**-31)
        assert not view["exact"]


def test_long_ones_are_tiles_and_the_largest(look):
    seen = look(Want(pooled_heads=8, top=3, entropy=True, received=True), source=83, target=31)
    views = {view["path"]: view for view in unpacked(page(seen).data)["hypotheses"][0]["views"]}
    for path, view in views.items():
        one, facts = seen[path][0], view["facts"]
        assert "weights" not in facts
        assert_close(facts["tiles"], one.pooled_heads, rtol=1 / 4096, atol=1e-7)
        assert_close(facts["top"], one.top.weights, rtol=1 / 4096, atol=2**-31)
        assert torch.equal(facts["keys"], one.top.keys)
        assert_close(facts["entropy"], one.entropy, rtol=1 / 4096, atol=1e-7)
    assert views["decoder.layers.0.multihead_attn"]["tile"] == [4, 11]


@pytest.mark.parametrize("kind", ["f4", "p2"])
def test_numbers_are_read_back(kind):
    some = torch.tensor([[0.0, 1.0, 0.5, 0.3], [1e-3, 1e-9, 1e-12, 3e-7]])
    packed = PackedTensors()
    places = [packed.add(x, kind) for x in (some, 700 * some, some)]
    assert places[0]["offset"] == places[2]["offset"]  # equal tensors are there once
    raw = zlib.decompress(packed.pack({}))
    body = torch.frombuffer(bytearray(raw[6:]), dtype=torch.uint8)
    for place, scale in zip(places, (1, 700, 1), strict=True):
        if kind == "f4":
            assert torch.equal(numbers(body, **place), scale * some)
        else:
            assert_close(numbers(body, **place), scale * some, rtol=1 / 4096, atol=scale * 2**-31)
            assert numbers(body, **place)[0, :2].tolist() == [0.0, scale]


def test_a_padded_entry_is_cut_to_its_tokens(look):
    seen = look(Want(weights=True), batch=3)
    (hypothesis,) = unpacked(page(seen, SOURCE[:7], TARGET[:3], entry=1).data)["hypotheses"]
    for view in hypothesis["views"]:
        queries, keys = view["sizes"]
        assert torch.equal(view["facts"]["weights"], seen[view["path"]].weights[1, :, :queries, :keys])
    assert {tuple(view["sizes"]) for view in hypothesis["views"]} == {(7, 7), (3, 3), (3, 7)}


def test_the_mean_of_the_heads_is_shown_as_one(look):
    seen = look(Want(head_mean=True, entropy=True))
    known = [head(head=0), head(attention="encoder.layers.1.self_attn", head=0)]
    for view in unpacked(page(seen, heads=known).data)["hypotheses"][0]["views"]:
        assert torch.equal(view["facts"]["weights"], seen[view["path"]].head_mean)
        assert view["heads"] == [{}]  # what is known of head 0 is not said of the mean
        assert view["mean"]
    seen = look(Want(pooled=4))
    for view in unpacked(page(seen).data)["hypotheses"][0]["views"]:
        assert_close(view["facts"]["tiles"], seen[view["path"]].pooled, rtol=1 / 4096, atol=1e-7)
        assert view["mean"]


def test_tiles_of_one_weight_each_are_weights(look):
    exact, tiles = look(Want(weights=True)), look(Want(pooled_heads=64, top=3))
    for view in unpacked(page(tiles).data)["hypotheses"][0]["views"]:
        assert set(view["facts"]) == {"weights", "entropy", "received"}
        assert_close(view["facts"]["weights"], exact[view["path"]].weights[0])


def test_it_says_what_rows_sum_to(look):
    cut = unpacked(page(look(Want(weights=True)), SOURCE[:4]).data)["hypotheses"][0]["views"]
    rows = {view["path"]: view["rows"] for view in cut}
    weights = look(Want(weights=True))["encoder.layers.0.self_attn"].weights[0, :, :4, :4].sum(-1)
    assert rows["encoder.layers.0.self_attn"] == pytest.approx([float(weights.min()), float(weights.max())])
    assert rows["decoder.layers.0.self_attn"] == pytest.approx([1, 1])
    for view in unpacked(page(look(Want(pooled_heads=4), source=29, target=31)).data)["hypotheses"][0]["views"]:
        assert view["rows"] == pytest.approx([1, 1], abs=1e-5)


def test_layers_keep_their_numbers_if_some_are_captured(look):
    made = page(look(Want(weights=True), layers=["encoder.layers.1.self_attn", "decoder.layers.2.*"]))
    views = unpacked(made.data)["hypotheses"][0]["views"]
    assert [(view["group"], view["layer"]) for view in views] == [("encoder", 1), ("decoder", 2), ("source", 2)]


def test_what_a_budget_left_out_is_said(look):
    seen = look(Want(weights=True), source=83, target=71, budget=8 * 60_000)
    assert seen.dropped
    views = unpacked(page(seen).data)["hypotheses"][0]["views"]
    assert {view["path"]: view["dropped"] for view in views if view["dropped"]} == seen.dropped


def test_patches_of_a_picture_have_their_grid():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    with torch.no_grad(), capture(model, Want(weights=True)) as seen:
        model(torch.randn(1, 13, 32))
    (hypothesis,) = unpacked(page(seen, grid=(3, 4)).data)["hypotheses"]
    assert hypothesis["grids"] == {"tokens": [3, 4]}
    assert hypothesis["axes"]["tokens"] == [str(n) for n in range(13)]
    with pytest.raises(ArgumentError, match=r"grid must be \(rows, columns\) of at most 13 patches, got \(4, 4\)"):
        page(seen, grid=(4, 4))


def test_nothing_in_the_page_is_markup_or_reaches_out(seen):
    made = page(seen, SOURCE, TARGET, title="</title><script>alert(1)</script>")
    text = made.html()
    assert "&lt;/title&gt;&lt;script&gt;" in text
    assert text.count("<script") == text.count("</script>") == 2
    assert not re.search(r"(src|href)\s*=|url\(|@import", re.sub(r"createObjectURL\(", "", text).split("<script")[0])
    assert "default-src 'none'" in text
    data = re.search(r'id="data">([^<]*)<', text)
    assert data is not None
    assert base64.b64decode(data[1]) == made.data


def test_it_is_written_whole_or_not_at_all(seen, tmp_path, monkeypatch):
    path = page(seen).save(tmp_path / "one.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(Exception, match="no such folder"):
        page(seen).save(tmp_path / "none" / "one.html")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(tokens="a text"), r"source must be a sequence of tokens, got one str: pass text.split()"),
        (dict(tokens=["x"] * 11), r"there are 10 positions of the source, got 11 tokens for them"),
        (dict(tokens=[]), r"there are 10 positions of the source, got 0 tokens for them"),
        (dict(grid=(-1, -1)), r"grid must be \(rows, columns\) of at most 10 patches, got \(-1, -1\)"),
        (dict(entry=1), r"entry must be one of the batch's 1, from 0 to 0, got 1"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(seen, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        page(seen, **arguments)


def test_what_cannot_be_drawn_is_refused(look, model, monkeypatch):
    with pytest.raises(ArgumentError, match=r"nothing was captured that a page can draw: capture with Want\(weights"):
        page(look(Want(distance=True)))
    with capture(model) as seen:
        pass
    with pytest.raises(ArgumentError, match="nothing was captured: call the model inside the context"):
        page(seen)
    with pytest.raises(ArgumentError, match="seen must be what capture recorded, or translations with their attention"):
        page([])
    monkeypatch.setattr(report, "MOST_WEIGHTS", 100)
    with pytest.raises(ArgumentError, match=r"a page holds at most 100 weights, got .*pooled_heads=64, top=8"):
        page(look(Want(weights=True)))
    tiles = look(Want(pooled_heads=4))
    with pytest.raises(ArgumentError, match="tiles can't be cut to 3 x 3 tokens"):
        page(tiles, ["a", "b", "c"])
    with pytest.raises(ArgumentError, match="the largest weights of some queries lie beyond the 3 tokens given"):
        page(look(Want(top=4, entropy=True)), ["a", "b", "c"])


def test_weights_that_are_no_numbers_are_refused(model):
    with torch.no_grad(), capture(model, Want(weights=True), layers=["encoder.layers.0.self_attn"]) as seen:
        model(torch.full((1, 3, 32), torch.nan), torch.randn(1, 2, 32))
    with pytest.raises(ArgumentError, match=r"encoder.layers.0.self_attn has weights that are not numbers"):
        page(seen)


# Of a run


@pytest.fixture(scope="module")
def run(random_run, tmp_path_factory) -> Path:
    letters = SymbolTokenizer.train(["a b c d e f g"], vocab_size=None)
    folder = tmp_path_factory.mktemp("runs") / "random"
    random_run(folder, letters, letters)
    return folder


def test_inspect_compares_the_hypotheses_of_the_beam(run):
    line = "a b c"
    found = Translator.load(run, precision="float32").translate_n_best([line], attention=Want(weights=True))
    made = unpacked(inspect(run, line, hypotheses=2).data)
    assert len(made["hypotheses"]) == 2
    best = made["hypotheses"][0]
    assert best["label"].startswith(found[0][0].text)
    attention = found[0][0].attention
    assert best["axes"]["source"] == attention.source_tokens
    assert best["axes"]["next"] == attention.target_out
    for view in best["views"]:
        stack = {"encoder": attention.encoder, "decoder": attention.decoder, "source": attention.source}[view["group"]]
        assert_close(view["facts"]["weights"], stack[view["layer"]].weights[0], rtol=1 / 4096, atol=1e-7)


def test_inspect_reads_a_given_target(run):
    translator = Translator.load(run, precision="float32")
    (best,) = translator.translations(["a b c"], attention=Want(weights=True))
    again = translator.read("a b c", best.text, attention=Want(weights=True))
    assert again.tokens == best.tokens
    assert again.token_log_probs[: len(best.tokens)] == pytest.approx(best.token_log_probs[: len(best.tokens)])
    assert again.log_prob == pytest.approx(translator.score(["a b c"], [best.text])[0])
    (hypothesis,) = unpacked(inspect(run, "a b c", best.text).data)["hypotheses"]
    assert hypothesis["axes"]["next"] == again.attention.target_out
    with pytest.raises(ConfigError, match="source is empty"):
        inspect(run, "  ")
    with pytest.raises(ConfigError, match="hypotheses must be at least 1"):
        inspect(run, "a", hypotheses=0)
    for text in ("a \udcff", "a \ud800"):
        with pytest.raises(ConfigError, match=re.escape(f"target must be valid UTF-8, got {text!a}")):
            inspect(run, "a", text)
    with pytest.raises(ArgumentError, match="translations know their own"):
        page(again, ["a", "b", "c"])


def test_inspect_takes_all_weights_where_a_page_holds_them(run, monkeypatch):
    def kinds() -> set[str]:
        (hypothesis,) = unpacked(inspect(run, "a b c d e f g a b c", "b a").data)["hypotheses"]
        return {name for view in hypothesis["views"] for name in view["facts"]}

    assert "tiles" not in kinds()
    monkeypatch.setattr(inspection, "LONG_INPUT_WANT", Want(pooled_heads=4, top=2))
    monkeypatch.setattr(inspection, "MOST_WEIGHTS", 1000)
    assert "tiles" in kinds()
    monkeypatch.setattr(inspection, "MOST_WEIGHTS", 10)
    with pytest.raises(ConfigError, match="hypotheses of so long a line must be at most 0, got 1"):
        kinds()


def head(**changes) -> Head:
    plain = Head(
        attention="encoder.layers.0.self_attn",
        head=1,
        confidence=0.5,
        entropy=1.0,
        offset=-1,
        positional=0.95,
        previous=0.9,
        next=0.0,
        end=0.0,
        rare=None,
        syntax=None,
        importance=0.3,
        without=0.25,
        role="positional",
    )
    return replace(plain, **changes)


def test_roles_and_importance_where_they_are_known(seen):
    (hypothesis,) = unpacked(page(seen, heads=[head()]).data)["hypotheses"]
    first = hypothesis["views"][0]
    assert first["heads"] == [{}, {"role": "positional", "importance": 0.25}, {}, {}]
    assert hypothesis["importance"] == 0.25
    assert hypothesis["start"] == {"at": "decoder.layers.0.multihead_attn", "head": 0}
    known = [head(), head(attention="decoder.layers.1.multihead_attn", head=3)]
    (hypothesis,) = unpacked(page(seen, heads=known).data)["hypotheses"]
    assert hypothesis["start"] == {"at": "decoder.layers.1.multihead_attn", "head": 3}


# The dates: the example's head that reads the year, from the data behind the page


@pytest.fixture(scope="module")
def year() -> Any:
    spec = importlib.util.spec_from_file_location("year", Path(__file__).parents[2] / "examples" / "year.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DATES = 60
    return module


@pytest.fixture(scope="module")
def dates(tmp_path_factory) -> tuple[Path, DateSplits]:
    """A model that has learned the dates of four languages for half a minute, and dates of these."""
    folder, languages = tmp_path_factory.mktemp("dates"), {"English", "German", "French", "Spanish"}
    splits = DateSplits(
        **{
            name: [date for date in getattr(made, name) if date.language in languages]
            for made in [make_dates(seed=1)]
            for name in ("train", "valid", "test")
        }
    )
    for name in ("train", "valid"):
        write_phrases(folder / f"{name}.tsv", getattr(splits, name))
    quick = dict(batch_tokens=1024, max_updates=600, max_minutes=None, warmup=100, validate_every=300, average=1)
    train(replace(settings(folder, folder / "run", 1, overwrite=False), **quick))
    return folder / "run", splits


def test_the_head_chosen_on_validation_reads_the_year_of_held_out_dates(year, dates):
    run, splits = dates
    translator = Translator.load(run, "cpu", "float32")
    _, on_validation = year.shares(year.read(translator, splits.valid))
    chosen = int(on_validation.argmax())
    found = []
    for date, translation in year.read(translator, splits.test):
        (hypothesis,) = unpacked(page(translation).data)["hypotheses"]
        axes = hypothesis["axes"]
        (view,) = (view for view in hypothesis["views"] if view["group"] == "source")
        found.append(year.on_year(view["facts"]["weights"], axes["source"], axes["next"], date))
    shares = torch.stack(found).mean(0)
    others = [f"{share:.1%}" for n, share in enumerate(shares.tolist()) if n != chosen]
    print(f"weight on the year: head {chosen} {shares[chosen]:.1%}, the others {', '.join(others)}")
    assert len(found) == 60
    assert shares[chosen] >= 0.8


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield started
        started.close()


@pytest.fixture
def opened(browser, tmp_path) -> Iterator[Callable[..., Any]]:
    """Opens a page in a fresh profile; what its console says and what it asks the network for must be nothing."""
    contexts, said, asked = [], [], []

    def open_page(made: Any, address: str = "", **settings: Any) -> Any:
        path = made.save(tmp_path / "page.html")
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **settings})
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{path.as_uri()}{address}")
        tab.wait_for_selector(".cell")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []


def plain(text: str) -> str:
    """Without the marks around a token that keep its direction to itself."""
    return text.translate({0x2068: None, 0x2069: None})


def picture(tab: Any) -> bytes:
    return tab.locator(".map").screenshot()


@needs_browser
def test_tokens_stay_text(opened, seen):
    tab = opened(page(seen, SOURCE, TARGET, title="<i>seen</i>"))
    assert tab.title() == "<i>seen</i>"
    assert tab.locator("h1").inner_text() == "<i>seen</i>"
    shown = [chip.inner_text() for chip in tab.locator(".token").all()]
    marks = [{"": "∅", " a b": "␣a b"}.get(token, token) for token in SOURCE]
    assert shown == [*TARGET, *marks]
    assert tab.locator("script").count() == 2


@needs_browser
def test_choices_change_the_picture_and_the_address_brings_them_back(opened, seen):
    made = page(seen, SOURCE, TARGET)
    tab = opened(made)
    pictures = {picture(tab)}
    for cell in (1, 9, 22):
        tab.locator(".cell").nth(cell).click()
        pictures.add(picture(tab))
    assert len(pictures) == 4
    tab.locator(".token").nth(3).click()
    tab.get_by_label("who looks at a token").check()
    address, readout = tab.evaluate("location.hash"), tab.locator(".readout").inner_text()
    assert "looked at by" in readout
    again = opened(made, address)
    assert again.locator(".readout").inner_text() == readout
    assert picture(again) == picture(tab)


@needs_browser
def test_numbers_on_screen_are_those_of_the_data(opened, seen):
    at, n = "decoder.layers.1.multihead_attn", 2
    weights = seen[at].weights[0, n].double()
    tab = opened(page(seen, SOURCE, TARGET), f"#at={at}&head={n}&token=3")
    tab.locator("summary").click()
    tab.wait_for_selector("tbody tr")  # the browser says a moment later that it is open
    tables = tab.locator("table")
    rows = [row.locator("td").all_inner_texts() for row in tables.first.locator("tbody tr").all()]
    shown = torch.tensor([[float(cell.removesuffix(" %")) / 100 for cell in row] for row in rows]).double()
    assert_close(shown, weights, rtol=6e-3, atol=1e-12)
    received = [row.locator("td").last.inner_text() for row in tables.last.locator("tbody tr").all()]
    assert_close(torch.tensor([float(cell) for cell in received]).double(), weights.sum(0), rtol=6e-3, atol=1e-12)
    best = int(weights[3].argmax())
    assert f"{rows[3][best]}" in tab.locator(".readout").inner_text()
    tab.locator(".cross").focus()
    for key in ["ArrowUp"] * 3 + ["ArrowLeft"] * 9 + ["ArrowDown"] * 2 + ["ArrowRight"] * 4:
        tab.keyboard.press(key)  # it begins at the chosen token, which is none of these
    assert plain(tab.locator(".readout").inner_text()) == f"“<b>” → “by”: {rows[2][4]}"
    title = tab.locator(".token").nth(len(TARGET) + best).get_attribute("title")
    assert title == rows[3][best]


@needs_browser
def test_the_keyboard_reaches_everything(opened, seen):
    tab = opened(page(seen, SOURCE, TARGET))
    reached = set()
    for _ in range(14):
        tab.keyboard.press("Tab")
        reached.add(
            tab.evaluate(
                "(document.activeElement.className || document.activeElement.tagName + "
                "(document.activeElement.innerText ?? '')).trim()"
            )
        )
    assert {"cell", "cross", "tokens", "INPUT", "strip", "SUMMARYAs a table", "BUTTONPNG", "BUTTONSVG"} <= reached
    tab.locator('.cell[aria-pressed="true"]').focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"):
        tab.keyboard.press(key)
    assert tab.evaluate("document.activeElement.dataset.head") == "1"
    assert "head 1" in tab.locator(".name").inner_text()
    tab.locator(".tokens").first.focus()
    tab.keyboard.press("ArrowRight")
    assert tab.locator(".chosen").inner_text() == "la"
    entropy, received = tab.locator(".strip").all()
    entropy.focus()
    tab.keyboard.press("ArrowRight")
    assert tab.locator(".chosen").inner_text() == "<b>"
    assert plain(entropy.get_attribute("aria-valuetext")).startswith("“<b>”: ")
    received.focus()
    tab.keyboard.press("Home")
    assert tab.locator(".chosen").inner_text() == "the"
    assert plain(tab.locator(".along output").last.inner_text()).startswith("“the”: ")


@needs_browser
def test_it_fits_a_phone_by_touch_and_in_the_dark(opened, seen):
    phone = dict(viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    tab = opened(page(seen, SOURCE, TARGET), color_scheme="dark", **phone)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    dark = tab.evaluate("getComputedStyle(document.getElementById('page')).backgroundColor")
    assert dark == "rgb(16, 20, 28)"
    tab.locator(".token").nth(2).tap()
    assert "<b>" in tab.locator(".readout").inner_text()
    cells = tab.evaluate("glassformer.map.cells")
    weights = seen["decoder.layers.0.multihead_attn"].weights[0, 0]
    place = {
        axis: cells["margin"] + (n + 0.5) * cells[size] for axis, n, size in (("x", 5, "width"), ("y", 2, "height"))
    }
    tab.locator(".cross").tap(position=place)
    words, share = plain(tab.locator(".readout").inner_text()).removesuffix(" %").split(": ")
    assert words == "“<b>” → “the”"
    assert float(share) / 100 == pytest.approx(float(weights[2, 5]), rel=6e-3)
    before = picture(tab)
    tab.get_by_text("Light or dark").tap()
    assert picture(tab) != before


@needs_browser
def test_pictures_are_saved(opened, seen, tmp_path):
    tab = opened(page(seen, SOURCE, TARGET))
    with tab.expect_download() as saved:
        tab.get_by_text("SVG").click()
    svg = Path(saved.value.path()).read_text(encoding="utf-8")
    assert svg.count("<rect") > 20
    words = [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert words[: len(TARGET)] == TARGET
    assert words[len(TARGET) + 6] == "<script>do…"
    assert "sum to 100 %" in " ".join(words)
    with tab.expect_download() as saved:
        tab.get_by_text("PNG").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
    assert saved.value.suggested_filename == "attention-decoder.layers.0.multihead_attn-0.png"


@needs_browser
def test_of_other_weights_it_says_the_most_that_they_can_be(opened, look):
    want = Want(pooled_heads=8, top=3, entropy=True, received=True)
    at = "encoder.layers.1.self_attn"
    exact = look(Want(weights=True), source=83)[at].weights[0, 1]
    tab = opened(page(look(want, source=83)), f"#at={at}&head=1")
    found = tab.evaluate(
        """() => {
            const places = Array.from({ length: 83 }, (_, n) => n), head = glassformer.head;
            return places.map((query) => places.map((key) => head.weight(query, key)));
        }"""
    )
    bounds = torch.tensor([[cell["value"] for cell in row] for row in found]).double()
    known = torch.tensor([[cell["exact"] for cell in row] for row in found])
    assert known.sum() == 83 * 3
    assert_close(bounds[known], exact[known].double(), rtol=1 / 4096, atol=1e-7)
    assert (bounds[~known] >= exact[~known]).all()
    assert bounds[~known].mean() < 0.2
    tab.get_by_label("who looks at a token").check()
    assert "of tokens without colour the weight isn't known" in tab.locator(".words").inner_text()


@needs_browser
def test_rounding_takes_nothing_from_what_a_weight_can_be(opened):
    torch.manual_seed(2)
    q, k = torch.randn(1, 2, 61, 16), torch.randn(1, 2, 640, 16)
    weights = (6 * q @ k.mT).softmax(-1)  # sharp: what is left beside the largest is little
    top = weights.topk(8, -1)
    found = {"weights": weights, "top": top.values, "top_keys": top.indices}
    found["pooled_heads"] = weights.view(1, 2, 61, 64, 10).sum(-1)
    want = Want(pooled_heads=64, top=8)
    seen = TranslationAttention(
        {}, {}, {0: Observation({n: found[n] for n in found if n != "weights"}, want, 1)}, *NUMBERED
    )
    tab = opened(page(seen))
    cells = tab.evaluate(
        "[...Array(61).keys()].map((q) => [...Array(640).keys()].map((k) => glassformer.head.weight(q, k).value))"
    )
    bounds, exact = torch.tensor(cells).double(), weights[0, 0].double()
    known = torch.zeros(61, 640, dtype=torch.bool).scatter(1, top.indices[0, 0], True)
    assert (bounds[~known] >= exact[~known]).all()


@needs_browser
def test_marks_of_direction_and_of_control_stay_in_their_tokens(opened, seen):
    target = ["\u202eevil", "ctl\x01", "\u05e9\u05dc\u05d5\u05dd", "\ud800", "x"]
    tab = opened(page(seen, SOURCE, target, title="ctl\x01 \u202e"), "#token=2")
    assert tab.locator("h1").inner_text() == "ctl⟨0001⟩ ⟨202e⟩"
    assert [chip.inner_text() for chip in tab.locator(".token").all()[:4]] == [
        "⟨202e⟩evil",
        "ctl⟨0001⟩",
        target[2],
        "?",
    ]
    assert tab.locator(".readout").inner_text().startswith(f"“\u2068{target[2]}\u2069” looks at ")
    with tab.expect_download() as saved:
        tab.get_by_text("SVG").click()
    ElementTree.fromstring(Path(saved.value.path()).read_text(encoding="utf-8"))


@needs_browser
def test_a_long_map_keeps_to_its_room_and_shows_what_is_chosen(opened, look):
    few = dict(layers=["encoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"])
    tab = opened(
        page(look(Want(weights=True), source=4, target=700, **few)), "#at=decoder.layers.0.multihead_attn&token=650"
    )
    assert tab.locator(".map").bounding_box()["height"] <= 900
    chip, box = (tab.locator(one).first.bounding_box() for one in (".chosen", ".tokens"))
    assert box["y"] <= chip["y"] <= box["y"] + box["height"]
    tab.locator("summary").click()
    tab.wait_for_selector("tbody tr")
    tab.get_by_label("who looks at a token").check()
    assert "These are the 200 largest of 700 weights" in tab.locator("caption").first.inner_text()
    with tab.expect_download() as saved:
        tab.get_by_text("SVG").click()
    assert Path(saved.value.path()).read_text(encoding="utf-8").count("<rect") < 4 * 700
    tab = opened(page(look(Want(weights=True), source=110, **few)), "#at=encoder.layers.0.self_attn")
    with tab.expect_download() as saved:
        tab.get_by_text("SVG").click()
    svg = Path(saved.value.path()).read_text(encoding="utf-8")
    assert 'href="data:image/png;base64,' in svg
    assert svg.count("<rect") == 1


@needs_browser
def test_a_link_to_what_is_not_there_shows_what_is(opened, seen):
    made = page(seen, SOURCE, TARGET)
    for address in ("#at=none&head=9&token=99&of=7", "#head=1e999", "#%E0%A4%A"):
        assert "Decoder, the source, layer 0, head" in opened(made, address).locator(".name").inner_text()


@needs_browser
def test_nothing_is_drawn_that_is_not_seen(opened, look):
    tab = opened(page(look(Want(weights=True))), viewport={"width": 1400, "height": 120})
    drawn = "[...document.querySelectorAll('.cell canvas')].map((c) => c.width !== 300)"
    for _ in range(100):
        if any(tab.evaluate(drawn)):
            break
        tab.wait_for_timeout(50)
    assert any(tab.evaluate(drawn))
    assert not all(tab.evaluate(drawn))


@needs_browser
def test_several_hypotheses_can_be_compared(opened, run):
    tab = opened(inspect(run, "a b c", hypotheses=2))
    texts = tab.locator(".hypotheses option").all_inner_texts()
    assert [text[:3] for text in texts] == ["1. ", "2. "]
    before = tab.locator(".texts").inner_text()
    tab.locator(".hypotheses select").select_option("1")
    assert tab.locator(".texts").inner_text() != before


@needs_browser
def test_the_widget_shows_the_same(opened, browser, seen, tmp_path):
    made = page(seen, SOURCE, TARGET)
    widget = made.widget()
    assert widget.data == made.data
    script = assets.script()
    assert "import " not in re.sub(r"//.*", "", script)
    assert str(widget._esm) == script
    (tmp_path / "widget.html").write_text(
        f"""<style>{widget._css}</style><div id=here></div>
        <script type=module>{script.replace("export default {", "const Widget = {")}
        const data = fromBase64("{base64.b64encode(widget.data).decode()}");
        const model = {{ get: () => new DataView(data.buffer), on() {{}} }};
        Widget.render({{ model, el: document.getElementById("here") }});
        </script>""",
        encoding="utf-8",
    )
    alone = opened(made)
    tab = browser.new_page(viewport={"width": 1400, "height": 900})
    tab.goto((tmp_path / "widget.html").as_uri())
    tab.wait_for_selector(".cell")
    assert tab.locator(".texts").inner_text() == alone.locator(".texts").inner_text()
    assert tab.locator(".readout").inner_text() == alone.locator(".readout").inner_text()
    assert "#" not in tab.url
    tab.close()


# The command line


def test_the_command(run, tmp_path, capsys):
    out = tmp_path / "seen.html"
    with pytest.raises(SystemExit) as left:
        cli.main(["inspect", str(run), "--source", "a b c", "--out", str(out)])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"{out}: open it in a browser\n"
    assert "<!doctype html>" in out.read_text(encoding="utf-8")
