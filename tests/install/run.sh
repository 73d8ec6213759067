#!/usr/bin/env bash
# Installs the build into a fresh prefix and builds the examples against it, through find_package and pkg-config:
# run.sh <cmake> <build folder> <C compiler> <C++ compiler>

set -euo pipefail
cmake=$1 build=$2 cc=$3 cxx=$4
work=$build/tests/install
examples=$(dirname "${BASH_SOURCE[0]}")/../../examples
rm -rf "$work"

"$cmake" --install "$build" --prefix "$work/prefix" >"$build/install.log"

echo "find_package"
"$cmake" -S "$examples" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release >"$work.log" || { cat "$work.log" && exit 1; }
"$cmake" --build "$work/build"
(cd "$work/build" && ctest --output-on-failure)

echo "manual pages and completions"
"$work/prefix/bin/thalweg" --version | grep '^commit'
for file in man/man1/thalweg.1 man/man1/thalweg-generate.1 bash-completion/completions/thalweg \
  zsh/site-functions/_thalweg fish/vendor_completions.d/thalweg.fish; do
  if [[ ! -s "$work/prefix/share/$file" ]]; then echo "share/$file is not installed" && exit 1; fi
done
bash -n "$work/prefix/share/bash-completion/completions/thalweg"

# A version that is not the installed one is refused.
sed 's/find_package(thalweg [0-9.]*/find_package(thalweg 99.0/' "$examples/CMakeLists.txt" >"$work/CMakeLists.txt"
if "$cmake" -S "$work" -B "$work/wrong" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null 2>"$work/wrong.log"; then
  echo "find_package accepted version 99" && exit 1
fi
grep -q 'version.*99' "$work/wrong.log"

echo "pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name thalweg.pc)")
export PKG_CONFIG_PATH
read -ra flags <<<"$(pkg-config --cflags --libs thalweg)"
libdir=$(pkg-config --variable=libdir thalweg)
"$cc" -std=c11 "$examples/generate.c" -o "$work/generate_c" "${flags[@]}" -Wl,-rpath,"$libdir"
"$work/generate_c" "$examples/../models/story-q4_k.gguf" "Anna put the red ball in the kitchen. Where is the red ball?" |
  grep kitchen

# Rust and Swift call the same library, where their compilers are.
if command -v cargo >/dev/null; then
  echo "Rust"
  export THALWEG_LIB_DIR=$libdir THALWEG_INCLUDE_DIR=$work/prefix/include CC=$cc
  rust=(--offline --quiet --manifest-path "$examples/rust/thalweg-sys/Cargo.toml" --target-dir "$build/rust")
  cargo test "${rust[@]}"
  cargo run "${rust[@]}" --example operation
  cargo run "${rust[@]}" --example generate -- "$examples/../models/story-q4_k.gguf" \
    "Anna put the red ball in the kitchen. Where is the red ball?" | grep kitchen
else
  echo "left out: the Rust example (no cargo)"
fi
if command -v swift >/dev/null; then
  echo "Swift"
  LD_LIBRARY_PATH=$libdir swift run --package-path "$examples/swift" --scratch-path "$build/swift" operation
elif command -v clang >/dev/null; then
  # The module map is clang's: the same module, from Objective-C.
  echo "Swift's module map, by clang"
  clang -fmodules -fmodules-cache-path="$build/modules" -I "$work/prefix/include" -L "$libdir" -Wl,-rpath,"$libdir" \
    -fmodule-map-file="$examples/swift/Sources/CThalweg/module.modulemap" \
    "$examples/swift/module_map_test.m" -lthalweg -o "$work/module_map_test"
  "$work/module_map_test"
else
  echo "left out: the Swift example (neither swift nor clang)"
fi

# What a user of a static library links, pkg-config says; the files of these are Debian's -dev packages.
pkg-config --static --libs thalweg | grep -e '-lhwy' | grep -q -e '-lpcre2-8'
