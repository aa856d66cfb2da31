// The page of the server.
import { App } from "../../page/translator/app.js";
import { LANGUAGES } from "../../page/translator/strings.js";
import { make } from "../../page/web/drawing.js";
import { Api } from "./api.js";

const PAUSE = 300; // milliseconds: a server isn't asked at every letter

class ServedApp extends App {
  links() {
    return [make("a", { href: "docs", class: "says" }, this.words.interface)];
  }
}

// For those who open the console
window.glassformer = new ServedApp(document.getElementById("translator"), new Api(document.baseURI), LANGUAGES, PAUSE);
