// attention: its kernels, and what they cost.

#include "cuda/layers/attention.h"

#include <algorithm>
#include <cmath>

#include "core/arena.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/layers/attention_decode.h"
#include "cuda/layers/attention_mma.h"
#include "cuda/layers/unpack_cache.h"
#include "cuda/row_hint.h"
#include "cuda/tuning.h"

namespace thalweg::cu {

namespace {

bool is_packed(const AttentionArgs& args) { return args.k_cache.dtype == DType::kQ8_0; }

}  // namespace

std::string mma_reason(const AttentionArgs& args) {
  const std::int64_t width = args.q.dim(2);
  if (args.k_cache.dtype == DType::kF32) return "needs a cache of F16, BF16 or Q8_0";
  if (width != 64 && width != 128 && width != 256) return "needs D to be 64, 128 or 256";
  const int vector = is_packed(args) ? packed_vector_bytes(static_cast<int>(width)) : 16;
  if (!rows_aligned_to(args.k_cache, vector) || !rows_aligned_to(args.v_cache, vector)) {
    return "needs rows of the cache aligned to " + std::to_string(vector) + " bytes";
  }
  const bool fours = elements(args.q).fours && elements(args.o).fours;
  if (!fours || (args.gate.defined() && !elements(args.gate).fours)) return "needs rows aligned to four elements";
  constexpr std::int64_t kMostHeads = 65535;
  if (args.k_cache.dim(2) > kMostHeads) return "needs at most 65535 key heads";
  return positions_fit(args) ? "" : "needs fewer than 2^30 positions";
}

AttentionCall attention_call(const AttentionArgs& args, int tile_rows) {
  AttentionCall p;
  p.q = elements(args.q);
  p.gate = elements(args.gate);
  p.o = elements(args.o);
  p.k = cache_view(args.k_cache);
  p.v = cache_view(args.v_cache);
  p.table = cache_table(args, args.q.dim(0));
  p.tiles = {p.table.cu_seqlens, p.table.sequences, p.table.tokens, tile_tokens(args, tile_rows)};
  p.heads = static_cast<int>(args.q.dim(1));
  p.group = static_cast<int>(args.q.dim(1) / args.k_cache.dim(2));
  p.width = static_cast<int>(args.q.dim(2));
  p.scale = args.scale ? *args.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.width)));
  return p;
}

std::int64_t capacity_of(const AttentionArgs& args) {
  return args.k_cache.dim(1) * (args.pages.defined() ? args.pages.dim(1) : 1);
}

namespace {

// Blocks that are not empty if all sequences have as many new tokens.
double busy_blocks(const AttentionArgs& args, int rows) {
  const std::int64_t sequences = std::max<std::int64_t>(1, args.lengths.dim(0));
  const std::int64_t tokens = tile_tokens(args, rows);
  const std::int64_t longest = (args.q.dim(0) + sequences - 1) / sequences;
  const std::int64_t tiles = sequences * ((longest + tokens - 1) / tokens);
  return static_cast<double>(tiles * args.k_cache.dim(2));
}

// What the splits of a context leave for the kernel that merges them.
struct SplitMemory {
  SplitMemory(const AttentionArgs& args, int splits, Arena& arena) {
    if (splits == 1) return;
    const std::int64_t rows = args.q.dim(0) * args.q.dim(1) * splits;
    statistics = arena.take<float>(2 * rows);
    partials = arena.take<float>(rows * args.q.dim(2));
  }

  float* statistics = nullptr;
  float* partials = nullptr;
};

void set_splits(const AttentionArgs& args, int splits, Arena& arena, AttentionCall& p) {
  const SplitMemory memory(args, splits, arena);
  p.splits = splits;
  p.statistics = memory.statistics;
  p.partials = memory.partials;
}

void merge_splits(const AttentionArgs& args, const AttentionCall& p, const Stream& stream) {
  if (p.splits == 1) return;
  pdl_launch(attention_combine_kernel_of(p.width), dim3(static_cast<unsigned>(args.q.dim(0) * args.q.dim(1))),
             dim3(kCombineWarps * kWarpSize), 0, properties(stream.device.index), native(stream), args.kName, p);
}

// With a hint of the rows the kernels stand in a fixed order, since what each takes depends on the batch.
double cost_in_order(double cost, double place, const Stream& stream) { return is_hinted(stream) ? place : cost; }

std::int64_t shared_limit(const DeviceProperties& device) {
  constexpr int kReserved = 1024;  // of each block
  return device.shared_bytes - kReserved;
}

}  // namespace

// ---- mma

namespace mma_attention {
namespace {

int shared_bytes(std::int64_t width, int warps) {
  return (16 * warps + 2 * kMmaKeys) * static_cast<int>(width) * 2 + 1024;
}

// Static shared memory is up to 512 bytes more.
bool fits(std::int64_t width, int warps, const DeviceProperties& device) {
  return shared_bytes(width, warps) + 512 <= shared_limit(device);
}

int warps_of(std::int64_t width, const DeviceProperties& device) {
  return width == 256 && !fits(width, 8, device) ? 4 : 8;
}

}  // namespace

std::string supports(const AttentionArgs& args, const Stream& stream) {
  if (const std::string reason = mma_reason(args); !reason.empty()) return reason;
  const DeviceProperties& device = properties(stream.device.index);
  const int warps = warps_of(args.q.dim(2), device);
  if (args.q.dim(1) / args.k_cache.dim(2) > 16 * warps) return "needs at most 128 query heads for each key head";
  return fits(args.q.dim(2), warps, device) ? "" : "needs more shared memory";
}

void run(const AttentionArgs& args, Workspace, const Stream& stream) {
  if (args.q.size() == 0) return;
  const DeviceProperties& device = properties(stream.device.index);
  const int warps = warps_of(args.q.dim(2), device);
  const AttentionCall p = attention_call(args, 16 * warps);
  const DType cache = args.k_cache.dtype;
  const auto kernel_of = cache == DType::kBF16  ? attention_mma_kernel_bf16
                         : cache == DType::kF16 ? attention_mma_kernel_f16
                                                : attention_mma_kernel_q8;
  const AttentionMmaKernel kernel = kernel_of(p.width, warps);
  const int bytes = shared_bytes(p.width, warps);
  const CurrentDevice current(stream, args.kName);
  allow_shared_memory(reinterpret_cast<const void*>(kernel), static_cast<std::size_t>(bytes), args.kName);
  const dim3 grid(static_cast<unsigned>(most_tiles(args, 16 * warps)), static_cast<unsigned>(args.k_cache.dim(2)));
  pdl_launch(kernel, grid, dim3(static_cast<unsigned>(warps * kWarpSize)), static_cast<std::size_t>(bytes), device,
             native(stream), args.kName, p);
}

double cost(const AttentionArgs& args, const Stream& stream) {
  using namespace tuning::attention;
  const double blocks = busy_blocks(args, 128);
  const double rounds = std::max(1.0, blocks / properties(stream.device.index).multiprocessors);
  const double work = static_cast<double>(capacity_of(args) * args.q.dim(2));
  return cost_in_order(kMmaCall + kMmaTile * (is_packed(args) ? kMmaPacked : 1.0) * rounds * work, 3.0, stream);
}

}  // namespace mma_attention

// ---- wgmma

namespace wgmma_attention {
namespace {

// A block for each multiprocessor. The more new tokens, the longer a split must be for what it saves to exceed the
// merging of its results: 1.57 us for 64 positions, and 0.013 us for each token and split by their bytes.
int splits_of(const AttentionArgs& args, const Stream& stream) {
  if (is_hinted(stream)) return stream.rows == RowHint::kFew ? tuning::attention::kHintedSplits : 1;
  const std::int64_t shortest = std::max<std::int64_t>(kSplitRound, 2 * args.q.dim(0));
  const std::int64_t blocks =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(busy_blocks(args, sm90::kPrefillRows)));
  const std::int64_t room = properties(stream.device.index).multiprocessors / blocks;
  return static_cast<int>(std::max<std::int64_t>(1, std::min(room, capacity_of(args) / shortest)));
}

}  // namespace

std::string supports(const AttentionArgs& args, const Stream& stream) {
  if (const std::string reason = mma_reason(args); !reason.empty()) return reason;
  if (args.q.dim(2) == 64) return "needs D to be 128 or 256";
  if (args.q.dim(1) / args.k_cache.dim(2) > sm90::kPrefillRows) {
    return "needs at most 128 query heads for each key head";
  }
  if (is_packed(args) &&
      (unpacked_values(args) > tuning::attention::kMostUnpackedValues || args.lengths.dim(0) > 65535)) {
    return "needs contexts that are at most 512 MiB when they are unpacked to f16";
  }
  return sm90_reason(properties(stream.device.index));
}

std::size_t workspace(const AttentionArgs& args, const Stream& stream) {
  Arena arena;
  if (is_packed(args)) UnpackedCache(args, arena);
  SplitMemory(args, splits_of(args, stream), arena);
  return arena.used();
}

void run(const AttentionArgs& args, Workspace workspace, const Stream& stream) {
  if (args.q.size() == 0) return;
  AttentionCall p = attention_call(args, sm90::kPrefillRows);
  Arena arena(workspace);
  const CurrentDevice current(stream, args.kName);
  if (is_packed(args)) enqueue_unpacked(UnpackedCache(args, arena), p, stream);
  set_splits(args, splits_of(args, stream), arena, p);
  sm90::launch_attention_prefill(p, is_packed(args) ? DType::kF16 : args.k_cache.dtype,
                                 static_cast<unsigned>(most_tiles(args, sm90::kPrefillRows)),
                                 properties(stream.device.index), native(stream));
  merge_splits(args, p, stream);
}

double cost(const AttentionArgs& args, const Stream& stream) {
  using namespace tuning::attention;
  const double blocks = busy_blocks(args, sm90::kPrefillRows);
  const double rounds = std::max(1.0, blocks / properties(stream.device.index).multiprocessors);
  const int splits = splits_of(args, stream);
  const double work = rounds * static_cast<double>(capacity_of(args) * args.q.dim(2)) / splits;
  const double unpack =
      is_packed(args) ? kUnpackCall + kUnpackMegaValue * 1e-6 * static_cast<double>(unpacked_values(args)) : 0.0;
  // What it can unpack of Q8_0 depends on the batch.
  const double place = is_packed(args) ? tuning::kAgainstHint : 1.0;
  return cost_in_order(kWgmmaCall + (splits > 1 ? kWgmmaMerge : 0.0) + kWgmmaTile * work + unpack, place, stream);
}

}  // namespace wgmma_attention

// ---- decode

namespace decode_attention {
namespace {

struct Splits {
  int count;
  int of_steps;  // AttentionCall::short_splits
};
Splits splits_of(const AttentionArgs& args, const Stream& stream) {
  using namespace tuning::attention;
  if (is_hinted(stream)) return {kHintedSplits, 0};
  const DeviceProperties& device = properties(stream.device.index);
  constexpr std::int64_t kMostSplits = 256;
  // With a token for each sequence, a tile for each; elsewhere some are empty.
  const std::int64_t tiles = args.q.dim(0) <= args.lengths.dim(0) ? args.q.dim(0) : most_tiles(args, kDecodeRows);
  const std::int64_t blocks = std::max<std::int64_t>(1, tiles * args.k_cache.dim(2));
  const std::int64_t resident = kDecodeResidentBlocks * device.multiprocessors;
  const auto splits_of_size = [&](int positions) { return (capacity_of(args) + positions - 1) / positions; };
  const std::int64_t of_steps = std::min({resident / blocks, splits_of_size(kSplitStep), kMostSplits});
  const std::int64_t of_rounds =
      std::min({kDecodeRounds * resident / blocks, splits_of_size(kSplitRound), kMostSplits});
  return {static_cast<int>(std::max({of_steps, of_rounds, std::int64_t{1}})), static_cast<int>(of_steps)};
}

}  // namespace

std::string supports(const AttentionArgs& args, const Stream& stream) {
  if (const std::string reason = mma_reason(args); !reason.empty()) return reason;
  if (args.q.dim(1) / args.k_cache.dim(2) > kDecodeRows) return "needs at most 16 query heads for each key head";
  constexpr std::int64_t kMostTiles = 65535;
  if (most_tiles(args, kDecodeRows) > kMostTiles) return "needs fewer tokens";
  const DeviceProperties& device = properties(stream.device.index);
  constexpr int kStatic = 1024;
  return decode_shared_bytes(static_cast<int>(args.q.dim(2)), is_packed(args)) + kStatic <= shared_limit(device)
             ? ""
             : "needs more shared memory";
}

std::size_t workspace(const AttentionArgs& args, const Stream& stream) {
  Arena arena;
  SplitMemory(args, splits_of(args, stream).count, arena);
  return arena.used();
}

void run(const AttentionArgs& args, Workspace workspace, const Stream& stream) {
  if (args.q.size() == 0) return;
  const DeviceProperties& device = properties(stream.device.index);
  AttentionCall p = attention_call(args, kDecodeRows);
  Arena arena(workspace);
  const Splits splits = splits_of(args, stream);
  set_splits(args, splits.count, arena, p);
  p.short_splits = splits.of_steps;
  const DType cache = args.k_cache.dtype;
  const auto kernel_of = cache == DType::kBF16  ? attention_decode_kernel_bf16
                         : cache == DType::kF16 ? attention_decode_kernel_f16
                                                : attention_decode_kernel_q8;
  const AttentionDecodeKernel kernel = kernel_of(p.width);
  const auto bytes = static_cast<std::size_t>(decode_shared_bytes(p.width, is_packed(args)));
  const CurrentDevice current(stream, args.kName);
  allow_shared_memory(reinterpret_cast<const void*>(kernel), bytes, args.kName);
  const dim3 grid(static_cast<unsigned>(p.splits), static_cast<unsigned>(args.k_cache.dim(2)),
                  static_cast<unsigned>(most_tiles(args, kDecodeRows)));
  pdl_launch(kernel, grid, dim3(kDecodeWarps * kWarpSize), bytes, device, native(stream), args.kName, p);
  merge_splits(args, p, stream);
}

double cost(const AttentionArgs& args, const Stream& stream) {
  using namespace tuning::attention;
  const double rounds =
      std::max(kDecodeLeastRounds, busy_blocks(args, kDecodeRows) / properties(stream.device.index).multiprocessors);
  const double work = static_cast<double>(capacity_of(args) * args.q.dim(2));
  const double place = stream.rows == RowHint::kMany ? tuning::kAgainstHint : 2.0;
  return cost_in_order(kDecodeCall + kDecodeTile * rounds * work, place, stream);
}

}  // namespace decode_attention

namespace {

constexpr Kernel<AttentionArgs> kAttention[] = {
    {"decode", decode_attention::supports, decode_attention::workspace, decode_attention::run, nullptr,
     Arithmetic::k16Bit, decode_attention::cost},
    {"wgmma", wgmma_attention::supports, wgmma_attention::workspace, wgmma_attention::run, nullptr, Arithmetic::k16Bit,
     wgmma_attention::cost},
    {"mma", mma_attention::supports, no_workspace<AttentionArgs>, mma_attention::run, nullptr, Arithmetic::k16Bit,
     mma_attention::cost},
    {"plain", plain_attention::supports, no_workspace<AttentionArgs>, plain_attention::run, nullptr, Arithmetic::kF32,
     plain_attention::cost}};

}  // namespace

KernelList<AttentionArgs> attention_kernels() { return kAttention; }

}  // namespace thalweg::cu
