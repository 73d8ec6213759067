// Routing, expert matmuls, linear and the whole expert block: invalid arguments, kernels that must agree, the choice
// between kernels, explanations.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "cases/experts.h"
#include "core/projections.h"
#include "cpu/row_layout.h"
#include "ops/expect_error.h"
#include "reference/moe.h"
#include "thalweg/backend.h"
#include "thalweg/moe.h"

namespace thalweg {
namespace {

using cases::ExpertShape;

// Runs with a workspace of the required size.
template <class Args>
void run_with_scratch(const Args& args, const Stream& stream) {
  cases::Memory scratch;
  const std::size_t bytes = workspace_size(args, stream);
  const Tensor memory = scratch.output(DType::kF32, {static_cast<std::int64_t>(bytes / 4 + 1)});
  run(args, Workspace{memory.data, bytes}, stream);
  EXPECT_EQ(scratch.check(), "");
}

template <class Args>
Args expert_args(const ExpertMatmulArgs& shared, const Tensor& y) {
  Args args;
  static_cast<ExpertMatmulArgs&>(args) = shared;
  args.y = y;
  return args;
}

// Kernels of 8-bit activations, whatever the machine has.
Stream without_matrix_units() {
  Stream stream = Stream::cpu();
  stream.rows = RowHint::kFew;
  return stream;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.data, b.data, static_cast<std::size_t>(bytes_of(a.dtype, a.size()))) == 0;
}

// ---- Bad input

constexpr const char* kExperts = "M7_S2_E6_N40_K512_Q4_K";

template <class Args>
void expect_bad_expert_arguments() {
  BadInput<Args> bad(kExperts);
  bad.expect([](Args& a) { a.weight.dtype = DType::kI32; }, "weight", "any dtype but I32", "I32 [6,40,512]");
  bad.expect([](Args& a) { a.weight.rank = 2; }, "weight", "[E,N,K]", "Q4_K [6,40]");
  bad.expect([](Args& a) { a.weight.strides[1] = 520; }, "weight", "whole blocks of 256", "520");
  bad.expect([](Args& a) { a.weight.data = nullptr; }, "weight", "memory", "null");
  bad.expect([](Args& a) { a.x.shape[1] = 256; }, "x", "K=512", "[7,256]");
  bad.expect([](Args& a) { a.x.shape[0] = 6; }, "x", "T=7", "[6,512]");
  bad.expect([](Args& a) { a.x.dtype = DType::kQ8_0; }, "x", "F32, F16 or BF16", "Q8_0");
  bad.expect([](Args& a) { a.x = {}; }, "x", "[T=7,S=2,K=512]", "nothing");
  bad.expect([](Args& a) { a.expert_ids.dtype = DType::kF32; }, "expert_ids", "I32 [T,S]", "F32 [7,2]");
  bad.expect([](Args& a) { a.y.shape[1] = 3; }, "y", "S=2", "[7,3,40]");
  bad.expect([](Args& a) { a.y.dtype = DType::kBF16; }, "y", "F32 [T=7,S=2,N=40]", "BF16");
  bad.expect([](Args& a) { a.y.strides[1] = 0; }, "y", "do not overlap", "strides");
  bad.expect([](Args& a) { a.y.device = {DeviceType::kCuda, 0}; }, "y", "cpu", "cuda");
  bad.expect([](Args& a) { a.precision = static_cast<MatmulPrecision>(7); }, "precision", "kExact or kFast", "7");
  bad.expect([](Args& a) { a.weight.shape[0] = 0; }, "weight", "at least one expert", "[0,40,512]");
  bad.expect(
      [](Args& a) {
        a.x = ConstTensor(a.y.data, DType::kF32, {7, 512}, a.y.device);
      },
      "y", "memory of its own", "x");
  std::vector<std::int32_t> ids(14, 0);
  const auto with = [&ids](std::int32_t wrong) {
    ids[9] = wrong;
    return [&ids](Args& a) { a.expert_ids = ConstTensor(ids.data(), DType::kI32, {7, 2}, kCpu); };
  };
  bad.expect(with(6), "expert_ids", "ids of 0 to 5", "6 at [4,1]");
  bad.expect(with(-2), "expert_ids", "ids of 0 to 5, or -1", "-2 at [4,1]");
  bad.expect(with(std::numeric_limits<std::int32_t>::min()), "expert_ids", "ids of 0 to 5", "-2147483648");
  bad.expect_workspace_errors();
}

TEST(BadInput, MulMmId) { expect_bad_expert_arguments<MulMmIdArgs>(); }
TEST(BadInput, MulMvId) { expect_bad_expert_arguments<MulMvIdArgs>(); }
TEST(BadInput, MulMatId) { expect_bad_expert_arguments<MulMatIdArgs>(); }

TEST(BadInput, Linear) {
  BadInput<LinearArgs> bad("M100_N70_K288_Q5_0_bias");
  using Args = LinearArgs;
  bad.expect([](Args& a) { a.x.rank = 1; }, "x", "[T,K]", "F32 [100]");
  bad.expect([](Args& a) { a.x.dtype = DType::kI32; }, "x", "F32, F16 or BF16", "I32");
  bad.expect([](Args& a) { a.weight.shape[1] = 256; }, "weight", "K=288", "[70,256]");
  bad.expect([](Args& a) { a.weight.dtype = DType::kQ4_K; }, "weight", "whole blocks of 256", "Q4_K [70,288]");
  bad.expect([](Args& a) { a.bias.shape[0] = 71; }, "bias", "N=70", "[71]");
  bad.expect([](Args& a) { a.bias.dtype = DType::kBF16; }, "bias", "F32", "BF16");
  bad.expect([](Args& a) { a.y.dtype = DType::kF16; }, "y", "F32", "F16");
  bad.expect([](Args& a) { a.y.data = const_cast<void*>(a.x.data); }, "y", "memory of its own", "x");
  bad.expect([](Args& a) { a.precision = static_cast<MatmulPrecision>(2); }, "precision", "kExact or kFast", "2");
  bad.expect_workspace_errors();
}

TEST(BadInput, Projections) {
  BadInput<ProjectionsArgs> bad("M33_K256_96xQ5_KyBF16_64xQ4_KyBF16_4xF32_4xF32_xBF16");
  using Args = ProjectionsArgs;
  bad.expect([](Args& a) { a.weight_0 = {}; }, "weight_0", "[N_0,K", "nothing");
  bad.expect([](Args& a) { a.y_0 = {}; }, "y_0", "[T=33,N_0=96]", "nothing");
  bad.expect([](Args& a) { a.y_2 = {}; }, "y_2", "[T=33,N_2=4]", "nothing");
  bad.expect([](Args& a) { a.weight_3 = {}; }, "weight_3", "[N_3,K", "nothing");
  bad.expect([](Args& a) { a.weight_1.shape[1] = 512; }, "weight_1", "K=256", "[64,512]");
  bad.expect([](Args& a) { a.y_1.shape[1] = 65; }, "y_1", "N_1=64", "[33,65]");
  bad.expect([](Args& a) { a.y_3.dtype = DType::kF16; }, "y_3", "BF16", "F16");
  bad.expect([](Args& a) { a.y_3.data = a.y_2.data; }, "y_2", "memory of its own", "y_3");
  bad.expect([](Args& a) { a.precision = static_cast<MatmulPrecision>(2); }, "precision", "kExact or kFast", "2");
  bad.expect_workspace_errors();
}

// Every product has the bits of linear, on each of the kernels.
TEST(Projections, AreTheProductsOfLinear) {
  constexpr std::int64_t kK = 512;
  for (const std::int64_t tokens : {1, 3, 200}) {
    for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
      cases::Random random(static_cast<std::uint64_t>(tokens));
      cases::Memory memory;
      ProjectionsArgs args;
      args.precision = precision;
      args.x = memory.input(DType::kF32, {tokens, kK}, [&] { return random.normal(); });
      args.weight_0 = cases::make_weights(memory, DType::kQ4_K, {200, kK}, random);
      args.weight_1 = cases::make_weights(memory, DType::kQ8_0, {1, kK}, random);
      args.weight_2 = cases::make_weights(memory, DType::kF32, {70, kK}, random);
      args.y_0 = memory.output(DType::kF32, {tokens, 200});
      args.y_1 = memory.output(DType::kF32, {tokens, 1});
      args.y_2 = memory.output(DType::kF32, {tokens, 70});
      for (const KernelVerdict& kernel : explain(args, Stream::cpu()).kernels) {
        // `exact` runs kFast too where it is selected, unlike linear.
        if (!kernel.supported || (kernel.kernel == "exact" && precision == MatmulPrecision::kFast)) continue;
        select_kernel(ProjectionsArgs::kName, kernel.kernel);
        memory.reset();
        run_with_scratch(args, Stream::cpu());
        select_kernel(ProjectionsArgs::kName, "");
        for (const LinearArgs& product : ProductList(args)) {
          LinearArgs alone = product;
          alone.y = memory.output(DType::kF32, {tokens, product.weight.dim(0)});
          run_with_scratch(alone, Stream::cpu());
          EXPECT_TRUE(same_bits(alone.y, product.y))
              << kernel.kernel << ", " << tokens << " tokens, " << dtype_name(product.weight.dtype);
        }
        EXPECT_EQ(memory.check(), "");
      }
    }
  }
}

TEST(BadInput, RouteTopK) {
  BadInput<RouteTopKArgs> bad("T9_E32_S4_F32");
  using Args = RouteTopKArgs;
  bad.expect([](Args& a) { a.router_logits.dtype = DType::kQ8_0; }, "router_logits", "F32, F16 or BF16", "Q8_0");
  bad.expect([](Args& a) { a.expert_ids.dtype = DType::kF32; }, "expert_ids", "I32 [T=9,S]", "F32");
  bad.expect([](Args& a) { a.expert_weights.shape[1] = 3; }, "expert_weights", "S=4", "[9,3]");
  bad.expect([](Args& a) { a.router_logits.shape[1] = 3; }, "expert_ids", "1 to E = 3", "[9,4]");
  bad.expect([](Args& a) { a.expert_ids.shape[1] = a.expert_weights.shape[1] = 0; }, "expert_ids", "1 to E = 32",
             "[9,0]");
  bad.expect([](Args& a) { a.expert_weights.data = a.expert_ids.data; }, "expert_ids", "memory of its own",
             "expert_weights");
  std::vector<float> bias(32, 0.5F);
  const auto with = [&bias](std::int64_t size) {
    return [&bias, size](Args& a) { a.bias = ConstTensor(bias.data(), DType::kF32, {size}, kCpu); };
  };
  bad.expect(with(31), "bias", "E=32", "[31]");
  bias[7] = std::numeric_limits<float>::quiet_NaN();
  bad.expect(with(32), "bias", "finite numbers", "nan at [7]");
  bad.expect([](Args& a) { a.score = static_cast<RouterScore>(2); }, "score", "kSoftmax or kSigmoid", "neither");
  bad.expect_workspace_errors();
}

TEST(BadInput, ExpertRows) {
  BadInput<ExpertRowsArgs> bad("T7_S2_E6");
  using Args = ExpertRowsArgs;
  bad.expect([](Args& a) { a.rows.shape[0] = 13; }, "rows", "T*S=14", "[13]");
  bad.expect([](Args& a) { a.expert_offsets.shape[0] = 1; }, "expert_offsets", "E + 1 elements", "[1]");
  bad.expect([](Args& a) { a.expert_ids.rank = 1; }, "expert_ids", "I32 [T,S]", "I32 [7]");
  bad.expect([](Args& a) { a.expert_offsets.dtype = DType::kF32; }, "expert_offsets", "I32", "F32");
  bad.expect([](Args& a) { a.rows.data = const_cast<void*>(a.expert_ids.data); }, "rows", "memory of its own",
             "expert_ids");
  std::vector<std::int32_t> ids(14, 5);
  ids[3] = 6;
  bad.expect(
      [&](Args& a) {
        a.expert_ids = ConstTensor(ids.data(), DType::kI32, {7, 2}, kCpu);
      },
      "expert_ids", "ids of 0 to 5", "6 at [1,1]");
}

TEST(BadInput, MoeFfn) {
  BadInput<MoeFfnArgs> bad("M1_S2_E6_D256_I256_Q4_K_shared64Q8_0");
  using Args = MoeFfnArgs;
  bad.expect([](Args& a) { a.x.shape[1] = 128; }, "router", "D=128", "[6,256]");
  bad.expect([](Args& a) { a.router.shape[0] = 5; }, "gate", "E=5", "[6,256,256]");
  bad.expect([](Args& a) { a.up.dtype = DType::kQ5_K; }, "up", "Q4_K", "Q5_K");
  bad.expect([](Args& a) { a.up.shape[1] = 255; }, "up", "I=256", "[6,255,256]");
  bad.expect([](Args& a) { a.down.shape[2] = 512; }, "down", "I=256", "[6,256,512]");
  bad.expect([](Args& a) { a.shared_up = {}; }, "shared_gate", "all four", "3 of them");
  bad.expect([](Args& a) { a.shared_down.shape[1] = 32; }, "shared_down", "J=64", "[256,32]");
  bad.expect([](Args& a) { a.shared_router.dtype = DType::kQ8_0; }, "shared_router", "F32, F16 or BF16", "Q8_0");
  bad.expect([](Args& a) { a.top_k = 0; }, "top_k", "1 to E = 6", "0");
  bad.expect([](Args& a) { a.top_k = 7; }, "top_k", "1 to E = 6", "7");
  bad.expect([](Args& a) { a.first_expert = 1; }, "first_expert", "0 to E - L = 0", "1");
  bad.expect([](Args& a) { a.first_expert = -1; }, "first_expert", "0 to E - L = 0", "-1");
  bad.expect([](Args& a) { a.y.dtype = DType::kF16; }, "y", "F32", "F16");
  bad.expect([](Args& a) { a.y.data = const_cast<void*>(a.x.data); }, "y", "memory of its own", "x");
  bad.expect([](Args& a) { a.score = static_cast<RouterScore>(2); }, "score", "kSoftmax or kSigmoid", "neither");
  std::vector<float> bias(64, 0.5F);
  const auto with = [&bias](std::int64_t size) {
    return [&bias, size](Args& a) { a.router_bias = ConstTensor(bias.data(), DType::kF32, {size}, kCpu); };
  };
  bad.expect(with(64), "router_bias", "E=", "[64]");
  bias[1] = std::numeric_limits<float>::infinity();
  bad.expect([&](Args& a) { with(a.router.dim(0))(a); }, "router_bias", "finite numbers", "inf at [1]");
  bad.expect_workspace_errors();
}

// ---- Kernels among themselves

struct Products {
  cases::Memory memory;
  ExpertMatmulArgs shared;
  Tensor y[3];

  explicit Products(const ExpertShape& shape) {
    cases::Random random(7);
    shared = cases::make_expert_args(shape, memory, random);
    for (Tensor& one : y) one = memory.output(shape.y, {shape.tokens, shape.slots, shape.n});
  }
};

std::vector<ExpertShape> agreement_shapes() {
  std::vector<ExpertShape> list;
  for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
    for (const DType weight : cases::weight_types()) {
      list.push_back({.tokens = 29, .slots = 3, .experts = 5, .n = 83, .weight = weight, .precision = precision});
    }
    list.push_back({.tokens = 230, .slots = 1, .ids = cases::Ids::kOneExpert, .precision = precision});
  }
  return list;
}

// The order of a row's sum does not depend on other rows: grouped and per-slot kernels give the same bits.
TEST(ExpertMatmul, GroupedAndPerSlotGiveTheSameBits) {
  for (const ExpertShape& shape : agreement_shapes()) {
    Products p(shape);
    run_with_scratch(expert_args<MulMmIdArgs>(p.shared, p.y[0]), without_matrix_units());
    run_with_scratch(expert_args<MulMvIdArgs>(p.shared, p.y[1]), without_matrix_units());
    run_with_scratch(expert_args<MulMatIdArgs>(p.shared, p.y[2]), without_matrix_units());
    EXPECT_TRUE(same_bits(p.y[0], p.y[1])) << shape.name();
    EXPECT_TRUE(same_bits(p.y[0], p.y[2])) << shape.name();
  }
}

// Nor on which rows lie side by side in vectors: all, some or none of a matrix's rows are spread over the lanes.
TEST(ExpertMatmul, SpreadRowsGiveTheSameBits) {
  const bool chosen = cpu::spreads_lanes();
  for (const DType weight : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kF16}) {
    for (const std::int64_t n : {31, 63, 64, 65, 95, 127, 128, 300}) {
      for (const std::int64_t tokens : {1, 5, 40}) {
        const ExpertShape shape = {
            .tokens = tokens, .n = n, .weight = weight, .precision = MatmulPrecision::kFast, .per_slot = true};
        Products p(shape);
        for (const bool spreads : {false, true}) {
          cpu::spreads_lanes() = spreads;
          run_with_scratch(expert_args<MulMmIdArgs>(p.shared, p.y[spreads ? 1 : 0]), without_matrix_units());
        }
        EXPECT_TRUE(same_bits(p.y[0], p.y[1])) << shape.name();
        run_with_scratch(expert_args<MulMvIdArgs>(p.shared, p.y[2]), without_matrix_units());
        EXPECT_TRUE(same_bits(p.y[0], p.y[2])) << shape.name();
      }
    }
  }
  cpu::spreads_lanes() = chosen;
}

// With a single expert the operation is linear.
TEST(ExpertMatmul, OneExpertIsLinear) {
  for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
    Products p({.tokens = 11, .slots = 1, .experts = 1, .precision = precision});
    run_with_scratch(expert_args<MulMmIdArgs>(p.shared, p.y[0]), Stream::cpu());
    LinearArgs linear;
    linear.x = p.shared.x;
    linear.weight = ConstTensor(p.shared.weight.data, p.shared.weight.dtype, {40, 512}, p.shared.weight.device);
    linear.y = Tensor(p.y[1].data, DType::kF32, {11, 40}, kCpu);
    linear.precision = precision;
    run_with_scratch(linear, Stream::cpu());
    EXPECT_TRUE(same_bits(p.y[0], p.y[1]));
  }
}

TEST(ExpertMatmulThreads, BitsDoNotDependOnTheirNumber) {
  for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
    Products p({.tokens = 50, .slots = 4, .experts = 9, .n = 200, .x = DType::kBF16, .precision = precision});
    run_with_scratch(expert_args<MulMatIdArgs>(p.shared, p.y[0]), Stream::cpu(1));
    run_with_scratch(expert_args<MulMatIdArgs>(p.shared, p.y[1]), Stream::cpu(2));
    run_with_scratch(expert_args<MulMatIdArgs>(p.shared, p.y[2]), Stream::cpu(5));
    EXPECT_TRUE(same_bits(p.y[0], p.y[1]));
    EXPECT_TRUE(same_bits(p.y[0], p.y[2]));
  }
}

// A NaN among the activations affects only its own rows.
TEST(ExpertMatmul, NotANumberStaysInItsRow) {
  for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
    for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Products p({.tokens = 4, .slots = 2, .precision = precision});
      std::vector<float> x(4 * 512, 0.5F);
      x[2 * 512 + 100] = wrong;
      p.shared.x = ConstTensor(x.data(), DType::kF32, {4, 512}, kCpu);
      run_with_scratch(expert_args<MulMatIdArgs>(p.shared, p.y[0]), Stream::cpu());
      for (std::int64_t t = 0; t < 4; ++t) {
        for (std::int64_t i = 0; i < 2 * 40; ++i) {
          const float value = static_cast<const float*>(p.y[0].row(t, 0))[i];
          EXPECT_EQ(std::isfinite(value), t != 2) << t << " " << i;
        }
      }
    }
  }
}

// ---- Routing

TEST(RouteTopK, RowsWithoutAFiniteLogitKeepValidIds) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {kNan, kNan, kNan, -kInfinity, -kInfinity, -kInfinity, kInfinity, kNan, 1.0F};
  std::vector<std::int32_t> ids(6, -7);
  std::vector<float> weights(6, 0.0F);
  RouteTopKArgs args;
  args.router_logits = ConstTensor(logits.data(), DType::kF32, {3, 3}, kCpu);
  args.expert_ids = Tensor(ids.data(), DType::kI32, {3, 2}, kCpu);
  args.expert_weights = Tensor(weights.data(), DType::kF32, {3, 2}, kCpu);
  run_with_scratch(args, Stream::cpu());
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, 0, 1, 0, 2}));
  // The probabilities are undefined, and are NaN.
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(weights[i])) << i;
}

// ---- moe_ffn

// A block of six experts of `inner` hidden values, whose matrices have five formats.
MoeFfnArgs mixed_formats(cases::Memory& memory, std::int64_t tokens, std::int64_t slots, std::int64_t inner) {
  const std::int64_t experts = 6, hidden = 256, shared = 64;
  cases::Random random(3);
  const auto normal = [&] { return 0.1 * random.normal(); };
  MoeFfnArgs ffn;
  ffn.x = memory.input(DType::kF32, {tokens, hidden}, [&] { return random.normal(); });
  ffn.router = memory.input(DType::kF32, {experts, hidden}, normal);
  ffn.gate = cases::make_weights(memory, DType::kQ4_K, {experts, inner, hidden}, random);
  ffn.up = cases::make_weights(memory, DType::kQ4_K, {experts, inner, hidden}, random);
  ffn.down = cases::make_weights(memory, DType::kQ8_0, {experts, hidden, inner}, random);
  ffn.shared_gate = cases::make_weights(memory, DType::kQ6_K, {shared, hidden}, random);
  ffn.shared_up = cases::make_weights(memory, DType::kBF16, {shared, hidden}, random);
  ffn.shared_down = cases::make_weights(memory, DType::kQ5_0, {hidden, shared}, random);
  ffn.shared_router = memory.input(DType::kF32, {hidden}, normal);
  ffn.y = memory.output(DType::kF32, {tokens, hidden});
  ffn.top_k = static_cast<int>(slots);
  return ffn;
}

// The block against the composition of public operations.
TEST(MoeFfn, IsTheCompositionOfItsOperations) {
  const std::int64_t tokens = 9, slots = 3, inner = 96;
  const Stream stream = without_matrix_units();
  for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
    cases::Memory memory;
    MoeFfnArgs ffn = mixed_formats(memory, tokens, slots, inner);
    const std::int64_t hidden = ffn.x.dim(1);
    ffn.precision = precision;
    run_with_scratch(ffn, stream);

    const auto linear = [&](const ConstTensor& x, const ConstTensor& weight, MatmulPrecision p) {
      LinearArgs args;
      args.x = x;
      args.weight = weight;
      args.y = memory.output(DType::kF32, {x.dim(0), weight.dim(0)});
      args.precision = p;
      run_with_scratch(args, stream);
      return args.y;
    };
    const auto swiglu = [&](const ConstTensor& gate, const ConstTensor& up) {
      SwigluArgs args;
      args.gate = gate;
      args.up = up;
      args.y = memory.output(DType::kF32, {gate.dim(0), gate.dim(1)});
      run_with_scratch(args, stream);
      return args.y;
    };
    const Tensor logits = linear(ffn.x, ffn.router, MatmulPrecision::kExact);
    RouteTopKArgs route;
    route.router_logits = logits;
    route.expert_ids = memory.output(DType::kI32, {tokens, slots});
    route.expert_weights = memory.output(DType::kF32, {tokens, slots});
    run_with_scratch(route, stream);
    const auto experts_of = [&](const ConstTensor& weight, const ConstTensor& x) {
      MulMatIdArgs args;
      args.weight = weight;
      args.x = x;
      args.expert_ids = route.expert_ids;
      args.y = memory.output(DType::kF32, {tokens, slots, weight.dim(1)});
      args.precision = precision;
      run_with_scratch(args, stream);
      return args.y;
    };
    const auto flat = [](const Tensor& t) {
      return Tensor(t.data, t.dtype, {t.dim(0) * t.dim(1), t.dim(2)}, t.device);
    };
    const Tensor activated = swiglu(flat(experts_of(ffn.gate, ffn.x)), flat(experts_of(ffn.up, ffn.x)));
    const Tensor outputs =
        experts_of(ffn.down, ConstTensor(activated.data, DType::kF32, {tokens, slots, inner}, activated.device));
    const Tensor shared_output =
        linear(swiglu(linear(ffn.x, ffn.shared_gate, precision), linear(ffn.x, ffn.shared_up, precision)),
               ffn.shared_down, precision);
    const Tensor share =
        linear(ffn.x, ConstTensor(ffn.shared_router.data, DType::kF32, {1, hidden}, ffn.shared_router.device),
               MatmulPrecision::kExact);

    reference::Array expected({tokens, hidden});
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double gate = 1.0 / (1.0 + std::exp(-static_cast<double>(*static_cast<const float*>(share.row(t)))));
      for (std::int64_t d = 0; d < hidden; ++d) {
        expected(t, d) = gate * static_cast<const float*>(shared_output.row(t))[d];
        for (std::int64_t s = 0; s < slots; ++s) {
          expected(t, d) += static_cast<double>(static_cast<const float*>(route.expert_weights.row(t))[s]) *
                            static_cast<const float*>(outputs.row(t, s))[d];
        }
      }
    }
    const cases::Comparison comparison =
        cases::compare(cases::expect("y", ffn.y, expected, expected, cases::f32_bound(1.0)));
    EXPECT_TRUE(comparison.ok) << comparison.error << " above " << comparison.bound;
  }
}

// ---- The choice between kernels

MulMatIdArgs shapes_of(std::int64_t tokens, std::int64_t slots, std::int64_t experts) {
  MulMatIdArgs args;
  args.x = ConstTensor(nullptr, DType::kF32, {tokens, 256}, kCpu);
  args.weight = ConstTensor(nullptr, DType::kQ4_K, {experts, 64, 256}, kCpu);
  args.expert_ids = ConstTensor(nullptr, DType::kI32, {tokens, slots}, kCpu);
  args.y = Tensor(nullptr, DType::kF32, {tokens, slots, 64}, kCpu);
  return args;
}

TEST(MulMatId, GroupsFromTwoTokensOnAndPrefersEightBits) {
  for (const std::int64_t experts : {1, 2, 8, 128, 4096}) {
    for (const std::int64_t slots : {1, 2, 8}) {
      for (const std::int64_t tokens : {1, 2, 3, 32, 4096}) {
        MulMatIdArgs args = shapes_of(tokens, slots, experts);
        for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
          args.precision = precision;
          const Explanation e = explain(args, without_matrix_units());
          const std::string expected =
              std::string(precision == MatmulPrecision::kFast ? "q8_" : "") + (tokens == 1 ? "mv" : "mm");
          EXPECT_EQ(e.kernels.at(static_cast<std::size_t>(e.chosen)).kernel, expected)
              << tokens << " tokens, " << slots << " slots, " << experts << " experts";
        }
      }
    }
  }
}

TEST(MulMatId, EveryKernelRunsWhenSelected) {
  MulMatIdArgs args = shapes_of(7, 2, 8);
  args.precision = MatmulPrecision::kFast;
  for (const char* kernel : {"q8_mv", "q8_mm", "mv", "mm"}) {
    select_kernel("mul_mat_id", kernel);
    const Explanation e = explain(args, Stream::cpu());
    EXPECT_EQ(e.kernels.at(static_cast<std::size_t>(e.chosen)).kernel, kernel);
  }
  select_kernel("mul_mat_id", "");
}

// ---- explain()

TEST(Explain, ReportsEightBitActivations) {
  Products p({.precision = MatmulPrecision::kFast});
  const auto chosen = [](const Explanation& e) { return e.kernels.at(static_cast<std::size_t>(e.chosen)); };
  MulMatIdArgs args = expert_args<MulMatIdArgs>(p.shared, p.y[0]);
  Explanation explanation = explain(args, without_matrix_units());
  EXPECT_EQ(chosen(explanation).kernel, "q8_mm");
  EXPECT_NE(chosen(explanation).reason.find("rounded to 8 bits"), std::string::npos);
  for (const KernelVerdict& kernel : explanation.kernels) {
    EXPECT_TRUE(kernel.supported || kernel.kernel == "amx") << kernel.kernel;
  }
  args.precision = MatmulPrecision::kExact;
  explanation = explain(args, Stream::cpu());
  EXPECT_EQ(chosen(explanation).kernel, "mm");
  EXPECT_NE(chosen(explanation).reason.find("f32 activations"), std::string::npos);

  LinearArgs linear;
  linear.x = ConstTensor(nullptr, DType::kF32, {1, 256}, kCpu);
  linear.weight = ConstTensor(nullptr, DType::kBF16, {8, 256}, kCpu);
  linear.y = Tensor(nullptr, DType::kF32, {1, 8}, kCpu);
  linear.precision = MatmulPrecision::kFast;
  EXPECT_EQ(chosen(explain(linear, Stream::cpu())).kernel, "exact");
  EXPECT_NE(explain(linear, Stream::cpu()).kernels.at(0).reason.find("not in a block format"), std::string::npos);
  linear.weight.dtype = DType::kQ4_K;
  EXPECT_EQ(chosen(explain(linear, Stream::cpu())).kernel, "q8");
}

}  // namespace
}  // namespace thalweg
