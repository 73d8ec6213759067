// The expert block. For few tokens, vector kernels read the experts that are hit, once for each token; for many, the
// tokens are taken in pieces, in which each expert that is hit is read once per tile of its rows.

#include <algorithm>

#include "metal/expert_launches.h"
#include "metal/kernels.h"
#include "metal/routing.h"
#include "metal/tuning.h"

namespace thalweg::metal {
namespace {

// Tokens whose experts' outputs are kept at a time.
constexpr std::int64_t kPieceTokens = 1024;

enum class By { kVectors, kTiles };

// The scratch tensors of one piece, all f32 but the ids.
struct Piece {
  Tensor logits;         // [T,E]
  Tensor ids;            // [T,S]
  Tensor weights;        // [T,S]
  Tensor h;              // [T,S,I]
  Tensor outputs;        // [T,S,D], for tiles
  Tensor shared_logit;   // [T,1]
  Tensor shared_h;       // [T,J]
  Tensor shared_other;   // [T,J], where gate and up have different formats
  Tensor shared_output;  // [T,D]

  Piece(const MoeFfnArgs& args, std::int64_t tokens, By by, Arena& arena) {
    const auto take = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
      Tensor tensor(nullptr, dtype, shape, args.x.device);
      tensor.data = arena.take<float>(tensor.size());
      return tensor;
    };
    logits = take(DType::kF32, {tokens, args.router.dim(0)});
    ids = take(DType::kI32, {tokens, args.top_k});
    weights = take(DType::kF32, {tokens, args.top_k});
    h = take(DType::kF32, {tokens, args.top_k, args.gate.dim(1)});
    if (by == By::kTiles) outputs = take(DType::kF32, {tokens, args.top_k, args.y.dim(1)});
    if (!args.shared_gate.defined()) return;
    shared_logit = take(DType::kF32, {tokens, 1});
    shared_h = take(DType::kF32, {tokens, args.shared_gate.dim(0)});
    if (args.shared_gate.dtype != args.shared_up.dtype) {
      shared_other = take(DType::kF32, {tokens, args.shared_gate.dim(0)});
    }
    shared_output = take(DType::kF32, {tokens, args.y.dim(1)});
  }
};

// Encodes the launches of one piece; the parameters live until each is encoded.
class Block {
 public:
  Block(const MoeFfnArgs& args, const ConstTensor& x, const Tensor& y, const Piece& piece, By by, Encoder& encoder)
      : args_(args), x_(x), y_(y), piece_(piece), by_(by), encoder_(encoder) {}

  // The router's logits, and the shared expert as far as it goes beside the choice.
  void route(bool after_previous) {
    linear(x_, args_.router, {}, piece_.logits, after_previous);
    if (shared()) {
      const ConstTensor router = reshape(args_.shared_router, {1, args_.shared_router.dim(0)});
      linear(x_, router, {}, piece_.shared_logit, false);
      shared_gate_and_up();
    }
    RouteTopKArgs route;
    route.router_logits = piece_.logits;
    route.expert_ids = piece_.ids;
    route.expert_weights = piece_.weights;
    route.renormalize = args_.renormalize;
    route.score = args_.score;
    route.bias = args_.router_bias;
    RouteParameters p{};
    Launch launch = route_launch(route, p);
    launch.after_previous = true;
    encoder_.launch(launch);
    if (!shared()) return;
    if (piece_.shared_other.defined()) join_shared();
    linear(piece_.shared_h, args_.shared_down, {}, piece_.shared_output, piece_.shared_other.defined());
  }

  void run_vectors() {
    ExpertMatmulParameters p{};
    Launch inner = expert_vectors_launch(gate_and_up(), args_.up, p);
    inner.after_previous = true;
    encoder_.launch(inner);
    const ExpertMatmulArgs down_args = down({});
    ExpertMatmulParameters q{};
    Launch outer;
    outer.kernel = "experts_down";
    q.slots = args_.top_k;
    q.n = static_cast<std::int32_t>(args_.down.dim(1));
    q.k = static_cast<std::int32_t>(args_.down.dim(2));
    q.experts = static_cast<std::int32_t>(args_.down.dim(0));
    q.weight_expert = bytes_of(args_.down.dtype, args_.down.stride(0));
    q.weight_row = bytes_of(args_.down.dtype, args_.down.stride(1));
    q.x_token = down_args.x.stride(0);
    q.x_slot = down_args.x.stride(1);
    q.y_token = y_.stride(0);
    q.ids_token = piece_.ids.stride(0);
    outer.set(q).add(args_.down).add(piece_.h).add(piece_.ids).add(piece_.weights).add(piece_.shared_output);
    outer.add(piece_.shared_logit).add(y_);
    outer.constant("kFormat", args_.down.dtype).constant("kOutType", y_.dtype).constant("kShared", shared());
    add_lane_pairs(outer, args_.down, args_.top_k);
    outer.threads = 128;
    outer.grid = {ceil_div(q.n, kColumnsOfDown), static_cast<std::uint32_t>(y_.dim(0)), 1};
    outer.after_previous = true;
    encoder_.launch(outer);
  }

  void run_tiles(const ExpertLists& inner_lists, const ExpertLists& outer_lists) {
    for (const auto& [lists, n, after] :
         {std::tuple{&inner_lists, args_.gate.dim(1), true}, std::tuple{&outer_lists, args_.down.dim(1), false}}) {
      ExpertRowsParameters p{};
      Launch launch = lists_launch(piece_.ids, n, *lists, p);
      launch.after_previous = after;
      encoder_.launch(launch);
    }
    ExpertMatmulParameters p{};
    encoder_.launch(expert_tiles_launch(gate_and_up(), args_.up, inner_lists, p));
    encoder_.launch(expert_tiles_launch(down(piece_.outputs), {}, outer_lists, p));
    CombineParameters q{};
    q.tokens = static_cast<std::int32_t>(y_.dim(0));
    q.slots = args_.top_k;
    q.y_token = y_.stride(0);
    Launch combine = columns_launch("combine_experts", y_.dim(1));
    combine.set(q).add(piece_.outputs).add(piece_.weights).add(piece_.shared_output).add(piece_.shared_logit).add(y_);
    combine.constant("kWidth", y_.dim(1)).constant("kOutType", y_.dtype).constant("kShared", shared());
    combine.grid[1] = static_cast<std::uint32_t>(y_.dim(0));
    combine.after_previous = true;
    encoder_.launch(combine);
  }

 private:
  bool shared() const { return args_.shared_gate.defined(); }

  void linear(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& up, const Tensor& y, bool after) {
    LinearArgs args;
    args.x = x;
    args.weight = weight;
    args.y = y;
    LinearParameters p{};
    Launch launch = linear_launch(by_ == By::kTiles ? "linear_tiles" : "linear_rows", args, up, p);
    launch.after_previous = after;
    encoder_.launch(launch);
  }

  void shared_gate_and_up() {
    if (!piece_.shared_other.defined()) {
      linear(x_, args_.shared_gate, args_.shared_up, piece_.shared_h, false);
      return;
    }
    linear(x_, args_.shared_gate, {}, piece_.shared_h, false);
    linear(x_, args_.shared_up, {}, piece_.shared_other, false);
  }

  void join_shared() {
    const Tensor& h = piece_.shared_h;
    const PairwiseParameters p{h.stride(0), h.stride(0), h.stride(0)};
    Launch launch = columns_launch("swiglu_rows", h.dim(1));
    launch.set(p).add(h).add(piece_.shared_other).add(h);
    launch.constant("kWidth", h.dim(1)).constant("kType", h.dtype).constant("kOutType", h.dtype);
    launch.grid[1] = static_cast<std::uint32_t>(h.dim(0));
    encoder_.launch(launch);
  }

  ExpertMatmulArgs gate_and_up() const {
    ExpertMatmulArgs args;
    args.weight = args_.gate;
    args.x = x_;
    args.expert_ids = piece_.ids;
    args.y = piece_.h;
    return args;
  }
  ExpertMatmulArgs down(const Tensor& y) const {
    ExpertMatmulArgs args;
    args.weight = args_.down;
    args.x = piece_.h;
    args.expert_ids = piece_.ids;
    args.y = y;
    return args;
  }

  const MoeFfnArgs& args_;
  ConstTensor x_;
  Tensor y_;
  const Piece& piece_;
  By by_;
  Encoder& encoder_;
};

std::string supports_experts(const MoeFfnArgs& args, const Stream&) {
  if (args.gate.dim(0) != args.router.dim(0)) return "takes all of the router's experts";
  return args.router.dim(0) <= kMaxRoutedExperts ? "" : std::string(kTooManyLogits);
}
std::string supports_tiles(const MoeFfnArgs& args, const Stream& stream) {
  return lists_fit(args.router.dim(0)) ? supports_experts(args, stream) : std::string(kTooManyExperts);
}

// Lists for the inner and the outer products: their grids differ.
struct TileMemory {
  Piece piece;
  ExpertLists inner;
  ExpertLists outer;

  TileMemory(const MoeFfnArgs& args, std::int64_t tokens, Arena& arena)
      : piece(args, tokens, By::kTiles, arena),
        inner(tokens * args.top_k, args.router.dim(0), arena),
        outer(tokens * args.top_k, args.router.dim(0), arena) {}
};

std::size_t vectors_workspace(const MoeFfnArgs& args, const Stream&) {
  Arena arena;
  const Piece counted(args, args.x.dim(0), By::kVectors, arena);
  return arena.used();
}
std::size_t tiles_workspace(const MoeFfnArgs& args, const Stream&) {
  Arena arena;
  const TileMemory counted(args, std::min(args.x.dim(0), kPieceTokens), arena);
  return arena.used();
}

void run_vectors(const MoeFfnArgs& args, Workspace memory, const Stream& stream) {
  if (args.y.size() == 0) return;
  Arena arena(memory);
  const Piece piece(args, args.x.dim(0), By::kVectors, arena);
  const auto encoder = make_encoder(args.kName, stream);
  Block block(args, args.x, args.y, piece, By::kVectors, *encoder);
  block.route(false);
  block.run_vectors();
}

void run_tiles(const MoeFfnArgs& args, Workspace memory, const Stream& stream) {
  if (args.y.size() == 0) return;
  const auto encoder = make_encoder(args.kName, stream);
  for (std::int64_t first = 0; first < args.x.dim(0); first += kPieceTokens) {
    const std::int64_t tokens = std::min(kPieceTokens, args.x.dim(0) - first);
    Arena arena(memory);
    const TileMemory scratch(args, tokens, arena);
    Block block(args, narrow(args.x, 0, first, tokens), narrow(args.y, 0, first, tokens), scratch.piece, By::kTiles,
                *encoder);
    block.route(first > 0);
    block.run_tiles(scratch.inner, scratch.outer);
  }
}

// Weights of experts that are read: by vectors once for each token's choice, by tiles for each that is hit, and no host
// code sees which are.
double cost(const MoeFfnArgs& args, std::int64_t matrices) {
  const double bytes = static_cast<double>(2 * bytes_of(args.gate.dtype, args.gate.dim(1) * args.gate.dim(2)) +
                                           bytes_of(args.down.dtype, args.down.dim(1) * args.down.dim(2)));
  return static_cast<double>(matrices) * bytes / tuning::kBytesPerMicrosecond;
}
double vectors_cost(const MoeFfnArgs& args, const Stream& stream) {
  return stream.rows == RowHint::kMany ? tuning::kAgainstHint : cost(args, args.x.dim(0) * args.top_k);
}
double tiles_cost(const MoeFfnArgs& args, const Stream& stream) {
  if (stream.rows == RowHint::kFew) return tuning::kAgainstHint;
  const std::int64_t tiles = ceil_div(args.x.dim(0) * args.top_k, kRowsOfTile);
  return cost(args, std::max(args.router.dim(0), tiles));
}

constexpr Kernel<MoeFfnArgs> kMoeFfn[] = {
    {.name = "vectors",
     .supports = supports_experts,
     .workspace = vectors_workspace,
     .run = run_vectors,
     .cost = vectors_cost},
    {.name = "tiles", .supports = supports_tiles, .workspace = tiles_workspace, .run = run_tiles, .cost = tiles_cost}};

}  // namespace

KernelList<MoeFfnArgs> moe_ffn_kernels() { return kMoeFfn; }

}  // namespace thalweg::metal
