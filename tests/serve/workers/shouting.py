"""A worker without a model, for tests of who looks after workers: a line's translation is the line in capitals."""

import os
import sys

from glassformer.serve.workers import messages
from glassformer.serve.workers.messages import Answer, Ready, Translate


def main() -> None:
    """Answer every request."""
    messages.read_content(sys.stdin.buffer)  # the settings
    send(Ready("float32", 7, shares=False))
    while (content := messages.read_content(sys.stdin.buffer)) is not None:
        asked = messages.to_worker.decode(content)
        if isinstance(asked, Translate):
            send(Answer(asked.id, [{"translations": [{"text": line.upper()}]} for line in asked.lines]))


def send(message: Ready | Answer) -> None:
    os.write(sys.stdout.fileno(), messages.frame(message))


if __name__ == "__main__":
    main()
