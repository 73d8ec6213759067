// Tiles without a matrix unit: plain loops that give what the instructions give.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/float16.h"
#include "cpu/tile_loops-inl.h"
#include "cpu/tile_ops.h"
#include "quant/unpack.h"

namespace thalweg::cpu {
namespace {

// Subnormals count as zero.
float without_subnormals(float value) {
  return std::abs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0F, value) : value;
}

std::uint16_t to_bf16(float value) { return f32_to_bf16(without_subnormals(value)); }
// What is not finite as bf16 is NaN.
std::uint16_t to_finite_bf16(float value) {
  const std::uint16_t rounded = to_bf16(value);
  return (rounded & 0x7F80U) == 0x7F80U ? std::uint16_t{0x7FC0} : rounded;
}

void pack(DType dtype, const void* const* rows, std::int64_t k, std::uint16_t* tiles) {
  const std::int64_t steps = (k + kTileDepth - 1) / kTileDepth;
  std::fill_n(tiles, steps * kTileValues, std::uint16_t{0});
  for (std::int64_t i = 0; i < kTileSide; ++i) {
    if (rows[i] == nullptr) continue;
    for (std::int64_t at = 0; at < k; ++at) {
      float value = 0.0F;
      unpack(dtype, static_cast<const char*>(rows[i]) + bytes_of(dtype, at), 1, &value);
      tiles[at / 2 * (2 * kTileSide) + 2 * i + at % 2] = to_finite_bf16(value);
    }
  }
}

void decode(const WeightRows& weights, std::int64_t k0, std::int64_t count, const void*, std::uint16_t* tiles) {
  constexpr std::int64_t kChunk = 256;
  const std::int64_t steps = (count + kTileDepth - 1) / kTileDepth;
  std::fill_n(tiles, steps * kTileValues, std::uint16_t{0});
  for (std::int64_t r = 0; r < weights.rows; ++r) {
    const char* row = static_cast<const char*>(weights.data) + r * weights.row_bytes;
    for (std::int64_t first = 0; first < count; first += kChunk) {
      std::array<float, kChunk> values;
      const std::int64_t n = std::min(kChunk, count - first);
      unpack(weights.dtype, row + bytes_of(weights.dtype, k0 + first), n, values.data());
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t at = first + i;
        const float value = values[static_cast<std::size_t>(i)];
        tiles[at / kTileDepth * kTileValues + r * kTileDepth + at % kTileDepth] =
            is_block_format(weights.dtype) ? to_bf16(value) : to_finite_bf16(value);
      }
    }
  }
}

struct EmulatedUnit {
  std::array<std::array<float, kTileSums>, 4> sums;
  std::array<std::array<std::uint16_t, kTileValues>, 8> operands;

  template <int kRegister>
  void load_sums(const float* from, std::int64_t row = kTileSide) {
    for (std::int64_t i = 0; i < kTileSide; ++i) {
      std::copy_n(from + i * row, kTileSide, sums[kRegister].data() + i * kTileSide);
    }
  }
  template <int kRegister>
  void store_sums(float* to, std::int64_t row = kTileSide) {
    for (std::int64_t i = 0; i < kTileSide; ++i) {
      std::copy_n(sums[kRegister].data() + i * kTileSide, kTileSide, to + i * row);
    }
  }
  template <int kRegister>
  void clear() {
    sums[kRegister].fill(0.0F);
  }
  template <int kRegister>
  void load(const std::uint16_t* from, std::int64_t row = kTileDepth) {
    for (std::int64_t i = 0; i < kTileSide; ++i) {
      std::copy_n(from + i * row, kTileDepth, operands[kRegister].data() + i * kTileDepth);
    }
  }
  void prefetch_half(const float*) {}
  // Even and odd products of a row are summed apart, as the instruction does.
  template <int kSums, int kWeights, int kActivations>
  void multiply() {
    const auto& weights = operands[kWeights];
    const auto& activations = operands[kActivations];
    for (std::size_t n = 0; n < kTileSide; ++n) {
      for (std::size_t m = 0; m < kTileSide; ++m) {
        float even = 0.0F;
        float odd = 0.0F;
        for (std::size_t pair = 0; pair < kTileDepth / 2; ++pair) {
          const std::uint16_t* w = weights.data() + n * kTileDepth + 2 * pair;
          const std::uint16_t* x = activations.data() + pair * 2 * kTileSide + 2 * m;
          // The products are exact.
          even = without_subnormals(bf16_to_f32(w[0]) * bf16_to_f32(x[0]) + even);
          odd = without_subnormals(bf16_to_f32(w[1]) * bf16_to_f32(x[1]) + odd);
        }
        float& sum = sums[kSums][n * kTileSide + m];
        sum = without_subnormals(sum + without_subnormals(even + odd));
      }
    }
  }
};

void multiply(const TileBlock& block) {
  EmulatedUnit unit;
  multiply_tiles(unit, block);
}

void multiply_rows(const TileProduct& product) {
  EmulatedUnit unit;
  multiply_row_tiles(unit, product);
}

void round(const float* from, std::int64_t n, std::uint16_t* to) { std::transform(from, from + n, to, to_bf16); }

void pair_rows(const float* even, const float* odd, std::int64_t n, std::uint16_t* tiles, std::int64_t tile_stride) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint16_t* to = tiles + i / kTileSide * tile_stride + 2 * (i % kTileSide);
    to[0] = to_bf16(even[i]);
    to[1] = to_bf16(odd[i]);
  }
}

void transpose(const void* from, std::int64_t tiles, void* to) {
  constexpr std::int64_t kWord = 4;
  for (std::int64_t n = 0; n < tiles * kTileSide; ++n) {
    for (std::int64_t m = 0; m < kTileSide; ++m) {
      std::memcpy(static_cast<char*>(to) + (m * kBlockTiles * kTileSide + n) * kWord,
                  static_cast<const char*>(from) + (n * kTileSide + m) * kWord, kWord);
    }
  }
}

std::atomic<bool>& emulated() {
  static std::atomic<bool> instance = false;
  return instance;
}

}  // namespace

const TileOps& emulated_tile_ops() {
  static constexpr TileOps kInstance{pack, decode, multiply, transpose};
  return kInstance;
}

const Bf16Ops& emulated_bf16_ops() {
  static constexpr Bf16Ops kInstance{pack, multiply_rows, round, pair_rows, transpose};
  return kInstance;
}

void emulate_tiles(bool on) { emulated() = on; }

const TileOps* tile_ops() { return emulated() ? &emulated_tile_ops() : amx_tile_ops(); }

const Bf16Ops* bf16_ops() {
  if (emulated()) return &emulated_bf16_ops();
  const Bf16Ops* const amx = amx_bf16_ops();
  return amx != nullptr ? amx : avx512_bf16_ops();
}

}  // namespace thalweg::cpu
