// What keeps the page from translating, said in place: how long to wait, a button to try again, or a field for the key.
import { make } from "../web/drawing.js";
import { ApiError } from "./errors.js";

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
    const hadFocus = this.element.contains(document.activeElement);
    this.element.hidden = !error;
    if (!error) {
      this.element.replaceChildren();
      if (hadFocus) this.app.source.field.focus();
      return;
    }
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

  // Nobody is signed in any more: let them sign in here, and keep what they have typed.
  askKey() {
    const { app } = this;
    const { words } = app;
    const field = make("input", { type: "password", id: "key", autocomplete: "current-password", maxlength: 256, required: true });
    const user = make("input", { type: "text", autocomplete: "username", value: "key", hidden: true }); // for managers of passwords
    const label = make("label", { for: "key" }, words.giveKey);
    const onsubmit = async (event) => {
      event.preventDefault();
      try {
        await app.api.signIn(field.value);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        label.textContent = { unauthorized: words.wrongKey, too_many: words.tooOften }[error.code] ?? words.failure(error);
        return field.select();
      }
      app.retry();
    };
    this.element.replaceChildren(make("form", { onsubmit }, user, label, field, make("button", { type: "submit" }, words.useKey)));
    if (document.activeElement !== app.source.field) field.focus(); // who is typing goes on
  }

  destroy() {
    clearInterval(this.ticking);
  }
}
