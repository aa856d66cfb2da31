"""In a real browser: what a person does with an exported folder, and that it asks nothing of other hosts."""

import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from glassformer import SearchConfig, Translator, Want
from glassformer.browser.folder import export_web
from glassformer.browser.runtime import find_runtime
from glassformer.errors import ConfigError
from glassformer.run.folder import load_run
from glassformer.text.tokenizer import train_tokenizer

try:
    find_runtime()
    MISSING = "" if shutil.which("chromium") else "needs Debian's chromium, which .ci/run installs"
except ConfigError:
    MISSING = "needs onnxruntime-web, which make web installs"
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
LINES = [
    *("two old dogs sing here", "three big men sleep now", "a", "Dogs, men: sing!", "x☃y", "now now now now now now"),
    *("here 12 dogs", "big old big old men", "sing", "sleep here, dogs"),
]
WORD = ".word"
SPY = """() => {
    window.sent = [];
    glassformer.api.worker.postMessage = function (message) {
        sent.push(message);
        Worker.prototype.postMessage.call(this, message);
    };
}"""
WRITE = """async (texts) => {
    for (const text of texts) {
        glassformer.source.text = text;
        glassformer.write();
        while (!sent.some(({ q }) => q === text)) await new Promise((done) => setTimeout(done));
    }
}"""
STREAM_GIVEN_UP = """async (q) => {
    try {
        for await (const [name] of glassformer.api.stream({ q }, AbortSignal.abort())) if (name === "done") return name;
    } catch (error) {
        return error.code;
    }
}"""
EVALUATE = """() => new Promise((done) => setTimeout(() => {
    const refused = [];
    for (const act of [() => eval("1"), () => new Function("return 1")()]) {
        try {
            act();
        } catch (error) {
            refused.push(error.name);
        }
    }
    done(refused);
}))"""


@pytest.fixture(scope="module")
def run(random_run, tmp_path_factory) -> Path:
    """A run that knows nothing, but is sure of it."""
    tokenizer = train_tokenizer(LINES * 3, kind="unigram", vocab_size=None, seed=1)
    folder = tmp_path_factory.mktemp("runs") / "random"
    random_run(folder, tokenizer, tokenizer, shared=True)
    return folder


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory) -> Path:
    """The exported folder."""
    out = tmp_path_factory.mktemp("www") / "some" / "where"
    export_web(load_run(run), out, "random")
    return out


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    """The folder's address below that of a server of files, which adds no headers."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    root = folder.parents[1]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=root)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/some/where/"
        server.shutdown()
        thread.join()


class Tab:
    """A tab with the page, and what was asked and said in it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.said: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(8000)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def open(self) -> "Tab":
        self.page.goto(self.address)
        self.page.evaluate("glassformer.api.ready()")
        return self

    def until(self, condition: str) -> None:
        for _ in range(400):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(25)
        raise AssertionError(f"this did not become true: {condition}")

    def settled(self) -> None:
        self.until(
            "(({ writer, source }) => !writer.waiting().length && source.text.replace(/\\n/g, '')"
            " === writer.sentences.map((one) => one.before + one.text + one.after).join(''))(glassformer)"
        )

    def translate(self, **wanted: Any) -> list[dict[str, Any]]:
        return self.page.evaluate("(wanted) => glassformer.api.translate(wanted)", wanted)["lines"]

    def check(self) -> None:
        assert self.said == []
        assert [url for url in self.asked if not url.startswith((self.address, "data:"))] == []


@pytest.fixture
def opened(browser, address) -> Iterator[Callable[..., Tab]]:
    """Opens the page in a fresh profile."""
    contexts: list[Any] = []
    tabs: list[Tab] = []

    def open_page(**settings: Any) -> Tab:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", **settings})
        contexts.append(context)
        tabs.append(Tab(context.new_page(), address))
        return tabs[-1]

    yield open_page
    for tab in tabs:
        tab.check()
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def tab(browser, address) -> Iterator[Tab]:
    """The page, opened once."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
    tab = Tab(context.new_page(), address)
    yield tab.open()
    tab.check()
    context.close()


@pytest.fixture(scope="module")
def translator(run) -> Translator:
    return Translator.load(run, "cpu", "float32")


@pytest.mark.parametrize("settings", [dict(beam=1), dict(beam=4, n_best=4), dict(beam=4, length_penalty=0.0)])
def test_translations_are_those_of_our_engine(tab, translator, settings):
    found = tab.translate(q=LINES, **settings)
    wanted = translator.translate_n_best(LINES, SearchConfig(**settings))
    assert [[one["text"] for one in line["translations"]] for line in found] == [[t.text for t in ts] for ts in wanted]
    for line, translations in zip(found, wanted, strict=True):
        for one, translation in zip(line["translations"], translations, strict=True):
            assert [piece["piece"] for piece in one["pieces"]][: len(translation.tokens)] == translation.tokens
            assert one["score"] == pytest.approx(translation.score, abs=1e-4)


def test_white_space_has_an_empty_translation_and_a_long_one_ends_where_ours_does(tab, translator):
    lines = ["\u00a0", " \t", "\x1f", " ".join(LINES[:4] * 12)]
    found = tab.translate(q=lines, beam=1)
    wanted = translator.translations(lines, SearchConfig(beam=1))
    assert [[piece["piece"] for piece in line["translations"][0]["pieces"]] for line in found] == [
        one.tokens for one in wanted
    ]
    assert [len(one.tokens) for one in wanted] == [0, 0, 0, SearchConfig.max_length]


def test_what_is_typed_is_translated_and_a_word_shows_where_the_model_looked(tab, translator):
    tab.locator("#source").focus()
    tab.keyboard.type(f"{LINES[0]}\n\n{LINES[1]}")
    tab.settled()
    (first, second) = translator.translations([LINES[0], LINES[1]], SearchConfig(beam=1), attention=Want(weights=True))
    assert [line.inner_text().strip() for line in tab.locator(".line").all()] == [first.text, "", second.text]
    for key in ("Tab", "Tab", "Enter"):  # past the button that clears the text, to the first word
        tab.keyboard.press(key)
    tab.until("document.querySelectorAll('.heads .cell').length === 6")
    shown = tab.evaluate(
        "glassformer.glass.data.hypotheses[0].views.map(({ facts }) => Array.from(facts.weights.values))"
    )
    for layer, weights in enumerate(shown):
        assert weights == pytest.approx(first.attention.source[layer].weights[0].flatten().tolist(), abs=1e-5)
    assert " looks at " in tab.locator(".readout").inner_text()
    tab.until("document.querySelectorAll('.choices button').length > 2")
    tab.keyboard.press("Escape")
    assert not tab.locator(".panel").is_visible()


def test_a_newer_text_cancels_the_older_search(tab, translator):
    text = " ".join([LINES[2]] * 60)
    assert len(translator.translations([text], SearchConfig(beam=1))[0].tokens) > 100
    tab.evaluate(SPY)
    tab.evaluate(WRITE, [text, LINES[2]])
    tab.settled()
    kinds = tab.evaluate("sent.map(({ kind }) => kind)")
    assert [kind for kind in kinds if kind != "translate"][:3] == ["stream", "leave", "stream"]
    translated = {key.partition("\n")[2] for key in tab.evaluate("[...glassformer.writer.results.keys()]")}
    assert LINES[2] in translated
    assert text not in translated


def test_a_search_given_up_while_the_model_loads_is_not_made(tab):
    assert tab.evaluate(STREAM_GIVEN_UP, LINES[2]) == "left"


def test_it_may_not_evaluate_text_or_leave_its_folder(tab):
    assert tab.evaluate(EVALUATE) == ["EvalError"] * 2
    assert tab.evaluate("fetch('https://example.org').catch((e) => e.name)") == "TypeError"
    assert len(tab.said) == 2  # that it was refused
    tab.said.clear()


def test_weights_are_kept_for_the_next_visit(opened):
    tab = opened().open()
    big = [url for url in tab.asked if ".onnx?" in url or ".wasm?" in url]
    assert len(big) == 3
    tab.asked.clear()
    tab.open()
    assert [url for url in tab.asked if "?" in url] == []
    assert tab.evaluate("caches.keys()") == ["glassformer /some/where/"]


def test_narrow_dark_and_chinese(opened):
    tab = opened(viewport={"width": 390, "height": 800}, locale="zh-CN", color_scheme="dark").open()
    tab.locator("#source").fill(LINES[0])
    tab.settled()
    tab.locator(WORD).first.click()
    tab.until("document.querySelectorAll('.heads .cell').length === 6")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.locator("footer").inner_text().endswith("在此浏览器中运行（WebAssembly，1 个线程）")


def translates_when_tried_again(tab: Any) -> bool:
    """Whether the page works once its files are there."""
    tab.unroute_all()
    tab.get_by_role("button", name="Try again").click()
    tab.locator("#source").fill(LINES[0])
    tab.settled()
    return tab.locator(WORD).count() > 0


def test_a_file_that_is_missing_or_another_is_named(opened):
    tab = opened()
    tab.route("**/decoder_model*", lambda route: route.fulfill(status=404))
    tab.goto(tab.address)
    tab.get_by_text("could not be loaded: model/onnx/decoder_model_merged.onnx: HTTP 404").wait_for()
    tab.unroute_all()
    tab.route("**/decoder_model*", lambda route: route.fulfill(body=b" " * len(route.fetch().body())))
    tab.get_by_role("button", name="Try again").click()
    tab.get_by_text("decoder_model_merged.onnx: another version").wait_for()
    assert translates_when_tried_again(tab)
    assert [said for said in tab.said if "404" not in said] == []
    tab.said.clear()


def test_a_description_that_is_none_is_named(opened):
    tab = opened()
    tab.route("**/glassformer.json", lambda route: route.fulfill(body="<!doctype html>"))
    tab.goto(tab.address)
    tab.get_by_text("glassformer.json: ").wait_for()
    assert translates_when_tried_again(tab)


BREAKS = """
const works = onmessage;
let isBroken = false;
onmessage = (event) => {
  const { id, kind, q } = event.data;
  isBroken ||= q === "break";
  if (isBroken && kind !== "load") postMessage({ id, error: { code: "broken", message: "device lost" } });
  else works(event);
};
"""


def test_what_computes_is_started_again_once_it_is_broken(opened):
    tab = opened()

    def breaking(route: Any) -> None:
        route.fulfill(body=route.fetch().text() + BREAKS, content_type="text/javascript")

    tab.route("**/worker.js", breaking, times=1)
    tab.open()
    tab.locator("#source").fill("break")
    tab.get_by_text("device lost").wait_for()
    tab.locator("#source").fill(LINES[0])
    tab.settled()
    assert tab.locator(WORD).count() > 0


def test_opened_as_a_file_it_says_how_to_open_it(browser, folder):
    page = browser.new_page(locale="en-GB")
    page.goto((folder / "index.html").as_uri())
    page.get_by_text("python -m http.server").wait_for()
    assert page.locator("main").inner_text().startswith("This page must come from a web server.")
    page.close()
