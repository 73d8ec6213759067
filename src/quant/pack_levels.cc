// Formats whose 4-bit codes name a level of a table: IQ4_NL and MXFP4.

#include "quant/fit.h"
#include "quant/pack.h"

namespace thalweg {
namespace {

// Rounding to levels in ascending order: a value's level is the number of midpoints below it.
struct Levels {
  std::array<float, 16> level{};
  std::array<float, 15> midpoint{};
  int count = 0;

  template <std::size_t N>
  constexpr explicit Levels(const std::array<std::int8_t, N>& from, int n) : count(n) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) level[i] = static_cast<float>(from[i]);
    for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(n); ++i) midpoint[i] = (level[i] + level[i + 1]) / 2;
  }

  // Ties go to the lower level.
  int nearest(float x) const {
    int code = 0;
    for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(count); ++i) code += x > midpoint[i] ? 1 : 0;
    return code;
  }
};

constexpr Levels kIq4(kIq4Levels, 16);
constexpr Levels kMxfp4Magnitude(kMxfp4Levels, 8);  // the sign is a separate bit

struct LevelFit {
  float scale = 0;
  float gain = -1;  // how much of sum y^2 the scale explains
};

void consider(const float* y, float inverse, LevelFit& best) {
  float level_level = 0;
  float y_level = 0;
  for (int i = 0; i < 32; ++i) {
    const float level = kIq4.level[static_cast<std::size_t>(kIq4.nearest(y[i] * inverse))];
    level_level += level * level;
    y_level += y[i] * level;
  }
  const float gain = y_level * y_level / level_level;  // no level is zero
  if (gain > best.gain) best = {y_level / level_level, gain};
}

float iq4_error(const fit::Normalized<32>& x, Word16 scale) {
  const auto stored = static_cast<float>(scale.f32() / x.power);
  const float inverse = stored == 0 ? 0 : 1 / stored;
  return fit::sum<32>([&](int i) {
    const float y = x.y[static_cast<std::size_t>(i)];
    const float difference = y - stored * kIq4.level[static_cast<std::size_t>(kIq4.nearest(y * inverse))];
    return difference * difference;
  });
}

void pack_block(const float* values, BlockIQ4_NL& block) {
  const fit::Normalized<32> x(values);
  const float* y = x.y.data();
  const float largest = fit::peak<32>(y);
  block.scale = Word16::of(0);
  if (largest != 0) {
    // The peak at either end of the table, or a little beyond: exact for values that came from such a block, then a
    // search around it.
    const Word16 low = fit::scale_word(largest / kIq4.level.front() * x.power);
    const Word16 high = fit::scale_word(largest / kIq4.level.back() * x.power);
    LevelFit best;
    for (int step = -8; step <= 8; ++step) {
      const float stretch = 1 + 0.025F * static_cast<float>(step);
      consider(y, kIq4.level.front() * stretch / largest, best);
      consider(y, kIq4.level.back() * stretch / largest, best);
    }
    for (int round = 0; round < 4; ++round) {
      const float before = best.gain;
      consider(y, 1 / best.scale, best);
      if (best.gain == before) break;
    }
    float error = std::numeric_limits<float>::infinity();
    for (const Word16 scale : {low, high, fit::scale_word(best.scale * x.power)}) {
      const float trial = iq4_error(x, scale);
      if (trial < error) {
        error = trial;
        block.scale = scale;
      }
    }
  }
  const auto stored = static_cast<float>(block.scale.f32() / x.power);
  const float inverse = stored == 0 ? 0 : 1 / stored;
  for (std::size_t i = 0; i < 16; ++i) {
    block.codes[i] = static_cast<std::uint8_t>(kIq4.nearest(y[i] * inverse) | kIq4.nearest(y[i + 16] * inverse) << 4);
  }
}

int mxfp4_code(float x) {
  const int magnitude = kMxfp4Magnitude.nearest(std::fabs(x));
  return magnitude == 0 ? 0 : magnitude | (x < 0 ? 8 : 0);
}

// The scale is a power of two: the largest that clips nothing, or half or a quarter of it if what that clips costs less
// than the finer steps gain.
void pack_block(const float* values, BlockMXFP4& block) {
  const fit::Normalized<32> x(values);
  const float* y = x.y.data();
  const int shift = std::ilogb(x.power);  // values = 2^shift y
  float best_error = std::numeric_limits<float>::infinity();
  float best_inverse = 0;
  block.exponent = 0;
  if (fit::peak<32>(y) != 0) {
    for (int step = 0; step < 3; ++step) {
      // y is in [1/2, 1]: with a scale of 2^-3, or 1/8, the largest level of 12 lies beyond it.
      const int exponent = std::clamp(128 + shift - 3 - step, 0, 252);  // 12 times 2^(252 - 128) is finite
      const float scale = std::ldexp(1.0F, exponent - 128 - shift);
      const float inverse = 1 / scale;
      const float error = fit::sum<32>([=](int i) {
        const float level =
            kMxfp4Magnitude.level[static_cast<std::size_t>(kMxfp4Magnitude.nearest(std::fabs(y[i]) * inverse))];
        const float difference = std::fabs(y[i]) - scale * level;
        return difference * difference;
      });
      if (error < best_error) {
        best_error = error;
        best_inverse = inverse;
        block.exponent = static_cast<std::uint8_t>(exponent);
      }
    }
  }
  for (std::size_t i = 0; i < 16; ++i) {
    block.codes[i] =
        static_cast<std::uint8_t>(mxfp4_code(y[i] * best_inverse) | mxfp4_code(y[i + 16] * best_inverse) << 4);
  }
}

}  // namespace

template <class Block>
void pack_blocks(const float* values, std::int64_t blocks, Block* to) {
  for (std::int64_t b = 0; b < blocks; ++b) pack_block(values + 32 * b, to[b]);
}

template void pack_blocks(const float*, std::int64_t, BlockIQ4_NL*);
template void pack_blocks(const float*, std::int64_t, BlockMXFP4*);

}  // namespace thalweg
