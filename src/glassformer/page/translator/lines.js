// A text as lines, each with the white space around it, and what of an older text each line takes the place of.

export function split(text) {
  return text.split(/\r\n|\n|\r/).map((line) => {
    const [, before, words, after] = /^(\s*)(.*?)(\s*)$/s.exec(line);
    return { before, text: words, after };
  });
}

// The number of the older line in whose place each line stands, or -1. Lines that are equal at both ends are the same,
// those between take each other's places in order.
export function places(older, newer) {
  const shorter = Math.min(older.length, newer.length);
  let [head, tail] = [0, 0];
  while (head < shorter && older[head].text === newer[head].text) head++;
  while (tail < shorter - head && older.at(-1 - tail).text === newer.at(-1 - tail).text) tail++;
  return newer.map((_, n) => {
    if (n < head) return n;
    if (n >= newer.length - tail) return n - newer.length + older.length;
    return n < older.length - tail ? n : -1;
  });
}
