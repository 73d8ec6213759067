#include "cpu/arm_level.h"

#if defined(__aarch64__)

#include <atomic>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sys/auxv.h>
#endif

namespace thalweg::cpu {
namespace {

#if defined(__APPLE__)
bool has(const char* feature) {
  int value = 0;
  std::size_t size = sizeof(value);
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_dot_products() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_int8_matrices() { return has("hw.optional.arm.FEAT_I8MM"); }
#else
// Linux's numbers of the features, which are part of its ABI: HWCAP_ASIMDDP and HWCAP2_I8MM.
bool has_dot_products() { return (getauxval(AT_HWCAP) >> 20 & 1U) != 0; }
bool has_int8_matrices() { return (getauxval(AT_HWCAP2) >> 13 & 1U) != 0; }
#endif

ArmLevel best() {
  if (!has_dot_products()) return ArmLevel::kNeon;
  return has_int8_matrices() ? ArmLevel::kInt8Matrices : ArmLevel::kDotProducts;
}

std::atomic<ArmLevel>& selected() {
  static std::atomic<ArmLevel> level{best()};
  return level;
}

}  // namespace

std::vector<ArmLevel> arm_levels() {
  std::vector<ArmLevel> levels;
  for (const ArmLevel level : {ArmLevel::kInt8Matrices, ArmLevel::kDotProducts, ArmLevel::kNeon}) {
    if (level <= best()) levels.push_back(level);
  }
  return levels;
}

ArmLevel arm_level() { return selected().load(std::memory_order_relaxed); }
void select_arm_level(ArmLevel level) { selected().store(level, std::memory_order_relaxed); }

}  // namespace thalweg::cpu

#endif
