# Short names for the scripts, which do the work: nothing here is needed to use them.

.PHONY: help demo test python build lint format bench asan tsan fuzz cuda test-cuda cuda-sanitize docs site package clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo:  ## ask the model that ships with the project, then check and time its kernels
	@scripts/demo

test:  ## build and run all tests
	@scripts/test

python:  ## build and test the Python package in a virtual environment
	@scripts/test-python

build:  ## the command line, build/release/bin/thalweg
	@scripts/build

lint:  ## formatting, layers, clang-tidy on changed files (scripts/lint --all: on every file)
	@scripts/lint

format:  ## format every C++ file in place
	@scripts/format

bench:  ## time the operations (scripts/bench --op NAME --threads N --json FILE)
	@scripts/bench

asan:  ## tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/sanitize address

tsan:  ## threaded tests under ThreadSanitizer
	@scripts/sanitize thread

fuzz:  ## fuzz each target for a minute (scripts/fuzz SECONDS)
	@scripts/fuzz

cuda:  ## build with the CUDA backend, build/cuda/bin/thalweg (where nvcc is present)
	@scripts/cuda

test-cuda:  ## build and run the tests of the CUDA backend (where nvcc and a GPU are present)
	@scripts/test-cuda

cuda-sanitize:  ## CUDA kernels under compute-sanitizer (where a GPU is present)
	@scripts/cuda-sanitize

docs:  ## rewrite the generated parts of the documentation
	@scripts/docs

site:  ## the documentation as a site, build/site/html
	@scripts/site

package:  ## wheels and Debian packages, tested where nothing else is installed (scripts/package --help)
	@scripts/package

clean:  ## remove everything that was built
	@rm -rf build
