"""The guard before the routes: it decides who may ask, how much, and how an answer leaves. It imports no route.

Open `guard` first: it has the order of the checks. `limits` counts header fields and bodies, `hosts` knows by which
name and from which pages the server may be called, `credentials` finds the key of a request, `sending` and `visits` are
about the answer and its line of the log.
"""
