"""Optimizers: Adam (Kingma & Ba 2015), or for the matrices of the layers Muon."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.training.muon import Muon
from glassformer.transformer.model import Transformer

STATE = {"muon": 1, "adam": 2}
"""Numbers that an optimizer keeps for each weight, at the least: Muon a momentum, Adam two."""


class Adam(torch.optim.AdamW):
    """Adam that leaves a step out where `found_inf` is 1, as torch's gradient scaling tells its fused kernel.

    Its weight decay is decoupled (Loshchilov & Hutter 2019).
    """

    found_inf: Tensor | None = None


class Optimizer:
    """The optimizer of a model's weights.

    `kind` "adam" is that of Vaswani et al. 2017, section 5.3. "muon" takes the matrices of attention and feed-forward
    layers (queries', keys' and values' each by itself) with Muon and leaves Adam embeddings, output, biases and norms.
    With both, each step also takes the share rate * `weight_decay` off all matrices, embeddings among them (decoupled
    weight decay: Loshchilov & Hutter 2019).
    """

    def __init__(self, model: Transformer, kind: str, dtype: torch.dtype, weight_decay: float = 0.0) -> None:
        """`dtype` is that of the training's products. Weights and state are the model's own."""
        matrices: dict[nn.Parameter, int] = {}
        if kind == "muon":
            matrices = {
                parameter: 3 if name.endswith("in_proj_weight") else 1
                for stack in (model.encoder, model.decoder)
                for name, parameter in stack.named_parameters()
                if parameter.dim() == 2 and parameter.numel()
            }
        self._model = model
        own = next(model.parameters())
        self.muon = Muon(matrices, torch.bfloat16 if dtype == torch.bfloat16 else own.dtype, weight_decay)
        others = [parameter for parameter in model.parameters() if parameter not in matrices]
        self.adam = Adam(
            [
                {"params": [parameter for parameter in others if parameter.dim() == 2], "weight_decay": weight_decay},
                {"params": [parameter for parameter in others if parameter.dim() != 2], "weight_decay": 0.0},
            ],
            betas=(0.9, 0.98),
            eps=1e-9,
            fused=own.device.type != "mps",  # whose kernel doesn't heed found_inf
        )
        self.rate = 0.0
        """Learning rate of the last step."""

    def step(self, rate: float, harmful: Float[Tensor, ""]) -> None:
        """Step along the gradients, unless `harmful` is 1, and clear them."""
        self.rate = rate
        self.muon.step(rate, harmful)
        for group in self.adam.param_groups:
            group["lr"] = rate
        if harmful.device.type != "mps":
            self.adam.found_inf = harmful
            self.adam.step()
        elif not harmful:
            self.adam.step()
        self._model.zero_grad(set_to_none=True)

    def state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return a parameter's state by name: what is kept from step to step; it is created if need be."""
        if parameter in self.muon.momentum:
            return {"momentum": self.muon.momentum[parameter]}
        state = self.adam.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, requires_grad=False)
            state["exp_avg_sq"] = torch.zeros_like(parameter, requires_grad=False)
        return state
