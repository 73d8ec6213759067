#pragma once

#include <string>
#include <string_view>

#include "core/kernel.h"

namespace thalweg {

// The backends of this build, absent ones included, indexed by DeviceType.
const Backend& backend(DeviceType type);

// The kernel that select_kernel() or THALWEG_KERNEL names for an operation; empty if none.
std::string selected_kernel(std::string_view operation);

// Reports that no kernel runs these arguments, with each kernel's reason.
[[noreturn]] void fail_without_kernel(const Explanation& explanation, const std::string& unavailable);

}  // namespace thalweg
