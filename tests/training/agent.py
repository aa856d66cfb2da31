"""`torchrun` in a fork of a process that has loaded torch: `python agent.py run ADDRESS ARGUMENTS`.

`python agent.py serve ADDRESS` is that process (forked.py).
"""

import sys
from importlib import import_module
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
forked = import_module("forked")

if __name__ == "__main__":
    _, role, address, *words = sys.argv
    if role == "run":
        forked.run(address, words)
    forked.serve(address, import_module("torch.distributed.run").main)
