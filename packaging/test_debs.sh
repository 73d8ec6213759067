#!/usr/bin/env bash
# Installs the packages of the folder debs beside it, uses each, and removes them: run by scripts/package in a bare Debian.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export DEBIAN_FRONTEND=noninteractive
question="Anna put the red ball in the kitchen. Where is the red ball?"
apt=(apt-get -qq -o Dpkg::Use-Pty=0)
"${apt[@]}" update

dpkg-query -W -f '${Package}\n' | sort >before
find /usr /etc /var/lib -xdev \( -name '*thalweg*' \) | sort >files-before

echo "== the library alone brings what it is linked with"
"${apt[@]}" install -y --no-install-recommends ./debs/libthalweg0_*.deb >/dev/null
if ldd /usr/lib/*/libthalweg.so.0 | grep 'not found'; then exit 1; fi

echo "== the command line"
"${apt[@]}" install -y --no-install-recommends ./debs/thalweg_*.deb >/dev/null
thalweg --version
thalweg generate -m models/story-q4_k.gguf -p "$question" -n 8 --temp 0 | tee said
grep -q kitchen said
thalweg verify --op l2norm >/dev/null

echo "== Python"
"${apt[@]}" install -y --no-install-recommends ./debs/python3-thalweg_*.deb >/dev/null
python3 examples/operations.py
python3 examples/generate.py models/story-q4_k.gguf "$question" | tee said
grep -q kitchen said
python3 -c "import importlib.metadata as m, thalweg; assert m.version('thalweg') == thalweg.__version__"

echo "== development: pkg-config, then CMake"
"${apt[@]}" install -y --no-install-recommends ./debs/libthalweg-dev_*.deb g++ pkg-config cmake ninja-build >/dev/null
read -ra flags <<<"$(pkg-config --cflags --libs thalweg)"
gcc -std=c11 examples/generate.c -o generate_c "${flags[@]}"
./generate_c models/story-q4_k.gguf "$question" | grep -q kitchen
cmake -S examples -B build -G Ninja >/dev/null
cmake --build build
(cd build && ctest --output-on-failure)

echo "== removed without a trace"
"${apt[@]}" purge -y libthalweg0 libthalweg-dev thalweg python3-thalweg >/dev/null
find /usr /etc /var/lib -xdev \( -name '*thalweg*' \) | sort >files-after
diff files-before files-after
