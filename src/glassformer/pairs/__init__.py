"""From files, as people have them, to pairs of text.

It may import nothing of ours but the errors. Open `files` first: `PairFiles` reads every format. `kinds` tells what a
file is by its content, `columns` which columns of it are the pair.
"""
