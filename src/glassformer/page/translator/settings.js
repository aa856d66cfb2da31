// What the browser keeps: theme and language of the interface. It may forbid that: then they are as at first next time.
export function remember(name, value) {
  try {
    window.localStorage.setItem(`glassformer-${name}`, value);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
  }
}

export function recall(name) {
  try {
    return window.localStorage.getItem(`glassformer-${name}`);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    return null;
  }
}
