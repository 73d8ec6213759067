#!/usr/bin/env python3
"""Every component of an SBOM is in the notices, with its license: check_notices.py SBOM NOTICES"""

import json
import pathlib
import re
import sys


def main() -> int:
    sbom = json.loads(pathlib.Path(sys.argv[1]).read_text())
    notices = dict(re.findall(r"^## (.+?)\n\n.*?License: `([^`]+)`", pathlib.Path(sys.argv[2]).read_text(), re.M | re.S))
    wrong = []
    own = {relation["relatedSpdxElement"] for relation in sbom["relationships"]
           if relation["relationshipType"] == "DESCRIBES"}
    components = [package for package in sbom["packages"] if package["SPDXID"] not in own]
    for package in components:
        told = notices.get(package["name"])
        if told != package["licenseDeclared"]:
            wrong.append(f'{package["name"]}: {package["licenseDeclared"]} in the SBOM, {told} in the notices')
    print(f"{len(components)} components, {len(wrong)} missing from the notices")
    print("\n".join(wrong))
    return 1 if wrong or not components else 0


if __name__ == "__main__":
    sys.exit(main())
