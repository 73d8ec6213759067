#!/usr/bin/env python3
"""Looks in machine code for registers that are written while products of the tensor cores may still read them.

    cuobjdump -sass OBJECT > code.sass      # of CUDA's binary utilities; OBJECT: a .o of src/cuda/sm90, or a binary
    python3 tools/check_wgmma.py code.sass

`wgmma` reads its left operand from registers some time after it was sent, until a wait for its group has returned. The
compiler does not always keep them: where the operand's registers are the target of loads, it has placed the next loads
before that wait. Prints every such write and exits with 1 if there is one. Code is followed as it stands, and loops once
from their end back to their beginning.
"""

import re
import sys

INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,6})\*/\s+(.*?)\s*;\s+/\* 0x")
PRODUCT = re.compile(r"HGMMA\.\S+ R\d+, R(\d+)")
WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)")
BRANCH = re.compile(r"BRA\S*\s+(?:!?U?P\w+,\s*)?0x([0-9a-f]+)")
WRITE = re.compile(r"(?:@!?U?P\w+\s+)?(\S+)\s+(?:U?P\w+,\s*)?R(\d+)")
# Their first register is read, or they write no vector register.
WRITE_NONE = ("ATOM", "BAR", "BRA", "CS2UR", "EXIT", "FENCE", "HGMMA", "LDGSTS", "MEMBAR", "NOP", "PLOP", "R2UR", "RED",
              "S2UR", "ST", "SYNCS", "UBLK", "UTMA", "VOTEU", "WARP")
OPERAND_REGISTERS = 4


def functions(path):
    """Of each function its name and its instructions as (address, text)."""
    name, code = None, []
    with open(path) as file:
        for line in file:
            if "Function : " in line:
                if name:
                    yield name, code
                name, code = line.split("Function : ")[1].strip(), []
            elif match := INSTRUCTION.match(line):
                code.append((int(match.group(1), 16), match.group(2)))
    if name:
        yield name, code


def written(text):
    match = WRITE.match(text)
    if not match or match.group(1).startswith(WRITE_NONE):
        return range(0)
    name, first = match.group(1), int(match.group(2))
    count = 4 if ".128" in name else 2 if ".64" in name or "WIDE" in name else 1
    return range(first, first + count)


class Outstanding:
    """The operands' registers of the groups that were not waited for, the last of them not closed yet."""

    def __init__(self, groups=((),)):
        self.groups = [set(group) for group in groups]

    def step(self, text):
        """Returns whether the instruction writes to one of them."""
        if product := PRODUCT.search(text):
            first = int(product.group(1))
            self.groups[-1].update(range(first, first + OPERAND_REGISTERS))
        if "HGMMA" in text and "gsb0" in text:
            self.groups.append(set())
        if wait := WAIT.search(text):
            self.groups = self.groups[-1 - int(wait.group(1), 16):]
        return any(not group.isdisjoint(written(text)) for group in self.groups)


def findings(code):
    index = {address: i for i, (address, _) in enumerate(code)}
    found = set()
    outstanding = Outstanding()
    for i, (address, text) in enumerate(code):
        if outstanding.step(text):
            found.add(i)
        branch = BRANCH.search(text)
        begin = index.get(int(branch.group(1), 16), i) if branch else i
        if begin < i:
            again = Outstanding(outstanding.groups)
            found.update(j for j in range(begin, i) if again.step(code[j][1]))
    return [code[i] for i in sorted(found)]


def main():
    total = 0
    for path in sys.argv[1:] or sys.exit(__doc__):
        for name, code in functions(path):
            found = findings(code) if any("HGMMA" in text for _, text in code) else []
            total += len(found)
            for address, text in found:
                print(f"{name}: {address:x}: {text}")
    print(f"{total} writes to registers of products that may be under way")
    sys.exit(total > 0)


if __name__ == "__main__":
    main()
