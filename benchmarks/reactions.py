"""Make reactions.tsv: reactions whose atom mapping is certain, each in the canonical form that chemists' tools write.

    python benchmarks/reactions.py [--out benchmarks/reactions.tsv]

A template is a reaction with places for groups: `{R}[C:1](=[O:2])Cl.[N:3]{Q}>>{R}[C:1](=[O:2])[N:3]{Q}`. A group goes
through the reaction unchanged, so the mapping of its atoms is that of its letters. The other atoms have the number of
their partner. A number that several reactant atoms share means any of them, as for the oxygens of an acid, and atoms
that the symmetry of a molecule makes alike count as one. Product atoms without a number are not counted.

A line of the file has the template's name, the reaction, and for each product atom the reactant atoms that it may come
from (`2,4`; `-` for none), both counted in the order of the text. Needs the package
rdkit; the file in the tree was written with 2026.9.1.
"""

import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import tyro
from atom_mapping import REACTIONS, TOKEN, is_atom

PER_TEMPLATE, SEED = 8, 0

ALKYL_BEFORE = ("CCC", "CCCCCC", "CC(C)C", "CC(C)CC", "C1CCCCC1", "COCC", "COC(=O)CC", "c1ccccc1C", "COc1ccc(cc1)CC")
ARYL_BEFORE = (
    *("c1ccccc1", "Cc1ccc(cc1)", "COc1ccc(cc1)", "Fc1cccc(c1)", "N#Cc1ccc(cc1)", "c1ccc2ccccc2c1", "c1ccncc1"),
    *("COC(=O)c1ccc(cc1)", "FC(F)(F)c1cccc(c1)", "CC(=O)Nc1ccc(cc1)", "CN1CCN(CC1)c1ccc(cc1)", "COc1cc(C)ccc1"),
)
POOR_BEFORE = (
    *("N#Cc1ccc(cc1)", "COC(=O)c1ccc(cc1)", "O=[N+]([O-])c1ccc(cc1)", "FC(F)(F)c1ccc(cc1)", "CC(=O)c1ccc(cc1)"),
    *("N#Cc1cccnc1", "Clc1nc(C)cc(n1)", "COC(=O)c1cccnc1"),
)
ALKYL_AFTER = (
    "CCC",
    "CCCCC",
    "CC(C)C",
    "C1CCCCC1",
    "CCOC",
    "CCC(=O)OCC",
    "Cc1ccccc1",
    "Cc1ccc(F)cc1",
    "CCc1ccc(OC)cc1",
)
ARYL_AFTER = (
    *("c1ccccc1", "c1ccc(C)cc1", "c1ccc(OC)cc1", "c1cccc(F)c1", "c1ccc(C#N)cc1", "c1ccc2ccccc2c1", "c1cccnc1"),
    *("c1ccc(C(=O)OC)cc1", "c1cccc(C(F)(F)F)c1", "c1ccc(NC(C)=O)cc1", "c1ccccc1OC", "c1ccsc1"),
)
GROUPS = {
    "R": (*ALKYL_BEFORE, *ARYL_BEFORE),
    "r": ALKYL_BEFORE,
    "A": ARYL_BEFORE,
    "E": POOR_BEFORE,
    "Q": (*ALKYL_AFTER, *ARYL_AFTER),
    "q": ALKYL_AFTER,
    "B": ARYL_AFTER,
}
"""Groups by the letter of their place. R any, r alkyl, A aryl and E aryl that is poor in electrons are bound by their
last atom, Q any, q alkyl and B aryl by their first. With `!`, only groups that stand strong reducers and bases."""

TEMPLATES = {
    "amide from an acid": "{R}[C:1](=[O:2])[O:2].[N:3]{Q}.CCN=C=NCCCN(C)C.CN(C)C=O>>{R}[C:1](=[O:2])[N:3]{Q}",
    "amide from an acid chloride": "{R}[C:1](=[O:2])Cl.[N:3]{Q}.CCN(CC)CC.ClCCl>>{R}[C:1](=[O:2])[N:3]{Q}",
    "ester from an acid": "{R}[C:1](=[O:2])[O:2].[O:3]{q}.O=S(=O)(O)O>>{R}[C:1](=[O:2])[O:3]{q}",
    "ester from an acid chloride": "{R}[C:1](=[O:2])Cl.[O:3]{q}.c1ccncc1>>{R}[C:1](=[O:2])[O:3]{q}",
    "sulfonamide": "{A}[S:1](=[O:2])(=[O:2])Cl.[N:3]{Q}.c1ccncc1>>{A}[S:1](=[O:2])(=[O:2])[N:3]{Q}",
    "urea": "{R}[N:1]=[C:2]=[O:3].[N:4]{Q}.C1CCOC1>>{R}[N:1][C:2](=[O:3])[N:4]{Q}",
    "Suzuki coupling": "{A}Br.OB(O){B}.O=C([O-])[O-].[Na+].[Na+].[Pd].COCCOC>>{A}-{B}",
    "Heck coupling": "{A}Br.[C:1]=[C:2]{B}.CCN(CC)CC.[Pd]>>{A}[C:1]=[C:2]{B}",
    "Sonogashira coupling": "{A}I.[C:1]#[C:2]{Q}.CCN(CC)CC.[Pd].[Cu]I>>{A}[C:1]#[C:2]{Q}",
    "amination of an aryl fluoride": "{E}F.[N:1]{q}.O=C([O-])[O-].[K+].[K+].CS(C)=O>>{E}[N:1]{q}",
    "thioether": "{E}F.[S:1]{Q}.O=C([O-])[O-].[K+].[K+].CN(C)C=O>>{E}[S:1]{Q}",
    "ether of a phenol": "{A}[O:1].Br{q}.O=C([O-])[O-].[K+].[K+].CN(C)C=O>>{A}[O:1]{q}",
    "Mitsunobu ether": ("{A}[O:1].O{q}.CCOC(=O)N=NC(=O)OCC.c1ccc(P(c2ccccc2)c2ccccc2)cc1.C1CCOC1>>{A}[O:1]{q}"),
    "alkylation of an amine": "{R}[N:1].Br{q}.CCN(CC)CC.CC#N>>{R}[N:1]{q}",
    "reductive amination": "{R}[C:1]=O.[N:2]{Q}.[BH3-]C#N.[Na+].CO>>{R}[C:1][N:2]{Q}",
    "reduction of a ketone": "{R}[C:1](=[O:2]){Q}.[BH4-].[Na+].CO>>{R}[C:1]([O:2]){Q}",
    "reduction of a nitro group": "{A!}[N+:1](=O)[O-].[H][H].[Pd].CCO>>{A!}[N:1]",
    "reduction of a nitrile": "{R!}[C:1]#[N:2].[AlH4-].[Li+].C1CCOC1>>{R!}[C:1][N:2]",
    "hydrogenation": "{R}[C:1]=[C:2]{Q}.[H][H].[Pd].CCOC(C)=O>>{R}[C:1][C:2]{Q}",
    "oxidation of an alcohol": "{R}[C:1][O:2].CS(C)=O.O=C(Cl)C(=O)Cl.CCN(CC)CC>>{R}[C:1]=[O:2]",
    "Grignard addition": "{R!}[C:1]=[O:2].Br[Mg]{Q!}.C1CCOC1>>{R!}[C:1]([O:2]){Q!}",
    "Wittig olefination": "{R}[C:1]=O.c1ccc(cc1)P(=[C:2]{Q})(c1ccccc1)c1ccccc1.C1CCOC1>>{R}[C:1]=[C:2]{Q}",
    "opening of an epoxide": "{R}[C:1]9[C:2][O:3]9.[N:4]{q}.CCO>>{R}[C:1]([O:3])[C:2][N:4]{q}",
    "click reaction": ("{r}[N:1]=[N+:2]=[N-:3].[C:4]#[C:5]{B}.[Cu]I.CC(C)(C)O.O>>{r}[n:1]9[c:4][c:5](-{B})[n:3][n:2]9"),
    "Boc protection": (
        "{R}[N:1].O(C(=O)OC(C)(C)C)[C:2](=[O:3])[O:4][C:5]([C:6])([C:7])[C:8].CCN(CC)CC.ClCCl"
        ">>{R}[N:1][C:2](=[O:3])[O:4][C:5]([C:6])([C:7])[C:8]"
    ),
    "Boc removal": "{R}[N:1]C(=O)OC(C)(C)C.O=C(O)C(F)(F)F.ClCCl>>{R}[N:1]",
    "silyl protection": (
        "{R}[C:9][O:1].Cl[Si:2]([C:3])([C:4])[C:5]([C:6])([C:7])[C:8].c1c[nH]cn1.CN(C)C=O"
        ">>{R}[C:9][O:1][Si:2]([C:3])([C:4])[C:5]([C:6])([C:7])[C:8]"
    ),
    "hydrolysis of an ester": "{R!}[C:1](=O)OC.[Li+].[OH-].C1CCOC1>>{R!}[C:1](=O)O",
}
"""Reactions with reagents and solvents, which are there to be mistaken for partners."""

NUMBERED = re.compile(r"\[(?:(Br|Cl|[BCNOPSFIbcnops])|([^\]:]+)):(\d+)\]")
"""A numbered atom: one that stands without brackets elsewhere, or another."""
BESIDE_METAL = re.compile(r"\[(C|c|Br|I)H?\d?\]")
"""What rdkit puts into brackets since 2025 because a metal stands beside it. The model was trained on older text."""


def main(out: Path = REACTIONS) -> None:
    """Write the reactions.

    Args:
        out: The file.
    """
    out.write_text("".join(f"{line}\n" for line in lines(random.Random(SEED))), encoding="utf-8")


def lines(chance: random.Random) -> Iterator[str]:
    """Yield a line for each reaction: PER_TEMPLATE different ones of each template."""
    for name, template in TEMPLATES.items():
        seen: set[str] = set()
        while len(seen) < PER_TEMPLATE:
            reaction, partners = canonical(filled(template, chance))
            if reaction not in seen:
                seen.add(reaction)
                yield f"{name}\t{reaction}\t{partners}"


def filled(template: str, chance: random.Random) -> str:
    """Return a template with groups in its places, whose atoms are numbered from 100."""
    number = 100
    for place in dict.fromkeys(re.findall(r"\{.!?\}", template)):
        choice = GROUPS[place[1]]
        if "!" in place:
            choice = [group for group in choice if "=O" not in group and "#N" not in group and "N#" not in group]
        group = ""
        for token in TOKEN.findall(chance.choice(choice)):
            group += f"[{token.strip('[]')}:{number}]" if is_atom(token) else token
            number += is_atom(token)
        template = template.replace(place, group)
    return template


def canonical(numbered: str) -> tuple[str, str]:
    """Return a numbered reaction in canonical form without its numbers, and the partners of the product's atoms."""
    reactants, product = (_side(text) for text in numbered.split(">>"))
    same, partners = defaultdict(set), defaultdict(set)
    for place, (_, alike) in enumerate(reactants[1]):
        same[alike].add(place)
    for number, alike in reactants[1]:
        partners[number] |= same[alike]
    found = [partners[number] if number else () for number, _ in product[1]]
    if any(number and not of for (number, _), of in zip(product[1], found, strict=True)):
        sys.exit(f"reactions.py: error: a product atom has no partner in {numbered}")
    said = (",".join(map(str, sorted(of))) or "-" for of in found)
    return f"{reactants[0]}>>{product[0]}", " ".join(said)


def _side(numbered: str) -> tuple[str, list[tuple[int, int]]]:
    """Return molecules in canonical form, and each atom's number (0: none) and class of what symmetry makes alike."""
    from rdkit import Chem

    tokens = TOKEN.findall(numbered)
    numbers = [int(found[3]) if (found := NUMBERED.fullmatch(token)) else 0 for token in tokens if is_atom(token)]
    whole = Chem.MolFromSmiles(NUMBERED.sub(lambda atom: atom[1] or f"[{atom[2]}]", numbered))
    alike = list(Chem.CanonicalRankAtoms(whole, breakTies=False))
    written: list[tuple[str, list[int]]] = []
    for atoms in Chem.GetMolFrags(whole):
        text = BESIDE_METAL.sub(r"\1", Chem.MolFragmentToSmiles(whole, atoms))
        order = whole.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"]
        written.append((text, list(order)))
    written.sort()
    return ".".join(text for text, _ in written), [(numbers[n], alike[n]) for _, order in written for n in order]


if __name__ == "__main__":
    tyro.cli(main)
