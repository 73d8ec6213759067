// Arguments that are right except where the input says otherwise: an operation either runs within its tensors' memory
// or throws thalweg::Error. AddressSanitizer watches the memory, which is allocated to each view's last byte.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "thalweg/error.h"
#include "thalweg/gated_delta_rule.h"
#include "thalweg/moe.h"
#include "thalweg/nn.h"
#include "thalweg/quant.h"
#include "thalweg/sampling.h"

namespace thalweg {
namespace {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t byte() { return size_ == 0 ? 0 : (--size_, *data_++); }
  std::int64_t pick(std::initializer_list<std::int64_t> values) { return values.begin()[byte() % values.size()]; }
  bool rarely() { return byte() > 247; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// Makes views over memory of their own, some of them with a wrong dtype, shape or stride.
class Views {
 public:
  explicit Views(Input& input) : input_(input) {}

  Tensor view(DType dtype, std::vector<std::int64_t> shape, bool optional = false) {
    if (optional && (input_.byte() & 1) != 0) return {};
    Tensor tensor;
    tensor.dtype = input_.rarely() ? static_cast<DType>(input_.byte() % kNumDTypes) : dtype;
    tensor.rank = static_cast<int>(shape.size());
    if (input_.rarely()) tensor.rank = static_cast<int>(input_.byte() % (kMaxRank + 1));
    std::int64_t stride = 1;
    for (int i = tensor.rank - 1; i >= 0; --i) {
      const auto axis = static_cast<std::size_t>(i);
      tensor.shape[axis] = axis < shape.size() ? shape[axis] : 1;
      if (input_.rarely()) tensor.shape[axis] = input_.pick({-1, 0, 1, 2, 31, 65, std::int64_t{1} << 40});
      tensor.strides[axis] = stride;
      if (input_.rarely()) tensor.strides[axis] = input_.pick({-1, 0, 1, 2, 3, 100, std::int64_t{1} << 50});
      stride = std::max<std::int64_t>(
          1, std::min<std::int64_t>(stride, 1 << 24) * std::clamp<std::int64_t>(tensor.shape[axis], 1, 1 << 24));
    }
    // The last byte that the view reaches; absurdly large views get no memory and must be refused.
    const DTypeInfo info = dtype_info(tensor.dtype);
    std::int64_t last = 0;
    for (int i = 0; i < tensor.rank; ++i) {
      if (tensor.dim(i) > (1 << 16) || tensor.stride(i) > (1 << 20)) return tensor;
      if (tensor.dim(i) > 1) last += (tensor.dim(i) - 1) * std::max<std::int64_t>(tensor.stride(i), 0);
    }
    if (last > (1 << 22)) return tensor;
    const auto bytes = static_cast<std::size_t>((last / info.block_size + 1) * info.block_bytes);
    memory_.emplace_back(bytes, static_cast<std::uint8_t>(0x3C));  // small positive numbers in every float format
    tensor.data = input_.rarely() ? nullptr : memory_.back().data();
    return tensor;
  }

  Tensor integers(std::vector<std::int64_t> shape, std::initializer_list<std::int32_t> values, bool optional = false) {
    Tensor tensor = view(DType::kI32, std::move(shape), optional);
    if (tensor.data == nullptr || tensor.dtype != DType::kI32) return tensor;
    const std::size_t count = memory_.back().size() / sizeof(std::int32_t);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t value = i < values.size() ? values.begin()[i] : 0;
      static_cast<std::int32_t*>(tensor.data)[i] = input_.rarely() ? static_cast<std::int8_t>(input_.byte()) : value;
    }
    return tensor;
  }

 private:
  Input& input_;
  std::vector<std::vector<std::uint8_t>> memory_;
};

template <class Args>
void call(const Args& args) {
  const Stream stream = Stream::cpu(1);
  try {
    explain(args, stream);
    const std::size_t bytes = workspace_size(args, stream);
    if (bytes > (std::size_t{1} << 26)) return;
    HostWorkspace scratch;
    run(args, scratch.reserve(bytes), stream);
  } catch (const Error&) {
    // Bad arguments are refused.
  }
}

struct Sizes {
  std::int64_t b, t, hk, hv, k, v, c;
  DType dtype;
  HeadMap map;
  StateLayout layout;

  explicit Sizes(Input& in)
      : b(in.pick({1, 1, 0, 2})),
        t(in.pick({1, 0, 5, 17, 65})),
        hk(in.pick({1, 2})),
        hv(hk * in.pick({1, 2, 3})),
        k(in.pick({16, 32, 64, 48})),
        v(in.pick({16, 32, 96})),
        c(in.pick({16, 32, 64})),
        dtype(static_cast<DType>(in.byte() % 3)),
        map(static_cast<HeadMap>(in.pick({1, 2, 1, 2, 1, 2, 0}))),
        layout(static_cast<StateLayout>(in.byte() & 1)) {}

  std::int64_t chunks() const { return (t + c - 1) / c; }
  std::vector<std::int64_t> states(std::int64_t slots) const {
    return layout == StateLayout::kVK ? std::vector{slots, hv, v, k} : std::vector{slots, hv, k, v};
  }
};

void stages(Input& in, Views& views, const Sizes& s) {
  const Tensor k = views.view(s.dtype, {s.b, s.t, s.hk, s.k});
  const Tensor g = views.view(DType::kF32, {s.b, s.t, s.hv});
  const Tensor beta = views.view(DType::kF32, {s.b, s.t, s.hv});
  const Tensor a = views.view(DType::kF32, {s.b, s.t, s.hv, s.c});
  const Tensor w = views.view(s.dtype, {s.b, s.t, s.hv, s.k});
  const Tensor u = views.view(s.dtype, {s.b, s.t, s.hv, s.v});
  const Tensor v = views.view(s.dtype, {s.b, s.t, s.hv, s.v});
  const Tensor h = views.view(s.dtype, {s.b, s.chunks(), s.hv, s.v, s.k});
  const Tensor cu = views.integers({2}, {0, static_cast<std::int32_t>(s.t)}, true);
  const auto rounding = static_cast<Rounding>(in.byte() & 1);
  const int c = static_cast<int>(s.c);
  switch (in.byte() % 6) {
    case 0:
      call(ChunkLocalCumsumArgs{g, cu, beta, c});
      break;
    case 1:
      call(ChunkScaledDotKktArgs{k, beta, g, cu, a, c, s.map, rounding});
      break;
    case 2:
      call(SolveTrilArgs{a, cu, views.view(DType::kF32, {s.b, s.t, s.hv, s.c}), c});
      break;
    case 3:
      call(RecomputeWUArgs{k, v, beta, g, a, cu, w, u, c, s.map, rounding});
      break;
    case 4:
      call(ChunkStateArgs{k,
                          w,
                          u,
                          g,
                          views.view(DType::kF32, s.states(s.b), true),
                          {},
                          cu,
                          h,
                          v,
                          views.view(DType::kF32, s.states(s.b), true),
                          c,
                          s.map,
                          s.layout,
                          rounding});
      break;
    default:
      call(ChunkOutputArgs{w, k, v, h, g, cu, u, {}, c, s.map, rounding});
      break;
  }
}

template <class Args>
void rule(Input& in, Views& views, const Sizes& s) {
  Args args;
  args.q = views.view(s.dtype, {s.b, s.t, s.hk, s.k});
  args.k = views.view(s.dtype, {s.b, s.t, s.hk, s.k});
  args.v = views.view(s.dtype, {s.b, s.t, s.hv, s.v});
  args.g = views.view(DType::kF32, {s.b, s.t, s.hv});
  args.beta = views.view(DType::kF32, {s.b, s.t, s.hv});
  args.cu_seqlens = views.integers({3}, {0, 1, static_cast<std::int32_t>(s.t)}, true);
  const std::int64_t sequences = args.cu_seqlens.defined() ? 2 : s.b;
  args.state_indices = views.integers({sequences}, {1, -1}, true);
  const std::int64_t slots = args.state_indices.defined() ? 3 : sequences;
  args.initial_state = views.view(DType::kF32, s.states(slots), true);
  args.final_state = views.view(DType::kF32, s.states(slots), true);
  args.o = views.view(s.dtype, {s.b, s.t, s.hv, s.v});
  args.head_map = s.map;
  args.state_layout = s.layout;
  args.qk_norm = static_cast<QkNorm>(in.byte() % 3);
  if (args.qk_norm == QkNorm::kRms) {
    args.q_norm_weight = views.view(DType::kF32, {s.hk, s.k});
    args.k_norm_weight = views.view(DType::kF32, {s.hk, s.k});
  }
  call(args);
}

void step(Input& in, Views& views, const Sizes& s) {
  const std::int64_t channels = 2 * s.hk * s.k + s.hv * s.v;
  GatedDeltaPrepStepArgs args;
  args.x = views.view(s.dtype, {s.b, s.t, channels});
  if ((in.byte() & 1) != 0) {
    args.conv_weight = views.view(s.dtype, {channels, 4});
    args.conv_state = views.view(s.dtype, {s.b, channels, 3});
  }
  args.gates = {views.view(s.dtype, {s.b, s.t, s.hv}), views.view(s.dtype, {s.b, s.t, s.hv}),
                views.view(DType::kF32, {s.hv}), views.view(s.dtype, {s.hv})};
  args.qk_norm = QkNorm::kL2;
  args.state_in = views.view(DType::kF32, s.states(s.b));
  args.state_out = views.view(DType::kF32, s.states(s.b));
  args.state_indices = views.integers({s.b}, {0, -1}, true);
  if ((in.byte() & 1) != 0) {
    args.z = views.view(s.dtype, {s.b, s.t, s.hv, s.v});
    args.norm_weight = views.view(DType::kF32, {s.v});
  }
  args.y = views.view(s.dtype, {s.b, s.t, s.hv, s.v});
  args.head_map = s.map;
  args.state_layout = s.layout;
  call(args);
}

void dense(Input& in, Views& views, const Sizes& s) {
  const std::int64_t t = s.t;
  const std::int64_t d = s.k;
  switch (in.byte() % 11) {
    case 0:
      call(CausalConv1dArgs{.x = views.view(s.dtype, {s.b, t, d}),
                            .weight = views.view(s.dtype, {d, 4}),
                            .bias = views.view(s.dtype, {d}, true),
                            .initial_state = views.view(s.dtype, {s.b, d, 3}, true),
                            .final_state = views.view(s.dtype, {s.b, d, 3}, true),
                            .y = views.view(s.dtype, {s.b, t, d})});
      break;
    case 1:
      call(CausalConv1dUpdateArgs{.x = views.view(s.dtype, {s.b, t, d}),
                                  .weight = views.view(s.dtype, {d, 4}),
                                  .conv_state = views.view(s.dtype, {s.b, d, 3}),
                                  .y = views.view(s.dtype, {s.b, t, d})});
      break;
    case 2:
      call(RmsNormArgs{
          .x = views.view(s.dtype, {t, d}), .weight = views.view(s.dtype, {d}), .y = views.view(s.dtype, {t, d})});
      break;
    case 3:
      call(GatedRmsNormArgs{.x = views.view(s.dtype, {t, s.hv, d}),
                            .z = views.view(s.dtype, {t, s.hv, d}),
                            .weight = views.view(s.dtype, {d}),
                            .y = views.view(s.dtype, {t, s.hv, d})});
      break;
    case 4:
      call(RopeArgs{.x = views.view(s.dtype, {t, s.hv, d}),
                    .positions = views.integers({t}, {0, 1, 2}),
                    .frequencies = in.rarely() ? views.view(DType::kF32, {4}) : ConstTensor(),
                    .y = views.view(s.dtype, {t, s.hv, d}),
                    .rotary_dim = in.rarely() ? in.byte() : 8});
      break;
    case 5: {
      const auto length = static_cast<std::int32_t>(t);
      call(AttentionArgs{.q = views.view(s.dtype, {t, s.hv, d}),
                         .k_cache = views.view(s.dtype, {2, t + 3, s.hk, d}),
                         .v_cache = views.view(s.dtype, {2, t + 3, s.hk, d}),
                         .cu_seqlens = views.integers({2}, {0, length}),
                         .lengths = views.integers({1}, {length}),
                         .slots = views.integers({1}, {1}, true),
                         .o = views.view(s.dtype, {t, s.hv, d})});
      break;
    }
    case 6:
      call(EmbeddingArgs{.ids = views.integers({t}, {2, 1, 0}),
                         .table = views.view(DType::kQ4_0, {3, 64}),
                         .y = views.view(s.dtype, {t, 64})});
      break;
    case 7: {
      const auto length = static_cast<std::int32_t>(t);
      call(StoreKvArgs{.k = views.view(s.dtype, {t, s.hk, d}),
                       .v = views.view(s.dtype, {t, s.hk, d}),
                       .cu_seqlens = views.integers({2}, {0, length}),
                       .lengths = views.integers({1}, {length + 2}),
                       .slots = views.integers({1}, {1}, true),
                       .k_cache = views.view(DType::kF16, {2, t + 3, s.hk, d}),
                       .v_cache = views.view(DType::kF16, {2, t + 3, s.hk, d})});
      break;
    }
    case 8:
      call(SplitQkvzArgs{.x = views.view(s.dtype, {t, s.hk, 2 * s.k + 2 * s.v}),
                         .q = views.view(s.dtype, {t, s.hk, s.k}),
                         .k = views.view(s.dtype, {t, s.hk, s.k}),
                         .v = views.view(s.dtype, {t, s.hk, s.v}),
                         .z = views.view(s.dtype, {t, s.hk, s.v})});
      break;
    case 9:
      call(AddArgs{
          .a = views.view(s.dtype, {t, d}), .b = views.view(s.dtype, {t, d}), .y = views.view(s.dtype, {t, d})});
      break;
    default:
      call(SwigluArgs{
          .gate = views.view(s.dtype, {t, d}), .up = views.view(s.dtype, {t, d}), .y = views.view(s.dtype, {t, d})});
      break;
  }
}

template <class Args>
void expert_matmul(Views& views, const Sizes& s, DType format) {
  Args args;
  args.weight = views.view(format, {3, s.v, 256});
  args.x = views.view(s.dtype, {s.t, 256});
  args.expert_ids = views.integers({s.t, 2}, {2, 0, 1});
  args.y = views.view(DType::kF32, {s.t, 2, s.v});
  args.precision = static_cast<MatmulPrecision>(s.hk & 1);
  call(args);
}

void experts(Input& in, Views& views, const Sizes& s) {
  const auto format = static_cast<DType>(in.byte() % kNumDTypes);
  switch (in.byte() % 9) {
    case 0:
      expert_matmul<MulMmIdArgs>(views, s, format);
      break;
    case 1:
      expert_matmul<MulMvIdArgs>(views, s, format);
      break;
    case 2:
      expert_matmul<MulMatIdArgs>(views, s, format);
      break;
    case 3:
      call(LinearArgs{.x = views.view(s.dtype, {s.t, 256}),
                      .weight = views.view(format, {s.v, 256}),
                      .y = views.view(s.dtype, {s.t, s.v})});
      break;
    case 4:
      call(RouteTopKArgs{.router_logits = views.view(s.dtype, {s.t, 8}),
                         .expert_ids = views.view(DType::kI32, {s.t, 3}),
                         .expert_weights = views.view(DType::kF32, {s.t, 3})});
      break;
    case 5:
      call(ExpertRowsArgs{.expert_ids = views.integers({s.t, 2}, {2, 0, 1}),
                          .expert_offsets = views.view(DType::kI32, {4}),
                          .rows = views.view(DType::kI32, {2 * s.t})});
      break;
    case 6:
      call(DequantizeArgs{.blocks = views.view(format, {s.t, 512}), .values = views.view(DType::kF32, {s.t, 512})});
      break;
    case 7:
      call(ProjectionsArgs{.x = views.view(s.dtype, {s.t, 256}),
                           .weight_0 = views.view(format, {s.v, 256}),
                           .weight_1 = views.view(DType::kQ8_0, {s.hk, 256}),
                           .y_0 = views.view(s.dtype, {s.t, s.v}),
                           .y_1 = views.view(DType::kF32, {s.t, s.hk}),
                           .precision = static_cast<MatmulPrecision>(s.hk & 1)});
      break;
    default:
      call(QuantizeArgs{.values = views.view(DType::kF32, {s.t, 256}), .blocks = views.view(format, {s.t, 256})});
      break;
  }
}

void sampling(Input& in, Views& views, const Sizes& s) {
  const std::int64_t n = s.hv;
  if ((in.byte() & 1) != 0) {
    const Tensor tokens = views.integers({n}, {0, 1, -1}, true);
    const Tensor top_tokens = views.view(DType::kI32, {n, 4}, true);
    call(AdvanceArgs{.tokens = views.view(DType::kI32, {n}),
                     .ids = views.view(DType::kI32, {n}),
                     .positions = views.view(DType::kI32, {n}),
                     .lengths = views.view(DType::kI32, {n}),
                     .slots = views.view(DType::kI32, {n})});
    call(LogprobsArgs{.logits = views.view(DType::kF32, {n, s.k}),
                      .tokens = tokens,
                      .logprob = tokens.defined() ? views.view(DType::kF32, {n}) : Tensor(),
                      .top_tokens = top_tokens,
                      .top_logprobs = top_tokens.defined() ? views.view(DType::kF32, {n, 4}) : Tensor()});
    return;
  }
  const auto length = static_cast<std::int32_t>(s.t);
  SampleTokensArgs args;
  args.logits = views.view(DType::kF32, {n, s.k});
  args.lengths = views.integers({n}, {length, 0, 0, length});
  args.slots = views.integers({n}, {1, -1, 0}, true);
  args.temperature = views.view(DType::kF32, {n}, true);
  args.top_k = views.integers({n}, {3, 0, 1000}, true);
  args.top_p = views.view(DType::kF32, {n}, true);
  args.min_p = views.view(DType::kF32, {n}, true);
  if ((in.byte() & 1) != 0) {
    args.history = views.integers({n, s.t}, {2, 1, -1, 999, 2});
    args.repeat_penalty = views.view(DType::kF32, {n}, true);
    args.repeat_last = views.integers({n}, {-1, 2, 0}, true);
  }
  args.seed = views.integers({n, 2}, {1, 2, 3}, true);
  args.allowed = views.integers({n, (s.k + 31) / 32}, {-1, 5, 0}, true);
  args.tokens = views.view(DType::kI32, {n});
  call(args);
}

}  // namespace
}  // namespace thalweg

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thalweg;
  Input in(data, size);
  Views views(in);
  const int family = in.byte() % 7;
  const Sizes sizes(in);
  switch (family) {
    case 0:
      stages(in, views, sizes);
      break;
    case 1:
      rule<ChunkGatedDeltaRuleArgs>(in, views, sizes);
      break;
    case 2:
      rule<RecurrentGatedDeltaRuleArgs>(in, views, sizes);
      break;
    case 3:
      step(in, views, sizes);
      break;
    case 4:
      dense(in, views, sizes);
      break;
    case 5:
      sampling(in, views, sizes);
      break;
    default:
      experts(in, views, sizes);
      break;
  }
  return 0;
}
