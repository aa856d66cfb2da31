"""`python -m glassformer` is the command line; `torchrun -m glassformer train` several processes of it."""

import sys


def main() -> None:
    """Run the command line, and exit; a Ctrl-C while it is being loaded ends it in one line too."""
    try:
        from glassformer.cli import main as run

        run()
    except KeyboardInterrupt:
        print("glassformer: error: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
