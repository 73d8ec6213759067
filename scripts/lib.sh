# shellcheck shell=bash
# Sourced by every script here: one place for packages, presets, messages and counts. Leaves the shell in the
# repository's root.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -t 1 && -z "${NO_COLOR:-}" ]]; then
  bold=$'\e[1m' red=$'\e[31m' plain=$'\e[0m'
else
  bold='' red='' plain=''
fi

say() { printf '%s==> %s%s\n' "$bold" "$*" "$plain"; }
warn() { printf '%s%s%s\n' "$red" "$*" "$plain" >&2; }
die() {
  warn "$@"
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Exports CUDACXX: the compiler it names already, or nvcc from PATH or /usr/local/cuda/bin. Fails where there is none.
find_nvcc() {
  if [[ -z "${CUDACXX:-}" ]]; then
    CUDACXX=$(PATH="$PATH:/usr/local/cuda/bin" command -v nvcc || true)
  fi
  [[ -n "$CUDACXX" ]] && export CUDACXX
}

have_gpu() { have nvidia-smi && nvidia-smi --list-gpus 2>/dev/null | grep '^GPU' >/dev/null; }

# usage <script> <args>: --help prints the comment at the script's head.
usage() {
  local script=$1
  shift
  if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
    awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$script"
    exit 0
  fi
}

# packages_of <group>...: the names in cmake/packages.txt.
packages_of() {
  local group
  for group in "$@"; do awk -v group="$group" '$1 == group { print $2 }' cmake/packages.txt; done
}

# missing_packages <group>...: those of them that are not installed.
missing_packages() {
  local package
  for package in $(packages_of "$@"); do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
  done
}

# as_root: sets the array `root` to the words before a command that needs root. Fails where there is no way to be root
# without a password that nobody can type.
as_root() {
  root=()
  if ((EUID == 0)); then return 0; fi
  if have sudo && { sudo -n true 2>/dev/null || [[ -t 0 && -t 2 ]]; }; then
    root=(sudo)
    return 0
  fi
  return 1
}

# install_packages <package>...: with apt-get, as root.
install_packages() {
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  say "Installing $*"
  "${apt[@]}" update </dev/null || warn "apt-get update failed; trying with the lists at hand"
  "${apt[@]}" install -y --no-install-recommends "$@" </dev/null
}

# setup_packages <group>...: installs what is missing, or prints the command that does. Uses neither apt nor the network
# when nothing is missing.
setup_packages() {
  if [[ -n "${THALWEG_SKIP_PACKAGES:-}" ]]; then return 0; fi
  if ! have dpkg-query || ! have apt-get; then
    if ! have cmake || ! have ninja; then
      die "This is neither Debian nor Ubuntu. Please install the equivalents of: $(packages_of "$@" | xargs)"
    fi
    return 0  # CMake names whatever library is missing
  fi
  local missing root
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]} == 0)); then return 0; fi
  if ! as_root; then
    warn "These packages are missing, and installing them needs root: ${missing[*]}"
    warn "Please run this once, as root, and then start again:"
    warn ""
    warn "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    warn ""
    die "(If you have them from elsewhere, set THALWEG_SKIP_PACKAGES=1.)"
  fi
  install_packages "${missing[@]}" || die "apt-get could not install: ${missing[*]}"
}

# try_packages <group>...: installs what is missing where that is possible without a password; never fails.
try_packages() {
  if [[ -n "${THALWEG_SKIP_PACKAGES:-}" ]] || ! have dpkg-query || ! have apt-get; then return 0; fi
  local missing root
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]} == 0)); then return 0; fi
  if ((EUID != 0)) && ! sudo -n true 2>/dev/null; then return 0; fi
  as_root
  install_packages "${missing[@]}" || warn "apt-get could not install: ${missing[*]}; going on without them"
}

# configure <preset> [cmake options]: -Werror and other settings are always passed, so that an older cache does not
# decide.
configure() {
  local preset=$1
  shift
  say "Configuring build/$preset"
  cmake --preset "$preset" -DTHALWEG_WERROR="${THALWEG_WERROR:-OFF}" "$@"
}

# build <preset> [targets]
build() {
  local preset=$1
  shift
  say "Building build/$preset${*:+: $*}"
  local targets=()
  if (($# > 0)); then targets=(--target "$@"); fi
  cmake --build --preset "$preset" "${targets[@]}"
}

# run_ctest <preset> [ctest options]: the tests of a build, in parallel; ends with the line "N passed, N failed,
# N skipped", before which it calls the function left_out if the script has one. CTest's report stays in
# build/<preset>/tests.xml.
run_ctest() {
  local preset=$1 status=0
  shift
  say "Testing build/$preset"
  rm -f "build/$preset/tests.xml"
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "$(nproc)" \
    --output-junit "tests.xml" "$@" || status=$?
  if [[ ! -f "build/$preset/tests.xml" ]]; then die "ctest ran no tests"; fi
  if declare -F left_out >/dev/null; then left_out; fi
  counts_line "build/$preset/tests.xml"
  return "$status"
}

# counts_line <report>...: the sum of CTest's reports. A test that is disabled counts as skipped.
counts_line() {
  sed -n '/<testsuite/,/>/p' "$@" | tr '[:space:]' '\n' | tr -d '"' | awk -F= '
    $1 == "tests" { tests += $2 }
    $1 == "failures" { failed += $2 }
    $1 == "disabled" || $1 == "skipped" { skipped += $2 }
    END { printf "%d passed, %d failed, %d skipped\n", tests - failed - skipped, failed, skipped }'
}

# failures <report>...: the name and the last lines of output of each test that failed, out of CTest's reports.
failures() {
  awk '
    /<testcase / { failed = /status="fail"/; name = $0; sub(/.*<testcase name="/, "", name); sub(/".*/, "", name); n = 0 }
    failed { lines[n++] = $0 }
    /<\/testcase>/ && failed {
      print "--- " name
      for (i = (n > 40 ? n - 40 : 1); i < n - 1; ++i) print lines[i]
      failed = 0
    }' "$@" | sed 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&amp;/\&/g'
}

# The C++ and CUDA files of the working tree, new ones included.
cpp_files() {
  local file
  git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' '*.cpp' '*.cu' '*.cuh' '*.mm' '*.metal' |
    while read -r file; do
      if [[ -f $file ]]; then echo "$file"; fi
    done
}
