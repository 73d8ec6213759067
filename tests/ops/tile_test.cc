// Matrix units of the CPU. The tile loops, the layout of operands and the kernels run on every machine, with emulated
// instructions; where the machine has the instructions, both must give the same bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cases/case.h"
#include "cases/experts.h"
#include "core/float16.h"
#include "cpu/bf16_ops.h"
#include "cpu/tile_ops.h"
#include "quant/unpack.h"
#include "thalweg/backend.h"
#include "thalweg/gated_delta_rule.h"
#include "thalweg/moe.h"

namespace thalweg {
namespace {

using cpu::emulated_tile_ops;
using cpu::kTileDepth;
using cpu::kTileSide;
using cpu::kTileSums;
using cpu::kTileValues;
using cpu::TileOps;

using Tiles = std::vector<std::uint16_t>;

struct Emulation {
  explicit Emulation(bool on = true) { cpu::emulate_tiles(on); }
  ~Emulation() { cpu::emulate_tiles(false); }
  Emulation(const Emulation&) = delete;
  Emulation& operator=(const Emulation&) = delete;
};

std::vector<DType> tile_types() {
  std::vector<DType> types;
  for (const DType type : cases::weight_types()) {
    if (cpu::has_tiles(type)) types.push_back(type);
  }
  return types;
}

cpu::WeightRows weight_rows(const Tensor& weight, std::int64_t rows) {
  cpu::WeightRows result;
  result.dtype = weight.dtype;
  result.data = weight.data;
  result.row_bytes = bytes_of(weight.dtype, weight.stride(0));
  result.rows = rows;
  result.k = weight.dim(1);
  return result;
}

Tiles decoded(const TileOps& ops, const cpu::WeightRows& rows, std::int64_t k0, std::int64_t count) {
  Tiles tiles(static_cast<std::size_t>((count + kTileDepth - 1) / kTileDepth * kTileValues), 0xFFFF);
  ops.decode(rows, k0, count, nullptr, tiles.data());
  return tiles;
}

std::int64_t test_width(DType type) { return is_block_format(type) ? 256 + dtype_info(type).block_size : 256 + 77; }

TEST(Tiles, WeightsAreThoseOfDequantizeRoundedOnce) {
  for (const DType type : tile_types()) {
    cases::Memory memory;
    cases::Random random(7);
    const std::int64_t k = test_width(type);
    const Tensor weight = cases::make_weights(memory, type, {13, k}, random);
    const std::int64_t count = k - 256;
    const Tiles tiles = decoded(emulated_tile_ops(), weight_rows(weight, 13), 256, count);
    for (std::int64_t r = 0; r < kTileSide; ++r) {
      std::vector<float> values(static_cast<std::size_t>(count));
      if (r < 13) {
        unpack(type, static_cast<const char*>(weight.row(r)) + bytes_of(type, 256), count, values.data());
      }
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(tiles.size()) / kTileSide; ++i) {
        const float value = i < count ? values[static_cast<std::size_t>(i)] : 0.0F;
        const std::int64_t at = i / kTileDepth * kTileValues + r * kTileDepth + i % kTileDepth;
        ASSERT_EQ(tiles[static_cast<std::size_t>(at)], f32_to_bf16(value)) << dtype_name(type) << " " << r << " " << i;
      }
    }
  }
}

TEST(Tiles, ActivationsThatAreNotFiniteAreNaN) {
  std::array<float, 3> row{std::numeric_limits<float>::infinity(), 3.4e38F, 1.5F};
  std::array<const void*, kTileSide> rows{};
  rows[5] = row.data();
  Tiles tiles(kTileValues);
  for (const TileOps* ops : {&emulated_tile_ops(), cpu::amx_tile_ops()}) {
    if (ops == nullptr) continue;
    ops->pack(DType::kF32, rows.data(), 3, tiles.data());
    EXPECT_EQ(tiles[10], 0x7FC0);
    EXPECT_EQ(tiles[11], 0x7FC0);
    EXPECT_EQ(tiles[2 * kTileSide + 10], f32_to_bf16(1.5F));
    EXPECT_EQ(tiles[2 * kTileSide + 11], 0);
    EXPECT_EQ(tiles[8], 0);
  }
}

TEST(Tiles, TheMatrixUnitsPrepareTheSameOperands) {
  const TileOps* amx = cpu::amx_tile_ops();
  if (amx == nullptr) GTEST_SKIP() << "no AMX";
  cases::Memory memory;
  cases::Random random(8);
  for (const DType type : tile_types()) {
    const std::int64_t k = test_width(type);
    const Tensor weight = cases::make_weights(memory, type, {16, k}, random);
    for (const std::int64_t rows : {1, 15, 16}) {
      const cpu::WeightRows part = weight_rows(weight, rows);
      EXPECT_EQ(decoded(*amx, part, 0, 256), decoded(emulated_tile_ops(), part, 0, 256)) << dtype_name(type);
      EXPECT_EQ(decoded(*amx, part, 256, k - 256), decoded(emulated_tile_ops(), part, 256, k - 256))
          << dtype_name(type);
    }
  }
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor x = memory.input(type, {16, 77}, [&] { return random.normal(); });
    std::array<const void*, kTileSide> rows{};
    for (const std::size_t i : {0, 3, 15}) rows[i] = x.row(static_cast<std::int64_t>(i));
    Tiles ours(3 * kTileValues);
    Tiles theirs = ours;
    amx->pack(type, rows.data(), 77, ours.data());
    emulated_tile_ops().pack(type, rows.data(), 77, theirs.data());
    EXPECT_EQ(ours, theirs) << dtype_name(type);
  }
}

// Random operands in every shape of registers; sums in three segments along K.
std::vector<float> block_products(const TileOps& ops, std::int64_t weight_tiles, std::int64_t activation_tiles) {
  constexpr std::int64_t kSteps = 3;
  cases::Random random(9);
  const auto tiles = [&](std::int64_t count) {
    Tiles result(static_cast<std::size_t>(count * kSteps * kTileValues));
    for (std::uint16_t& value : result) value = f32_to_bf16(static_cast<float>(random.normal()));
    return result;
  };
  const Tiles weights = tiles(weight_tiles);
  const Tiles activations = tiles(activation_tiles);
  std::vector<float> sums(static_cast<std::size_t>(activation_tiles * cpu::kBlockTiles * kTileSums), -1.0F);
  cpu::TileBlock block{};
  block.weights = weights.data();
  block.weight_tiles = weight_tiles;
  block.activations = activations.data();
  block.activation_tiles = activation_tiles;
  block.weight_stride = block.activation_stride = kSteps * kTileValues;
  block.steps = kSteps;
  block.sums = sums.data();
  for (int pass = 0; pass < 3; ++pass) {
    block.accumulate = pass > 0;
    ops.multiply(block);
  }
  return sums;
}

TEST(Tiles, TheMatrixUnitsGiveTheBitsOfTheEmulation) {
  const TileOps* amx = cpu::amx_tile_ops();
  if (amx == nullptr) GTEST_SKIP() << "no AMX";
  for (std::int64_t n = 1; n <= cpu::kBlockTiles; ++n) {
    for (const std::int64_t m : {1, 2, 3, 5}) {
      EXPECT_EQ(block_products(*amx, n, m), block_products(emulated_tile_ops(), n, m)) << n << " " << m;
    }
  }
  std::vector<float> sums(4 * kTileSums);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<float>(i);
  std::vector<float> ours(sums.size());
  std::vector<float> theirs(sums.size());
  amx->transpose(sums.data(), 4, ours.data());
  emulated_tile_ops().transpose(sums.data(), 4, theirs.data());
  EXPECT_EQ(ours, theirs);
}

// ---- Products of bf16 matrices

struct Bf16Problem {
  std::vector<std::uint16_t> a;
  std::vector<float> b;  // [K,N]
  std::vector<float> start;

  static constexpr std::int64_t kM = 32;
  static constexpr std::int64_t kN = 64;
  static constexpr std::int64_t kK = 96;
  static constexpr std::int64_t kRowA = kK + 5;
  static constexpr std::int64_t kRowC = kN + 3;

  Bf16Problem() : a(kM * kRowA), b(kK * kN), start(kM * kRowC) {
    cases::Random random(11);
    for (std::uint16_t& value : a) value = f32_to_bf16(static_cast<float>(random.normal()));
    for (float& value : b) value = bf16_to_f32(f32_to_bf16(static_cast<float>(random.normal())));
    for (float& value : start) value = static_cast<float>(random.normal());
  }

  std::vector<float> run(const cpu::Bf16Ops& ops, bool accumulate) const {
    constexpr std::int64_t kStride = kK * kTileSide;
    Tiles tiles(kN / kTileSide * kStride, 0xFFFF);
    for (std::int64_t k = 0; k < kK; k += 2) {
      ops.pair_rows(b.data() + k * kN, b.data() + (k + 1) * kN, kN, tiles.data() + k * kTileSide, kStride);
    }
    std::vector<float> c = start;
    cpu::TileProduct product{};
    product.a = a.data();
    product.a_tiles = kM / kTileSide;
    product.a_row = kRowA;
    product.b = tiles.data();
    product.b_tiles = kN / kTileSide;
    product.b_stride = kStride;
    product.steps = kK / kTileDepth;
    product.c = c.data();
    product.c_row = kRowC;
    product.accumulate = accumulate;
    ops.multiply(product);
    return c;
  }
};

TEST(Tiles, ProductsOfBf16MatricesAreThoseOfTheMathematics) {
  const Bf16Problem problem;
  for (const cpu::Bf16Ops* ops : {&cpu::emulated_bf16_ops(), cpu::amx_bf16_ops(), cpu::avx512_bf16_ops()}) {
    if (ops == nullptr) continue;
    for (const bool accumulate : {false, true}) {
      const std::vector<float> c = problem.run(*ops, accumulate);
      for (std::int64_t i = 0; i < Bf16Problem::kM; ++i) {
        for (std::int64_t j = 0; j < Bf16Problem::kRowC; ++j) {
          const auto at = static_cast<std::size_t>(i * Bf16Problem::kRowC + j);
          double sum = accumulate || j >= Bf16Problem::kN ? static_cast<double>(problem.start[at]) : 0.0;
          double size = std::abs(sum);
          for (std::int64_t k = 0; k < Bf16Problem::kK && j < Bf16Problem::kN; ++k) {
            const double term =
                static_cast<double>(bf16_to_f32(problem.a[static_cast<std::size_t>(i * Bf16Problem::kRowA + k)])) *
                static_cast<double>(problem.b[static_cast<std::size_t>(k * Bf16Problem::kN + j)]);
            sum += term;
            size += std::abs(term);
          }
          // Each addition rounds once.
          ASSERT_NEAR(static_cast<double>(c[at]), sum, 0x1p-23 * static_cast<double>(Bf16Problem::kK) * size);
        }
      }
    }
  }
}

TEST(Tiles, OperandsInBf16AreThoseOfTheEmulation) {
  cases::Random random(12);
  std::vector<float> values(2 * 96);
  for (float& value : values)
    value = static_cast<float>(random.normal() * std::exp2(200.0 * random.uniform(-1.0, 0.5)));
  for (const cpu::Bf16Ops* ops : {cpu::amx_bf16_ops(), cpu::avx512_bf16_ops()}) {
    if (ops == nullptr) continue;
    const auto rounded = [&](const cpu::Bf16Ops& by) {
      Tiles result(values.size());
      by.round(values.data(), static_cast<std::int64_t>(values.size()), result.data());
      return result;
    };
    const auto paired = [&](const cpu::Bf16Ops& by) {
      Tiles result(6 * kTileValues);
      by.pair_rows(values.data(), values.data() + 96, 96, result.data(), kTileValues);
      return result;
    };
    EXPECT_EQ(rounded(*ops), rounded(cpu::emulated_bf16_ops()));
    EXPECT_EQ(paired(*ops), paired(cpu::emulated_bf16_ops()));
  }
}

// ---- Whole kernels

struct Problem {
  cases::Memory memory;
  LinearArgs args;

  Problem(std::int64_t rows, std::int64_t n, std::int64_t k, DType weight) {
    cases::Random random(static_cast<std::uint64_t>(rows * 1000 + n));
    args.x = memory.input(DType::kF32, {rows, k}, [&] { return random.normal(); });
    args.weight = cases::make_weights(memory, weight, {n, k}, random);
    args.y = memory.output(DType::kF32, {rows, n});
  }

  std::vector<float> run(MatmulPrecision precision, const char* kernel, int threads = 1) {
    args.precision = precision;
    select_kernel(LinearArgs::kName, kernel);
    const Stream stream = Stream::cpu(threads);
    HostWorkspace workspace;
    thalweg::run(args, workspace.reserve(workspace_size(args, stream)), stream);
    select_kernel(LinearArgs::kName, "");
    EXPECT_EQ(memory.check(), "");
    const auto* y = static_cast<const float*>(args.y.data);
    return {y, y + args.y.size()};
  }
};

void expect_close(const std::vector<float>& rounded, const std::vector<float>& exact, const std::string& what) {
  double error = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(static_cast<double>(rounded[i]) - static_cast<double>(exact[i]), 2);
    size += std::pow(static_cast<double>(exact[i]), 2);
  }
  EXPECT_LT(error, 3e-5 * size) << what;  // a few sums may cancel; 1e-5 on average
}

TEST(Tiles, EveryNumberOfRowsOfWeightsAndActivations) {
  const Emulation emulation;
  for (std::int64_t rows = 1; rows <= 70; ++rows) {
    const std::int64_t n = 1 + rows * 37 % 149;
    const DType type = rows % 2 == 0 ? DType::kQ5_0 : DType::kBF16;
    const std::int64_t k = type == DType::kBF16 ? 20 + rows : 32 * (1 + rows % 19);
    Problem problem(rows, n, k, type);
    const auto exact = problem.run(MatmulPrecision::kExact, "exact");
    expect_close(problem.run(MatmulPrecision::kFast, "amx"), exact,
                 std::to_string(rows) + " " + std::to_string(n) + " " + std::to_string(k));
  }
}

// More rows than a pass or a task has.
TEST(Tiles, TasksAndPasses) {
  const Emulation emulation(cpu::amx_tile_ops() == nullptr);
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{513, 30}, {530, 1100}}) {
    Problem problem(rows, n, 288, DType::kQ8_0);
    const auto exact = problem.run(MatmulPrecision::kExact, "exact");
    expect_close(problem.run(MatmulPrecision::kFast, "amx"), exact, std::to_string(rows));
  }
}

TEST(TilesThreads, BitsDependNeitherOnTheirNumberNorOnOtherRows) {
  const Emulation emulation(cpu::amx_tile_ops() == nullptr);
  Problem problem(40, 1100, 544, DType::kQ4_0);
  const auto alone = problem.run(MatmulPrecision::kFast, "amx", 1);
  for (const int threads : {2, 3}) EXPECT_EQ(problem.run(MatmulPrecision::kFast, "amx", threads), alone) << threads;
  // The first 17 rows only.
  problem.args.x.shape[0] = problem.args.y.shape[0] = 17;
  const auto fewer = problem.run(MatmulPrecision::kFast, "amx", 2);
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), alone.begin()));
}

TEST(Tiles, AStreamsHintChoosesForAnyNumberOfRows) {
  const Emulation emulation;
  Problem problem(300, 64, 256, DType::kQ4_K);
  problem.args.precision = MatmulPrecision::kFast;
  const auto chosen = [&](std::int64_t rows, RowHint hint) {
    problem.args.x.shape[0] = problem.args.y.shape[0] = rows;
    Stream stream = Stream::cpu();
    stream.rows = hint;
    const Explanation e = explain(problem.args, stream);
    return e.kernels.at(static_cast<std::size_t>(e.chosen)).kernel;
  };
  EXPECT_EQ(chosen(1, RowHint::kByCount), "q8");
  EXPECT_EQ(chosen(300, RowHint::kByCount), "amx");
  for (const std::int64_t rows : {1, 17, 300}) {
    EXPECT_EQ(chosen(rows, RowHint::kFew), "q8") << rows;
    EXPECT_EQ(chosen(rows, RowHint::kMany), "amx") << rows;
  }
}

// Cases of all operations that have the kernel, those that emulation takes long for left out.
TEST(Tiles, CasesHoldWithEmulation) {
  const Emulation emulation;
  int ran = 0;
  for (const cases::Case& test : cases::all_cases()) {
    const bool is_product = test.operation != ChunkGatedDeltaRuleArgs::kName && test.operation != AttentionArgs::kName;
    if (!test.verify || (is_product && test.name.find("_fast") == std::string::npos)) continue;
    const auto problem = test.make(3);
    if (problem->cost.flops > 5e6) continue;
    for (const KernelVerdict& kernel : problem->explanation(Stream::cpu(2)).kernels) {
      if ((kernel.kernel != "amx" && kernel.kernel != "bf16") || !kernel.supported) continue;
      select_kernel(test.operation, kernel.kernel);
      const cases::Verdict verdict = cases::verify(*problem, Stream::cpu(2));
      select_kernel(test.operation, "");
      EXPECT_TRUE(verdict.ok) << test.operation << " " << test.name << ": " << verdict.problem;
      ++ran;
    }
  }
  EXPECT_GE(ran, 100);
}

}  // namespace
}  // namespace thalweg
