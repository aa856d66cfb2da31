"""Models of other libraries, in and out: torch.nn, Hugging Face's Marian layout, CTranslate2.

It may import `training` and what that imports. Each file is named for the library.
"""
