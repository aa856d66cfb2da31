"""Word alignment: learned from pairs alone, or read from a model's attention.

It may import `generation` and what is below. Open `aligner` first: it aligns lines of text without any model. `hmm`
has the statistics behind it, `links` the links and their formats. `heads` chooses the heads of a run that align best,
`attention` reads alignments from them.
"""
