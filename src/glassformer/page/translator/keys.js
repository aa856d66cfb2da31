// A row or list of elements as one stop of the Tab key: arrow keys, Home and End move within it.
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

export function roving(box, selector) {
  box.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return; // the browser's own
    const isTurned = /Left|Right/.test(event.key) && getComputedStyle(event.target).direction === "rtl";
    const step = isTurned ? -STEPS[event.key] : STEPS[event.key];
    const all = [...box.querySelectorAll(selector)];
    const at = all.indexOf(event.target);
    if (!step || at < 0) return;
    event.preventDefault();
    const next = all[Math.max(0, Math.min(all.length - 1, at + step))];
    stopAt(box, selector, next);
    next.focus();
  });
  box.addEventListener("focusin", (event) => event.target.matches(selector) && stopAt(box, selector, event.target));
}

// Let the Tab key come to this element of the box, or to its first.
export function stopAt(box, selector, element) {
  const all = [...box.querySelectorAll(selector)];
  const stop = all.includes(element) ? element : all[0];
  for (const one of all) one.tabIndex = one === stop ? 0 : -1;
}
