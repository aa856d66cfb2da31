"""In a real browser: what a person does with the page, and that it asks nothing of the network."""

import base64
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch.testing import assert_close

from glassformer import Want, page
from glassformer.attention.observation import Observation
from glassformer.generation.attention import TranslationAttention
from glassformer.page import assets
from glassformer.page.inspection import inspect
from glassformer.page.report import Page

BROWSER = shutil.which("chromium")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Debian's chromium, which .ci/run installs")
NUMBERED = [[str(n) for n in range(count)] for count in (640, 61, 61)]  # source, written, next
FIRST = "#at=decoder.layers.0.multihead_attn&head=0"


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


@pytest.fixture(scope="module")
def made(captured, source, target) -> Page:
    return page(captured, source, target)


def plain(text: str) -> str:
    """Without the marks around a token that keep its direction to itself."""
    return text.translate({0x2068: None, 0x2069: None})


def saved_svg(tab: Any) -> str:
    with tab.expect_download() as saved:
        tab.get_by_text("SVG").click()
    return Path(saved.value.path()).read_text(encoding="utf-8")


def picture(tab: Any) -> bytes:
    return tab.locator(".map").screenshot()


def test_text_from_right_to_left_stands_so(opened):
    words = ["1", "ذهب", "الولد", "إلى", "المدرسة"]
    tab = opened(page(torch.rand(1, 5, 5).softmax(-1), words))
    places = [chip.bounding_box()["x"] for chip in tab.locator(".text:visible .token").all()]
    assert places == sorted(places, reverse=True)
    chosen = tab.locator('.token[aria-selected="true"]')
    tab.locator(".token").nth(1).click()
    tab.locator(".tokens:visible").press("ArrowLeft")
    assert plain(chosen.inner_text()) == words[2]


def test_tokens_stay_text(opened, captured, source, target):
    tab = opened(page(captured, source, target, title="<i>seen</i>"))
    assert tab.title() == "<i>seen</i>"
    assert tab.locator("h1").inner_text() == "<i>seen</i>"
    shown = [chip.inner_text() for chip in tab.locator(".token").all()]
    marks = [{"": "∅", " a b": "␣a b"}.get(token, token) for token in source]
    assert shown == [*marks, *target]
    assert tab.locator("script").count() == 2


def test_choices_change_the_picture_and_the_address_brings_them_back(opened, made):
    tab = opened(made)
    pictures = {picture(tab)}
    for cell in (1, 9, 22):
        tab.locator(".cell").nth(cell).click()
        pictures.add(picture(tab))
    assert len(pictures) == 4
    tab.locator(".token").nth(3).click()  # of the source
    tab.get_by_label("who looks at a token").check()
    address, readout = tab.evaluate("location.hash"), tab.locator(".readout").inner_text()
    assert "looked at by" in readout
    again = opened(made, address)
    assert again.locator(".readout").inner_text() == readout
    assert picture(again) == picture(tab)


def test_numbers_on_screen_are_those_of_the_data(opened, made, captured, target):
    at, n = "decoder.layers.1.multihead_attn", 2
    weights = captured[at].weights[0, n].double()
    tab = opened(made, f"#at={at}&head={n}&token=3")
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
    title = tab.locator(".token").nth(best).get_attribute("title")
    assert title == rows[3][best]


def test_the_keyboard_reaches_everything(opened, made):
    tab = opened(made, FIRST)
    reached = set()
    for _ in range(14):
        tab.keyboard.press("Tab")
        named = "(e => (e.className || e.tagName + (e.innerText ?? '')).trim())(document.activeElement)"
        reached.add(tab.evaluate(named))
    assert {"cell", "cross", "tokens", "INPUT", "strip", "SUMMARYAs a table", "BUTTONPNG", "BUTTONSVG"} <= reached
    tab.locator('.cell[aria-pressed="true"]').focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"):
        tab.keyboard.press(key)
    assert tab.evaluate("document.activeElement.dataset.head") == "1"
    assert "head 1" in tab.locator(".name").inner_text()
    tab.locator(".tokens").last.focus()
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


def test_it_fits_a_phone_by_touch_and_in_the_dark(opened, made, captured):
    phone = dict(viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    tab = opened(made, FIRST, color_scheme="dark", **phone)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    dark = tab.evaluate("getComputedStyle(document.getElementById('page')).backgroundColor")
    assert dark == "rgb(16, 20, 28)"
    tab.locator(".tokens").last.locator(".token").nth(2).tap()
    assert "<b>" in tab.locator(".readout").inner_text()
    cells = tab.evaluate("glassformer.map.cells")
    weights = captured["decoder.layers.0.multihead_attn"].weights[0, 0]
    place = {"x": cells["margin"] + 5.5 * cells["width"], "y": cells["margin"] + 2.5 * cells["height"]}
    tab.locator(".cross").tap(position=place)
    words, share = plain(tab.locator(".readout").inner_text()).removesuffix(" %").split(": ")
    assert words == "“<b>” → “the”"
    assert float(share) / 100 == pytest.approx(float(weights[2, 5]), rel=6e-3)
    before = picture(tab)
    tab.get_by_text("Theme").tap()
    assert picture(tab) != before


def test_pictures_are_saved(opened, made, tmp_path, target):
    tab = opened(made, FIRST)
    svg = saved_svg(tab)
    assert svg.count("<rect") > 20
    words = [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert words[: len(target)] == target
    assert words[len(target) + 6] == "<script>docum…"
    assert "sum to 100 %" in " ".join(words)
    with tab.expect_download() as saved:
        tab.get_by_text("PNG").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
    assert saved.value.suggested_filename == "attention-decoder.layers.0.multihead_attn-0.png"


def test_of_other_weights_it_says_the_most_that_they_can_be(opened, record):
    want = Want(pooled_heads=8, top=3, entropy=True, received=True)
    at = "encoder.layers.1.self_attn"
    exact = record(Want(weights=True), source=83)[at].weights[0, 1]
    tab = opened(page(record(want, source=83)), f"#at={at}&head=1")
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
    assert "For tokens without colour the weight is not known" in tab.locator(".reader").inner_text()


def test_rounding_takes_nothing_from_what_a_weight_can_be(opened):
    torch.manual_seed(2)
    q, k = torch.randn(1, 2, 61, 16), torch.randn(1, 2, 640, 16)
    weights = (6 * q @ k.mT).softmax(-1)  # sharp: what is left beside the largest is little
    top = weights.topk(8, -1)
    found = {"weights": weights, "top": top.values, "top_keys": top.indices}
    found["pooled_heads"] = weights.view(1, 2, 61, 64, 10).sum(-1)
    want = Want(pooled_heads=64, top=8)
    captured = TranslationAttention(
        {}, {}, {0: Observation({n: found[n] for n in found if n != "weights"}, want, 1)}, *NUMBERED
    )
    tab = opened(page(captured))
    cells = tab.evaluate(
        "[...Array(61).keys()].map((q) => [...Array(640).keys()].map((k) => glassformer.head.weight(q, k).value))"
    )
    bounds, exact = torch.tensor(cells).double(), weights[0, 0].double()
    known = torch.zeros(61, 640, dtype=torch.bool).scatter(1, top.indices[0, 0], True)
    assert (bounds[~known] >= exact[~known]).all()


def test_marks_of_direction_and_of_control_stay_in_their_tokens(opened, captured, source):
    target = ["\u202eevil", "ctl\x01", "\u05e9\u05dc\u05d5\u05dd", "\ud800", "x"]
    tab = opened(page(captured, source, target, title="ctl\x01 \u202e"), "#token=2")
    assert tab.locator("h1").inner_text() == "ctl⟨0001⟩ ⟨202e⟩"
    shown = [chip.inner_text() for chip in tab.locator(".tokens").last.locator(".token").all()[:4]]
    assert shown == ["⟨202e⟩evil", "ctl⟨0001⟩", target[2], "?"]
    assert tab.locator(".readout").inner_text().startswith(f"“\u2068{target[2]}\u2069” looks at ")
    ElementTree.fromstring(saved_svg(tab))


def test_a_long_map_keeps_to_its_room_and_shows_what_is_chosen(opened, record):
    few = dict(layers=["encoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"])
    made = page(record(Want(weights=True), source=4, target=700, **few))
    tab = opened(made, "#at=decoder.layers.0.multihead_attn&token=650")
    assert tab.locator(".map").bounding_box()["height"] <= 900
    chip, box = (tab.locator(one).last.bounding_box() for one in (".chosen", ".tokens"))
    assert box["y"] <= chip["y"] <= box["y"] + box["height"]
    tab.locator("summary").click()
    tab.wait_for_selector("tbody tr")
    tab.get_by_label("who looks at a token").check()
    assert "These are the 200 largest of 700 weights" in tab.locator("caption").first.inner_text()
    assert saved_svg(tab).count("<rect") < 4 * 700
    tab = opened(page(record(Want(weights=True), source=110, **few)), "#at=encoder.layers.0.self_attn")
    svg = saved_svg(tab)
    assert 'href="data:image/png;base64,' in svg
    assert svg.count("<rect") == 1


def test_both_texts_are_there_and_a_click_on_the_one_aside_goes_where_it_takes_part(opened, record):
    captured = record(Want(weights=True), source=3, target=2)
    tab = opened(page(captured, ["▁the", "▁do", "g"], ["le", "▁chien"]), "#at=encoder.layers.0.self_attn&head=1")
    source, target = tab.locator(".text").all()
    assert source.locator(".token").all_inner_texts() == ["␣the", "␣do", "g"]
    assert target.locator(".token").all_inner_texts() == ["le", "␣chien"]
    assert [text.evaluate("e => e.classList.contains('aside')") for text in (source, target)] == [False, True]
    target.locator(".token").last.click()
    assert "Decoder → source, layer 2" in tab.locator(".name").inner_text()
    assert plain(tab.locator(".readout").inner_text()).startswith("“␣chien” looks at ")
    assert tab.locator(".aside").count() == 0


def test_an_image_is_clear_where_the_chosen_token_looks(opened):
    weights = torch.tensor([[0.0, 0.5, 0.125, 0.375, 0.0]]).expand(5, 5)
    image = torch.rand(3, 4, 6)
    tab = opened(page(weights, ["CLS", *"abcd"], grid=(2, 2), image=image))
    shown = tab.evaluate(
        """() => {
            const canvas = document.querySelector(".image canvas");
            return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
        }"""
    )
    pixels = torch.tensor(shown).view(4, 6, 4)
    assert torch.equal(pixels[..., :3], (image * 255).round().long().permute(1, 2, 0))
    assert (pixels[..., 3] == 255).all()
    colours = [patch.evaluate("e => e.style.background") for patch in tab.locator(".patches .token").all()]
    veils = [float(match[1]) for colour in colours if (match := re.search(r"([\d.]+)%", colour))]
    assert veils == pytest.approx([0, 80 * (1 - 0.25**0.5), 80 * (1 - 0.75**0.5), 80], abs=0.3)
    assert "patches with larger weights are clearer" in tab.locator(".reading").inner_text()
    box, patches = (tab.locator(one).bounding_box() for one in (".image canvas", ".patches"))
    assert box == patches
    assert box["width"] / box["height"] == pytest.approx(6 / 4, rel=0.01)


@pytest.mark.parametrize("width", [1400, 400])
def test_buttons_stand_in_one_row_beside_a_long_title(opened, captured, width):
    tab = opened(page(captured, title="a long title " * 12), viewport={"width": width, "height": 900})
    assert len({button.bounding_box()["y"] for button in tab.locator(".tools button").all()}) == 1
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_a_link_to_what_is_not_there_shows_what_is(opened, made):
    for address in ("#at=none&head=9&token=99&of=7", "#head=1e999", "#%E0%A4%A"):
        assert "Decoder → source, layer 2, head" in opened(made, address).locator(".name").inner_text()


def test_nothing_is_drawn_that_is_not_seen(opened, record):
    tab = opened(page(record(Want(weights=True))), viewport={"width": 1400, "height": 340})
    drawn = "[...document.querySelectorAll('.cell canvas')].map((c) => c.width !== 300)"
    for _ in range(100):
        if any(tab.evaluate(drawn)):
            break
        tab.wait_for_timeout(50)
    assert any(tab.evaluate(drawn))
    assert not all(tab.evaluate(drawn))


def test_several_hypotheses_can_be_compared(opened, run):
    tab = opened(inspect(run, "a b c", hypotheses=2))
    texts = tab.locator(".hypotheses option").all_inner_texts()
    assert [text[:3] for text in texts] == ["1. ", "2. "]
    before = tab.locator(".texts").inner_text()
    tab.locator(".hypotheses select").select_option("1")
    assert tab.locator(".texts").inner_text() != before


def test_the_widget_shows_the_same(opened, made, browser, tmp_path):
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


def test_text_runs_from_its_own_side_whatever_marks_stand_around_it(opened):
    weights = torch.full((1, 1, 4, 4), 0.25)
    for words, direction in (
        (["[CLS]", "שלום", "עולם", "[SEP]"], "rtl"),
        (["<pad>", "<unk>", "سلام", "</s>"], "rtl"),
        (["[CLS]", "hello", "עולם", "[SEP]"], "ltr"),
        (["<pad>", "</s>", "<", ">"], "ltr"),
    ):
        tab = opened(page(weights, words))
        assert tab.locator("[role=listbox]").first.get_attribute("dir") == direction, words
