#include "cpu/row_layout.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstring>
#include <string_view>

namespace thalweg::cpu {
namespace {

#if defined(__x86_64__)
// Zen 3 and Zen 4. Spread rows halve the speed of Zen 5; others were not measured.
bool is_amd_family_19h() {
  unsigned most = 0;
  std::array<unsigned, 3> vendor{};
  if (__get_cpuid(0, &most, &vendor[0], &vendor[2], &vendor[1]) == 0) return false;
  std::array<char, 12> name{};
  std::memcpy(name.data(), vendor.data(), name.size());
  if (std::string_view(name.data(), name.size()) != "AuthenticAMD") return false;
  unsigned version = 0;
  unsigned rest = 0;
  if (__get_cpuid(1, &version, &rest, &rest, &rest) == 0) return false;
  const unsigned family = (version >> 8 & 0xFU) + (version >> 20 & 0xFFU);
  return family == 0x19;
}
#else
bool is_amd_family_19h() { return false; }
#endif

}  // namespace

std::atomic<bool>& spreads_lanes() {
  static std::atomic<bool> spreads{is_amd_family_19h()};
  return spreads;
}

}  // namespace thalweg::cpu
