"""Run by test_gpu.py: the attention kernel, compiled for an Ada GPU without one, and the shared memory it takes."""

import json
import os

os.environ.pop("TRITON_INTERPRET", None)

from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from glassformer.attention.kernels.choose import KERNEL_SIZES, KERNEL_STAGES
from glassformer.attention.kernels.triton import attend

ADA = GPUTarget("cuda", 89, 32)
TYPES = {2: "bf16", 4: "fp32"}
taken = {}
for (size, width), (m, n, warps) in KERNEL_SIZES.items():
    kind = TYPES[size]
    pointers = dict.fromkeys(["q", "k", "v", "output"], f"*{kind}") | {"keep": "*i1", "bias": f"*{kind}"}
    pointers |= dict.fromkeys(["peak", "tilt", "entropy", "distance"], "*fp32")
    constants = dict(
        WIDTH_D=width,
        WIDTH_E=width,
        FULL_D=True,
        FULL_E=True,
        KEEP=True,
        BIAS=True,
        CAUSAL=True,
        ENTROPY=True,
        DISTANCE=True,
    )
    constants |= dict(PRECISION="ieee", M=m, N=n, q_d=1, k_d=1, v_e=1, o_e=1)
    signature = {
        name: "constexpr" if name in constants else pointers.get(name, "fp32" if name == "rate" else "i32")
        for name in attend.arg_names
    }
    # As at a launch with tensors whose sizes are multiples of 16, for which more is loaded ahead.
    aligned = {*pointers, "L", "S", "D", "E", *(f"{x}_{axis}" for x in "qkvo" for axis in "bhij")} - set(constants)
    places = {name: (n,) for n, name in enumerate(attend.arg_names)}
    attributes = {places[name]: [["tt.divisibility", 16]] for name in aligned if name in places}
    source = ASTSource(attend, signature, {places[name]: x for name, x in constants.items()}, attributes)
    compiled = compile_kernel(source, target=ADA, options={"num_warps": warps, "num_stages": KERNEL_STAGES})
    taken[f"{kind} {width}"] = compiled.metadata.shared
print(json.dumps(taken))
