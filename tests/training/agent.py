"""`torchrun` that waits for a file before it joins: `python agent.py FILE ARGUMENTS`. It has loaded torch by then."""

import sys
import time
from pathlib import Path

from torch.distributed.run import main

while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
main(sys.argv[2:])
