// The page of the server.
import { App } from "../../page/translator/app.js";
import { LANGUAGES } from "../../page/translator/strings.js";
import { make } from "../../page/web/drawing.js";
import { Api } from "./api.js";

const PAUSE = 300; // milliseconds: a server isn't asked at every letter

class ServedApp extends App {
  // Where the server has keys there is a way out, too.
  links() {
    const links = [make("a", { href: "docs", class: "says" }, this.words.interface)];
    if (this.root.dataset.hasKeys !== "true") return links;
    return [...links, make("button", { type: "button", class: "says out", onclick: () => this.signOut() }, this.words.signOut)];
  }

  signOut() {
    return this.attempt(async () => {
      await this.api.signOut();
      location.reload();
    });
  }
}

// For those who open the console
window.glassformer = new ServedApp(document.getElementById("translator"), new Api(document.baseURI), LANGUAGES, PAUSE);
