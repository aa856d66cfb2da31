"""Pairs that one run writes and another is trained on: distillation and back-translation.

It may import `training`, `generation` and what they import. Open `student` first, which has the doors; then the stages
in their order: `text` collects lines, `written` has a run translate them, `filters` judges what it wrote, `mixture`
writes the pairs. `stages` names what each leaves, so that a stopped one goes on; `config` has every setting.
"""
