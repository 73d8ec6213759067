// The K formats: super-blocks of 256 weights in groups of 16 or 32. Each group is fitted by itself. Then the groups'
// scales are rounded to integers, multiples of the block's scale, each to the neighbor with the least error. Then the
// block's scales are fitted to all codes at once and the groups are rounded again, as long as that lowers the error.

#include "quant/fit.h"
#include "quant/pack.h"

namespace thalweg {
namespace {

constexpr int kRounds = 3;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

using Codes = std::array<std::uint8_t, 256>;  // minus the lowest code

// to[b] = bits from..from + count - 1 of the codes first + b, first + step + b, ..., concatenated.
template <int kFrom, int kCount, std::size_t N>
void gather_bits(const Codes& codes, int first, int step, int count_of_codes, std::array<std::uint8_t, N>& to,
                 int at_byte, int bytes) {
  std::array<std::uint8_t, 64> gathered{};
  for (int i = 0; i < count_of_codes; ++i) {
    const std::uint8_t* from = codes.data() + first + i * step;
    for (std::size_t b = 0; b < at(bytes); ++b) {
      const unsigned bits = static_cast<unsigned>(from[b]) >> kFrom & ((1U << kCount) - 1U);
      gathered[b] = static_cast<std::uint8_t>(gathered[b] | bits << (kCount * i));
    }
  }
  std::copy_n(gathered.begin(), bytes, to.begin() + at_byte);
}

// ---------------------------------------------------------------------------------------------------------------------
// Groups with minimums: weight = scale group_scale code - minimum group_minimum.

struct MinimumFormat {
  int group_size;
  float high;   // largest code
  int largest;  // group scale and minimum
};

// Steps to the neighbors of a pair of integers, the pair itself first.
struct Neighbors {
  fit::Trials scale{};
  fit::Trials minimum{};

  constexpr Neighbors() {
    for (int i = 0; i < fit::kTrials; ++i) {
      scale[at(i)] = static_cast<float>((i + 2) / 5 % 3 == 0 ? 0 : (i + 2) / 5 % 3 == 1 ? 1 : -1);
      minimum[at(i)] = static_cast<float>((i + 2) % 5 - 2);
    }
  }
};
constexpr Neighbors kNear;

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
    best_ = assign({fit::scale_word(largest_scale * x_.power / kFormat.largest),
                    fit::scale_word(largest_minimum * x_.power / kFormat.largest)});
    for (int round = 0; round < kRounds && best_.error > 0; ++round) {
      const Solution next = assign(refit(best_));
      if (!(next.error < best_.error)) break;
      best_ = next;
    }
    for (int g = 0; g < kGroups; ++g) {
      const fit::Affine fit = effective(best_.super_scales, best_.groups[at(g)]);
      fit::nearest_codes<kFormat.group_size>(y(g), fit, kCodes, codes_.data() + kFormat.group_size * g);
    }
  }

  Word16 scale() const { return best_.super_scales.scale; }
  Word16 minimum() const { return best_.super_scales.minimum; }
  GroupScale group(int g) const { return best_.groups[at(g)]; }

  const Codes& codes() const { return codes_; }

 private:
  static constexpr int kGroups = 256 / kFormat.group_size;
  static constexpr fit::Range kCodes{0, kFormat.high};

  struct SuperScales {
    Word16 scale;
    Word16 minimum;
  };
  struct Solution {
    SuperScales super_scales{};
    std::array<GroupScale, kGroups> groups{};
    double error = 0;
  };

  const float* y(int g) const { return x_.y.data() + kFormat.group_size * g; }

  fit::Affine effective(SuperScales super_scales, GroupScale group) const {
    return {static_cast<float>(super_scales.scale.f32() / x_.power * group.scale),
            static_cast<float>(-(super_scales.minimum.f32() / x_.power) * group.minimum)};
  }

  // Every group's integers, given the block's scales.
  Solution assign(SuperScales super_scales) const {
    Solution result{super_scales, {}, 0};
    const double scale = super_scales.scale.f32() / x_.power;
    const double minimum = super_scales.minimum.f32() / x_.power;
    for (int g = 0; g < kGroups; ++g) {
      const auto ratio = [](double value, double divisor) {
        const double steps = divisor > 0 ? std::clamp(value / divisor, 0.0, static_cast<double>(kFormat.largest)) : 0;
        return static_cast<int>(std::lround(steps));
      };
      const GroupScale start{ratio(exact_[at(g)].scale, scale), ratio(-exact_[at(g)].offset, minimum)};
      // The rounded pair and those around it: three scales by five minimums.
      const auto largest = static_cast<float>(kFormat.largest);
      fit::Trials scales;
      fit::Trials minimums;
      fit::Trials steps;
      fit::Trials offsets;
      for (std::size_t i = 0; i < fit::kTrials; ++i) {
        scales[i] = std::clamp(static_cast<float>(start.scale) + kNear.scale[i], 0.0F, largest);
        minimums[i] = std::clamp(static_cast<float>(start.minimum) + kNear.minimum[i], 0.0F, largest);
        steps[i] = static_cast<float>(scale) * scales[i];
        offsets[i] = -static_cast<float>(minimum) * minimums[i];
      }
      float error = 0;
      const int best = fit::trial_ops().least_error(y(g), kFormat.group_size, steps, offsets, kCodes, error);
      result.groups[at(g)] = {static_cast<int>(scales[at(best)]), static_cast<int>(minimums[at(best)])};
      result.error += error;
    }
    return result;
  }

  // The block's scales, given every code and every group's integers: y = scale a - minimum b.
  SuperScales refit(const Solution& solution) const {
    double aa = 0;
    double ab = 0;
    double bb = 0;
    double ya = 0;
    double yb = 0;
    for (int g = 0; g < kGroups; ++g) {
      const GroupScale group = solution.groups[at(g)];
      const fit::Affine fit = effective(solution.super_scales, group);
      const fit::Moments m = fit::moments<kFormat.group_size>(y(g), fit::inverse_of(fit.scale), fit.offset, kCodes);
      const float y_sum = fit::sum<kFormat.group_size>([&](int i) { return y(g)[i]; });
      aa += static_cast<double>(m.code_code) * group.scale * group.scale;
      ab += static_cast<double>(m.code) * group.scale * group.minimum;
      ya += static_cast<double>(m.y_code) * group.scale;
      yb += static_cast<double>(y_sum) * group.minimum;
      bb += static_cast<double>(kFormat.group_size) * group.minimum * group.minimum;
    }
    const double determinant = aa * bb - ab * ab;
    if (determinant > 0) {
      const double scale = (ya * bb - yb * ab) / determinant;
      const double minimum = (ya * ab - yb * aa) / determinant;
      if (scale > 0 && minimum >= 0) {
        return {fit::scale_word(scale * x_.power), fit::scale_word(minimum * x_.power)};
      }
    }
    if (bb == 0 && ya > 0) return {fit::scale_word(ya / aa * x_.power), solution.super_scales.minimum};
    return solution.super_scales;
  }

  fit::Normalized<256> x_;
  std::array<fit::Affine, kGroups> exact_{};
  Solution best_;
  Codes codes_;
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
  for (int half = 0; half < 2; ++half) gather_bits<0, 2>(packed.codes(), 128 * half, 32, 4, block.codes, 32 * half, 32);
}

// Q4_K, and Q5_K without the fifth bits.
template <class Packed, class Block>
void store_q45(const Packed& packed, Block& block) {
  block = {};
  block.scale = packed.scale();
  block.minimum = packed.minimum();
  for (int g = 0; g < 8; ++g) set_q45_group(block.groups, g, packed.group(g));
  for (int pair = 0; pair < 4; ++pair) gather_bits<0, 4>(packed.codes(), 64 * pair, 32, 2, block.codes, 32 * pair, 32);
}

void pack_block(const float* values, BlockQ4_K& block) {
  store_q45(MinimumBlock<MinimumFormat{32, 15, 63}>(values), block);
}

void pack_block(const float* values, BlockQ5_K& block) {
  const MinimumBlock<MinimumFormat{32, 31, 63}> packed(values);
  store_q45(packed, block);
  gather_bits<4, 1>(packed.codes(), 0, 32, 8, block.high, 0, 32);
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
    best_ = assign(fit::scale_word(fit::peak<kGroups>(exact_.data()) * x_.power / kFormat.lowest));
    for (int round = 0; round < kRounds && best_.error > 0; ++round) {
      const Solution next = assign(refit(best_));
      if (!(next.error < best_.error)) break;
      best_ = next;
    }
    for (int g = 0; g < kGroups; ++g) {
      const fit::Affine fit{effective(best_.super_scale, best_.groups[at(g)]), 0};
      fit::nearest_codes<kSize>(y(g), fit, kCodes, codes_.data() + kSize * g);
    }
  }

  Word16 scale() const { return best_.super_scale; }
  int group(int g) const { return best_.groups[at(g)]; }
  const Codes& codes() const { return codes_; }

 private:
  static constexpr int kSize = 16;
  static constexpr int kGroups = 256 / kSize;
  static constexpr fit::Range kCodes{kFormat.low, -kFormat.low - 1};

  struct Solution {
    Word16 super_scale{};
    std::array<int, kGroups> groups{};
    double error = 0;
  };

  const float* y(int g) const { return x_.y.data() + kSize * g; }

  float effective(Word16 super_scale, int group) const {
    return static_cast<float>(super_scale.f32() / x_.power * group);
  }

  Solution assign(Word16 super_scale) const {
    Solution result{super_scale, {}, 0};
    const double scale = super_scale.f32() / x_.power;
    for (int g = 0; g < kGroups; ++g) {
      const double steps = scale == 0 ? 0 : static_cast<double>(exact_[at(g)]) / scale;
      const auto start = static_cast<int>(std::lround(
          std::clamp(steps, static_cast<double>(kFormat.lowest), static_cast<double>(-kFormat.lowest - 1))));
      // The rounded scale, those around it and their opposites, which matter because the range of codes is asymmetric.
      fit::Trials groups;
      fit::Trials scales;
      for (int i = 0; i < fit::kTrials; ++i) {
        const int near = (i < 8 ? start : -start) + (i % 2 == 0 ? i % 8 / 2 : -(i % 8 / 2) - 1);
        groups[at(i)] = std::clamp(static_cast<float>(near), static_cast<float>(kFormat.lowest),
                                   static_cast<float>(-kFormat.lowest - 1));
        scales[at(i)] = static_cast<float>(scale) * groups[at(i)];
      }
      float error = 0;
      const int best = fit::trial_ops().least_error(y(g), kSize, scales, fit::Trials{}, kCodes, error);
      result.groups[at(g)] = static_cast<int>(groups[at(best)]);
      result.error += error;
    }
    return result;
  }

  Word16 refit(const Solution& solution) const {
    double aa = 0;
    double ya = 0;
    for (int g = 0; g < kGroups; ++g) {
      const int group = solution.groups[at(g)];
      const float inverse = fit::inverse_of(effective(solution.super_scale, group));
      const fit::Moments m = fit::moments<kSize>(y(g), inverse, 0, kCodes);
      aa += static_cast<double>(m.code_code) * group * group;
      ya += static_cast<double>(m.y_code) * group;
    }
    return aa > 0 ? fit::scale_word(ya / aa * x_.power) : solution.super_scale;
  }

  fit::Normalized<256> x_;
  std::array<float, kGroups> exact_{};
  Solution best_;
  Codes codes_;
};

void pack_block(const float* values, BlockQ3_K& block) {
  const SignedBlock<SignedFormat{-4, -32}> packed(values);
  block = {};
  block.scale = packed.scale();
  for (int g = 0; g < 16; ++g) set_q3_group_scale(block.groups, g, packed.group(g) + 32);
  for (int half = 0; half < 2; ++half) gather_bits<0, 2>(packed.codes(), 128 * half, 32, 4, block.codes, 32 * half, 32);
  gather_bits<2, 1>(packed.codes(), 0, 32, 8, block.high, 0, 32);
}

void pack_block(const float* values, BlockQ6_K& block) {
  const SignedBlock<SignedFormat{-32, -128}> packed(values);
  block = {};
  block.scale = packed.scale();
  for (int g = 0; g < 16; ++g) block.groups[at(g)] = static_cast<std::int8_t>(packed.group(g));
  for (int half = 0; half < 2; ++half) {
    gather_bits<0, 4>(packed.codes(), 128 * half, 64, 2, block.codes, 64 * half, 64);
    gather_bits<4, 2>(packed.codes(), 128 * half, 32, 4, block.high, 32 * half, 32);
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
