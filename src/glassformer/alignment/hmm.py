"""A hidden Markov model of one direction of an alignment: each token of a target comes from one of the source."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.alignment.jumps import LONGEST_JUMP, JumpMatrix

NULL = 0.3
"""Probability that a token stands for none of the other side."""
TENSION = 4.0
"""Rate at which places become unlikely away from the diagonal, as long as each token is by itself."""
MOST_FERTILE = 6
"""Fertilities beyond this one are as likely as it."""
LEAST = 1e-9
"""Smallest probability of a token that stands for nothing: unknown ones have no frequency."""

Lengths = Int[Tensor, " batch"]


class Direction:
    """The model of one direction: how the tokens y of a target come about, each from a token x of a source.

    p(y, a) = product over t of p(a_t | a_(t-1)) p(y_t | x_(a_t)), a hidden Markov model (Vogel et al. 1996)

    The place a_t depends on the place before through the width of the jump alone; with probability NULL a token stands
    for nothing, and the place stays. `reweighted` adds fertility, how many tokens a source token stands for.
    """

    def __init__(
        self,
        cells: Int[Tensor, " entries"],
        likely: Float[Tensor, " entries"],
        none: Float[Tensor, " target_vocab"],
        jumps: Float[Tensor, " widths"],
        ratios: Float[Tensor, "source_vocab counts"],
    ) -> None:
        """`likely` is p(y | x) for the cells x * target_vocab + y, in ascending order; `none` is p(y) for no x.

        `ratios` has, for a source token with so many links, how much likelier its fertility is with one more.
        """
        self.cells, self.likely, self.none, self.jumps, self.ratios = cells, likely, none, jumps, ratios

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by the names of the constructor's arguments."""
        names = ("cells", "likely", "none", "jumps", "ratios")
        return {name: getattr(self, name) for name in names}

    def emissions(
        self, source: Int[Tensor, "batch source_len"], target: Int[Tensor, "batch target_len"]
    ) -> Float[Tensor, "batch target_len source_len"]:
        """Return p(y | x) of each cell, zero for those that were never seen."""
        wanted = source[:, None, :] * len(self.none) + target[:, :, None]
        entry = torch.searchsorted(self.cells, wanted).clamp_(max=len(self.cells) - 1)
        return torch.where(self.cells[entry] == wanted, self.likely[entry], 0.0)

    def independent(
        self,
        emissions: Float[Tensor, "batch target_len source_len"],
        target: Int[Tensor, "batch target_len"],
        targets: Lengths,
        sources: Lengths,
    ) -> Float[Tensor, "batch target_len source_len"]:
        """Return the posterior of each link where each token is by itself, likelier near the diagonal.

        It is IBM model 2 as fast_align has it (Dyer et al. 2013), with a TENSION that is constant: a place s of S is
        as likely for t of T as exp(-TENSION |t / T - s / S|).
        """
        places = [
            ((torch.arange(length, device=target.device) + 0.5) / lengths[:, None])
            for length, lengths in zip(emissions.shape[1:], (targets, sources), strict=True)
        ]
        t, s = places[0][:, :, None], places[1][:, None, :]
        close = torch.exp(-TENSION * (t - s).abs()) * ((t < 1) & (s < 1))
        joint = (1 - NULL) * close / close.sum(2, keepdim=True).clamp(min=1e-30) * emissions
        return joint / (joint.sum(2, keepdim=True) + (NULL * self.none[target]).clamp(min=LEAST)[:, :, None])

    def reweighted(
        self,
        emissions: Float[Tensor, "batch target_len source_len"],
        shares: Float[Tensor, "batch target_len source_len"],
        source: Int[Tensor, "batch source_len"],
    ) -> Float[Tensor, "batch target_len source_len"]:
        """Return the emissions times the ratio by which the fertility of each source token favours one more link.

        The links that it has already are those of the other target tokens in `shares`, the posterior of a chain without
        fertility: a mean field, for the exact sum has no closed form (IBM model 3: Brown et al. 1993).
        """
        others = (shares.sum(1, keepdim=True) - shares).clamp_(0, MOST_FERTILE - 1)
        below = others.floor()
        at = source[:, None, :] * MOST_FERTILE + below.long()
        flat = self.ratios.flatten()
        low, high = flat[at], flat[torch.where(below < MOST_FERTILE - 1, at + 1, at)]
        return emissions * torch.lerp(low, high, others - below)

    def chain(
        self,
        emissions: Float[Tensor, "batch target_len source_len"],
        target: Int[Tensor, "batch target_len"],
        targets: Lengths,
        sources: Lengths,
    ) -> tuple[Float[Tensor, "batch target_len source_len"], Float[Tensor, " widths"]]:
        """Return the posterior of each link, and the expected number of jumps of each width.

        Forward and backward passes (Rabiner 1989), each step scaled to the sum one; their time is linear in the cells.
        `targets` and `sources` are the lengths; beyond a target's end the chain stays where it is.
        """
        target_len, source_len = emissions.shape[1:]
        at = torch.arange(source_len, device=target.device)
        inside = at < sources[:, None]
        ended = torch.arange(target_len, device=target.device) >= targets[:, None]
        begin = (at + 1).clamp(max=LONGEST_JUMP) + LONGEST_JUMP  # from before the first place
        forth = JumpMatrix(self.jumps, source_len)
        back = forth.mT
        room = (1 - NULL) / back.multiply(inside.to(self.jumps.dtype)).clamp(min=1e-30)  # no jump leads out
        none = torch.where(ended, 1.0, (NULL * self.none[target]).clamp(min=LEAST))[:, :, None]
        emissions = emissions * (~ended[:, :, None] & inside[:, None])
        place = self.jumps[begin] * inside
        place = place / place.sum(1, keepdim=True)
        arriving = begun = (1 - NULL) * place
        links, left, arrivals = (emissions.new_empty(target_len, len(emissions), source_len) for _ in range(3))
        steps = list(zip(emissions.unbind(1), none.unbind(1), links, left, arrivals, strict=True))
        scales = list[Tensor]()
        for likely, by_none, link, leaving, _ in steps:
            torch.mul(arriving, likely, out=link)
            place = link + by_none * place
            scale = place.sum(1, keepdim=True).clamp_(min=1e-30)
            link /= scale
            place /= scale
            scales.append(scale)
            arriving = forth.multiply(torch.mul(place, room, out=leaving))
        after = torch.ones_like(place)
        for (likely, by_none, link, _, arrival), scale in zip(reversed(steps), reversed(scales), strict=True):
            link *= after
            after = after / scale
            after = room * back.multiply(torch.mul(likely, after, out=arrival)) + by_none * after
        jumps = forth.count(left[:-1].flatten(0, 1), arrivals[1:].flatten(0, 1))
        jumps.index_add_(0, begin, (begun * arrivals[0]).sum(0))
        return links.transpose(0, 1), jumps

    def posterior(
        self,
        source: Int[Tensor, "batch source_len"],
        target: Int[Tensor, "batch target_len"],
        sources: Lengths,
        targets: Lengths,
    ) -> Float[Tensor, "batch target_len source_len"]:
        """Return the probability that each target token stands for each source token, fertility considered."""
        emissions = self.emissions(source, target)
        shares, _ = self.chain(emissions, target, targets, sources)
        return self.chain(self.reweighted(emissions, shares, source), target, targets, sources)[0]
