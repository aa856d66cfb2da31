// What the browser keeps: theme and language of the interface, and until its tab closes, the key.
export const LASTING = () => window.localStorage;
export const SESSION = () => window.sessionStorage;

// A browser may forbid to keep anything: then it is asked again next time.
export function remember(where, name, value) {
  try {
    where().setItem(`glassformer-${name}`, value);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
  }
}

export function recall(where, name) {
  try {
    return where().getItem(`glassformer-${name}`);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    return null;
  }
}
