// Formats with one scale, and perhaps a minimum, for each block of 32 weights.

#include "quant/fit.h"
#include "quant/pack.h"

namespace thalweg {
namespace {

using Codes = std::array<std::uint8_t, 32>;

Codes nearest_codes(const float* y, fit::Affine fit, fit::Range codes) {
  Codes result;
  fit::nearest_codes<32>(y, fit, codes, result.data());
  return result;
}

// A scale and offset as stored.
struct Stored {
  Word16 scale;
  Word16 offset;
  fit::Affine fit;  // of the normalized values

  Stored(fit::Affine exact, double power)
      : scale(fit::scale_word(exact.scale * power)), offset(fit::minimum_word(exact.offset * power)) {
    fit = {static_cast<float>(scale.f32() / power), static_cast<float>(offset.f32() / power)};
  }
};

// The better of two fits, once stored.
Stored better(const fit::Normalized<32>& x, fit::Affine first, fit::Affine second, fit::Range codes) {
  const Stored a(first, x.power);
  const Stored b(second, x.power);
  return fit::error<32>(x.y.data(), b.fit, codes) < fit::error<32>(x.y.data(), a.fit, codes) ? b : a;
}

// Codes low..-low-1 around zero. The simple choice, the peak at the lowest code, is exact for values that came from
// such a block.
Stored fit_symmetric(const fit::Normalized<32>& x, float low) {
  const float* y = x.y.data();
  return better(x, {fit::peak<32>(y) / low, 0}, {fit::scale<32>(y, low), 0}, {low, -low - 1});
}

// Codes 0..high above a minimum, against the simple choice that spans the values.
Stored fit_affine(const fit::Normalized<32>& x, float high) {
  const auto [lowest, highest] = std::minmax_element(x.y.begin(), x.y.end());
  return better(x, {(*highest - *lowest) / high, *lowest},
                fit::scale_and_offset<32>(x.y.data(), high, fit::Offset::kAny), {0, high});
}

void store_nibbles(const Codes& codes, std::array<std::uint8_t, 16>& to) {
  for (std::size_t i = 0; i < 16; ++i) to[i] = static_cast<std::uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

void store_high(const Codes& codes, std::array<std::uint8_t, 4>& to) {
  to = {};
  for (std::size_t i = 0; i < 32; ++i) to[i / 8] |= static_cast<std::uint8_t>(codes[i] >> 4 << (i % 8));
}

void pack_block(const float* values, BlockQ4_0& block) {
  const fit::Normalized<32> x(values);
  const Stored stored = fit_symmetric(x, -8);
  block.scale = stored.scale;
  store_nibbles(nearest_codes(x.y.data(), stored.fit, {-8, 7}), block.codes);
}

void pack_block(const float* values, BlockQ5_0& block) {
  const fit::Normalized<32> x(values);
  const Stored stored = fit_symmetric(x, -16);
  const Codes codes = nearest_codes(x.y.data(), stored.fit, {-16, 15});
  block.scale = stored.scale;
  store_nibbles(codes, block.codes);
  store_high(codes, block.high);
}

void pack_block(const float* values, BlockQ4_1& block) {
  const fit::Normalized<32> x(values);
  const Stored stored = fit_affine(x, 15);
  block.scale = stored.scale;
  block.minimum = stored.offset;
  store_nibbles(nearest_codes(x.y.data(), stored.fit, {0, 15}), block.codes);
}

void pack_block(const float* values, BlockQ5_1& block) {
  const fit::Normalized<32> x(values);
  const Stored stored = fit_affine(x, 31);
  const Codes codes = nearest_codes(x.y.data(), stored.fit, {0, 31});
  block.scale = stored.scale;
  block.minimum = stored.offset;
  store_nibbles(codes, block.codes);
  store_high(codes, block.high);
}

// Eight bits are fine enough without a search.
void pack_block(const float* values, BlockQ8_0& block) {
  const fit::Normalized<32> x(values);
  const Stored stored({std::fabs(fit::peak<32>(x.y.data())) / 127, 0}, x.power);
  block.scale = stored.scale;
  const float inverse = stored.fit.scale == 0 ? 0 : 1 / stored.fit.scale;
  for (std::size_t i = 0; i < 32; ++i) {
    block.codes[i] = static_cast<std::int8_t>(fit::nearest(x.y[i] * inverse, -127, 127));
  }
}

}  // namespace

template <class Block>
void pack_blocks(const float* values, std::int64_t blocks, Block* to) {
  for (std::int64_t b = 0; b < blocks; ++b) pack_block(values + 32 * b, to[b]);
}

template void pack_blocks(const float*, std::int64_t, BlockQ4_0*);
template void pack_blocks(const float*, std::int64_t, BlockQ4_1*);
template void pack_blocks(const float*, std::int64_t, BlockQ5_0*);
template void pack_blocks(const float*, std::int64_t, BlockQ5_1*);
template void pack_blocks(const float*, std::int64_t, BlockQ8_0*);

}  // namespace thalweg
