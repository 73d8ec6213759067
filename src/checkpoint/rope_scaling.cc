#include "checkpoint/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace thalweg::checkpoint {
namespace {

struct Bounds {
  double low;
  double high;
};

// The pairs, as real numbers, at which YaRN's interpolation begins and where it is complete.
Bounds yarn_bounds(const RopeScaling& scaling, double theta, int rotary_dim) {
  const auto pair_of = [&](double turns) {
    const double wavelength = static_cast<double>(scaling.original_context) / (turns * 2.0 * std::numbers::pi);
    return rotary_dim * std::log(wavelength) / (2.0 * std::log(theta));
  };
  Bounds bounds{pair_of(scaling.beta_fast.value_or(32.0)), pair_of(scaling.beta_slow.value_or(1.0))};
  if (scaling.truncate) bounds = {std::floor(bounds.low), std::ceil(bounds.high)};
  bounds = {std::max(bounds.low, 0.0), std::min(bounds.high, rotary_dim - 1.0)};
  if (bounds.low == bounds.high) bounds.high += 0.001;
  return bounds;
}

}  // namespace

std::string_view rope_scaling_name(RopeScaling::Type type) {
  switch (type) {
    case RopeScaling::Type::kLinear:
      return "linear";
    case RopeScaling::Type::kYarn:
      return "yarn";
    case RopeScaling::Type::kNone:
      break;
  }
  return {};
}

double yarn_magnitude(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

double rope_scale(const RopeScaling& scaling) {
  if (scaling.type != RopeScaling::Type::kYarn) return 1.0;
  return scaling.attention_factor.value_or(yarn_magnitude(scaling.factor, 1.0));
}

std::vector<float> rope_frequencies(const RopeScaling& scaling, double theta, int rotary_dim) {
  std::vector<float> frequencies;
  if (scaling.type == RopeScaling::Type::kNone) return frequencies;
  const bool yarn = scaling.type == RopeScaling::Type::kYarn;
  const Bounds bounds = yarn ? yarn_bounds(scaling, theta, rotary_dim) : Bounds{0.0, 1.0};
  for (int i = 0; i < rotary_dim / 2; ++i) {
    const double plain = std::pow(theta, -2.0 * i / rotary_dim);
    const double stretched = yarn ? std::clamp((i - bounds.low) / (bounds.high - bounds.low), 0.0, 1.0) : 1.0;
    frequencies.push_back(static_cast<float>(plain / scaling.factor * stretched + plain * (1.0 - stretched)));
  }
  return frequencies;
}

}  // namespace thalweg::checkpoint
