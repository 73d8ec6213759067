#!/usr/bin/env python3
"""A package with CUDA says what it lacks where there is no GPU, and runs the model where there is one: check_cuda.py MODEL"""

import pathlib
import sys

import thalweg


def main() -> int:
    if pathlib.Path("/proc/driver/nvidia/gpus").exists():
        thalweg.Model(sys.argv[1], device="cuda")
        print("the model is on the GPU")
        return 0
    try:
        thalweg.Model(sys.argv[1], device="cuda")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        if "this build has no CUDA" in str(error):
            return 1  # it is what the package is for
        return 0 if "no CUDA d" in str(error) else 1  # driver, device
    print("a model on a GPU that is not there")
    return 1


if __name__ == "__main__":
    sys.exit(main())
