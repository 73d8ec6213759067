"""Text from a model file: generate.py MODEL PROMPT"""

import sys

import thalweg

if len(sys.argv) != 3:
    sys.exit("usage: generate.py MODEL PROMPT")
model = thalweg.Model(sys.argv[1])
for piece in model.generate_text(sys.argv[2], max_tokens=24):
    print(piece, end="", flush=True)
print()
