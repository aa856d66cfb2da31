"""Recording attention where torch's functions are called, whoever calls them.

It may import `attention` and the record of `capture`. Open `mode` first: it sees every call and knows whose it is.
`sdpa`, `multihead`, `flex` and `varlen` record a call each, `callers` finds the modules that may make one, `own`
notices attention that is computed without one, and `uncompiled` lets compiled code run where calls can be seen.
"""
