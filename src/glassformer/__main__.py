"""`python -m glassformer` is the command line; `torchrun -m glassformer train` several processes of it."""

from glassformer.cli import main

main()
