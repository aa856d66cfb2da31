// Layers x heads: a small map of each head, to choose from.
import { ARROWS, make, number, pixels, reveal, sized, within } from "./drawing.js";

const THUMBNAIL = 44; // CSS pixels

// The name of a head.
export function nameOf(view, n, words) {
  const head = view.mean ? words.meanOfHeads : words.head(n);
  return words.name(words.groups[view.group] ?? view.group, view.layer, head);
}

export class Overview {
  constructor(page) {
    this.page = page;
    this.element = make("nav", {
      class: "overview",
      "aria-label": page.words.overview,
      onkeydown: (event) => this.walk(event),
    });
  }

  // Draw the heads of the chosen hypothesis.
  draw() {
    const { hypothesis, words } = this.page;
    this.watching?.disconnect();
    this.watching = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        this.watching.unobserve(target);
        this.drawThumbnail(target);
      }
    });
    const groups = new Map();
    for (const view of hypothesis.views) groups.set(view.group, [...(groups.get(view.group) ?? []), view]);
    const parts = [];
    for (const [group, views] of groups) {
      const rows = views.map((view) => {
        const cells = view.heads.map((about, n) => this.cell(view, n, about));
        if (!cells.length) cells.push(make("span", { class: "none" }, words.noHeads));
        return make("div", { class: "row" }, make("span", { class: "layer", title: view.path }, String(view.layer)), ...cells);
      });
      parts.push(make("h2", {}, words.groups[group] ?? group), make("div", { class: "grid" }, ...rows));
    }
    const says = [words.eachOwn];
    if (hypothesis.importance !== undefined)
      says.push(words.bars(number(hypothesis.importance)));
    parts.push(make("p", { class: "says" }, says.join(" ")));
    this.element.replaceChildren(...parts);
    this.mark();
  }

  cell(view, n, { role, importance }) {
    const { words } = this.page;
    const matters = importance === undefined ? "" : words.without(number(Math.abs(importance)), importance < 0);
    const label = `${nameOf(view, n, words)}${role ? `, ${role}` : ""}${matters}`;
    const cell = make(
      "button",
      {
        type: "button",
        class: "cell",
        title: label,
        "aria-label": label,
        "data-at": view.path,
        "data-head": n,
        onclick: () => this.page.choose({ at: view.path, head: n }),
      },
      make("canvas", { "aria-hidden": "true" }),
      make("span", { class: "role" }, role ?? (view.mean ? words.mean : "")),
    );
    if (importance !== undefined) {
      const share = Math.max(0, importance) / (this.page.hypothesis.importance || 1);
      const bar = make("span", { class: "bar", "aria-hidden": "true" });
      bar.style.width = `${Math.round(100 * Math.sqrt(share))}%`;
      cell.append(bar);
    }
    this.watching.observe(cell);
    return cell;
  }

  drawThumbnail(cell) {
    const view = this.page.hypothesis.views.find((one) => one.path === cell.dataset.at);
    const { map } = this.page.headOf(view, Number(cell.dataset.head));
    if (!map) return;
    const context = sized(cell.querySelector("canvas"), THUMBNAIL, THUMBNAIL);
    context.imageSmoothingEnabled = map.rows > THUMBNAIL || map.columns > THUMBNAIL;
    context.drawImage(pixels(map, this.page.palette), 0, 0, THUMBNAIL, THUMBNAIL);
  }

  // Mark the chosen head.
  mark() {
    const { at, head } = this.page.state;
    for (const cell of this.element.querySelectorAll(".cell")) {
      const chosen = cell.dataset.at === at && Number(cell.dataset.head) === head;
      cell.setAttribute("aria-pressed", String(chosen));
      cell.tabIndex = chosen ? 0 : -1;
    }
  }

  // Scroll to the chosen head.
  reveal() {
    reveal(this.element, this.element.querySelector('[aria-pressed="true"]'));
  }

  // Arrow keys move from head to head.
  walk(event) {
    const step = ARROWS[event.key];
    if (!step) return;
    const { views } = this.page.hypothesis;
    let layer = views.indexOf(this.page.view);
    const head = this.page.state.head + step[1];
    do layer += step[0];
    while (step[0] && views[layer] && !views[layer].heads.length);
    if (!views[layer]) return;
    event.preventDefault();
    this.page.choose({ at: views[layer].path, head: within(head, 0, views[layer].heads.length - 1) });
    this.element.querySelector('[aria-pressed="true"]')?.focus();
  }
}
