"""Settings: dataclasses whose fields are checked, described, and read from the command line.

Everything may import it. Open `checks` first; `docstrings` reads what stands below the fields, `parser` makes flags.
"""
