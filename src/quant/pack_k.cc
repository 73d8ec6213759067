// The K formats: super-blocks of 256 weights in groups of 16 or 32. Each group is fitted by itself; then the groups'
// scales are rounded to integers in units of the block's, each to the neighbour that serves its weights best; then the
// block's scales are fitted to all codes at once, and the groups follow, as long as that lowers the error.

#include "quant/fit.h"
#include "quant/pack.h"

namespace thalweg {
namespace {

constexpr int kRounds = 3;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

// ---------------------------------------------------------------------------------------------------------------------
// Groups with minimums: weight = scale group_scale code - minimum group_minimum.

struct MinimumFormat {
  int group_size;
  float high;   // largest code
  int largest;  // group scale and minimum
};

template <MinimumFormat kFormat>
class MinimumBlock {
 public:
  explicit MinimumBlock(const float* values) : x_(values) {
    float largest_scale = 0;
    float largest_minimum = 0;
    for (int g = 0; g < kGroups; ++g) {
      fit::Affine& exact = exact_[at(g)];
      exact = fit::scale_and_offset<kFormat.group_size>(y(g), kFormat.high, fit::Offset::kNotPositive);
      largest_scale = std::max(largest_scale, exact.scale);
      largest_minimum = std::max(largest_minimum, -exact.offset);
    }
    best_ = assign({fit::scale_word(largest_scale * x_.unit / kFormat.largest),
                    fit::scale_word(largest_minimum * x_.unit / kFormat.largest)});
    for (int round = 0; round < kRounds && best_.error > 0; ++round) {
      const Solution next = assign(refit(best_));
      if (!(next.error < best_.error)) break;
      best_ = next;
    }
  }

  Word16 scale() const { return best_.units.scale; }
  Word16 minimum() const { return best_.units.minimum; }
  GroupScale group(int g) const { return best_.groups[at(g)]; }

  // The code of weight w.
  int code(int w) const {
    const int g = w / kFormat.group_size;
    const fit::Affine fit = effective(best_.units, best_.groups[at(g)]);
    return static_cast<int>(nearest_code(fit, x_.y[at(w)]));
  }

 private:
  static constexpr int kGroups = 256 / kFormat.group_size;
  static constexpr fit::Range kCodes{0, kFormat.high};

  struct Units {
    Word16 scale;
    Word16 minimum;
  };
  struct Solution {
    Units units{};
    std::array<GroupScale, kGroups> groups{};
    double error = 0;
  };

  const float* y(int g) const { return x_.y.data() + kFormat.group_size * g; }

  fit::Affine effective(Units units, GroupScale group) const {
    return {static_cast<float>(units.scale.f32() / x_.unit * group.scale),
            static_cast<float>(-(units.minimum.f32() / x_.unit) * group.minimum)};
  }
  static float nearest_code(fit::Affine fit, float y) {
    const float inverse = fit.scale == 0 ? 0 : 1 / fit.scale;
    return fit::nearest((y - fit.offset) * inverse, kCodes.low, kCodes.high);
  }

  // Every group's integers, given the block's scales.
  Solution assign(Units units) const {
    Solution result{units, {}, 0};
    const double scale = units.scale.f32() / x_.unit;
    const double minimum = units.minimum.f32() / x_.unit;
    for (int g = 0; g < kGroups; ++g) {
      const auto ratio = [](double value, double unit) {
        const double steps = unit > 0 ? std::clamp(value / unit, 0.0, static_cast<double>(kFormat.largest)) : 0;
        return static_cast<int>(std::lround(steps));
      };
      const GroupScale start{ratio(exact_[at(g)].scale, scale), ratio(-exact_[at(g)].offset, minimum)};
      GroupScale best = start;
      float best_error = fit::error<kFormat.group_size>(y(g), effective(units, start), kCodes);
      for (int trial = 0; trial < 9 && best_error > 0; ++trial) {
        const GroupScale group{start.scale + trial / 3 - 1, start.minimum + trial % 3 - 1};
        if (trial == 4 || std::min(group.scale, group.minimum) < 0 ||
            std::max(group.scale, group.minimum) > kFormat.largest) {
          continue;
        }
        const float error = fit::error<kFormat.group_size>(y(g), effective(units, group), kCodes);
        if (error < best_error) {
          best_error = error;
          best = group;
        }
      }
      result.groups[at(g)] = best;
      result.error += best_error;
    }
    return result;
  }

  // The block's scales, given every code and every group's integers: y = scale a - minimum b.
  Units refit(const Solution& solution) const {
    double aa = 0;
    double ab = 0;
    double bb = 0;
    double ya = 0;
    double yb = 0;
    for (int g = 0; g < kGroups; ++g) {
      const GroupScale group = solution.groups[at(g)];
      const fit::Affine fit = effective(solution.units, group);
      for (int i = 0; i < kFormat.group_size; ++i) {
        const double a = static_cast<double>(nearest_code(fit, y(g)[i])) * group.scale;
        aa += a * a;
        ab += a * group.minimum;
        ya += a * static_cast<double>(y(g)[i]);
        yb += static_cast<double>(y(g)[i]) * group.minimum;
      }
      bb += static_cast<double>(kFormat.group_size) * group.minimum * group.minimum;
    }
    const double determinant = aa * bb - ab * ab;
    if (determinant > 0) {
      const double scale = (ya * bb - yb * ab) / determinant;
      const double minimum = (ya * ab - yb * aa) / determinant;
      if (scale > 0 && minimum >= 0) {
        return {fit::scale_word(scale * x_.unit), fit::scale_word(minimum * x_.unit)};
      }
    }
    if (bb == 0 && ya > 0) return {fit::scale_word(ya / aa * x_.unit), solution.units.minimum};
    return solution.units;
  }

  fit::Normalised<256> x_;
  std::array<fit::Affine, kGroups> exact_{};
  Solution best_;
};

void pack_block(const float* values, BlockQ2_K& block) {
  const MinimumBlock<MinimumFormat{16, 3, 15}> packed(values);
  block = {};
  block.scale = packed.scale();
  block.minimum = packed.minimum();
  for (int g = 0; g < 16; ++g) {
    const GroupScale group = packed.group(g);
    block.groups[at(g)] = static_cast<std::uint8_t>(group.scale | group.minimum << 4);
  }
  for (int w = 0; w < 256; ++w) {
    const std::size_t byte = at(32 * (w / 128) + w % 32);
    block.codes[byte] |= static_cast<std::uint8_t>(packed.code(w) << (2 * (w / 32 % 4)));
  }
}

// Q4_K, and Q5_K but for the fifth bits.
template <class Packed, class Block>
void store_q45(const Packed& packed, Block& block) {
  block = {};
  block.scale = packed.scale();
  block.minimum = packed.minimum();
  for (int g = 0; g < 8; ++g) set_q45_group(block.groups, g, packed.group(g));
  for (int w = 0; w < 256; ++w) {
    const std::size_t byte = at(32 * (w / 64) + w % 32);
    block.codes[byte] |= static_cast<std::uint8_t>((packed.code(w) & 15) << (4 * (w / 32 % 2)));
  }
}

void pack_block(const float* values, BlockQ4_K& block) {
  store_q45(MinimumBlock<MinimumFormat{32, 15, 63}>(values), block);
}

void pack_block(const float* values, BlockQ5_K& block) {
  const MinimumBlock<MinimumFormat{32, 31, 63}> packed(values);
  store_q45(packed, block);
  for (int w = 0; w < 256; ++w) {
    block.high[at(w % 32)] |= static_cast<std::uint8_t>(packed.code(w) >> 4 << (w / 32));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Groups of 16 with signed scales: weight = scale group_scale code, codes around zero.

struct SignedFormat {
  float low;   // lowest code; the highest is -low - 1
  int lowest;  // group scale; the largest is -lowest - 1
};

template <SignedFormat kFormat>
class SignedBlock {
 public:
  explicit SignedBlock(const float* values) : x_(values) {
    for (int g = 0; g < kGroups; ++g) exact_[at(g)] = fit::scale<kSize>(y(g), kFormat.low);
    best_ = assign(fit::scale_word(fit::peak<kGroups>(exact_.data()) * x_.unit / kFormat.lowest));
    for (int round = 0; round < kRounds && best_.error > 0; ++round) {
      const Solution next = assign(refit(best_));
      if (!(next.error < best_.error)) break;
      best_ = next;
    }
  }

  Word16 scale() const { return best_.unit; }
  int group(int g) const { return best_.groups[at(g)]; }
  int code(int w) const {
    return static_cast<int>(nearest_code(effective(best_.unit, best_.groups[at(w / kSize)]), x_.y[at(w)]));
  }

 private:
  static constexpr int kSize = 16;
  static constexpr int kGroups = 256 / kSize;
  static constexpr fit::Range kCodes{kFormat.low, -kFormat.low - 1};

  struct Solution {
    Word16 unit{};
    std::array<int, kGroups> groups{};
    double error = 0;
  };

  const float* y(int g) const { return x_.y.data() + kSize * g; }

  float effective(Word16 unit, int group) const { return static_cast<float>(unit.f32() / x_.unit * group); }
  static float nearest_code(float scale, float y) {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    return fit::nearest(y * inverse, kCodes.low, kCodes.high);
  }

  Solution assign(Word16 unit) const {
    Solution result{unit, {}, 0};
    const double scale = unit.f32() / x_.unit;
    for (int g = 0; g < kGroups; ++g) {
      const double steps = scale == 0 ? 0 : static_cast<double>(exact_[at(g)]) / scale;
      const auto start = static_cast<int>(std::lround(
          std::clamp(steps, static_cast<double>(kFormat.lowest), static_cast<double>(-kFormat.lowest - 1))));
      int best = start;
      float best_error = fit::error<kSize>(y(g), {effective(unit, start), 0}, kCodes);
      for (const int group : {start - 1, start + 1, -start}) {
        if (group < kFormat.lowest || group >= -kFormat.lowest || !(best_error > 0)) continue;
        const float error = fit::error<kSize>(y(g), {effective(unit, group), 0}, kCodes);
        if (error < best_error) {
          best_error = error;
          best = group;
        }
      }
      result.groups[at(g)] = best;
      result.error += best_error;
    }
    return result;
  }

  Word16 refit(const Solution& solution) const {
    double aa = 0;
    double ya = 0;
    for (int w = 0; w < 256; ++w) {
      const int group = solution.groups[at(w / kSize)];
      const double a = static_cast<double>(nearest_code(effective(solution.unit, group), x_.y[at(w)])) * group;
      aa += a * a;
      ya += a * static_cast<double>(x_.y[at(w)]);
    }
    return aa > 0 ? fit::scale_word(ya / aa * x_.unit) : solution.unit;
  }

  fit::Normalised<256> x_;
  std::array<float, kGroups> exact_{};
  Solution best_;
};

void pack_block(const float* values, BlockQ3_K& block) {
  const SignedBlock<SignedFormat{-4, -32}> packed(values);
  block = {};
  block.scale = packed.scale();
  for (int g = 0; g < 16; ++g) set_q3_group_scale(block.groups, g, packed.group(g) + 32);
  for (int w = 0; w < 256; ++w) {
    const int code = packed.code(w) + 4;
    const std::size_t byte = at(32 * (w / 128) + w % 32);
    block.codes[byte] |= static_cast<std::uint8_t>((code & 3) << (2 * (w / 32 % 4)));
    block.high[at(w % 32)] |= static_cast<std::uint8_t>(code >> 2 << (w / 32));
  }
}

void pack_block(const float* values, BlockQ6_K& block) {
  const SignedBlock<SignedFormat{-32, -128}> packed(values);
  block = {};
  block.scale = packed.scale();
  for (int g = 0; g < 16; ++g) block.groups[at(g)] = static_cast<std::int8_t>(packed.group(g));
  for (int w = 0; w < 256; ++w) {
    const int code = packed.code(w) + 32;
    const std::size_t low_byte = at(64 * (w / 128) + w % 64);
    const std::size_t high_byte = at(32 * (w / 128) + w % 32);
    block.codes[low_byte] |= static_cast<std::uint8_t>((code & 15) << (4 * (w / 64 % 2)));
    block.high[high_byte] |= static_cast<std::uint8_t>(code >> 4 << (2 * (w / 32 % 4)));
  }
}

}  // namespace

template <class Block>
void pack_blocks(const float* values, std::int64_t blocks, Block* to) {
  for (std::int64_t b = 0; b < blocks; ++b) pack_block(values + 256 * b, to[b]);
}

template void pack_blocks(const float*, std::int64_t, BlockQ2_K*);
template void pack_blocks(const float*, std::int64_t, BlockQ3_K*);
template void pack_blocks(const float*, std::int64_t, BlockQ4_K*);
template void pack_blocks(const float*, std::int64_t, BlockQ5_K*);
template void pack_blocks(const float*, std::int64_t, BlockQ6_K*);

}  // namespace thalweg
