#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/dtype.h"

namespace thalweg::convert {

// A type of `thalweg quantize`: one dtype for every matrix, or a mix that gives more bits to the matrices whose errors
// cost most.
struct TypeMix {
  std::string name;
  DType base = DType::kF32;
  DType better = DType::kF32;  // of a mix; else `base`
  std::int64_t file_type = 0;  // general.file_type of GGUF
  bool mixed() const { return better != base; }
};

// Ignores case. Throws Error that lists the types, or says why a type cannot be written.
TypeMix type_mix(std::string_view name);

// "F32", "F16", ..., "Q4_K_M".
std::vector<std::string> type_mix_names();

struct ChosenType {
  DType dtype = DType::kF32;
  DType wanted = DType::kF32;  // differs from `dtype` if the rows do not fit its blocks
};

// The type of a GGUF tensor of this name and row-major shape, in a model of `layers` layers with or without a head of
// its own. Vectors, norms, convolutions and routers stay F32: they are small and everything depends on them.
ChosenType choose_type(const TypeMix& mix, std::string_view name, const std::vector<std::int64_t>& shape, int layers,
                       bool tied_head);

}  // namespace thalweg::convert
