#!/usr/bin/env python3
"""Checks what a shared library exports with nm: exports.py LIBRARY INCLUDE_FOLDER.

The C functions that thalweg.h and thalweg_ranks.h declare, all of them, and the C++ names of the public headers; nothing that is internal, of
the standard library or of a dependency, and no GNU_UNIQUE symbols. On Linux the C and C++ symbols carry their versions.
"""

import pathlib
import re
import subprocess
import sys


def symbols(library):
    """(type, demangled name, version) of each defined dynamic symbol."""
    command = ["nm", "-gU"] if sys.platform == "darwin" else ["nm", "-D", "--defined-only", "--with-symbol-versions"]
    listing = subprocess.run([*command, library], check=True, capture_output=True, text=True).stdout
    rows = []
    for line in listing.splitlines():
        kind, name = line.split()[-2:]
        name, _, version = name.partition("@")
        rows.append((kind, name.removeprefix("_") if sys.platform == "darwin" else name, version.lstrip("@")))
    names = subprocess.run(
        ["c++filt"], input="\n".join(name for _, name, _ in rows), check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return [(kind, name, version) for (kind, _, version), name in zip(rows, names, strict=True)]


def main():
    library, include = sys.argv[1], pathlib.Path(sys.argv[2]) / "thalweg"
    header = (include / "thalweg.h").read_text() + (include / "thalweg_ranks.h").read_text()
    words = set(re.findall(r"\w+", "".join(path.read_text() for path in include.glob("*.h"))))
    major, minor = (re.search(rf"VERSION_{part} (\d+)", (include / "version.h").read_text())[1] for part in ("MAJOR", "MINOR"))

    operations = [name for line in re.findall(r"^  X\(.*", header, re.M) for name in re.findall(r"X\((\w+)\)", line)]
    sized = re.findall(r"^THALWEG_DECLARE_INIT\((\w+)\)", header, re.M)
    declared = set(re.findall(r"^[\w* ]*?\b(thalweg_\w+)\(", header, re.M))
    declared |= {f"thalweg_{name}_init_sized" for name in sized}
    for name in operations:
        declared |= {f"thalweg_{name}{end}" for end in ("", "_args_init_sized", "_workspace_size", "_explain")}

    problems, found = [], set()
    for kind, name, version in symbols(library):
        if kind in "Aa":  # the names of the versions themselves
            continue
        wanted = f"THALWEG_CXX_{major}.{minor}"
        if kind == "u":
            problems.append(f"GNU_UNIQUE: {name}")
        if re.fullmatch(r"thalweg_\w+", name):
            found.add(name)
            wanted = f"THALWEG_{major}"
        else:
            # The path of the name without return type, template arguments and parameters.
            path = re.sub(r"<.*>", "", re.sub(r"\(.*", "", re.sub(r"^(vtable|typeinfo name|typeinfo) for ", "", name)))
            path = re.sub(r"\[abi:\w+\]", "", path).split(" ")[-1]
            parts = [part.lstrip("~") for part in path.split("::")]
            if parts[0] != "thalweg":
                problems.append(f"not of the library: {name}")
            elif "Impl" in parts or (len(parts) > 2 and re.fullmatch(r"[a-z_]+", parts[1])):  # classes are CamelCase
                problems.append(f"internal: {name}")
            elif parts[-1] not in words and not parts[-1].startswith("operator"):
                problems.append(f"not in a public header: {name}")
        if sys.platform != "darwin" and version != wanted:
            problems.append(f"version {version or 'missing'} instead of {wanted}: {name}")
    # Templates that the library instantiates: each operation's three, and views of both kinds of tensors.
    exported = [name for _, name, _ in symbols(library)]
    for template, count in (("run", len(operations)), ("workspace_size", len(operations)), ("explain", len(operations)),
                            ("reshape", 2), ("narrow", 2), ("select", 2), ("head_range", 2)):  # fmt: skip
        there = sum(f"thalweg::{template}<" in name for name in exported)
        if there != count:
            problems.append(f"{there} instances of thalweg::{template} instead of {count}")
    for name in operations:
        if not any(symbol.startswith(f"thalweg::{name}(") for symbol in exported):
            problems.append(f"not exported: thalweg::{name}()")
    problems += [f"declared and not exported: {name}" for name in sorted(declared - found)]
    problems += [f"exported and not declared: {name}" for name in sorted(found - declared)]
    if len(declared) < 4 * len(operations) or not operations:
        problems.append("the header could not be read")
    for problem in problems[:50]:
        print(problem)
    print(f"{len(found)} C functions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
