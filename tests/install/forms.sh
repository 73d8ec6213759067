#!/usr/bin/env bash
# The other forms of the library: a part of another project, and kernels only, as a static library that is installed.
# forms.sh <cmake> <work folder> <C compiler> <C++ compiler> [--build]
# Without --build it configures only, and checks what would be built and installed.

set -euo pipefail
cmake=$1 work=$2 cc=$3 cxx=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$here/../..
common=(-G Ninja "-DCMAKE_C_COMPILER=$cc" "-DCMAKE_CXX_COMPILER=$cxx" -DCMAKE_BUILD_TYPE=Release)
mkdir -p "$work"

# configure <folder> <cmake arguments...>
configure() {
  local folder=$1
  shift
  rm -rf "${work:?}/$folder"
  "$cmake" -B "$work/$folder" "${common[@]}" "$@" >"$work/$folder.log" 2>&1 || { cat "$work/$folder.log" && exit 1; }
}

echo "as a part of another project"
configure part -S "$here/consumer" "-DTHALWEG_SOURCE=$source"
targets=$("$cmake" --build "$work/part" --target help)
for layer in core cpu ops text engine capi; do
  if ! grep -q "libthalweg_$layer[.]a" <<<"$targets"; then echo "libthalweg_$layer is missing" && exit 1; fi
done
if grep -E 'thalweg_(reference|cases|server|cli|metal_executor|metal_translate|library|build_info)|test_|example_' <<<"$targets"; then
  echo "these are built, and should not be" && exit 1
fi
if grep -rl --include=cmake_install.cmake 'file(INSTALL' "$work/part/thalweg"; then
  echo "these install something, and should not" && exit 1
fi

echo "kernels only"
configure kernels -S "$source" -DTHALWEG_KERNELS_ONLY=ON -DTHALWEG_STATIC=ON
targets=$("$cmake" --build "$work/kernels" --target help)
if grep -E 'thalweg_(io|text|checkpoint|convert|decode|grammar|engine|cli|reference)[.:]' <<<"$targets"; then
  echo "these are not kernels" && exit 1
fi
if grep -iE '(PCRE2|UTF8PROC|nlohmann_json)[A-Za-z_]*(FOUND|DIR)' "$work/kernels/CMakeCache.txt"; then
  echo "these are not needed" && exit 1
fi
if [[ "${5:-}" != --build ]]; then exit 0; fi

"$cmake" --build "$work/part" --target consumer
"$work/part/consumer"

"$cmake" --build "$work/kernels"
"$cmake" --install "$work/kernels" --prefix "$work/prefix" >/dev/null
for header in chat engine grammar model ranks thalweg_ranks; do
  if [[ -e $work/prefix/include/thalweg/$header.h ]]; then echo "$header.h is installed" && exit 1; fi
done
configure use -S "$here/consumer" "-DCMAKE_PREFIX_PATH=$work/prefix"
"$cmake" --build "$work/use"
"$work/use/consumer"
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name thalweg.pc)")
export PKG_CONFIG_PATH
read -ra flags <<<"$(pkg-config --static --cflags --libs thalweg)"
"$cxx" -std=c++20 "$here/consumer/consumer.cc" -o "$work/consumer" "${flags[@]}"
"$work/consumer"
