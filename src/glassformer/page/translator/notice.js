// What keeps the page from translating, said in place: how long to wait, a button to try again, or a field for the key.
import { make } from "../web/drawing.js";

const AGAIN = { offline: 5, busy: 5, starting: 5, worker_lost: 2, stopping: 10, too_many: 30 }; // seconds to wait where the server says none

export class Notice {
  constructor(app) {
    this.app = app;
    this.element = make("div", { class: "notice", role: "alert", hidden: true });
  }

  // Show an ApiError, and try again when its time has come; or none.
  show(error) {
    if (error === this.error) return;
    this.error = error;
    clearInterval(this.ticking);
    this.element.hidden = !error;
    if (!error) return this.element.replaceChildren();
    if (error.code === "unauthorized") return this.askKey();
    const { words } = this.app;
    const again = make("button", { type: "button", onclick: () => this.app.retry() }, words.again);
    const wait = make("span", { class: "wait", "aria-live": "off" });
    this.element.replaceChildren(make("p", {}, words.failure(error), " ", wait), again);
    let left = error.after ?? AGAIN[error.code];
    if (!left) return;
    const tick = () => {
      wait.textContent = words.againIn(left);
      if (left-- <= 0) this.app.retry();
    };
    tick();
    this.ticking = setInterval(tick, 1000);
  }

  askKey() {
    const { words, api } = this.app;
    const field = make("input", { type: "password", id: "key", autocomplete: "off", required: true });
    const onsubmit = (event) => {
      event.preventDefault();
      api.setKey(field.value.trim());
      this.app.retry();
    };
    const label = make("label", { for: "key" }, api.key ? words.wrongKey : words.giveKey);
    this.element.replaceChildren(make("form", { onsubmit }, label, field, make("button", { type: "submit" }, words.useKey)), make("p", { class: "says" }, words.keyKept));
    field.focus();
  }

  destroy() {
    clearInterval(this.ticking);
  }
}
