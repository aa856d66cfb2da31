"""The commands of the command line, one file each: its flags (a dataclass, from which --help is made) and its function.

A function returns the exit status and may use everything else here. Its imports stand inside it, so that `--help`
answers without torch. Open the file of the command.
"""
