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
bool is_amd() {
  unsigned most = 0;
  std::array<unsigned, 3> vendor{};
  if (__get_cpuid(0, &most, &vendor[0], &vendor[2], &vendor[1]) == 0) return false;
  std::array<char, 12> name{};
  std::memcpy(name.data(), vendor.data(), name.size());
  const std::string_view text(name.data(), name.size());
  return text == "AuthenticAMD" || text == "HygonGenuine";
}
#else
bool is_amd() { return false; }
#endif

}  // namespace

std::atomic<bool>& spreads_lanes() {
  static std::atomic<bool> spreads{is_amd()};
  return spreads;
}

}  // namespace thalweg::cpu
