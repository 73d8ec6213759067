#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace thalweg::checkpoint {

// How a model's rotary embedding was stretched to a longer context.
struct RopeScaling {
  enum class Type : std::uint8_t { kNone, kLinear, kYarn };

  Type type = Type::kNone;
  double factor = 1.0;
  // The rest is YaRN's. Within the original context, pairs that rotate more often than beta_fast keep their frequency,
  // and those that rotate less often than beta_slow are stretched whole.
  std::int64_t original_context = 0;
  std::optional<double> attention_factor;  // of cosines and sines; none: 0.1 ln(factor) + 1
  std::optional<double> beta_fast;         // none: 32
  std::optional<double> beta_slow;         // none: 1
  bool truncate = true;                    // the bounds between the two are whole pairs
};

// As files name it: "linear", "yarn"; empty for none.
std::string_view rope_scaling_name(RopeScaling::Type type);

// YaRN's 0.1 weight ln(factor) + 1, or 1 for factors up to 1.
double yarn_magnitude(double factor, double weight);

// Of cosines and sines: 1, or YaRN's attention factor.
double rope_scale(const RopeScaling& scaling);

// [rotary_dim/2] as transformers computes them, in double and rounded once; empty without scaling.
std::vector<float> rope_frequencies(const RopeScaling& scaling, double theta, int rotary_dim);

}  // namespace thalweg::checkpoint
