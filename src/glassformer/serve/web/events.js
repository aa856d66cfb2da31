// Reads server-sent events from the body of a response: yields [name, data] of each.
export async function* readEvents(body) {
  let [name, data, rest] = ["message", [], ""];
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return; // an event that nothing ends is no event
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/); // a \r at the end may be half of a \r\n
      rest = lines.pop();
      for (const line of lines) {
        const [, field, text] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (line === "") {
          if (data.length) yield [name, data.join("\n")];
          [name, data] = ["message", []];
        } else if (field === "event") name = text;
        else if (field === "data") data.push(text);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever stops reading wants no more of it; it may have failed already
  }
}
