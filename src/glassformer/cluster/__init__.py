"""Bulk translation on a Ray cluster: Ray Data schedules, a `Translator` in each worker translates.

It may import what stands below the commands, and nothing of ours imports it but a command. Ray and pyarrow are needed
here: whoever imports this explains their absence. Open `bulk.py` first: from a folder of files to a folder of
translations. `dataset.py` translates a Ray Dataset, `writer.py` what `synthesis` trains on.

    config.py     how many workers, and where
    storage.py    a folder on this machine or in a store that pyarrow knows
    forms.py      text, JSON lines and parquet: how each is read in blocks and written
    lines.py      lines as bytes, and which of them can't be translated
    plan.py       the files and blocks of a translation, and which are done
    source.py     the blocks as a source of Ray Data
    weights.py    a run in Ray's object store
    worker.py     what an actor does with a block
    pool.py       the cluster, and the workers that fit into it
"""
