#pragma once

// The loops over tiles, for any matrix unit. Its registers: up to four tiles of sums, then tiles of activations, then
// of weights, eight in all. `Unit` has, for registers by number,
//   load_sums<r>(const float*, row), store_sums<r>(float*, row), clear<r>(), load<r>(const std::uint16_t*, row), where
//   rows are `row` values apart, those of a tile by default, multiply<sums, weights, activations>(), and
//   prefetch_half(const float*), which may fetch half a tile of sums.

#include <type_traits>
#include <utility>

#include "cpu/bf16_ops.h"

namespace thalweg::cpu {

template <int kCount, class Body>
inline void for_each_register(Body body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) { (body(std::integral_constant<int, kIndex>()), ...); }
  (std::make_integer_sequence<int, kCount>());
}

// kWeights x kActivations tiles of sums stay in registers along K.
template <class Unit, int kWeights, int kActivations>
void multiply_registers(Unit& unit, const TileBlock& block, std::int64_t weight_tile, std::int64_t activation_tile) {
  constexpr int kFirst = kWeights * kActivations;   // register of the activations
  constexpr int kRing = 8 - kFirst - kActivations;  // registers of the weights
  static_assert(kRing >= 1);
  const std::uint16_t* weights = block.weights + weight_tile * block.weight_stride;
  const std::uint16_t* activations = block.activations + activation_tile * block.activation_stride;
  const auto sums = [&](int n, int m) {
    return block.sums + ((activation_tile + m) * kBlockTiles + weight_tile + n) * kTileSums;
  };
  for_each_register<kFirst>([&](auto r) {
    constexpr int kN = r / kActivations;
    constexpr int kM = r % kActivations;
    if (block.accumulate) {
      unit.template load_sums<r>(sums(kN, kM));
    } else {
      unit.template clear<r>();
    }
  });
  for (std::int64_t step = 0; step < block.steps; ++step) {
    // An operand is loaded right before its first product.
    for_each_register<kWeights>([&](auto n) {
      constexpr int kRegister = kFirst + kActivations + n % kRing;
      unit.template load<kRegister>(weights + n * block.weight_stride + step * kTileValues);
      for_each_register<kActivations>([&](auto m) {
        if constexpr (n == 0) {
          unit.template load<kFirst + m>(activations + m * block.activation_stride + step * kTileValues);
        }
        unit.template multiply<n * kActivations + m, kRegister, kFirst + m>();
      });
    });
    // Half a tile of the sums that come next.
    if (step < 2 * kFirst) {
      const auto r = static_cast<int>(step / 2);
      unit.prefetch_half(sums(r / kActivations, r % kActivations + kActivations) + step % 2 * (kTileSums / 2));
    }
  }
  for_each_register<kFirst>([&](auto r) { unit.template store_sums<r>(sums(r / kActivations, r % kActivations)); });
}

// Pairs of activation tiles with pairs of weight tiles; the last activation tile, if alone, with all weight tiles.
template <class Unit>
void multiply_tiles(Unit& unit, const TileBlock& block) {
  const std::int64_t pairs = block.activation_tiles / 2;
  std::int64_t n = 0;
  for (; n + 2 <= block.weight_tiles; n += 2) {
    for (std::int64_t m = 0; m < pairs; ++m) multiply_registers<Unit, 2, 2>(unit, block, n, 2 * m);
  }
  if (n < block.weight_tiles) {
    for (std::int64_t m = 0; m < pairs; ++m) multiply_registers<Unit, 1, 2>(unit, block, n, 2 * m);
  }
  if (block.activation_tiles % 2 == 0) return;
  const std::int64_t last = block.activation_tiles - 1;
  switch (block.weight_tiles) {
    case 1:
      return multiply_registers<Unit, 1, 1>(unit, block, 0, last);
    case 2:
      return multiply_registers<Unit, 2, 1>(unit, block, 0, last);
    case 3:
      return multiply_registers<Unit, 3, 1>(unit, block, 0, last);
    default:
      return multiply_registers<Unit, 4, 1>(unit, block, 0, last);
  }
}

// 2 x 2 tiles of sums, two of each operand.
template <class Unit>
void multiply_row_tiles(Unit& unit, const TileProduct& product) {
  for (std::int64_t i = 0; i < product.a_tiles; i += 2) {
    const std::uint16_t* a = product.a + i * kTileSide * product.a_row;
    for (std::int64_t j = 0; j < product.b_tiles; j += 2) {
      const std::uint16_t* b = product.b + j * product.b_stride;
      float* c = product.c + i * kTileSide * product.c_row + j * kTileSide;
      const auto sums = [&](int r) { return c + r / 2 * kTileSide * product.c_row + r % 2 * kTileSide; };
      for_each_register<4>([&](auto r) {
        if (product.accumulate) {
          unit.template load_sums<r>(sums(r), product.c_row);
        } else {
          unit.template clear<r>();
        }
      });
      for (std::int64_t step = 0; step < product.steps; ++step) {
        unit.template load<6>(a + step * kTileDepth, product.a_row);
        unit.template load<4>(b + step * kTileValues);
        unit.template multiply<0, 6, 4>();
        unit.template load<5>(b + product.b_stride + step * kTileValues);
        unit.template multiply<1, 6, 5>();
        unit.template load<7>(a + kTileSide * product.a_row + step * kTileDepth, product.a_row);
        unit.template multiply<2, 7, 4>();
        unit.template multiply<3, 7, 5>();
      }
      for_each_register<4>([&](auto r) { unit.template store_sums<r>(sums(r), product.c_row); });
    }
  }
}

}  // namespace thalweg::cpu
