// The second launch of moe_ffn for few tokens: the choice of the experts, gate and up of all of them and of the shared
// expert, SwiGLU, and its results in fixed point for down.

#include <algorithm>

#include "cuda/device/choose_experts.h"
#include "cuda/device/launch_order.h"
#include "cuda/moe_matvec.h"
#include "thalweg/moe.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kTileRows = 32;                      // of gate, and of up: a unit of activations for down
constexpr int kWarpRows = 2 * kTileRows / kWarps;  // half of the warps have gate, half up
constexpr int kMostChunk = kWarpRows / (kRingStages - 1);
constexpr int kBlockTokens = kWarps;  // that a block's tiles may belong to

struct GateUp {
  MoeMatvecSizes sizes;
  bool renormalize, fetch_down;
  int tiles;
  int stage_bytes, stages;
  int chunk, shared_chunk;  // rows; gate and up are of one format
  WeightRows halves[2], shared_halves[2], down;
  const float* logits;
  const uint4* x;
  uint4* activated;
  std::int32_t* ids;
  float* weights;
};

// Chooses the experts of a token, by a whole warp, and, if `write`, lets the next launch know. Lane s has slot s's.
__device__ int choose(const GateUp& p, int token, bool write) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float* logits = p.logits + token * p.sizes.logits();
  const int slots = p.sizes.slots;
  float sum = 0.0F;
  float* const total = write && !p.renormalize ? &sum : nullptr;
  const ChosenExpert chosen = p.sizes.experts <= 256 ? choose_experts<8>(logits, p.sizes.experts, slots, total)
                                                     : choose_experts<32>(logits, p.sizes.experts, slots, total);
  if (write) {
    const float largest = __shfl_sync(0xFFFFFFFFU, chosen.logit, 0);
    const float own = lane < slots ? expf(chosen.logit - largest) : 0.0F;
    if (p.renormalize) sum = warp_sum(own);
    float* const weights = p.weights + token * p.sizes.all_slots();
    if (lane < slots) {
      p.ids[token * slots + lane] = chosen.id;
      weights[lane] = own / sum;
    }
    if (lane == 0 && p.sizes.shared_inner > 0) weights[slots] = 1.0F / (1.0F + expf(-logits[p.sizes.experts]));
  }
  return chosen.id;
}

// A tile is 32 outputs of one slot of a token; a block has some neighbouring ones. The shared expert's come first: they
// need not know who was chosen.
struct Tile {
  bool shared;
  int token;
  int slot;
  int tile;
  int tiles;  // of the slot
};
__device__ Tile find_tile(const MoeMatvecSizes& sizes, int at) {
  const int shared_tiles = sizes.shared_inner / kTileRows;
  const int all_shared = sizes.tokens * shared_tiles;
  if (at < all_shared) return {true, at / shared_tiles, sizes.slots, at % shared_tiles, shared_tiles};
  at -= all_shared;
  const int tiles = sizes.inner / kTileRows;
  return {false, at / tiles / sizes.slots, at / tiles % sizes.slots, at % tiles, tiles};
}
__device__ void advance(const MoeMatvecSizes& sizes, Tile& tile) {
  if (++tile.tile < tile.tiles) return;
  tile.tile = 0;
  if (!tile.shared && ++tile.slot < sizes.slots) return;
  if (++tile.token < sizes.tokens) {
    if (!tile.shared) tile.slot = 0;
  } else {
    tile = {false, 0, 0, 0, sizes.inner / kTileRows};
  }
}

__global__ void __launch_bounds__(kThreads, 2) moe_gate_up(const __grid_constant__ GateUp p) {
  extern __shared__ __align__(16) std::uint8_t rings[];
  __shared__ float results[2][2][kTileRows];
  __shared__ int chosen[kBlockTokens][kMostMatvecSlots];
  const MoeMatvecSizes& sizes = p.sizes;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int units = sizes.hidden / 32;
  const int lanes = row_lanes(units);
  const int half = warp / (kWarps / 2);
  const int half_row = warp % (kWarps / 2) * kWarpRows;
  const auto first_tile = static_cast<int>(static_cast<std::int64_t>(p.tiles) * blockIdx.x / gridDim.x);
  const auto last_tile = static_cast<int>(static_cast<std::int64_t>(p.tiles) * (blockIdx.x + 1) / gridDim.x);
  Tile tile = find_tile(sizes, first_tile);
  allow_next_kernel();
  if (tile.shared) {
    const WeightRows& matrix = p.shared_halves[half];
    prefetch_to_l2(matrix.data + (tile.tile * kTileRows + half_row) * matrix.row_bytes, kWarpRows * matrix.row_bytes,
                   thread % kWarpSize, kWarpSize);
  }
  wait_for_previous_kernel();

  const int first_token = tile.shared ? 0 : tile.token;
  if (const Tile last = find_tile(sizes, last_tile - 1); !last.shared) {
    const int token = first_token + warp;
    if (token <= last.token) {
      // Known to the next launch by the block that has the token's first tile.
      const int first = sizes.tokens * (sizes.shared_inner / kTileRows) + token * sizes.slots * last.tiles;
      const int expert = choose(p, token, first >= first_tile && first < last_tile);
      chosen[warp][thread % kWarpSize] = expert;
    }
    __syncthreads();
  }

  const auto rows_of = [&](const Tile& of) -> RawRows {
    const WeightRows& matrix = of.shared ? p.shared_halves[half] : p.halves[half];
    const std::int64_t expert = of.shared ? 0 : chosen[of.token - first_token][of.slot];
    return {matrix.data + expert * matrix.expert_bytes + (of.tile * kTileRows + half_row) * matrix.row_bytes, kWarpRows,
            static_cast<int>(matrix.row_bytes), of.shared ? p.shared_chunk : p.chunk};
  };
  RowRing ring(rings + warp * p.stages * p.stage_bytes, p.stage_bytes, p.stages);
  RawRows rows = rows_of(tile);
  RowPushes push(ring, rows);
  for (int i = 1; i < p.stages; ++i) push();

  for (int at = first_tile; at < last_tile; ++at) {
    Tile next_tile = tile;
    advance(sizes, next_tile);
    RawRows next{};
    if (at + 1 < last_tile) next = rows_of(next_tile);
    push.set_next(next);
    float(&result)[2][kTileRows] = results[at % 2];
    with_weights((tile.shared ? p.shared_halves : p.halves)[half].type, [&]<DType kType>() {
      row_products<kType, 2>(ring, push, rows, p.x + tile.token * kUnitPieces * units, units, lanes,
                             result[half] + half_row);
    });
    if (p.fetch_down && !tile.shared) {
      const std::int64_t expert = chosen[tile.token - first_token][tile.slot];
      const std::int64_t bytes = sizes.hidden * p.down.row_bytes / tile.tiles;
      prefetch_to_l2(p.down.data + expert * p.down.expert_bytes + tile.tile * bytes, bytes, thread, kThreads);
    }
    __syncthreads();
    if (thread < 8) {  // others go on with the next tile
      const auto four_of = [&](const float* from) { return *reinterpret_cast<const float4*>(from + 4 * thread); };
      const auto activate = [](float gate, float up) { return gate / (1.0F + expf(-gate)) * up; };
      const float4 gate = four_of(result[0]);
      const float4 up = four_of(result[1]);
      // The units of a slot are a row for down.
      uint4* const row =
          p.activated + (tile.token * sizes.inner_units() + tile.slot * (sizes.inner / 32)) * kUnitPieces;
      fix_four({activate(gate.x, up.x), activate(gate.y, up.y), activate(gate.z, up.z), activate(gate.w, up.w)}, thread,
               0xFFU, row + tile.tile, tile.tiles);
    }
    tile = next_tile;
    rows = next;
  }
}

}  // namespace

void launch_moe_gate_up(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream) {
  const MoeMatvecSizes& sizes = p.sizes;
  const int lanes = row_lanes(sizes.hidden / 32);
  const int chunk = chunk_rows(p.gate.row_bytes, lanes, kMostChunk);
  const int shared_chunk = chunk_rows(std::max(p.shared_gate.row_bytes, p.shared_up.row_bytes), lanes, kMostChunk);
  const int bytes = std::max({stage_bytes(p.gate.row_bytes, chunk), stage_bytes(p.shared_gate.row_bytes, shared_chunk),
                              stage_bytes(p.shared_up.row_bytes, shared_chunk)});
  const int slot_tiles = sizes.slots * sizes.inner / kTileRows;
  const int tiles = sizes.tokens * (slot_tiles + sizes.shared_inner / kTileRows);
  // All chunks under way belong to a tile and the next one.
  const bool deep = std::max(chunk, shared_chunk) <= kWarpRows / (kMostRingStages - 1) &&
                    kWarps * kMostRingStages * bytes <= 100 * 1024;
  const int stages = deep ? kMostRingStages : kRingStages;
  const GateUp parameters{sizes,    p.renormalize, p.fetch_down, tiles,          bytes,
                          stages,   chunk,         shared_chunk, {p.gate, p.up}, {p.shared_gate, p.shared_up},
                          p.down,   p.logits,      p.x_units,    p.activated,    p.ids,
                          p.weights};
  const auto shared = static_cast<std::size_t>(kWarps * stages * bytes);
  if (shared > 40 * 1024) {
    allow_shared_memory(reinterpret_cast<const void*>(moe_gate_up), shared, MoeFfnArgs::kName);
  }
  // As many as run at a time, and so many that none has tiles of more tokens than it keeps the choices of.
  const int together =
      static_cast<int>(std::clamp<std::size_t>(227 * 1024 / (shared + 2048), 1, 2)) * device.multiprocessors;
  const int blocks = std::max(std::min(tiles, together), tiles / ((kBlockTokens - 2) * slot_tiles) + 1);
  launch_early(moe_gate_up, static_cast<unsigned>(blocks), kThreads, shared, device, stream, MoeFfnArgs::kName,
               parameters);
}

}  // namespace thalweg::cu
