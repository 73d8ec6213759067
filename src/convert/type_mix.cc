#include "convert/type_mix.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "thalweg/error.h"
#include "thalweg/quant.h"

namespace thalweg::convert {
namespace {

struct Known {
  std::string_view name;
  DType base;
  DType better;
  std::int64_t file_type;
};

constexpr Known kKnown[] = {
    {"F32", DType::kF32, DType::kF32, 0},        {"F16", DType::kF16, DType::kF16, 1},
    {"BF16", DType::kBF16, DType::kBF16, 32},    {"Q8_0", DType::kQ8_0, DType::kQ8_0, 7},
    {"Q4_0", DType::kQ4_0, DType::kQ4_0, 2},     {"Q4_1", DType::kQ4_1, DType::kQ4_1, 3},
    {"Q5_0", DType::kQ5_0, DType::kQ5_0, 8},     {"Q5_1", DType::kQ5_1, DType::kQ5_1, 9},
    {"Q2_K", DType::kQ2_K, DType::kQ2_K, 10},    {"Q3_K", DType::kQ3_K, DType::kQ3_K, 11},
    {"Q4_K", DType::kQ4_K, DType::kQ4_K, 14},    {"Q5_K", DType::kQ5_K, DType::kQ5_K, 16},
    {"Q6_K", DType::kQ6_K, DType::kQ6_K, 18},    {"IQ4_NL", DType::kIQ4_NL, DType::kIQ4_NL, 25},
    {"MXFP4", DType::kMXFP4, DType::kMXFP4, 38}, {"Q4_K_M", DType::kQ4_K, DType::kQ6_K, 15},
    {"Q5_K_M", DType::kQ5_K, DType::kQ6_K, 17},
};

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

// "blk.12.ffn_down.weight" -> 12; -1 outside of the layers.
int layer_of(std::string_view name) {
  if (!name.starts_with("blk.")) return -1;
  int layer = -1;
  std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

bool is_matrix(std::string_view name, const std::vector<std::int64_t>& shape) {
  if (shape.size() < 2 || !name.ends_with(".weight")) return false;
  return !ends_with_any(name, {"norm.weight", "ssm_conv1d.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"});
}

// The first and last eighth of the layers, and every third between them: errors there cost most.
bool deserves_more(int layer, int layers) {
  const int eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

DType wanted_type(const TypeMix& mix, std::string_view name, int layers, bool tied_head) {
  // Few rows, and their errors change the decay and write strength of the recurrent state.
  if (is_block_format(mix.base) && ends_with_any(name, {"ssm_alpha.weight", "ssm_beta.weight", "ssm_ba.weight"})) {
    return DType::kQ8_0;
  }
  if (!mix.mixed()) return mix.base;
  if (name == "output.weight" || (tied_head && name == "token_embd.weight")) return mix.better;
  const int layer = layer_of(name);
  // Small matrices whose errors reach every token.
  if (ends_with_any(name, {".attn_v.weight", ".ffn_down.weight", ".ffn_down_exps.weight"})) {
    return deserves_more(layer, layers) ? mix.better : mix.base;
  }
  if (ends_with_any(name, {"_shexp.weight", ".nextn.eh_proj.weight", ".nextn.shared_head_head.weight"})) {
    return mix.better;
  }
  if (ends_with_any(name, {".attn_qkv.weight", ".ssm_out.weight", ".attn_output.weight"})) return DType::kQ5_K;
  return mix.base;
}

DType fallback_for(DType wanted) {
  switch (wanted) {
    case DType::kQ2_K:
    case DType::kQ3_K:
      return DType::kQ4_0;
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    case DType::kQ6_K:
      return DType::kQ8_0;
    default:
      return DType::kF16;
  }
}

}  // namespace

std::vector<std::string> type_mix_names() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) names.emplace_back(known.name);
  return names;
}

TypeMix type_mix(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  for (const Known& known : kKnown) {
    if (known.name == upper) return {std::string(known.name), known.base, known.better, known.file_type};
  }
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype_name(dtype) == upper && !can_pack(dtype)) {
      throw Error("quantize", "TYPE", "a type that can be packed",
                  upper + (dtype == DType::kI32 ? ", which is for integers" : ", which is read but not written"));
    }
  }
  std::string list;
  for (const Known& known : kKnown) list += (list.empty() ? "" : ", ") + std::string(known.name);
  throw Error("quantize", "TYPE", "one of " + list, std::string(name));
}

ChosenType choose_type(const TypeMix& mix, std::string_view name, const std::vector<std::int64_t>& shape, int layers,
                       bool tied_head) {
  if (!is_matrix(name, shape)) return {DType::kF32, DType::kF32};
  ChosenType chosen;
  chosen.wanted = wanted_type(mix, name, layers, tied_head);
  chosen.dtype = chosen.wanted;
  // Experts are most of a model: Q5_1 instead of the 8 bits that Q6_K would fall back to.
  if (mix.mixed() && chosen.wanted == DType::kQ6_K && name.ends_with("_exps.weight") && shape.back() % 256 != 0) {
    chosen.dtype = DType::kQ5_1;
  }
  while (shape.back() % dtype_info(chosen.dtype).block_size != 0) chosen.dtype = fallback_for(chosen.dtype);
  return chosen;
}

}  // namespace thalweg::convert
