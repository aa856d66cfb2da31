// The page of an exported folder: it translates in the browser, and asks no server but for its own files.
import { App } from "../../page/translator/app.js";
import { make } from "../../page/web/drawing.js";
import { LocalApi } from "./local.js";
import { LANGUAGES } from "./strings.js";

const PAUSE = 20; // milliseconds without typing before a translation begins: the worker gives up what is wanted no more

class BrowserApp extends App {
  build(text) {
    this.api.changed = (news) => this.show(news);
    this.share = make("progress", { max: 1 });
    this.progress = make("div", { class: "progress", hidden: true }, make("p", { class: "says", role: "status" }), this.share);
    super.build(text);
    this.notice.element.before(this.progress);
    this.show(this.news ?? null);
  }

  // Show how much of the model has come: { done, total }, or null once it is there.
  show(news) {
    this.news = news;
    this.progress.hidden = !news;
    if (!news) return this.draw();
    const hasCome = news.done === news.total;
    this.progress.firstChild.textContent = hasCome ? this.words.starting : this.words.loading(news);
    if (hasCome) this.share.removeAttribute("value");
    else this.share.value = news.done / news.total;
  }

  async load() {
    await super.load();
    if (this.run) await this.attempt(() => this.api.ready());
  }

  async retry() {
    await super.retry();
    await this.attempt(() => this.api.ready());
  }
}

const api = new LocalApi(document.baseURI);
const app = new BrowserApp(document.getElementById("translator"), api, LANGUAGES, PAUSE);
window.glassformer = app; // for those who open the console
